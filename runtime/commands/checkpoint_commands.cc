#include "runtime/commands/checkpoint_commands.h"

#include <boost/program_options.hpp>
#include <iostream>
#include <set>

#include "graph/atomic_file.h"
#include "graph/command_line.h"
#include "graph/digest.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/nearest.h"
#include "graph/regular_file.h"
#include "graph/text_table.h"
#include "graph/units.h"
#include "models/load.h"
#include "models/safetensors/safetensors.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_tensors.h"
#include "runtime/checkpoint/model_file.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr const char* kUsage =
    "pipewright-runtime checkpoint inspect FOLDER [--json]\n"
    "       pipewright-runtime checkpoint merge FOLDER --output FOLDER|FILE.safetensors\n"
    "       pipewright-runtime checkpoint export FOLDER --output model.safetensors\n"
    "FOLDER: a checkpoint, or a run folder for its latest one (export: without one, for its final weights).";

Checkpoint open_named(const fs::path& folder) {
  const bool checkpoint = file_exists(folder / kManifestName);
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

void print_table(const Checkpoint& checkpoint, const std::vector<bool>& intact, int64_t width) {
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
  std::cout << "\n\n";
  using Side = TableColumn::Side;
  TextTable table({{"file", Side::kLeft, 0, 16},
                   {"size"},
                   {"updates", Side::kRight, 1},
                   {"tensors", Side::kRight, 2},
                   {"model", Side::kRight, 3},
                   {"optimizer", Side::kRight, 3},
                   {"bytes are", Side::kLeft}});
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
    table.add({files[i].file, format_bytes(static_cast<double>(files[i].bytes)), std::to_string(updates[i]),
               std::to_string(tensors), format_bytes(static_cast<double>(bytes["model"])),
               format_bytes(static_cast<double>(bytes["optimizer"])), intact[i] ? "as written" : "DAMAGED"});
  }
  std::cout << table.text(width);
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

void inspect(const Checkpoint& checkpoint, bool json, int64_t width) {
  std::vector<bool> intact;
  std::vector<std::string> damaged;
  for (const CheckpointFile& file : checkpoint.manifest.files()) {
    intact.push_back(digest_of_file(checkpoint.folder / file.file) == file.digest);
    if (!intact.back()) damaged.push_back(file.file);
  }
  json ? print_json(checkpoint, intact) : print_table(checkpoint, intact, width);
  if (!damaged.empty()) {
    throw InputError(checkpoint.folder.string() + ": not as written: " + join(damaged, ", ") +
                         ": the digest differs from the manifest's",
                     "Go on from another checkpoint of the run.");
  }
}

// All tensors of a verified checkpoint that another plan would go on from, each once.
NamedTensors all_tensors(const Checkpoint& checkpoint) {
  verify_checkpoint(checkpoint);
  CheckpointTensors from(checkpoint);
  NamedTensors tensors;
  for (const std::string& name : from.names()) tensors.emplace_back(name, from.take(name));
  return tensors;
}

// As a checkpoint of one stage: a run goes on from it as from any other.
void merge_into_folder(const Checkpoint& checkpoint, const fs::path& output) {
  if (file_exists(output)) throw InputError(output.string() + ": is there already; expected a new folder");
  const fs::path absolute = fs::absolute(output).lexically_normal();
  const fs::path partial = absolute.parent_path() / ("." + absolute.filename().string() + ".partial");
  try {
    fs::remove_all(partial);
    fs::create_directories(partial);
    CheckpointManifest manifest = checkpoint.manifest;
    manifest.plan = single_stage_plan(load_model(manifest.run.model, manifest.run.batch_size).graph, 1);
    manifest.run.plan.clear();
    manifest.run.emulate = false;
    manifest.pipeline_began = manifest.next_minibatch;
    CheckpointStage whole;
    for (const CheckpointStage& stage : manifest.stages)
      whole.updates = std::max(whole.updates, stage.updates);
    const std::string file = "stage-0.safetensors";
    const WrittenFile written =
        write_safetensors(partial / file, all_tensors(checkpoint),
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
      output, all_tensors(checkpoint),
      {{"format", "pt"}, {"next_minibatch", std::to_string(checkpoint.manifest.next_minibatch)}});
}

void demand_safetensors(const fs::path& output) {
  if (output.extension() == ".safetensors") return;
  throw InputError("--output " + output.string() + ": expected a name that ends in .safetensors");
}

void print_exported(const fs::path& file) {
  const SafetensorsFile written(file);
  std::cout << file.string() << ": " << written.tensors().size() << " tensors, "
            << format_bytes(static_cast<double>(fs::file_size(file))) << ", after "
            << minibatches_of_model_file(file).value_or(0) << " minibatches\n";
}

void export_model(const Checkpoint& checkpoint, const fs::path& output) {
  demand_safetensors(output);
  verify_checkpoint(checkpoint);
  CheckpointTensors from(checkpoint);
  const Run& run = checkpoint.manifest.run;
  const Model model = load_model(run.model, run.batch_size);
  if (model.archive != nullptr) check_resume(checkpoint, run, model);  // is it still what was trained?
  std::vector<TensorSource> tensors;
  for (const std::string& name : from.names())
    if (kind_of(name) != "optimizer") tensors.push_back(TensorSource::of(name, from.take(name)));
  write_model_file(output, std::move(tensors), model, checkpoint.manifest.next_minibatch);
  print_exported(output);
}

// Of a run without checkpoints: its final weights, as they are.
void export_final_model(const fs::path& file, const fs::path& output) {
  demand_safetensors(output);
  const SafetensorsFile from(file);
  std::vector<TensorSource> tensors;
  for (const SafetensorsEntry& entry : from.tensors()) tensors.push_back(TensorSource::in(from, entry));
  write_safetensors(output, std::move(tensors), from.metadata());
  print_exported(output);
}

}  // namespace

void run_checkpoint(const std::vector<std::string>& arguments) {
  // Words first, then options.
  size_t words = 0;
  while (words < arguments.size() && arguments[words].rfind('-', 0) != 0) ++words;
  const std::vector<std::string> actions = {"inspect", "merge", "export"};
  const std::string action = words > 0 ? arguments[0] : "";
  po::options_description description;
  if (action != "merge" && action != "export") {
    description.add_options()("json", po::bool_switch(), "print it as JSON");
    add_wide_option(&description);
  }
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
  const fs::path final_model = fs::path(arguments[1]) / kModelFileName;
  if (action == "export" && options.count("output") && list_checkpoints(arguments[1]).empty() &&
      file_exists(final_model))
    return export_final_model(final_model, options["output"].as<std::string>());
  const Checkpoint checkpoint = open_named(arguments[1]);
  if (action == "inspect") return inspect(checkpoint, options["json"].as<bool>(), output_width(options));
  if (!options.count("output")) throw InputError("checkpoint " + action + ": --output is missing");
  const fs::path output = options["output"].as<std::string>();
  action == "merge" ? merge(checkpoint, output) : export_model(checkpoint, output);
}

}  // namespace pipewright
