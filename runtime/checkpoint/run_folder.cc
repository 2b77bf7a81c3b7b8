#include "runtime/checkpoint/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/json.h"
#include "graph/live_status.h"
#include "graph/regular_file.h"
#include "graph/verified.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/checkpoint/kept_inventory.h"
#include "runtime/checkpoint/model_file.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr const char* kLockName = ".lock";

[[noreturn]] void cannot_prepare(const fs::path& folder, const std::string& why) {
  throw RunError(folder.string() + ": cannot be prepared for a run: " + why,
                 "choose another --output, or make room and right to write there");
}

// As the lock's file says; nothing where it cannot (yet).
std::optional<ProcessName> read_holder(int descriptor) {
  char text[1024] = {};
  if (::pread(descriptor, text, sizeof text - 1, 0) <= 0) return {};
  try {
    return ProcessName::from_text(text);
  } catch (const PeerError&) {
    return {};
  }
}

}  // namespace

void make_run_folder(const fs::path& folder) {
  const FileWatch watch(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) cannot_prepare(folder, error.message());
}

RunFolderLock::RunFolderLock(const fs::path& folder) {
  make_run_folder(folder);
  const fs::path file = folder / kLockName;
  {
    const FileWatch watch(file);
    // Not O_CLOEXEC: ranks hold it too.
    descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT, 0666);
  }
  if (descriptor_ < 0) cannot_prepare(folder, std::string(kLockName) + ": " + std::strerror(errno));
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      std::fprintf(stderr, "%s: its file system has no locks (%s): nothing keeps a second run out\n",
                   folder.c_str(), std::strerror(errno));
      return;
    }
    const std::optional<ProcessName> holder = read_holder(descriptor_);
    // A launcher that has died: its ranks will have ended soon.
    if (holder && state_of(*holder) == ProcessState::kGone && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(50ms);
      continue;
    }
    ::close(descriptor_);
    const std::string who =
        holder ? "process " + std::to_string(holder->pid) + " on " + holder->host : "another process";
    throw InputError(folder.string() + ": a run is writing there: " + who,
                     "Give this run another --output, or wait until that one has ended.");
  }
  const std::string text = this_process().to_text();
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    // A full disk: the lock is held all the same, it only cannot say by whom.
  }
}

RunFolderLock::~RunFolderLock() {
  if (descriptor_ < 0) return;
  // A start that fails leaves the folder as it was.
  if (::ftruncate(descriptor_, 0) != 0) {
    // Then it names a process that has gone.
  }
  ::close(descriptor_);
}

void adopt_kept_state(const fs::path& folder, const OnHost& on_host) {
  if (hosts_of_kept_state(folder).empty()) return;
  const RunFolderLock lock(folder);
  const fs::path saved = save_kept_state(folder, on_host);
  if (!saved.empty()) std::fprintf(stderr, "what an earlier run kept in memory is now %s\n", saved.c_str());
  remove_kept_states(folder, on_host);
}

std::optional<ProcessName> run_folder_holder(const fs::path& folder) {
  const int descriptor = ::open((folder / kLockName).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::optional<ProcessName> holder = read_holder(descriptor);
  ::close(descriptor);
  return holder;
}

bool run_folder_is_held(const fs::path& folder) {
  const int descriptor = ::open((folder / kLockName).c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool held = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return held;
}

namespace {

// What tells of a run, beside its checkpoints.
constexpr const char* kRead[] = {"run.json", "plan.json", kModelFileName};  // by the next one, maybe
constexpr const char* kResults[] = {"metrics.jsonl", "summary.json", "trace.json", kVerifiedName};
// These tell of a run from its start to its end: no other goes on with them.
constexpr const char* kOfOneRun[] = {"summary.json", "trace.json", kVerifiedName, LiveStatus::kFile};

// rank-K.log and the like, from number `from` on.
std::vector<std::string> numbered(const fs::path& folder, const std::string& prefix,
                                  const std::string& suffix, int64_t from = 0) {
  std::vector<std::string> names;
  for (int64_t number = from;; ++number) {
    names.push_back(prefix + std::to_string(number) + suffix);
    if (!file_exists(folder / names.back())) break;
  }
  names.pop_back();
  return names;
}

std::vector<std::string> logs_in(const fs::path& folder) { return numbered(folder, "rank-", ".log"); }

// The run in the folder ended behind the checkpoint: what it left tells of more than is gone on from.
bool ended_behind(const fs::path& folder, const Checkpoint& checkpoint) {
  try {
    const auto summary = read_document<Summary>(folder / "summary.json");
    return summary.status == "done" && summary.minibatches > checkpoint.manifest.next_minibatch;
  } catch (const Error&) {
    return false;
  }
}

// Checkpoints of the folder that are not the past of a run that goes on from `resume`.
std::vector<fs::path> strangers(const fs::path& folder, const std::optional<Checkpoint>& resume) {
  std::vector<fs::path> found;
  for (const fs::path& checkpoint : list_checkpoints(folder)) {
    std::error_code ignored;
    if (resume && fs::equivalent(checkpoint, resume->folder, ignored)) break;  // the rest is older
    found.push_back(checkpoint);
  }
  return found;
}

// Both names lead to the file, which nobody writes into: it is replaced.
void copy_of_file(const fs::path& from, const fs::path& to) {
  std::error_code no_links;
  if (!fs::is_symlink(from)) fs::create_hard_link(from, to, no_links);
  if (fs::is_symlink(from) || no_links) fs::copy_file(from, to);
}

// Of a file of results: what is no file of its own (a link, a pipe) stays where it is.
void move_file(const fs::path& from, const fs::path& to) {
  if (fs::is_symlink(from)) {
    if (fs::is_regular_file(from)) fs::copy_file(from, to);
  } else if (fs::is_regular_file(from)) {
    fs::rename(from, to);
  }
}

fs::path new_folder_for_earlier_run(const fs::path& folder) {
  int number = 1;
  const auto earlier = [&] { return folder / (kEarlierRunPrefix + std::to_string(number)); };
  while (!fs::create_directory(earlier())) ++number;
  return earlier();
}

void set_aside(const fs::path& folder, const std::vector<fs::path>& checkpoints, bool metrics_are_read) {
  const fs::path earlier = new_folder_for_earlier_run(folder);
  std::vector<std::string> read(std::begin(kRead), std::end(kRead));
  for (const std::string& name : plans_of_changes_in(folder)) read.push_back(name);
  for (const std::string& name : read)
    if (fs::is_regular_file(folder / name)) copy_of_file(folder / name, earlier / name);
  for (const std::string name : kResults) {
    if (metrics_are_read && name == "metrics.jsonl") {
      if (fs::is_regular_file(folder / name)) copy_of_file(folder / name, earlier / name);
    } else {
      move_file(folder / name, earlier / name);
    }
  }
  for (const std::string& name : logs_in(folder)) fs::rename(folder / name, earlier / name);
  if (fs::is_directory(folder / "flight")) fs::rename(folder / "flight", earlier / "flight");
  if (!checkpoints.empty()) fs::create_directory(checkpoints_of(earlier));
  for (const fs::path& checkpoint : checkpoints)
    fs::rename(checkpoint, checkpoints_of(earlier) / checkpoint.filename());
  std::fprintf(stderr, "what an earlier run left in %s is now in %s; --overwrite would remove it\n",
               folder.c_str(), earlier.filename().c_str());
}

// Half-written files: no process that writes here lives.
void remove_half_written(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind('.', 0) == 0 && name.find(".tmp-") != std::string::npos) found.push_back(entry.path());
  }
  for (const fs::path& file : found) fs::remove(file);
  remove_partial_checkpoints(folder);
  remove_weights_parts(folder);
}

}  // namespace

