#include "models/load.h"

#include "models/exported/exported_model.h"
#include "models/zoo/registry.h"

namespace pipewright {

Model load_model(const std::string& spec, int64_t batch_size) {
  ModelOptions options(parse_spec(spec, "model"));
  if (!options.spec().name.ends_with(".pt2")) return build_model(spec, batch_size);
  Model model = build_exported_model(options, batch_size);
  model.graph.name = spec;
  return model;
}

}  // namespace pipewright
