#include "runtime/checkpoint_commands.h"

#include <ATen/ops/scalar_tensor.h>

#include <boost/program_options.hpp>
#include <iomanip>
#include <iostream>
#include <set>

#include "graph/atomic_file.h"
#include "graph/command_line.h"
#include "graph/digest.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/nearest.h"
#include "graph/units.h"
#include "models/exported_model.h"
#include "models/load.h"
#include "models/pt2_archive.h"
#include "models/safetensors.h"
#include "runtime/checkpoint.h"
#include "runtime/checkpoint_tensors.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr const char* kUsage =
    "pipewright-runtime checkpoint inspect FOLDER [--json]\n"
    "       pipewright-runtime checkpoint merge FOLDER --output FOLDER|FILE.safetensors\n"
    "       pipewright-runtime checkpoint export FOLDER --output model.safetensors\n"
    "FOLDER: a checkpoint, or a run folder for its latest one.";

Checkpoint open_named(const fs::path& folder) {
  const bool checkpoint = fs::exists(folder / kManifestName);
  const auto of_run = list_checkpoints(folder);
  return open_checkpoint(checkpoint || of_run.empty() ? folder : of_run.front());
}

// What a tensor of a stage file is.
std::string kind_of(const std::string& name) {
  return name.rfind(kOptimizerPrefix, 0) == 0 ? "optimizer" : "model";
}

// The version that each of the manifest's files() holds, or goes with.
std::vector<int64_t> updates_of_files(const CheckpointManifest& manifest) {
  std::vector<int64_t> updates;
  for (const CheckpointStage& stage : manifest.stages) {
    updates.push_back(stage.updates);
    for (const auto& [number, file] : stage.versions) updates.push_back(number);
    updates.insert(updates.end(), stage.replicas.size(), stage.updates);
  }
  return updates;
}

void print_table(const Checkpoint& checkpoint, const std::vector<bool>& intact) {
  const CheckpointManifest& manifest = checkpoint.manifest;
  std::cout << checkpoint.folder.string() << ": " << manifest.next_minibatch << " minibatches ("
            << manifest.next_minibatch / manifest.minibatches_per_epoch << " epochs of "
            << manifest.minibatches_per_epoch << " and "
            << manifest.next_minibatch % manifest.minibatches_per_epoch << "), cause: " << manifest.cause
            << "\nmodel " << manifest.run.model << ", plan " << manifest.plan.shape_text() << " "
            << manifest.plan.schedule << " " << manifest.plan.weights << ", optimizer "
            << manifest.run.optimizer.name << ", batch size " << manifest.run.batch_size << ", seed "
            << manifest.run.seed;
  for (const auto& [name, version] : manifest.libraries) std::cout << ", " << name << " " << version;
  std::cout << "\n\n"
            << std::left << std::setw(32) << "file" << std::right << std::setw(12) << "size" << std::setw(10)
            << "updates" << std::setw(10) << "tensors" << std::setw(14) << "model" << std::setw(12)
            << "optimizer"
            << "  bytes are\n";
  const auto files = manifest.files();
  const auto updates = updates_of_files(manifest);
  for (size_t i = 0; i < files.size(); ++i) {
    std::map<std::string, int64_t> bytes;
    size_t tensors = 0;
    if (intact[i]) {
      const SafetensorsFile file(checkpoint.folder / files[i].file);
      tensors = file.tensors().size();
      for (const SafetensorsEntry& entry : file.tensors()) bytes[kind_of(entry.name)] += entry.bytes;
    }
    std::cout << std::left << std::setw(32) << files[i].file << std::right << std::setw(12)
              << format_bytes(static_cast<double>(files[i].bytes)) << std::setw(10) << updates[i]
              << std::setw(10) << tensors << std::setw(14)
              << format_bytes(static_cast<double>(bytes["model"])) << std::setw(12)
              << format_bytes(static_cast<double>(bytes["optimizer"]))
              << (intact[i] ? "  as written" : "  DAMAGED") << "\n";
  }
}

