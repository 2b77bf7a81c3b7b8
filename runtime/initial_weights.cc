#include "runtime/initial_weights.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "models/initialise.h"
#include "runtime/checkpoint.h"

namespace pipewright {
namespace {

std::map<std::string, TensorType> tensors_of(const Graph& graph) {
  std::set<std::string> read;
  for (const Node& node : graph.nodes) {
    for (const std::string& name : node.reads()) read.insert(name);
  }
  std::map<std::string, TensorType> types;
  for (const Parameter& parameter : graph.parameters) {
    if (read.count(parameter.name)) types[parameter.name] = parameter.type;
  }
  for (const Buffer& buffer : graph.buffers) {
    if (read.count(buffer.name)) types[buffer.name] = buffer.type;
  }
  return types;
}

bool goes_along(const std::string& name) {
  const std::string counter = ".num_batches_tracked";
  const bool is_counter = name.size() > counter.size() &&
                          name.compare(name.size() - counter.size(), counter.size(), counter) == 0;
  return is_counter || name.rfind(kOptimizerPrefix, 0) == 0;
}

std::string type_text(const std::string& dtype, const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return dtype + " (" + join(extents, ", ") + ")";
}

}  // namespace

void check_initial_weights(const TensorFiles& files, const Graph& graph) {
  const std::string where = "initial_weights: " + files.path().string();
  const auto types = tensors_of(graph);
  const auto names = files.names();
  std::vector<std::string> strangers;  // candidates for a name that is missing
  for (const std::string& name : names) {
    if (!types.count(name) && !goes_along(name)) strangers.push_back(name);
  }
  for (const auto& [name, type] : types) {
    const SafetensorsEntry* entry = files.find(name);
    if (!entry) {
      throw InputError(where + ": has no tensor " + in_quotes(name) + ", which the model has" +
                           suggestion(name, strangers),
                       "The file is of another model, or its names are others than the model's: "
                       "pipewright-profiler graph --model " +
                           graph.name + " lists these.");
    }
    const at::ScalarType dtype = scalar_type_of_safetensors(entry->dtype);
    const at::ScalarType wanted = scalar_type_of(type.dtype);
    const bool fits = dtype == wanted || (at::isFloatingType(dtype) && at::isFloatingType(wanted));
    if (fits && entry->shape == type.shape) continue;
    throw InputError(where + ": " + in_quotes(name) + " is " + type_text(entry->dtype, entry->shape) +
                         ", the model has " + type_text(type.dtype, type.shape),
                     "The file is of another model, or of other options of the model.");
  }
  if (!strangers.empty()) {
    throw InputError(
        where + ": tensor " + in_quotes(strangers.front()) + " is none of the model" +
            (strangers.size() == 1 ? "" : ", nor are " + std::to_string(strangers.size() - 1) + " others"),
        "The file is of another model, or of other options of the model.");
  }
}

StageState initial_state_from(const TensorFiles& files, const Graph& graph, const StageProgram& stage) {
  const auto types = tensors_of(graph);
  const auto read = [&](const std::string& name) {
    return files.read(name).to(scalar_type_of(types.at(name).dtype));
  };
  StageState state;
  for (const std::string& name : stage.parameters()) state.weights.push_back(read(name));
  for (const std::string& name : stage.buffers()) state.buffers.push_back(read(name));
  return state;
}

}  // namespace pipewright
