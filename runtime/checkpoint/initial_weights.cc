#include "runtime/checkpoint/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "models/exported/exported_model.h"
#include "models/initialise.h"
#include "models/run/scalar_types.h"
#include "runtime/checkpoint/checkpoint.h"

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

bool same_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

std::string type_text(const std::string& dtype, const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return dtype + " (" + join(extents, ", ") + ")";
}

// Which names a file may have for a tensor of the model.
class Names {
 public:
  explicit Names(const Model& model) : saved_(state_dict_of(model)), exported_(model.archive != nullptr) {}

  bool knows(const std::string& name) const { return saved_.count(name) != 0; }

  // Those that the file has, the tensor's own first.
  std::vector<std::string> in(const TensorFiles& files, const std::string& tensor) const {
    std::vector<std::string> names = {tensor};
    for (const auto& [name, same] : saved_) {
      if (same == tensor && name != tensor) names.push_back(name);
    }
    std::erase_if(names, [&](const std::string& name) { return files.find(name) == nullptr; });
    return names;
  }

  // A buffer or constant of an exported program that its state_dict() leaves out.
  bool leave_out(const std::string& tensor) const {
    return exported_ && std::none_of(saved_.begin(), saved_.end(),
                                     [&](const auto& saved) { return saved.second == tensor; });
  }

 private:
  std::map<std::string, std::string> saved_;
  bool exported_;
};

}  // namespace

void check_initial_weights(const TensorFiles& files, const Model& model) {
  const std::string where = "initial_weights: " + files.path().string();
  const auto types = tensors_of(model.graph);
  const Names known(model);
  std::vector<std::string> strangers;  // candidates for a name that is missing
  for (const std::string& name : files.names()) {
    if (!types.count(name) && !known.knows(name) && !goes_along(name)) strangers.push_back(name);
  }
  for (const auto& [tensor, type] : types) {
    const std::vector<std::string> names = known.in(files, tensor);
    if (names.empty() && !known.leave_out(tensor)) {
      throw InputError(where + ": has no tensor " + in_quotes(tensor) + ", which the model has" +
                           suggestion(tensor, strangers),
                       "The file is of another model, or its names are others than the model's: "
                       "pipewright-profiler graph --model " +
                           model.graph.name + " lists these.");
    }
    for (const std::string& name : names) {
      const SafetensorsEntry* entry = files.find(name);
      const at::ScalarType dtype = scalar_type_of_safetensors(entry->dtype);
      const at::ScalarType wanted = scalar_type_of(type.dtype);
      const bool fits = dtype == wanted || (at::isFloatingType(dtype) && at::isFloatingType(wanted));
      if (fits && entry->shape == type.shape) continue;
      throw InputError(where + ": " + in_quotes(name) + " is " + type_text(entry->dtype, entry->shape) +
                           ", the model has " + type_text(type.dtype, type.shape),
                       "The file is of another model, or of other options of the model.");
    }
    for (size_t i = 1; i < names.size(); ++i) {
      if (same_bytes(files.read(names[0]), files.read(names[i]))) continue;
      throw InputError(where + ": " + in_quotes(names[0]) + " and " + in_quotes(names[i]) +
                           " differ; the model has tied them",
                       "Leave one of them out, or export the model with weights that are not tied.");
    }
  }
  if (!strangers.empty()) {
    throw InputError(
        where + ": tensor " + in_quotes(strangers.front()) + " is none of the model" +
            (strangers.size() == 1 ? "" : ", nor are " + std::to_string(strangers.size() - 1) + " others"),
        "The file is of another model, or of other options of the model.");
  }
}

StageState initial_state_from(const TensorFiles& files, const Model& model, const StageProgram& stage) {
  const auto types = tensors_of(model.graph);
  const Names known(model);
  const auto read = [&](const std::string& tensor) {
    return files.read(known.in(files, tensor).front()).to(scalar_type_of(types.at(tensor).dtype));
  };
  StageState state;
  for (const std::string& name : stage.parameters()) state.weights.push_back(read(name));
  for (const std::string& name : stage.buffers()) {
    const bool held = !known.in(files, name).empty();
    state.buffers.push_back(held ? read(name) : initial_buffer(model, name));
  }
  return state;
}

}  // namespace pipewright
