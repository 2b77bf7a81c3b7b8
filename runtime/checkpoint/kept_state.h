// The newest state of a run, kept in the memory of its hosts: checkpoints like those of the run folder,
// written every few minibatches, of which only the last whole one stays. It outlives the processes of the
// ranks, so that a job that has lost one goes on from there. docs/recovery.md
//
// Each host has a folder of its own for it, a link to which lies in the run folder. Where there are several,
// a host has some of the files of a state, and the manifest of a whole one (state_copies.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/plan.h"

namespace pipewright {

/// RUN/.kept-HOST of the host of this process (this_process()): a link into its memory (/dev/shm), or a
/// folder on the disk.
std::filesystem::path kept_state_of(const std::filesystem::path& run_folder);
/// A host and its RUN/.kept-HOST.
struct HostOfKeptState {
  std::string host;
  std::filesystem::path place;
};
/// Of all hosts, as the run folder has them.
std::vector<HostOfKeptState> hosts_of_kept_state(const std::filesystem::path& run_folder);

/// Ranks of one attempt (job/attempt.h) write into a folder of their own, in which checkpoints/ is made:
/// whoever is late writes into one that is not there any more.
std::filesystem::path kept_by_attempt(const std::filesystem::path& place, int64_t attempt);
struct KeptAttempt {
  int64_t attempt = 0;
  std::filesystem::path folder;
};
/// Those that there are, by falling number.
std::vector<KeptAttempt> list_kept_attempts(const std::filesystem::path& place);

/// What all ranks together write of one state (runtime/schedule/kept_memory.h), with so many slots of the
/// optimizer.
int64_t kept_state_bytes(const Graph& graph, const Plan& plan, int64_t slots);

/// Makes this host's place, if it is not there, or leads nowhere because the host has been started anew: in
/// memory if that has room for `bytes`, else beside the run, with a line on standard error that says why.
/// RunError if it cannot be made.
void ensure_kept_place(const std::filesystem::path& place, int64_t bytes);

/// Makes room for what `attempt` will keep on this host, as ensure_kept_place(). `taken`: a kept checkpoint
/// of this host from which the attempt goes on; it becomes the first of the attempt's. All others go. By one
/// process of the host, and after all of its processes have read what they take.
void make_kept_state(const std::filesystem::path& run_folder, int64_t attempt, int64_t bytes,
                     const std::optional<std::filesystem::path>& taken);

/// The folder of an attempt on this host (kept_by_attempt()) while its ranks write there. Somebody may remove
/// it, or its memory may be full: the ranks then go on with a new one. Several threads.
class KeptFolder {
 public:
  struct Settings {
    std::filesystem::path place;  ///< this host's
    int64_t attempt = 0;
    int64_t bytes = 0;   ///< as make_kept_state()
    bool makes = false;  ///< of the host's processes one makes it again
  };
  explicit KeptFolder(Settings settings);

  const std::filesystem::path& path() const { return path_; }
  /// Before it is written into. RunError where it has gone, with all that was in it: it is then there again
  /// for the next state, if this process makes it and no later attempt has begun.
  void demand();
  /// It cannot be written into. What lies in memory goes, so that the next demand() finds none.
  void give_up() noexcept;

 private:
  void make();

  const Settings settings_;
  const std::filesystem::path path_;
  std::mutex mutex_;
  std::filesystem::path target_;  // target_of_kept_place() when it was last there; protected by mutex_
};

/// Gives the room back, as far as it goes: of this host.
void remove_kept_state(const std::filesystem::path& run_folder) noexcept;
/// Likewise of one place, whose host this is.
void remove_kept_place(const std::filesystem::path& place) noexcept;
/// Runs words on a host; false: they failed, the host does not answer, or is nobody's to ask.
using OnHost = std::function<bool(const std::string& host, const std::vector<std::string>& words)>;
/// Likewise of all hosts, each by itself where it can be asked. `on_host` empty: all are this one.
void remove_kept_states(const std::filesystem::path& run_folder, const OnHost& on_host) noexcept;
/// Where the host of a place has its state; "" if it is the place itself.
std::filesystem::path target_of_kept_place(const std::filesystem::path& place);

/// The minibatch from which an attempt has gone on.
struct AttemptStart {
  int64_t attempt = 0;
  int64_t minibatch = 0;
};
/// RUN/.kept.starts: of the attempts of the job, as rank 0 notes them; `first`: of a job that begins.
void note_start(const std::filesystem::path& run_folder, AttemptStart start, bool first);
std::vector<AttemptStart> read_starts(const std::filesystem::path& run_folder);
/// False of a state that an attempt has kept from behind the minibatch from which a later one has gone on:
/// that one has trained it otherwise since. A host that comes back late may have some.
bool is_of_this_past(int64_t attempt, int64_t minibatch, const std::vector<AttemptStart>& starts);

/// The newest minibatch whose state is whole, of those states that can be read from this host.
std::optional<int64_t> newest_kept(const std::filesystem::path& run_folder);

}  // namespace pipewright
