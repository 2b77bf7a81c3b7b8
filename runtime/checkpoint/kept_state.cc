#include "runtime/checkpoint/kept_state.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/regular_file.h"
#include "graph/units.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMemory = "/dev/shm";
constexpr const char* kPrefix = "pipewright-kept-";
const std::string kPlacePrefix = ".kept-";
const std::string kAttemptPrefix = "attempt-";
constexpr const char* kStartsName = ".kept.starts";

int64_t free_bytes(const char* folder) {
  struct statvfs found {};
  if (::statvfs(folder, &found) != 0) return 0;
  return static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
}

[[noreturn]] void cannot_make(const fs::path& folder, const std::string& why) {
  throw RunError(folder.string() + ": cannot be made: " + why,
                 "The state from which a lost rank is recovered is kept there; --on-loss end keeps none.");
}

void make_place(const fs::path& place, int64_t bytes) {
  remove_kept_place(place);
  const int64_t room = free_bytes(kMemory);
  std::error_code error;
  if (room > bytes) {
    std::string folder = fs::path(kMemory) / (std::string(kPrefix) + "XXXXXX");
    if (::mkdtemp(folder.data()) == nullptr) cannot_make(folder, std::strerror(errno));
    fs::create_directory_symlink(folder, place, error);
    if (error) cannot_make(place, error.message());
    return;
  }
  fs::create_directory(place, error);
  if (error) cannot_make(place, error.message());
  std::fprintf(stderr,
               "the state for lost ranks is kept on the disk, in %s: %s has room for %s, %s may be needed\n",
               place.c_str(), kMemory, format_bytes(static_cast<double>(room)).c_str(),
               format_bytes(static_cast<double>(bytes)).c_str());
}

}  // namespace

fs::path kept_state_of(const fs::path& run_folder) {
  std::string host = this_process().host;
  std::replace(host.begin(), host.end(), '/', '_');
  return run_folder / (kPlacePrefix + host);
}

std::vector<HostOfKeptState> hosts_of_kept_state(const fs::path& run_folder) {
  std::vector<HostOfKeptState> hosts;
  std::error_code error;
  for (fs::directory_iterator it(run_folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(kPlacePrefix, 0) == 0) hosts.push_back({name.substr(kPlacePrefix.size()), it->path()});
  }
  return hosts;
}

fs::path kept_by_attempt(const fs::path& place, int64_t attempt) {
  return place / (kAttemptPrefix + std::to_string(attempt));
}

std::vector<KeptAttempt> list_kept_attempts(const fs::path& place) {
  std::vector<KeptAttempt> attempts;
  std::error_code error;
  for (fs::directory_iterator it(place, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(kAttemptPrefix, 0) == 0)
      attempts.push_back({std::atoll(name.c_str() + kAttemptPrefix.size()), it->path()});
  }
  std::sort(attempts.begin(), attempts.end(),
            [](const KeptAttempt& a, const KeptAttempt& b) { return a.attempt > b.attempt; });
  return attempts;
}

void ensure_kept_place(const fs::path& run_folder, int64_t bytes) {
  std::error_code error;
  const fs::path place = kept_state_of(run_folder);
  if (!fs::is_directory(place, error)) make_place(place, bytes);
}

void make_kept_state(const fs::path& run_folder, int64_t attempt, int64_t bytes,
                     const std::optional<fs::path>& taken) {
  const fs::path place = kept_state_of(run_folder);
  if (attempt == 0) remove_kept_place(place);  // an earlier job's
  ensure_kept_place(run_folder, bytes);
  const fs::path own = kept_by_attempt(place, attempt);
  try {
    fs::create_directory(own);
    if (taken && taken->parent_path().parent_path() != own) {
      fs::create_directory(checkpoints_of(own));
      fs::rename(*taken, checkpoints_of(own) / taken->filename());
    }
    std::error_code error;
    for (const KeptAttempt& other : list_kept_attempts(place))
      if (other.attempt != attempt) fs::remove_all(other.folder, error);
  } catch (const fs::filesystem_error& failed) {
    cannot_make(own, failed.code().message());
  }
}

