#include "runtime/job/policy_links.h"

#include "graph/document.h"
#include "graph/units.h"

namespace pipewright {

PolicyLinks policy_links(SpecOptions& options, const std::string& policy) {
  const std::string topology = options.string("topology", "");
  if (options.has("bandwidth") && !topology.empty())
    options.fail("bandwidth", "not together with topology, which says it of every link",
                 "Leave one of the two out.");
  PolicyLinks links;
  links.bandwidth_bytes_per_second =
      parse_bytes_per_second(options.string("bandwidth", "4GB/s"), policy + ": bandwidth");
  if (!topology.empty()) links.topology = read_document<Topology>(topology);
  return links;
}

}  // namespace pipewright
