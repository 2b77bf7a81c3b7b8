// Ending a run early with every rank at the same minibatch, so that a checkpoint can be written.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "runtime/transport/store.h"

namespace pipewright {

/// A signal reaches one rank, or all of them at different times; meanwhile ranks work on different
/// minibatches. So, over the store: the signal is announced; the ranks of the first stage start no forward
/// until it is decided where to stop, and say which one they started last; rank 0 decides; when all ranks
/// know, the first stage goes on up to there. `stop_after` gives a minibatch before which no rank can yet
/// have asked its neighbour for anything. The pipeline then drains as at the end of a span.
class StopAgreement {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  /// `first_minibatch`: of this training; of a run that goes on, behind the checkpoint. `entries`: ranks of
  /// the first stage. `stop_after(k)`: where to stop if k is the last minibatch that anyone has started, more
  /// than k; before the first has been started, k is the one before it.
  StopAgreement(int64_t rank, int64_t world_size, int64_t first_minibatch, std::vector<int64_t> entries,
                std::function<int64_t(int64_t last_started)> stop_after);

  /// A rank of the first stage, before each forward of training: waits while it is being decided where to
  /// stop, and calls `check` meanwhile, which may throw. In a world of one rank there is nothing to agree on.
  void enter(int64_t minibatch, const std::function<void()>& check);
  /// Minibatches from here on are not to be trained. kNever, then from some time on the agreed number.
  int64_t stop_before() const { return stop_before_; }
  /// The signal that ends the run; 0 as long as none does.
  int signal() const { return signal_; }

  /// Several times a second, on Control's thread: its store may throw PeerError.
  void tick(Store& store);

 private:
  void decide(Store& store);

  const int64_t rank_;
  const int64_t world_size_;
  const std::vector<int64_t> entries_;
  const std::function<int64_t(int64_t)> stop_after_;

  std::atomic<int> signal_ = 0;
  std::atomic<int64_t> stop_before_ = kNever;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  int64_t last_started_;
  bool gate_closed_ = false;

  enum class Phase { kNone, kAsked, kKnown, kOpen } phase_ = Phase::kNone;  // of tick()
};

}  // namespace pipewright
