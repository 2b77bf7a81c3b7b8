// In place of wiki_shards.cc where there is no HDF5 to build it with.
#include "graph/error.h"
#include "runtime/data/sets.h"

namespace pipewright {

std::unique_ptr<Dataset> open_wiki_shards(SpecOptions& options, const std::string& /*split*/) {
  throw InputError("data '" + options.spec().text() + "': this build reads no HDF5 files",
                   "scripts/setup installs HDF5 (package libhdf5-dev); then configure and build again.");
}

}  // namespace pipewright
