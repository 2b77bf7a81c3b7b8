#include "runtime/checkpoint/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <sstream>

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

// Layer norms in files that transformers wrote from TensorFlow's weights.
std::string old_name(const std::string& tensor) {
  for (const auto& [now, before] :
       {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}})
    if (tensor.ends_with(now)) return tensor.substr(0, tensor.size() - std::strlen(now)) + before;
  return tensor;
}

// Which names a file may have for a tensor of the model.
class Names {
 public:
  explicit Names(const Model& model) : saved_(state_dict_of(model)), exported_(model.archive != nullptr) {
    for (const Parameter& parameter : model.graph.parameters) {
      const std::string name = old_name(parameter.name);
      if (!exported_ && name != parameter.name) saved_.emplace(name, parameter.name);
    }
  }

  bool knows(const std::string& name) const { return saved_.count(name) != 0; }

  // The model's tensor of that name in a file, or "".
  std::string tensor_of(const std::string& name, const std::map<std::string, TensorType>& types) const {
    if (types.count(name)) return name;
    const auto saved = saved_.find(name);
    return saved == saved_.end() ? "" : saved->second;
  }

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

struct Setting {
  std::string file;
  WeightsMatch match = WeightsMatch::kAll;
  std::string prefix;
};

// A file's name may have colons and commas: only options that are known end it.
Setting parse_setting(const std::string& text) {
  Setting setting;
  const std::string match = ":match=", prefix = ":prefix=";
  const size_t end = std::min(text.rfind(match), text.rfind(prefix));
  setting.file = text.substr(0, end);
  if (end == std::string::npos) return setting;
  std::istringstream options(text.substr(end + 1));
  for (std::string option; std::getline(options, option, ',');) {
    const size_t equals = option.find('=');
    const std::string key = option.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
    if (key == "match" && value == "shared") {
      setting.match = WeightsMatch::kShared;
    } else if (key == "match" && value == "fitting") {
      setting.match = WeightsMatch::kFitting;
    } else if (key == "prefix" && !value.empty()) {
      setting.prefix = value;
    } else {
      throw InputError("initial_weights: got " + in_quotes(option) +
                           ", expected match=shared, match=fitting or prefix=PREFIX",
                       "--initial-weights FILE; FILE:match=shared for a model of which the file has a part, "
                       "FILE:match=fitting where tensors of other shapes are to start anew; "
                       "FILE:prefix=model. for names that begin so");
    }
  }
  return setting;
}

// Modules that wrap another one put a name of theirs into those of its tensors.
constexpr const char* kWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
constexpr const char* kParallel = "module.";

// Takes what wrappers have put there off names that the model does not know; what that was goes to
// `taken_off`.
void take_wrappers_off(TensorFiles& files, const std::function<bool(const std::string&)>& is_known,
                       std::set<std::string>& taken_off) {
  const auto without = [&](std::string name) {
    if (is_known(name)) return name;
    for (const std::string wrapper : kWrappers) {
      for (size_t at = 0; (at = name.find(wrapper, at)) != std::string::npos;) {
        if (at > 0 && name[at - 1] != '.') {
          ++at;
          continue;
        }
        name.erase(at, wrapper.size());
        taken_off.insert(wrapper);
      }
    }
    return name;
  };
  files.rename(without);
  const auto all_begin = [&] {
    const auto names = files.names();
    return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(kParallel) && !is_known(name);
    });
  };
  while (all_begin()) {
    files.rename([](const std::string& name) { return name.substr(std::strlen(kParallel)); });
    taken_off.insert(kParallel);
  }
}

void take_prefix_off(TensorFiles& files, const std::string& prefix) {
  size_t taken = 0;
  files.rename([&](const std::string& name) {
    if (!name.starts_with(prefix)) return name;
    ++taken;
    return name.substr(prefix.size());
  });
  if (taken > 0) return;
  throw InputError(
      "initial_weights: " + files.path().string() + ": no tensor's name begins with " + in_quotes(prefix),
      files.names().empty() ? "" : "Its first is " + in_quotes(files.names().front()) + ".");
}

std::string listed(std::vector<std::string> names) {
  constexpr size_t kMost = 6;
  const size_t others = names.size() - std::min(kMost, names.size());
  names.resize(names.size() - others);
  return join(names, ", ") + (others > 0 ? " and " + std::to_string(others) + " others" : "");
}

}  // namespace

InitialWeights::InitialWeights(const std::string& text, const Model& model)
    : files(parse_setting(text).file) {
  const Setting setting = parse_setting(text);
  match = setting.match;
  if (!setting.prefix.empty()) take_prefix_off(files, setting.prefix);
  const Names known(model);
  const auto types = tensors_of(model.graph);
  std::set<std::string> off;
  take_wrappers_off(
      files, [&](const std::string& name) { return types.count(name) || known.knows(name); }, off);
  taken_off = join({off.begin(), off.end()}, ", ");
  if (match != WeightsMatch::kFitting) return;
  files.rename([&](const std::string& name) {
    const std::string tensor = known.tensor_of(name, types);
    const auto type = types.find(tensor);
    if (type == types.end() || files.find(name)->shape == type->second.shape) return name;
    other_shapes.push_back(tensor);
    return std::string();
  });
}