std::string generation_plan_name(int64_t generation) {
  return "generation-" + std::to_string(generation) + ".plan.json";
}

std::vector<std::string> plans_of_changes_in(const fs::path& folder, int64_t from) {
  auto names = numbered(folder, "generation-", ".plan.json", from);
  if (from == 0 && file_exists(folder / kChangesName)) names.push_back(kChangesName);
  return names;
}

bool holds_earlier_run(const fs::path& folder) {
  std::error_code error;
  const auto bytes = fs::file_size(folder / "metrics.jsonl", error);
  return (!error && bytes > 0) || file_exists(folder / "summary.json") ||
         file_exists(folder / kModelFileName) || !list_checkpoints(folder).empty();
}

Plan last_plan_of(const fs::path& folder, const Summary& summary) {
  return read_document<Plan>(folder /
                             (summary.generations.empty() ? "plan.json" : summary.generations.back().plan));
}

void prepare_run_folder(const fs::path& folder, const std::optional<Checkpoint>& resume, bool overwrite) {
  try {
    remove_half_written(folder);
    std::error_code ignored;
    const bool own =
        resume && fs::equivalent(fs::absolute(resume->folder).parent_path(), checkpoints_of(folder), ignored);
    const auto foreign = strangers(folder, own ? resume : std::nullopt);
    const bool earlier = own ? !foreign.empty() || ended_behind(folder, *resume) : holds_earlier_run(folder);
    if (earlier && !overwrite) set_aside(folder, foreign, /*metrics_are_read=*/own);
    if (earlier && overwrite)
      for (const fs::path& checkpoint : foreign) remove_checkpoint(checkpoint);
    const fs::path checkpoints = checkpoints_of(folder);
    if (!fs::is_symlink(checkpoints) && fs::is_directory(checkpoints) && fs::is_empty(checkpoints))
      fs::remove(checkpoints);
    for (const char* name : kOfOneRun) fs::remove(folder / name);
    if (!own && !fs::is_symlink(folder / "metrics.jsonl") && fs::is_regular_file(folder / "metrics.jsonl"))
      fs::remove(folder / "metrics.jsonl");
    fs::remove_all(folder / "flight");
    remove_kept_state(folder);  // of a run whose launcher was killed
    for (const std::string& name : logs_in(folder)) fs::remove(folder / name);
  } catch (const fs::filesystem_error& error) {
    cannot_prepare(folder, error.code().message());
  }
}

void tidy_run_folder(const fs::path& folder, int64_t next_minibatch) {
  try {
    remove_half_written(folder);
    for (const fs::path& checkpoint : list_checkpoints(folder)) {
      if (minibatch_of(checkpoint).value_or(0) <= next_minibatch) break;  // the rest is older
      remove_checkpoint(checkpoint);
    }
    for (const char* name : kOfOneRun) fs::remove(folder / name);
    fs::remove_all(folder / "flight");
  } catch (const fs::filesystem_error& error) {
    cannot_prepare(folder, error.code().message());
  }
}

void demand_run_files(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (!file_exists(folder / name)) missing.push_back(name);
  if (!file_exists(folder))
    throw RunError(folder.string() + ": has gone while the run wrote into it: what it wrote is lost",
                   "Somebody removed or moved it.");
  if (missing.empty()) return;
  throw RunError(folder.string() + ": has lost " + join(missing, ", ") + " while the run wrote into it",
                 "Somebody removed or moved that. The rest is as the run wrote it.");
}

}  // namespace pipewright
