#include "runtime/verify/other_training.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "graph/regular_file.h"
#include "models/exported/exported_model.h"
#include "models/run/scalar_types.h"
#include "models/safetensors/safetensors.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

bool holds_tensors(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

[[noreturn]] void refuse_losses(const fs::path& file, const std::string& got) {
  throw InputError(file.string() + ": got " + got + ", expected losses",
                   "A list of numbers, [2.30, 2.28], the run's first minibatch first; or a line for each, "
                   "{\"minibatch\": 0, \"loss\": 2.30}. Weights are .safetensors files.");
}

Json parsed(const std::string& text, const fs::path& file) {
  try {
    return parse_json(text, file.string());
  } catch (const InputError&) {
    refuse_losses(file, in_quotes(text));
  }
}

double loss_of(const Json& json, const fs::path& file) {
  if (!json.is_number() && !json.is_null()) refuse_losses(file, described(json));
  return number_or_nan(json);
}

// PyTorch's programs write NaN and Infinity, which JSON has not.
std::string without_nan(std::string text) {
  for (const std::string word : {"-Infinity", "Infinity", "NaN"})
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at))
      text.replace(at, word.size(), "null");
  return text;
}

std::vector<double> read_losses(const fs::path& file, Span minibatches) {
  const std::string text = without_nan(read_regular_file(file));
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) refuse_losses(file, "an empty file");
  std::vector<double> losses;
  if (text[begin] == '[') {
    for (const Json& loss : parsed(text, file)) losses.push_back(loss_of(loss, file));
  } else {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const Json json = parsed(line, file);
      if (!json.is_object()) refuse_losses(file, described(json));
      if (!json.contains("minibatch") || !json.contains("loss")) continue;  // of an evaluation, say
      if (!json.at("minibatch").is_number_integer()) refuse_losses(file, described(json.at("minibatch")));
      const int64_t minibatch = json.at("minibatch");
      if (minibatch < minibatches.first) continue;
      if (minibatch != minibatches.first + static_cast<int64_t>(losses.size())) {
        throw InputError(file.string() + ": minibatch " + std::to_string(minibatch) + " stands where " +
                             std::to_string(minibatches.first + static_cast<int64_t>(losses.size())) +
                             " should",
                         "Losses stand in the order of minibatches, without a gap.");
      }
      losses.push_back(loss_of(json.at("loss"), file));
    }
  }
  if (losses.empty()) refuse_losses(file, "none of the run's minibatches");
  losses.resize(std::min(losses.size(), static_cast<size_t>(minibatches.count)));
  return losses;
}

// The graph's name of a tensor that a file calls `name`; "" if the model has none.
class GraphNames {
 public:
  explicit GraphNames(const Model& model) : saved_(state_dict_of(model)) {
    for (const Parameter& parameter : model.graph.parameters) saved_[parameter.name] = parameter.name;
    for (const Buffer& buffer : model.graph.buffers) saved_[buffer.name] = buffer.name;
  }
  std::string of(std::string name) const {
    while (true) {
      if (const auto found = saved_.find(name); found != saved_.end()) return found->second;
      const auto prefix = std::find_if(std::begin(kPrefixes), std::end(kPrefixes),
                                       [&](const char* each) { return name.starts_with(each); });
      if (prefix == std::end(kPrefixes)) return "";
      name = name.substr(std::string(*prefix).size());
    }
  }

 private:
  static constexpr const char* kPrefixes[] = {"module.", "_orig_mod."};  // DDP's, torch.compile's
  std::map<std::string, std::string> saved_;
};

at::Tensor tensor_of(const TensorFiles& files, const std::string& name, const TensorType& type) {
  const at::Tensor tensor = files.read(name);
  if (tensor.sizes() != at::IntArrayRef(type.shape)) {
    std::ostringstream sizes;
    sizes << tensor.sizes() << ", the model's is " << at::IntArrayRef(type.shape);
    throw InputError(files.path().string() + ": " + in_quotes(name) + " has the shape " + sizes.str(),
                     "Is it of another model, or of one with other options?");
  }
  return tensor.to(scalar_type_of(type.dtype));
}

int64_t minibatches_of(const fs::path& file, Span minibatches) {
  if (!file.filename().string().ends_with(".safetensors")) return minibatches.end();
  const auto metadata = SafetensorsFile(file).metadata();
  const auto found = metadata.find("minibatches");
  if (found == metadata.end()) return minibatches.end();
  char* rest = nullptr;
  const int64_t trained = std::strtoll(found->second.c_str(), &rest, 10);
  if (*rest != '\0' || trained < minibatches.first || trained > minibatches.end()) {
    throw InputError(file.string() + ": its metadata says that it is of after " + in_quotes(found->second) +
                         " minibatches, the run was compared from " + std::to_string(minibatches.first) +
                         " to " + std::to_string(minibatches.end()),
                     "Train both equally long.");
  }
  return trained;
}

OtherTraining::Weights read_weights(const fs::path& file, const Model& model, Span minibatches) {
  const TensorFiles files(file);
  const GraphNames names(model);
  std::map<std::string, TensorType> types;
  for (const Parameter& parameter : model.graph.parameters) types[parameter.name] = parameter.type;
  for (const Buffer& buffer : model.graph.buffers) types[buffer.name] = buffer.type;
  OtherTraining::Weights weights{file.string(), minibatches_of(file, minibatches), {}};
  for (const std::string& name : files.names()) {
    const std::string known = names.of(name);
    if (types.count(known) && !weights.tensors.count(known))
      weights.tensors[known] = tensor_of(files, name, types.at(known));
  }
  for (const Parameter& parameter : model.graph.parameters) {
    if (!parameter.trainable || weights.tensors.count(parameter.name)) continue;
    throw InputError(file.string() + ": has no tensor " + in_quotes(parameter.name) +
                         ", which the model has" + suggestion(parameter.name, files.names()),
                     "Save the state_dict() of the module that was trained: "
                     "safetensors.torch.save_file(module.state_dict(), ...)");
  }
  return weights;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (holds_tensors(name) || name == "metrics.jsonl" || name == "losses.json")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw InputError(folder.string() + ": has no losses.json, metrics.jsonl or .safetensors file",
                     "scripts/reference.py writes such a folder; a run folder is one, too.");
  }
  return files;
}

}  // namespace

OtherTraining read_other_training(const std::vector<std::string>& paths, const Model& model,
                                  Span minibatches) {
  OtherTraining other;
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (fs::is_directory(path)) {
      for (fs::path& file : files_in(path)) files.push_back(std::move(file));
    } else {
      files.emplace_back(path);
    }
  }
  other.from = join(paths, ", ");
  std::string losses_from;
  for (const fs::path& file : files) {
    if (holds_tensors(file)) {
      other.weights.push_back(read_weights(file, model, minibatches));
      continue;
    }
    if (!losses_from.empty())
      throw InputError(file.string() + ": losses are in " + losses_from + " already", "Give one of them.");
    other.losses = read_losses(file, minibatches);
    losses_from = file.string();
  }
  auto& weights = other.weights;
  std::stable_sort(weights.begin(), weights.end(),
                   [](const auto& a, const auto& b) { return a.minibatches < b.minibatches; });
  for (size_t i = 1; i < weights.size(); ++i) {
    if (weights[i].minibatches == weights[i - 1].minibatches)
      throw InputError(weights[i].file + " and " + weights[i - 1].file + " are both of after minibatch " +
                           std::to_string(weights[i].minibatches - 1),
                       "Give one of them, or say in the metadata of each ('minibatches') what it is of.");
  }
  return other;
}

}  // namespace pipewright
