#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>

#include "graph/digest.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/graph_identity.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "graph/regular_file.h"
#include "graph/spec.h"
#include "models/run/scalar_types.h"
#include "models/safetensors/safetensors.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFolderPrefix = "minibatch-";

// Of the manifest, in its order: all but the schema and the digest itself. A key that is not there counts as
// nothing.
constexpr const char* kDigestedKeys[] = {"next_minibatch",
                                         "pipeline_began",
                                         "minibatches_per_epoch",
                                         "evaluated_epochs",
                                         "cause",
                                         "libraries",
                                         "stages",
                                         "graph_digest",
                                         "run",
                                         "plan"};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return "(" + join(extents, ", ") + ")";
}

// The newest whole checkpoint beside `refused`, with the command that takes it; or "".
std::string last_good(const fs::path& refused, const fs::path& run_folder) {
  for (const fs::path& folder : list_checkpoints(run_folder)) {
    std::error_code ignored;
    if (fs::equivalent(folder, refused, ignored)) continue;
    try {
      verify_checkpoint(open_checkpoint(folder));
    } catch (const Error&) {
      continue;
    }
    return "The last good one is " + folder.filename().string() + ": go on with --resume " + folder.string();
  }
  return "No other good checkpoint is beside it; without --resume the run starts from the beginning.";
}

}  // namespace

std::optional<int64_t> minibatch_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const std::string prefix = kFolderPrefix;
  if (name.rfind(prefix, 0) != 0) return {};
  int64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
  if (error != std::errc() || stop != end || number < 0) return {};
  return number;
}

std::string checkpoint_name(int64_t next_minibatch) { return kFolderPrefix + std::to_string(next_minibatch); }

fs::path checkpoints_of(const fs::path& run_folder) { return run_folder / "checkpoints"; }

std::string slot_tensor(const std::string& slot, const std::string& parameter) {
  return kOptimizerPrefix + slot + "/" + parameter;
}

CheckpointManifest CheckpointManifest::from_json(JsonReader& reader) {
  CheckpointManifest manifest;
  manifest.next_minibatch = reader.integer("next_minibatch", 0, kMostCount);
  manifest.pipeline_began = manifest.next_minibatch;
  if (reader.has("pipeline_began"))
    manifest.pipeline_began = reader.integer("pipeline_began", 0, manifest.next_minibatch);
  manifest.minibatches_per_epoch = reader.integer("minibatches_per_epoch", 1, kMostCount);
  manifest.evaluated_epochs = reader.integer("evaluated_epochs", 0, kMostCount);
  manifest.cause = reader.string_one_of("cause", {"interval", "signal", "end"});
  for (const auto& [name, version] : reader.string_entries("libraries")) manifest.libraries[name] = version;
  for (JsonReader& entry : reader.objects("stages")) {
    manifest.stages.push_back(CheckpointStage::from_json(entry));
    entry.finish();
  }
  manifest.graph_digest = reader.string("graph_digest");
  JsonReader run = reader.object("run");
  manifest.run = Run::from_json(run);
  run.finish();
  JsonReader plan = reader.object("plan");
  manifest.plan = Plan::from_json(plan);
  plan.finish();
  // Of what the file says, not of what is made of it: later versions may add keys.
  Json said;
  for (const char* key : kDigestedKeys) {
    if (reader.has(key)) said[key] = reader.raw(key);
  }
  const std::string digest = reader.string("digest");
  const std::string computed = digest_of(json_text(said));
  if (digest != computed) {
    reader.fail("digest", "got " + in_quotes(digest) + ", the document has " + in_quotes(computed),
                "The manifest was damaged or edited.");
  }
  return manifest;
}

Json CheckpointManifest::to_json() const {
  Json json;
  json["next_minibatch"] = next_minibatch;
  json["pipeline_began"] = pipeline_began;
  json["minibatches_per_epoch"] = minibatches_per_epoch;
  json["evaluated_epochs"] = evaluated_epochs;
  json["cause"] = cause;
  json["libraries"] = Json::object();
  for (const auto& [name, version] : libraries) json["libraries"][name] = version;
  json["stages"] = Json::array();
  for (const CheckpointStage& stage : stages) json["stages"].push_back(stage.to_json());
  json["graph_digest"] = graph_digest;
  json["run"] = run.to_json();
  json["plan"] = plan.to_json();
  json["digest"] = digest_of(json_text(json));
  return json;
}

