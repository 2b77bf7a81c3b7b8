// What anybody may read of a job at any time, and of which only the newest word counts: which processes its
// ranks are, their heartbeats, where they have met, why the job ends early, how far it has come. Its keys in
// the job's store stand in board.cc alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/failure.h"
#include "runtime/control/heartbeat.h"
#include "runtime/transport/process_state.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// The meeting behind which all ranks have begun, and are watched by each other.
inline constexpr const char* kStartMeeting = "start";

/// A view of the job's store, made of a Store wherever one is at hand; the thread whose store it is calls.
/// PeerError from all calls if the store cannot be reached.
class Board {
 public:
  Board(Store& store) : store_(&store) {}
  std::string address() const { return store_->address(); }

  /// This process is that rank. False: somebody has said so before.
  bool claim(int64_t rank) const;
  void set_process(int64_t rank, const ProcessName& process) const;
  void set_beat(int64_t rank, const Beat& beat) const;
  std::optional<Beat> beat_of(int64_t rank) const;
  RankReport report_of(int64_t rank) const;
  std::vector<RankReport> reports_of_all(int64_t world_size) const;

  /// A rank has come to a meeting of all (Barrier). The last to come opens it.
  void come_to(const std::string& meeting, int64_t rank, int64_t world_size) const;
  bool has_come_to(const std::string& meeting, int64_t rank) const;
  bool is_open(const std::string& meeting) const;

  /// Why the job ends early: the first one counts. False: somebody was before.
  bool announce_failure(const Failure& failure) const;
  /// The one that somebody has announced; PeerError if its text does not come within `timeout`.
  Failure await_failure(std::chrono::milliseconds timeout) const;
  std::optional<Failure> failure() const;  ///< if one is there

  /// Rank 0: the run folder is the job's, what an earlier run left has made room.
  void set_begun() const;
  bool has_begun() const;
  /// Rank 0, where the ranks are on several hosts: the newest minibatch of which a kept state is whole.
  void set_newest_kept(int64_t minibatch) const;
  std::optional<int64_t> newest_kept() const;

 private:
  Store* store_;
};

}  // namespace pipewright