std::string initial_weights_text(const InitialWeights& weights, const Model& model) {
  std::string text;
  if (!weights.taken_off.empty()) text = "names are taken without " + weights.taken_off;
  if (weights.match == WeightsMatch::kAll) return text;
  if (!text.empty()) text += "; ";
  const Names known(model);
  std::vector<std::string> fresh, left;
  const auto types = tensors_of(model.graph);
  for (const auto& [tensor, type] : types)
    if (known.in(weights.files, tensor).empty()) fresh.push_back(tensor);
  for (const std::string& name : weights.files.names())
    if (!types.count(name) && !known.knows(name)) left.push_back(name);
  return text + std::to_string(types.size() - fresh.size()) + " tensors are those of " +
         weights.files.path().string() + (fresh.empty() ? "" : "; new: " + listed(fresh)) +
         (weights.other_shapes.empty() ? ""
                                       : "; of another shape in the file: " + listed(weights.other_shapes)) +
         (left.empty() ? "" : "; left in the file: " + listed(left));
}

void check_initial_weights(const TensorFiles& files, const Model& model, WeightsMatch match) {
  const bool shared_only = match != WeightsMatch::kAll;
  const std::string where = "initial_weights: " + files.path().string();
  const auto types = tensors_of(model.graph);
  const Names known(model);
  std::vector<std::string> strangers;  // candidates for a name that is missing
  for (const std::string& name : files.names()) {
    if (!types.count(name) && !known.knows(name) && !goes_along(name)) strangers.push_back(name);
  }
  size_t taken = 0;
  for (const auto& [tensor, type] : types) {
    const std::vector<std::string> names = known.in(files, tensor);
    taken += names.empty() ? 0 : 1;
    if (names.empty() && !shared_only && !known.leave_out(tensor)) {
      throw InputError(
          where + ": has no tensor " + in_quotes(tensor) + ", which the model has" +
              suggestion(tensor, strangers),
          "The file is of another model, or its names are others than the model's: "
          "pipewright-profiler graph --model " +
              model.graph.name +
              " lists these. Of a file that has a part of the model, FILE:match=shared takes that.");
    }
    for (const std::string& name : names) {
      const SafetensorsEntry* entry = files.find(name);
      const at::ScalarType dtype = scalar_type_of_safetensors(entry->dtype);
      const at::ScalarType wanted = scalar_type_of(type.dtype);
      const bool fits = dtype == wanted || (at::isFloatingType(dtype) && at::isFloatingType(wanted));
      if (fits && entry->shape == type.shape) continue;
      throw InputError(
          where + ": " + in_quotes(name) + " is " + type_text(entry->dtype, entry->shape) +
              ", the model has " + type_text(type.dtype, type.shape),
          "The file is of another model, or of other options of the model. Where tensors of other shapes "
          "are to start anew, as a head for other classes: FILE:match=fitting.");
    }
    for (size_t i = 1; i < names.size(); ++i) {
      if (same_bytes(files.read(names[0]), files.read(names[i]))) continue;
      throw InputError(where + ": " + in_quotes(names[0]) + " and " + in_quotes(names[i]) +
                           " differ; the model has tied them",
                       "Leave one of them out, or export the model with weights that are not tied.");
    }
  }
  if (taken == 0) {
    throw InputError(where + ": has no tensor of the model",
                     "The file is of another model, or its names are others than the model's.");
  }
  if (!strangers.empty() && !shared_only) {
    throw InputError(
        where + ": tensor " + in_quotes(strangers.front()) + " is none of the model" +
            (strangers.size() == 1 ? "" : ", nor are " + std::to_string(strangers.size() - 1) + " others"),
        "The file is of another model, or of other options of the model.");
  }
}

StageState initial_state_from(const TensorFiles& files, const Model& model, const StageProgram& stage,
                              uint64_t seed) {
  const auto types = tensors_of(model.graph);
  const Names known(model);
  std::set<std::string> trainable;
  for (const Parameter& parameter : model.graph.parameters)
    if (parameter.trainable) trainable.insert(parameter.name);
  const auto read = [&](const std::string& tensor) {
    if (known.in(files, tensor).empty()) return initial_parameter(model, tensor, seed);
    const std::string name = known.in(files, tensor).front();
    const at::Tensor value = files.read(name).to(scalar_type_of(types.at(tensor).dtype));
    demand_numbers(value, "initial_weights: " + files.file_of(name).string(), name,
                   trainable.count(tensor) > 0);
    return value;
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
