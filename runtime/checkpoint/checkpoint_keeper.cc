#include "runtime/checkpoint/checkpoint_keeper.h"

#include <cstring>

#include "graph/atomic_file.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "runtime/checkpoint/run_folder.h"

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

}  // namespace

void remove_checkpoint(const fs::path& folder) {
  const fs::path hidden = folder.parent_path() / ("." + folder.filename().string() + kOldSuffix);
  fs::remove_all(hidden);
  fs::rename(folder, hidden);
  fs::remove_all(hidden);
}

fs::path partial_checkpoint(const fs::path& run_folder, int64_t next_minibatch) {
  return checkpoints_of(run_folder) / ("." + checkpoint_name(next_minibatch) + kPartialSuffix);
}

namespace {

fs::path spare_checkpoint(const fs::path& run_folder) { return checkpoints_of(run_folder) / ".spare"; }

}  // namespace

fs::path spare_file(const fs::path& run_folder, const std::string& name) {
  const fs::path spare = spare_checkpoint(run_folder);
  const fs::path same = spare / (name + ".safetensors");
  const size_t number = name.find("-version-");
  if (number == std::string::npos || file_exists(same)) return same;
  const std::string prefix = name.substr(0, number + std::strlen("-version-"));
  std::error_code error;
  for (fs::directory_iterator it(spare, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().rfind(prefix, 0) == 0) return it->path();
  return same;
}

std::optional<int64_t> minibatch_of_partial(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (name.rfind('.', 0) != 0 || folder.extension() != kPartialSuffix) return std::nullopt;
  return minibatch_of(name.substr(1, name.size() - 1 - std::string(kPartialSuffix).size()));
}

void make_partial_checkpoint(const fs::path& run_folder, int64_t next_minibatch) {
  const fs::path folder = partial_checkpoint(run_folder, next_minibatch);
  demand_run_files(run_folder, {});
  on_disk(folder, [&] {
    fs::create_directory(checkpoints_of(run_folder));
    fs::create_directory(folder);
  });
}

CheckpointFile write_checkpoint_file(const fs::path& run_folder, int64_t next_minibatch,
                                     const std::string& name, const NamedTensors& tensors) {
  const fs::path folder = partial_checkpoint(run_folder, next_minibatch);
  make_partial_checkpoint(run_folder, next_minibatch);
  const std::string file = name + ".safetensors";
  try {
    const WrittenFile written = write_safetensors(
        folder / file, tensors, {{"format", "pt"}, {"next_minibatch", std::to_string(next_minibatch)}},
        spare_file(run_folder, name));
    return {file, written.bytes, written.digest};
  } catch (const RunError&) {
    demand_run_files(run_folder, {});  // if that has gone, that is the cause
    throw;
  }
}

CheckpointKeeper::CheckpointKeeper(fs::path run_folder, int64_t keep, bool spares, Lost lost)
    : run_folder_(std::move(run_folder)), keep_(keep), spares_(spares), lost_(std::move(lost)) {}

void CheckpointKeeper::take(CheckpointPart told) {
  const std::lock_guard lock(mutex_);
  Written& written = written_[told.next_minibatch];
  ++written.ranks;
  if (written.lost.empty()) written.lost = told.lost;
  for (auto& [number, part] : told.stages) written.stages[number].add(std::move(part));
  changed_.notify_all();
}

void CheckpointKeeper::begin(CheckpointManifest manifest) {
  PW_CHECK(pending_.empty() || pending_.back().next_minibatch < manifest.next_minibatch,
           "a checkpoint of minibatch " << manifest.next_minibatch << " begins after a later one");
  pending_.push_back(std::move(manifest));
}

std::optional<fs::path> CheckpointKeeper::poll() {
  if (completed_.valid()) {
    if (completed_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return {};
    return take_completed();
  }
  if (pending_.empty()) return {};
  const CheckpointManifest& next = pending_.front();
  Written written;
  {
    const std::lock_guard lock(mutex_);
    const auto found = written_.find(next.next_minibatch);
    const int64_t writers = next.run.emulate ? 1 : next.plan.world_size;
    if (found == written_.end() || found->second.ranks < writers) return {};
    written = std::move(found->second);
    written_.erase(found);
  }
  if (!written.lost.empty()) {
    lose(next.next_minibatch, written.lost);
  } else {
    completed_ = std::async(std::launch::async, [this, manifest = next, stages = std::move(written.stages)] {
      return complete(manifest, stages);
    });
  }
  return {};
}

std::optional<fs::path> CheckpointKeeper::take_completed() {
  try {
    fs::path folder = completed_.get();
    pending_.pop_front();
    return folder;
  } catch (const RunError& error) {
    if (!lost_) {
      pending_.pop_front();
      throw;
    }
    lose(pending_.front().next_minibatch, error.what());
    return {};
  }
}

// The first that is pending.
void CheckpointKeeper::lose(int64_t next_minibatch, const std::string& why) {
  std::error_code ignored;
  fs::remove_all(partial_checkpoint(run_folder_, next_minibatch), ignored);
  pending_.pop_front();
  lost_(next_minibatch, why);
}

std::optional<fs::path> CheckpointKeeper::wait(const std::function<void()>& check) {
  for (const size_t before = pending(); before > 0 && pending() == before;) {
    if (auto folder = poll()) return folder;
    check();
    if (completed_.valid()) {
      completed_.wait_for(std::chrono::milliseconds(20));
    } else {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
  return {};
}

void CheckpointKeeper::settle() noexcept {
  try {
    poll();
    while (completed_.valid()) {
      completed_.wait();
      poll();  // takes the result
      poll();  // begins with the next, if that has been written
    }
  } catch (const std::exception&) {
    // The run has failed already, of this or of something else.
  }
  try {
    remove_partial_checkpoints(run_folder_);
  } catch (const std::exception&) {
  }
}

fs::path CheckpointKeeper::complete(CheckpointManifest manifest, Stages stages) const {
  const fs::path partial = partial_checkpoint(run_folder_, manifest.next_minibatch);
  demand_run_files(run_folder_, {});
  for (auto& [number, stage] : stages) manifest.stages.push_back(std::move(stage));
  PW_CHECK_EQ(manifest.stages.size(), manifest.plan.stages.size());
  for (const CheckpointFile& file : manifest.files()) {
    std::error_code error;
    const auto bytes = fs::file_size(partial / file.file, error);
    if (error && tell_) continue;  // another host has it
    if (error || static_cast<int64_t>(bytes) != file.bytes) {
      demand_run_files(run_folder_, {});
      throw RunError((partial / file.file).string() + ": is not there as its rank wrote it",
                     "The run folder must lie on a file system that all ranks share.");
    }
  }
  // After a power cut too the book reaches as far as the checkpoint.
  sync_to_disk(run_folder_ / "metrics.jsonl");
  write_document(partial / kManifestName, manifest);
  if (tell_) tell_(manifest.next_minibatch, partial / kManifestName);
  return take_for_whole(run_folder_, manifest.next_minibatch, keep_, spares_);
}

namespace {

void remove_partials_before(const fs::path& run_folder, int64_t next_minibatch) {
  std::vector<fs::path> lost;
  for (const auto& entry : fs::directory_iterator(checkpoints_of(run_folder))) {
    const auto minibatch = minibatch_of_partial(entry.path());
    if (minibatch && *minibatch < next_minibatch) lost.push_back(entry.path());
  }
  for (const fs::path& folder : lost) fs::remove_all(folder);
}

}  // namespace

fs::path take_for_whole(const fs::path& run_folder, int64_t next_minibatch, int64_t keep, bool spares) {
  const fs::path folder = checkpoints_of(run_folder) / checkpoint_name(next_minibatch);
  on_disk(folder, [&] {
    if (file_exists(folder)) remove_checkpoint(folder);
    fs::rename(partial_checkpoint(run_folder, next_minibatch), folder);
    remove_partials_before(run_folder, next_minibatch);
    const auto whole = list_checkpoints(run_folder);
    for (size_t i = static_cast<size_t>(keep); i < whole.size(); ++i) {
      std::error_code failed;
      if (spares && i == static_cast<size_t>(keep)) {
        fs::remove_all(spare_checkpoint(run_folder), failed);  // ranks may be taking files out of it
        fs::rename(whole[i], spare_checkpoint(run_folder), failed);
        if (!failed) continue;
      }
      remove_checkpoint(whole[i]);
    }
  });
  sync_to_disk(checkpoints_of(run_folder));
  return folder;
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

}  // namespace pipewright
