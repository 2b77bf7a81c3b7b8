#include "runtime/checkpoint/kept_state.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/pipeline_rules.h"
#include "graph/regular_file.h"
#include "graph/units.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/schedule/versions.h"
#include "runtime/stage/partition.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMemory = "/dev/shm";
constexpr const char* kPrefix = "pipewright-kept-";
const std::string kPlacePrefix = ".kept-";
const std::string kAttemptPrefix = "attempt-";
constexpr const char* kStartsName = ".kept.starts";

// For files of ours.
int64_t free_bytes(const char* folder) {
  constexpr fsblkcnt_t kFiles = 1000;
  struct statvfs found {};
  if (::statvfs(folder, &found) != 0) return 0;
  if ((found.f_flag & ST_RDONLY) != 0 || (found.f_files > 0 && found.f_favail < kFiles)) return 0;
  return static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
}

[[noreturn]] void cannot_make(const fs::path& folder, const std::string& why) {
  throw RunError(folder.string() + ": cannot be made: " + why,
                 "The state from which a lost rank is recovered is kept there; --on-loss end keeps none.");
}

void make_place(const fs::path& place, int64_t bytes) {
  remove_kept_place(place);
  const int64_t room = free_bytes(kMemory);
  std::string why = std::string(kMemory) + " has room for " + format_bytes(static_cast<double>(room)) + ", " +
                    format_bytes(static_cast<double>(bytes)) + " may be needed";
  std::error_code error;
  if (room > bytes) {
    std::string folder = fs::path(kMemory) / (std::string(kPrefix) + "XXXXXX");
    if (::mkdtemp(folder.data()) != nullptr) {
      fs::create_directory_symlink(folder, place, error);
      if (error) cannot_make(place, error.message());
      return;
    }
    why = std::string(kMemory) + " takes no folder: " + std::strerror(errno);
  }
  fs::create_directory(place, error);
  if (error) cannot_make(place, error.message());
  std::fprintf(stderr, "the state for lost ranks is kept on the disk, in %s: %s\n", place.c_str(),
               why.c_str());
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

int64_t kept_state_bytes(const Graph& graph, const Plan& plan, int64_t slots) {
  const WeightRule rule = weight_rule_named(plan.weights);
  const int64_t pipeline_depth = plan.stages.front().in_flight;
  const auto interfaces = partition(graph, plan);
  int64_t bytes = 0;
  for (size_t s = 0; s < interfaces.size(); ++s) {
    std::set<std::string> read;
    for (const size_t node : interfaces[s].nodes)
      for (const std::string& name : graph.nodes[node].reads()) read.insert(name);
    const int64_t copies = 1 + slots + older_in_checkpoint(rule, plan.stages[s].in_flight, pipeline_depth);
    for (const Parameter& parameter : graph.parameters)
      if (read.count(parameter.name) != 0)
        bytes += (parameter.trainable ? copies : 1) * parameter.type.bytes();
    for (const Buffer& buffer : graph.buffers)
      if (read.count(buffer.name) != 0) bytes += buffer.type.bytes();
  }
  return bytes;
}

void ensure_kept_place(const fs::path& place, int64_t bytes) {
  std::error_code error;
  if (!fs::is_directory(place, error)) make_place(place, bytes);
}

void make_kept_state(const fs::path& run_folder, int64_t attempt, int64_t bytes,
                     const std::optional<fs::path>& taken) {
  const fs::path place = kept_state_of(run_folder);
  ensure_kept_place(place, bytes);
  const fs::path own = kept_by_attempt(place, attempt);
  const bool has_taken = taken && taken->parent_path().parent_path() == own;
  try {
    if (!has_taken) fs::remove_all(own);  // an earlier job's
    fs::create_directory(own);
    if (taken && !has_taken) {
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

KeptFolder::KeptFolder(Settings settings)
    : settings_(std::move(settings)), path_(kept_by_attempt(settings_.place, settings_.attempt)) {}

void KeptFolder::demand() {
  const std::lock_guard lock(mutex_);
  std::error_code error;
  if (fs::is_directory(path_, error)) {
    target_ = target_of_kept_place(settings_.place);
    return;
  }
  const std::string gone = (target_.empty() ? path_ : target_).string();
  if (settings_.makes) make();
  throw RunError(gone + " of host " + this_process().host + ": has gone",
                 "Leave it to the job while that runs.");
}

// A rank that was cut off, and comes back, must not take the place of those that have started since.
void KeptFolder::make() {
  const auto starts = read_starts(settings_.place.parent_path());
  if (starts.empty() || starts.back().attempt != settings_.attempt) return;
  std::error_code error;
  if (!target_.empty()) fs::remove_all(target_, error);  // the link to it may be all that has gone
  ensure_kept_place(settings_.place, settings_.bytes);
  fs::create_directory(path_, error);
  if (error) cannot_make(path_, error.message());
}

void KeptFolder::give_up() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (target_.empty()) return;
    // At once, as the other ranks see it. Without this attempt's folder the rest is a later one's.
    std::error_code error;
    fs::rename(target_ / path_.filename(), target_ / ".given-up", error);
    if (!error) fs::remove_all(target_, error);
  } catch (const std::exception&) {
    // Whatever stays is removed with the state of the run.
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

void remove_kept_states(const fs::path& run_folder, const OnHost& on_host) noexcept {
  try {
    for (const HostOfKeptState& host : hosts_of_kept_state(run_folder)) {
      const fs::path target = target_of_kept_place(host.place);
      if (on_host && !target.empty()) on_host(host.host, {"rm", "-rf", target.string()});
      remove_kept_place(host.place);
    }
    fs::remove(run_folder / kStartsName);
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

void note_start(const fs::path& run_folder, AttemptStart start, bool first) {
  Json json = Json::array();
  if (!first) {
    for (const AttemptStart& earlier : read_starts(run_folder))
      json.push_back({{"attempt", earlier.attempt}, {"minibatch", earlier.minibatch}});
  }
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

bool is_of_this_past(int64_t attempt, int64_t minibatch, const std::vector<AttemptStart>& starts) {
  return std::all_of(starts.begin(), starts.end(), [&](const AttemptStart& start) {
    return start.attempt <= attempt || minibatch <= start.minibatch;
  });
}

std::optional<int64_t> newest_kept(const fs::path& run_folder) {
  std::optional<int64_t> newest;
  for (const HostOfKeptState& host : hosts_of_kept_state(run_folder)) {
    for (const KeptAttempt& attempt : list_kept_attempts(host.place)) {
      const auto whole = list_checkpoints(attempt.folder);
      if (!whole.empty()) newest = std::max(newest.value_or(0), minibatch_of(whole.front()).value_or(0));
    }
  }
  return newest;
}

}  // namespace pipewright
