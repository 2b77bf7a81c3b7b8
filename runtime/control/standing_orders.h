// What rank 0 has told this rank (runtime/coordinator/follower.h), between the thread that trains and the one
// that hears it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/coordinator/follower.h"
#include "runtime/messages/rank_message.h"

namespace pipewright {

/// From any thread, if nothing else is said. The thread that trains enters minibatches and goes on.
class StandingOrders {
 public:
  static constexpr int64_t kNever = Follower::kNever;

  struct Settings {
    /// Of this training; of a run that goes on, behind the checkpoint.
    int64_t first_minibatch = 0;
    bool heeds_signals = true;
    /// In a world of one rank enter() looks for a signal: nobody else does.
    bool alone = false;
    /// To rank 0. Does not wait; in a world of one rank it may call take() before it returns.
    std::function<void(RankMessage)> post;
  };
  explicit StandingOrders(Settings settings);

  /// An order to this rank, each in its turn.
  void take(const Order& order);
  /// Several times a second: rank 0 hears of a signal that this process has got. Returns whether an order is
  /// waited for, which may come soon.
  bool look_for_signal();

  /// Before each forward of training at the first stage: waits while it is being decided where to stop, and
  /// calls `check` meanwhile, which may throw.
  void enter(int64_t minibatch, const std::function<void()>& check);
  /// Rank 0 proposes a change: from now on something is under way.
  void propose();
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

  /// What is to be done where the pipeline is empty, in the order in which it was told: there is some, and
  /// the next.
  bool has_at_drain() const;
  std::optional<Follower::AtDrain> next_at_drain();

 private:
  template <typename Step>
  void follow(Step step);

  const Settings settings_;
  mutable std::mutex mutex_;  // of follower_
  std::condition_variable changed_;
  Follower follower_;
  // As follower_ says, for who asks before each minibatch.
  std::atomic<bool> under_way_ = false;
  std::atomic<int> signal_ = 0;
  std::atomic<int64_t> stop_before_ = kNever;
};

}  // namespace pipewright