void CheckpointManifest::validate(const std::string& where) const {
  run.validate(where + ": run");
  plan.validate(where + ": plan");
  if (stages.size() != plan.stages.size()) {
    fail_document(where, "stages",
                  std::to_string(stages.size()) + " entries, the plan has " +
                      std::to_string(plan.stages.size()) + " stages");
  }
  for (const CheckpointFile& file : files()) {
    const bool plain = !file.file.empty() && file.file[0] != '.' && file.file.find('/') == std::string::npos;
    if (!plain) fail_document(where, "stages", in_quotes(file.file) + " is no name of a file in the folder");
  }
}

std::vector<CheckpointFile> CheckpointManifest::files() const {
  std::vector<CheckpointFile> files;
  for (const CheckpointStage& stage : stages) {
    files.push_back(stage.state);
    for (const auto& [number, file] : stage.versions) files.push_back(file);
    for (const auto& [replica, file] : stage.replicas) files.push_back(file);
  }
  return files;
}

std::vector<fs::path> list_checkpoints(const fs::path& run_folder) {
  FileWatch watch(run_folder);
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints_of(run_folder), error), end; !error && it != end;
       it.increment(error)) {
    watch.advance();
    if (const auto number = minibatch_of(it->path())) found.emplace_back(*number, it->path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> folders;
  for (auto& [number, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

Checkpoint open_checkpoint(const fs::path& folder) {
  FileWatch watch(folder);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw InputError(folder.string() + ": there is no such checkpoint",
                     "A checkpoint is a folder, such as runs/a/checkpoints/minibatch-100.");
  }
  if (!file_exists(folder / kManifestName)) {
    if (const auto of_run = list_checkpoints(folder); !of_run.empty()) {
      throw InputError(folder.string() + ": is a run folder, expected one of its checkpoints",
                       "Its latest is " + of_run.front().string() + ".");
    }
    if (file_exists(folder / "run.json")) {
      throw InputError(
          folder.string() + ": is the folder of a run that left no checkpoint",
          "Train with --checkpoint-every-epochs 1 or --checkpoint-every-minibatches N. The final "
          "weights of a run that has ended are in its model.safetensors.");
    }
    throw InputError(folder.string() + ": is no checkpoint: it has no " + kManifestName,
                     "The manifest is written last: where it is missing, writing was cut short.");
  }
  Checkpoint checkpoint{folder, read_document<CheckpointManifest>(folder / kManifestName)};
  for (const CheckpointFile& expected : checkpoint.manifest.files()) {
    const fs::path file = folder / expected.file;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    watch.advance();
    if (error) throw InputError(file.string() + ": cannot be read: " + error.message());
    if (static_cast<int64_t>(bytes) != expected.bytes) {
      throw InputError(file.string() + ": has " + std::to_string(bytes) + " bytes, the manifest says " +
                       std::to_string(expected.bytes));
    }
  }
  return checkpoint;
}

void verify_checkpoint(const Checkpoint& checkpoint) {
  for (const CheckpointFile& expected : checkpoint.manifest.files()) {
    const fs::path file = checkpoint.folder / expected.file;
    const std::string digest = digest_of_file(file);
    if (digest != expected.digest) {
      throw InputError(file.string() + ": has digest " + digest + ", the manifest says " + expected.digest +
                           ": it is not what was written",
                       "");
    }
    SafetensorsFile{file};
  }
}

namespace {

// "latest" of a folder whose checkpoints all stand aside would begin anew without a word.
void demand_none_aside(const fs::path& run_folder) {
  const FileWatch watch(run_folder);
  const std::string prefix = kEarlierRunPrefix;
  int64_t last = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) != 0 || list_checkpoints(entry.path()).empty()) continue;
    last = std::max<int64_t>(last, std::atoll(name.c_str() + prefix.size()));
  }
  if (last == 0) return;
  const auto aside = list_checkpoints(run_folder / (prefix + std::to_string(last)));
  std::vector<std::string> names;
  for (const fs::path& checkpoint : aside) names.push_back(checkpoint.filename().string());
  throw InputError(
      "resume: " + run_folder.string() + " has no checkpoint of its own yet; an earlier run's are in " +
          aside.front().parent_path().string() + ": " + join(names, ", "),
      "--resume " + aside.front().string() +
          " goes on from the latest of them; without --resume training starts from the beginning.");
}

}  // namespace

