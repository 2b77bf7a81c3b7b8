// Draining the pipeline before a minibatch that nobody knew beforehand, on all ranks before the same one: a
// signal ends the run there with a checkpoint, or another plan takes over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/transport/store.h"

namespace pipewright {

/// A signal reaches one rank, or all of them at different times; a change of plan is decided on rank 0;
/// meanwhile ranks work on different minibatches. So, over the store, in rounds: rank 0 opens one, for a
/// signal that a rank has announced or for its own change, a signal first; every rank starts no forward of
/// the first stage from then on and says which one it started last; rank 0 decides where to stop; when all
/// ranks know, the first stage goes on up to there. The pipeline then drains as at the end of a span. A round
/// ends the run, or is over when every rank has made the change and says so (go_on); only then the next one
/// opens.
class StopAgreement {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Settings {
    int64_t rank = 0;
    int64_t world_size = 1;
    /// Of this training; of a run that goes on, behind the checkpoint.
    int64_t first_minibatch = 0;
    bool heeds_signals = true;
    /// On rank 0: where to stop if k is the last minibatch that anyone has started: one before which no rank
    /// can have asked its neighbour for anything yet, more than k. Before the first has been started, k is
    /// the one before it.
    std::function<int64_t(int64_t last_started)> stop_after;
  };
  explicit StopAgreement(Settings settings);

  /// Before each forward of training at the first stage: waits while it is being decided where to stop, and
  /// calls `check` meanwhile, which may throw. In a world of one rank there is nothing to agree on.
  void enter(int64_t minibatch, const std::function<void()>& check);
  /// Rank 0, while nothing is under way: all ranks are to stop for `change`, which they then have too.
  void propose(std::string change);
  /// Something is proposed, asked or agreed on, and not over yet.
  bool under_way() const { return under_way_; }

  /// Minibatches from here on are not to be trained under the plan in force. kNever, then from some time on
  /// the agreed number, until go_on().
  int64_t stop_before() const { return stop_before_; }
  /// The signal that ends the run; 0 as long as none does: the ranks stop for a change.
  int signal() const { return signal_; }
  /// What has been proposed; of a rank that knows where to stop, and not for a signal.
  std::string change() const;
  /// The change is made here.
  void go_on();

  /// Several times a second, on Control's thread: its store may throw PeerError. Returns whether it waits for
  /// an answer of others, which may come soon.
  bool tick(Store& store);

 private:
  void agree_alone();
  void open(Store& store);
  bool answer(Store& store);
  void decide(Store& store);
  bool learn(Store& store);
  bool open_gate(Store& store);

  const Settings settings_;
  std::atomic<int> signal_ = 0;
  std::atomic<int64_t> stop_before_ = kNever;
  std::atomic<bool> under_way_ = false;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  int64_t last_started_;
  bool gate_closed_ = false;
  bool gone_on_ = false;                 // what this round was for is done here
  std::optional<std::string> proposal_;  // rank 0: nobody has been asked yet
  std::string change_;

  // Control's thread's own.
  int64_t round_ = 0;  // the one under way, or the last
  enum class Phase { kNone, kAsked, kKnown, kOpen } phase_ = Phase::kNone;
};

}  // namespace pipewright