void print_json(const Checkpoint& checkpoint, const std::vector<bool>& intact) {
  Json json;
  json["folder"] = checkpoint.folder.string();
  json["manifest"] = checkpoint.manifest.to_json();
  json["files"] = Json::array();
  const auto files = checkpoint.manifest.files();
  for (size_t i = 0; i < intact.size(); ++i) {
    const std::string& name = files[i].file;
    Json file{{"file", name}, {"intact", static_cast<bool>(intact[i])}, {"tensors", Json::array()}};
    if (intact[i]) {
      const SafetensorsFile opened(checkpoint.folder / name);
      for (const SafetensorsEntry& entry : opened.tensors()) {
        file["tensors"].push_back(Json{
            {"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}, {"bytes", entry.bytes}});
      }
    }
    json["files"].push_back(std::move(file));
  }
  std::cout << json_text(json);
}

void inspect(const Checkpoint& checkpoint, bool json) {
  std::vector<bool> intact;
  std::vector<std::string> damaged;
  for (const CheckpointFile& file : checkpoint.manifest.files()) {
    intact.push_back(digest_of_file(checkpoint.folder / file.file) == file.digest);
    if (!intact.back()) damaged.push_back(file.file);
  }
  json ? print_json(checkpoint, intact) : print_table(checkpoint, intact);
  if (!damaged.empty()) {
    throw InputError(checkpoint.folder.string() + ": not as written: " + join(damaged, ", ") +
                         ": the digest differs from the manifest's",
                     "Go on from another checkpoint of the run.");
  }
}

// All tensors of a verified checkpoint that another plan would go on from, each once.
NamedTensors all_tensors(const Checkpoint& checkpoint, bool with_optimizer) {
  verify_checkpoint(checkpoint);
  CheckpointTensors from(checkpoint);
  NamedTensors tensors;
  for (const std::string& name : from.names()) {
    if (with_optimizer || kind_of(name) != "optimizer") tensors.emplace_back(name, from.take(name));
  }
  return tensors;
}

// As a checkpoint of one stage: a run goes on from it as from any other.
void merge_into_folder(const Checkpoint& checkpoint, const fs::path& output) {
  if (fs::exists(output)) throw InputError(output.string() + ": is there already; expected a new folder");
  const fs::path absolute = fs::absolute(output).lexically_normal();
  const fs::path partial = absolute.parent_path() / ("." + absolute.filename().string() + ".partial");
  try {
    fs::remove_all(partial);
    fs::create_directories(partial);
    CheckpointManifest manifest = checkpoint.manifest;
    manifest.plan = single_stage_plan(load_model(manifest.run.model, manifest.run.batch_size).graph, 1);
    manifest.run.plan.clear();
    manifest.pipeline_began = manifest.next_minibatch;
    CheckpointStage whole;
    for (const CheckpointStage& stage : manifest.stages)
      whole.updates = std::max(whole.updates, stage.updates);
    const std::string file = "stage-0.safetensors";
    const WrittenFile written =
        write_safetensors(partial / file, all_tensors(checkpoint, true),
                          {{"format", "pt"}, {"next_minibatch", std::to_string(manifest.next_minibatch)}});
    whole.state = {file, written.bytes, written.digest};
    manifest.stages = {whole};
    write_document(partial / kManifestName, manifest);
    fs::rename(partial, absolute);
  } catch (const fs::filesystem_error& error) {
    throw RunError(output.string() + ": cannot be written: " + error.code().message());
  }
  sync_to_disk(absolute.parent_path());
}

void merge(const Checkpoint& checkpoint, const fs::path& output) {
  if (output.extension() != ".safetensors") return merge_into_folder(checkpoint, output);
  write_safetensors(
      output, all_tensors(checkpoint, true),
      {{"format", "pt"}, {"next_minibatch", std::to_string(checkpoint.manifest.next_minibatch)}});
}

// PyTorch's batch norms have a counter of forwards that the graph has not; load_state_dict(strict=True) wants
// it.
void add_counters(NamedTensors& tensors, int64_t forwards) {
  const std::string mean = ".running_mean";
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  for (const std::string& name : names) {
    if (name.size() <= mean.size() || name.compare(name.size() - mean.size(), mean.size(), mean) != 0)
      continue;
    const std::string counter = name.substr(0, name.size() - mean.size()) + ".num_batches_tracked";
    if (!names.count(counter))
      tensors.emplace_back(counter, at::scalar_tensor(forwards, at::TensorOptions(at::kLong)));
  }
}

// As the state_dict() of an exported program's module has them: tied tensors under each of their names, what
// no node reads as the program has it.
NamedTensors as_state_dict(const NamedTensors& trained, const Model& model) {
  const std::map<std::string, at::Tensor> by_name(trained.begin(), trained.end());
  const auto saved = model.archive->weights();
  NamedTensors tensors;
  for (const auto& [name, same] : state_dict_of(model))
    tensors.emplace_back(name, same.empty() ? model.archive->read(saved.at(name)) : by_name.at(same));
  return tensors;
}

void export_model(const Checkpoint& checkpoint, const fs::path& output) {
  if (output.extension() != ".safetensors") {
    throw InputError("--output " + output.string() + ": expected a name that ends in .safetensors");
  }
  NamedTensors tensors = all_tensors(checkpoint, false);
  const Run& run = checkpoint.manifest.run;
  if (const Model model = load_model(run.model, run.batch_size); model.archive != nullptr) {
    check_resume(checkpoint, run, model);  // is it still the model that was trained?
    tensors = as_state_dict(tensors, model);
  } else {
    add_counters(tensors, checkpoint.manifest.next_minibatch);
  }
  const size_t count = tensors.size();
  const auto written = write_safetensors(output, std::move(tensors), {{"format", "pt"}});
  std::cout << output.string() << ": " << count << " tensors, "
            << format_bytes(static_cast<double>(written.bytes)) << ", after "
            << checkpoint.manifest.next_minibatch << " minibatches\n";
}

}  // namespace

void run_checkpoint(const std::vector<std::string>& arguments) {
  // Words first, then options.
  size_t words = 0;
  while (words < arguments.size() && arguments[words].rfind('-', 0) != 0) ++words;
  const std::vector<std::string> actions = {"inspect", "merge", "export"};
  const std::string action = words > 0 ? arguments[0] : "";
  po::options_description description;
  if (action != "merge" && action != "export")
    description.add_options()("json", po::bool_switch(), "print it as JSON");
  if (action != "inspect")
    description.add_options()("output", po::value<std::string>()->value_name("X"), "what is written");
  const auto options = parse_options({arguments.begin() + static_cast<ptrdiff_t>(words), arguments.end()},
                                     description, kUsage);
  if (std::find(actions.begin(), actions.end(), action) == actions.end()) {
    throw InputError(
        "checkpoint: " + (action.empty() ? "nothing to do" : "'" + action + "' is no command") +
            (action.empty() ? ": expected inspect, merge or export" : suggestion(action, actions)),
        "pipewright-runtime checkpoint inspect runs/latest");
  }
  if (words != 2) {
    throw InputError("checkpoint " + action + ": expected one folder, got " + std::to_string(words - 1),
                     "pipewright-runtime checkpoint " + action + " runs/latest" +
                         (action == "inspect" ? "" : " --output model.safetensors"));
  }
  const Checkpoint checkpoint = open_named(arguments[1]);
  if (action == "inspect") return inspect(checkpoint, options["json"].as<bool>());
  if (!options.count("output")) throw InputError("checkpoint " + action + ": --output is missing");
  const fs::path output = options["output"].as<std::string>();
  action == "merge" ? merge(checkpoint, output) : export_model(checkpoint, output);
}

}  // namespace pipewright