std::optional<Checkpoint> find_resume(const Run& run, bool every_byte) {
  if (run.resume.empty()) return {};
  fs::path folder = run.resume;
  if (!folder.has_filename()) folder = folder.parent_path();  // a slash at the end
  if (run.resume == "latest") {
    const auto known = list_checkpoints(run.output);
    if (known.empty()) {
      demand_none_aside(run.output);
      return {};
    }
    folder = known.front();
  }
  try {
    Checkpoint checkpoint = open_checkpoint(folder);
    if (every_byte) verify_checkpoint(checkpoint);
    return checkpoint;
  } catch (const InputError& error) {
    if (!list_checkpoints(folder).empty()) throw;  // a run folder: the message says what to name
    // Beside it: a checkpoint's folder is RUN/checkpoints/minibatch-N.
    const fs::path beside = fs::absolute(folder).lexically_normal().parent_path().parent_path();
    const fs::path run_folder = run.resume == "latest" ? fs::path(run.output) : beside;
    throw InputError("resume: " + std::string(error.what()), last_good(folder, run_folder));
  }
}

void check_resume(const Checkpoint& checkpoint, const Run& run, const Model& model) {
  const CheckpointManifest& manifest = checkpoint.manifest;
  const std::string where = "resume: " + checkpoint.folder.string();
  const auto differs = [&](const std::string& key, const std::string& theirs, const std::string& ours,
                           const std::string& option) {
    throw InputError(where + ": was made with " + key + " " + theirs + ", the run has " + ours,
                     "give " + option + " " + theirs + ", or start anew without --resume");
  };
  // A file is found by many paths. (The graphs of other minibatch sizes differ, which is told below.)
  const bool same_model = manifest.run.model == run.model || manifest.run.batch_size != run.batch_size ||
                          is_digest_of(model.graph, manifest.graph_digest, manifest.run.model);
  if (!same_model) differs("model", manifest.run.model, run.model, "--model");
  if (manifest.run.batch_size != run.batch_size) {
    differs("batch_size", std::to_string(manifest.run.batch_size), std::to_string(run.batch_size),
            "--batch-size");
  }
  if (manifest.run.seed != run.seed)
    differs("seed", std::to_string(manifest.run.seed), std::to_string(run.seed), "--seed");
  // Where the data lies may have changed, which set it is may not; its size is compared when it is open.
  if (parse_spec(manifest.run.data, "data").name != parse_spec(run.data, "data").name)
    differs("data", manifest.run.data, run.data, "--data");
  const auto slots = slot_names(run.optimizer);
  if (slots != slot_names(manifest.run.optimizer)) {
    throw InputError(where + ": its optimizer " + manifest.run.optimizer.name + " keeps other tensors (" +
                         join(slot_names(manifest.run.optimizer), ", ") + ") than " + run.optimizer.name +
                         " (" + join(slots, ", ") + ")",
                     "Give the optimizer of the checkpoint; or export its weights and give them as "
                     "--initial-weights.");
  }
  std::vector<SafetensorsFile> files;
  for (const CheckpointStage& stage : manifest.stages)
    files.emplace_back(checkpoint.folder / stage.state.file);
  const auto check = [&](const std::string& name, const TensorType& type) {
    for (const SafetensorsFile& file : files) {
      const SafetensorsEntry* entry = file.find(name);
      if (!entry) continue;
      const std::string dtype = dtype_name_of(scalar_type_of_safetensors(entry->dtype));
      if (dtype == type.dtype && entry->shape == type.shape) return;
      throw InputError(file.path().string() + ": " + in_quotes(name) + " is " + dtype + " " +
                       shape_text(entry->shape) + ", the model has " + type.dtype + " " +
                       shape_text(type.shape));
    }
    throw InputError(where + ": has no tensor " + in_quotes(name) + ", which the model has",
                     "It is a checkpoint of another version of the model.");
  };
  std::set<std::string> read;  // what no node reads is in no stage
  for (const Node& node : model.graph.nodes) {
    for (const std::string& name : node.reads()) read.insert(name);
  }
  for (const Parameter& parameter : model.graph.parameters) {
    if (read.count(parameter.name)) check(parameter.name, parameter.type);
  }
  for (const Buffer& buffer : model.graph.buffers) {
    if (read.count(buffer.name)) check(buffer.name, buffer.type);
  }
}

}  // namespace pipewright
