#include "runtime/checkpoint/model_file.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "graph/error.h"
#include "models/exported/exported_model.h"
#include "models/exported/pt2_archive.h"
#include "runtime/checkpoint/run_folder.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMinibatches = "minibatches";

// PyTorch's batch norms have a counter of forwards that the graph has not; load_state_dict(strict=True) wants
// it.
void add_counters(std::vector<TensorSource>& tensors, int64_t forwards) {
  const std::string mean = ".running_mean";
  std::set<std::string> names;
  for (const TensorSource& tensor : tensors) names.insert(tensor.name);
  for (const std::string& name : names) {
    if (name.size() <= mean.size() || name.compare(name.size() - mean.size(), mean.size(), mean) != 0)
      continue;
    const std::string counter = name.substr(0, name.size() - mean.size()) + ".num_batches_tracked";
    if (!names.count(counter))
      tensors.push_back(TensorSource::of(counter, at::scalar_tensor(forwards, at::TensorOptions(at::kLong))));
  }
}

// As the state_dict() of an exported program's module has them.
std::vector<TensorSource> as_state_dict(const std::vector<TensorSource>& trained, const Model& model) {
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& tensor : trained) by_name[tensor.name] = &tensor;
  const auto saved = model.archive->weights();
  std::vector<TensorSource> tensors;
  for (const auto& [name, same] : state_dict_of(model)) {
    tensors.push_back(same.empty() ? TensorSource::of(name, model.archive->read(saved.at(name)))
                                   : *by_name.at(same));
    tensors.back().name = name;
  }
  return tensors;
}

fs::path part_of(const fs::path& run_folder, int64_t stage) {
  return weights_parts_of(run_folder) / ("stage-" + std::to_string(stage) + ".safetensors");
}

}  // namespace

WrittenFile write_model_file(const fs::path& file, std::vector<TensorSource> trained, const Model& model,
                             int64_t minibatches) {
  if (model.archive != nullptr) {
    trained = as_state_dict(trained, model);
  } else {
    add_counters(trained, minibatches);
  }
  return write_safetensors(file, std::move(trained),
                           {{"format", "pt"}, {kMinibatches, std::to_string(minibatches)}});
}

std::optional<int64_t> minibatches_of_model_file(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return {};
  try {
    const SafetensorsFile opened(file);
    const auto said = opened.metadata().find(kMinibatches);
    if (said == opened.metadata().end()) return {};
    const std::string& text = said->second;
    int64_t minibatches = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), minibatches);
    if (wrong != std::errc() || end != text.data() + text.size()) return {};
    return minibatches;
  } catch (const InputError&) {
    return {};
  }
}

fs::path weights_parts_of(const fs::path& run_folder) { return run_folder / ".model.partial"; }

void write_weights_part(const fs::path& run_folder, int64_t stage, const NamedTensors& tensors) {
  demand_run_files(run_folder, {});
  std::error_code error;
  fs::create_directory(weights_parts_of(run_folder), error);
  if (error) throw RunError(weights_parts_of(run_folder).string() + ": cannot be made: " + error.message());
  write_safetensors(part_of(run_folder, stage), tensors, {{"format", "pt"}});
}

void write_final_model(const fs::path& run_folder, int64_t stages, const std::map<int64_t, NamedTensors>& own,
                       const Model& model, int64_t minibatches) {
  std::vector<SafetensorsFile> files;
  files.reserve(static_cast<size_t>(stages));
  std::vector<TensorSource> trained;
  std::set<std::string> names;  // a tied parameter is in several stages: their copies are equal
  for (int64_t stage = 0; stage < stages; ++stage) {
    std::vector<TensorSource> of_stage;
    if (const auto held = own.find(stage); held != own.end()) {
      for (const auto& [name, tensor] : held->second) of_stage.push_back(TensorSource::of(name, tensor));
    } else {
      const SafetensorsFile& file = files.emplace_back(part_of(run_folder, stage));
      for (const SafetensorsEntry& entry : file.tensors()) of_stage.push_back(TensorSource::in(file, entry));
    }
    for (TensorSource& tensor : of_stage)
      if (names.insert(tensor.name).second) trained.push_back(std::move(tensor));
  }
  demand_run_files(run_folder, {});
  write_model_file(run_folder / kModelFileName, std::move(trained), model, minibatches);
  remove_weights_parts(run_folder);
}

void remove_weights_parts(const fs::path& run_folder) {
  std::error_code ignored;
  fs::remove_all(weights_parts_of(run_folder), ignored);
}

}  // namespace pipewright