void remove_kept_state(const fs::path& run_folder) noexcept {
  try {
    remove_kept_place(kept_state_of(run_folder));
  } catch (const std::exception&) {
    // Room that is not given back is no reason to fail.
  }
}

void remove_kept_place(const fs::path& place) noexcept {
  try {
    std::error_code error;
    const fs::path target = target_of_kept_place(place);
    if (!target.empty()) {
      fs::remove_all(target, error);
      fs::remove(place, error);
    } else {
      fs::remove_all(place, error);
    }
  } catch (const std::exception&) {
    // Likewise.
  }
}

fs::path target_of_kept_place(const fs::path& place) {
  std::error_code error;
  if (!fs::is_symlink(place, error)) return {};
  const fs::path target = fs::read_symlink(place, error);
  return target.filename().string().rfind(kPrefix, 0) == 0 ? target : fs::path();
}

void note_start(const fs::path& run_folder, AttemptStart start) {
  Json json = Json::array();
  if (start.attempt > 0)
    for (const AttemptStart& earlier : read_starts(run_folder))
      json.push_back({{"attempt", earlier.attempt}, {"minibatch", earlier.minibatch}});
  json.push_back({{"attempt", start.attempt}, {"minibatch", start.minibatch}});
  write_file(run_folder / kStartsName, json_text(json));
}

std::vector<AttemptStart> read_starts(const fs::path& run_folder) {
  const fs::path file = run_folder / kStartsName;
  std::vector<AttemptStart> starts;
  if (!file_exists(file)) return starts;
  for (const Json& start : read_json_file(file))
    starts.push_back({start.at("attempt").get<int64_t>(), start.at("minibatch").get<int64_t>()});
  return starts;
}

void forget_starts(const fs::path& run_folder) noexcept {
  std::error_code ignored;
  fs::remove(run_folder / kStartsName, ignored);
}

bool is_of_this_past(int64_t attempt, int64_t minibatch, const std::vector<AttemptStart>& starts) {
  return std::all_of(starts.begin(), starts.end(), [&](const AttemptStart& start) {
    return start.attempt <= attempt || minibatch <= start.minibatch;
  });
}

std::string KeptName::to_text() const { return std::to_string(attempt) + " " + std::to_string(minibatch); }

KeptName KeptName::from_text(const std::string& text) {
  KeptName name;
  std::istringstream(text) >> name.attempt >> name.minibatch;
  return name;
}

std::optional<KeptName> newest_kept(const fs::path& run_folder) {
  std::optional<KeptName> newest;
  for (const HostOfKeptState& host : hosts_of_kept_state(run_folder)) {
    for (const KeptAttempt& attempt : list_kept_attempts(host.place)) {
      const auto whole = list_checkpoints(attempt.folder);
      if (whole.empty()) continue;
      const KeptName name{attempt.attempt, minibatch_of(whole.front()).value_or(0)};
      newest = std::max(newest.value_or(name), name);
    }
  }
  return newest;
}

fs::path save_kept_state(const fs::path& run_folder, KeptName newest, const CopyOfHost& copy) {
  const auto written = list_checkpoints(run_folder);
  if (!written.empty() && minibatch_of(written.front()).value_or(0) >= newest.minibatch) return {};
  const fs::path partial = partial_checkpoint(run_folder, newest.minibatch);
  const fs::path name = checkpoint_name(newest.minibatch);
  const fs::path folder = checkpoints_of(run_folder) / name;
  try {
    fs::create_directories(partial);
    for (const HostOfKeptState& host : hosts_of_kept_state(run_folder)) {
      const fs::path target = target_of_kept_place(host.place);
      copy(host.host, checkpoints_of(kept_by_attempt(target.empty() ? host.place : target, newest.attempt)) / name,
           partial);
    }
    open_checkpoint(partial);
    fs::rename(partial, folder);
  } catch (const fs::filesystem_error& error) {
    throw RunError(folder.string() + ": cannot be written: " + error.code().message());
  } catch (const InputError&) {
    std::error_code ignored;  // a file of it has gone with its host
    fs::remove_all(partial, ignored);
    return {};
  }
  return folder;
}

}  // namespace pipewright
