#include "runtime/checkpoint_keeper.h"

#include <cstdio>

#include "graph/atomic_file.h"
#include "graph/document.h"
#include "graph/error.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPartialSuffix = ".partial";
constexpr const char* kOldSuffix = ".old";

// Runs `step` and says whose file system call failed.
template <typename Step>
void on_disk(const fs::path& what, Step step) {
  try {
    step();
  } catch (const fs::filesystem_error& error) {
    throw RunError(what.string() + ": cannot be written: " + error.code().message(),
                   "Is the disk full? Older checkpoints are intact.");
  }
}

bool is_leftover(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.rfind('.', 0) == 0 &&
         (folder.extension() == kPartialSuffix || folder.extension() == kOldSuffix);
}

// A checkpoint must not be seen half removed.
void remove_checkpoint(const fs::path& folder) {
  const fs::path hidden = folder.parent_path() / ("." + folder.filename().string() + kOldSuffix);
  fs::remove_all(hidden);
  fs::rename(folder, hidden);
  fs::remove_all(hidden);
}

}  // namespace

fs::path partial_checkpoint(const fs::path& run_folder, int64_t next_minibatch) {
  return checkpoints_of(run_folder) / ("." + checkpoint_name(next_minibatch) + kPartialSuffix);
}

CheckpointFile write_stage_file(const fs::path& run_folder, int64_t next_minibatch, int64_t stage,
                                const NamedTensors& tensors, int64_t updates) {
  const fs::path folder = partial_checkpoint(run_folder, next_minibatch);
  on_disk(folder, [&] { fs::create_directories(folder); });
  CheckpointFile file;
  file.file = "stage-" + std::to_string(stage) + ".safetensors";
  const WrittenFile written = write_safetensors(folder / file.file, tensors,
                                                {{"format", "pt"},
                                                 {"next_minibatch", std::to_string(next_minibatch)},
                                                 {"stage", std::to_string(stage)}});
  file.bytes = written.bytes;
  file.digest = written.digest;
  file.updates = updates;
  return file;
}

std::string checkpoint_line(int64_t next_minibatch, const std::map<int64_t, CheckpointFile>& files) {
  Json json;
  json["kind"] = "checkpoint";
  json["next_minibatch"] = next_minibatch;
  json["files"] = Json::array();
  for (const auto& [stage, file] : files) {
    json["files"].push_back(Json{{"stage", stage},
                                 {"file", file.file},
                                 {"bytes", file.bytes},
                                 {"digest", file.digest},
                                 {"updates", file.updates}});
  }
  return json.dump();
}

CheckpointKeeper::CheckpointKeeper(fs::path run_folder, int64_t world_size, int64_t keep)
    : run_folder_(std::move(run_folder)), world_size_(world_size), keep_(keep) {}

bool CheckpointKeeper::take(const std::string& line) {
  if (line.rfind(R"({"kind":"checkpoint")", 0) != 0) return false;
  const Json json = parse_json(line, "line of a rank");
  const std::lock_guard lock(mutex_);
  Reached& reached = reached_[json.at("next_minibatch").get<int64_t>()];
  ++reached.ranks;
  for (const Json& entry : json.at("files")) {
    reached.files[entry.at("stage").get<int64_t>()] = {
        entry.at("file").get<std::string>(), entry.at("bytes").get<int64_t>(),
        entry.at("digest").get<std::string>(), entry.at("updates").get<int64_t>()};
  }
  changed_.notify_all();
  return true;
}

void CheckpointKeeper::begin(CheckpointManifest manifest) {
  PW_CHECK(!pending_, "a checkpoint begins while another is incomplete");
  pending_ = std::move(manifest);
}

std::optional<fs::path> CheckpointKeeper::poll() {
  if (!pending_) return {};
  std::map<int64_t, CheckpointFile> files;
  {
    const std::lock_guard lock(mutex_);
    const auto reached = reached_.find(pending_->next_minibatch);
    if (reached == reached_.end() || reached->second.ranks < world_size_) return {};
    files = std::move(reached->second.files);
    reached_.erase(reached);
  }
  const fs::path folder = checkpoints_of(run_folder_) / checkpoint_name(pending_->next_minibatch);
  complete(std::move(files));
  pending_.reset();
  return folder;
}

std::optional<fs::path> CheckpointKeeper::wait(const std::function<void()>& check) {
  while (pending_) {
    if (auto folder = poll()) return folder;
    check();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  return {};
}

void CheckpointKeeper::complete(std::map<int64_t, CheckpointFile> files) {
  const fs::path partial = partial_checkpoint(run_folder_, pending_->next_minibatch);
  const fs::path folder = checkpoints_of(run_folder_) / checkpoint_name(pending_->next_minibatch);
  for (auto& [stage, file] : files) {
    std::error_code error;
    const auto bytes = fs::file_size(partial / file.file, error);
    if (error || static_cast<int64_t>(bytes) != file.bytes) {
      throw RunError(
          (partial / file.file).string() + ": is not there as stage " + std::to_string(stage) + " wrote it",
          "The run folder must lie on a file system that all ranks share.");
    }
    pending_->stages.push_back(std::move(file));
  }
  PW_CHECK_EQ(pending_->stages.size(), pending_->plan.stages.size());
  // After a power cut too the book reaches as far as the checkpoint.
  sync_to_disk(run_folder_ / "metrics.jsonl");
  write_document(partial / kManifestName, *pending_);
  on_disk(folder, [&] {
    if (fs::exists(folder)) remove_checkpoint(folder);
    fs::rename(partial, folder);
    remove_old();
  });
  sync_to_disk(checkpoints_of(run_folder_));
}

void CheckpointKeeper::remove_old() const {
  const auto whole = list_checkpoints(run_folder_);
  for (size_t i = static_cast<size_t>(keep_); i < whole.size(); ++i) remove_checkpoint(whole[i]);
}

void remove_partial_checkpoints(const fs::path& run_folder) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator it(checkpoints_of(run_folder), error), end; !error && it != end;
       it.increment(error)) {
    if (is_leftover(it->path())) leftovers.push_back(it->path());
  }
  for (const fs::path& folder : leftovers) fs::remove_all(folder, error);
}

void prepare_checkpoints(const fs::path& run_folder, const std::optional<Checkpoint>& resume) {
  remove_partial_checkpoints(run_folder);
  std::error_code ignored;
  const bool own = resume && fs::equivalent(fs::absolute(resume->folder).parent_path(),
                                            checkpoints_of(run_folder), ignored);
  std::vector<fs::path> strangers;
  for (const fs::path& folder : list_checkpoints(run_folder)) {
    if (own && fs::equivalent(folder, resume->folder, ignored)) break;  // the rest is older: its own past
    strangers.push_back(folder);
  }
  if (strangers.empty()) return;
  int number = 1;
  const auto aside = [&] { return run_folder / ("checkpoints-" + std::to_string(number)); };
  while (fs::exists(aside())) ++number;
  on_disk(aside(), [&] {
    fs::create_directory(aside());
    for (const fs::path& folder : strangers) fs::rename(folder, aside() / folder.filename());
  });
  std::fprintf(stderr, "%zu checkpoints of an earlier run are now in %s\n", strangers.size(),
               aside().c_str());
}

}  // namespace pipewright
