// What a rank makes of rank 0's orders (coordinator.h): may a minibatch begin, where does the pipeline drain,
// and what for. A state machine without clock, socket, file or thread; runtime/control/standing_orders.h is
// its owner.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/messages/agreement.h"

namespace pipewright {

class Follower {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  /// `first_minibatch`: of this training; of a run that goes on, behind the checkpoint.
  explicit Follower(int64_t first_minibatch) : last_begun_(first_minibatch - 1) {}

  /// What rank 0 is to hear of it. An order that comes twice has no effect the second time.
  std::vector<AgreementMessage> take(const Order& order);
  /// This process has got the signal. Says so once.
  std::vector<AgreementMessage> take_signal(int signal);

  /// Rank 0 proposes a change: from now on something is under way. Only while nothing is.
  void propose() { proposed_ = true; }

  /// Before a forward of the first stage. False: it has to wait until an order is taken, and to ask again.
  /// True: it begins, if the minibatch lies before stop_before().
  bool begin(int64_t minibatch);

  /// Something is proposed, asked or agreed on, and not over yet.
  bool under_way() const { return proposed_ || (phase_ != Phase::kNone && !made_); }
  /// An answer of others may come soon.
  bool waits() const { return phase_ == Phase::kAsked || phase_ == Phase::kKnown; }
  /// Minibatches from here on are not to be trained under the plan in force. kNever, then from some time on
  /// the agreed number, until made_change().
  int64_t stop_before() const { return stop_before_; }
  /// The signal that ends the run; 0 as long as none does: the ranks stop for a change.
  int signal() const { return signal_; }
  /// What for, of a rank that knows where to stop, and not for a signal.
  const std::string& change() const { return change_; }
  /// The change is made here. CheckError where none was agreed on.
  std::vector<AgreementMessage> made_change();

  /// What is for the rank to do where its pipeline is empty, in the order in which it was told.
  using AtDrain = std::variant<DrainDecided, GenerationEnded>;
  std::optional<AtDrain> next_at_drain();
  bool has_at_drain() const { return !at_drain_.empty(); }

 private:
  std::vector<AgreementMessage> on(const BeginNoMore& order);
  std::vector<AgreementMessage> on(const StopBefore& order);
  std::vector<AgreementMessage> on(const BeginAgain& order);
  std::vector<AgreementMessage> on(const DrainDecided& order);
  std::vector<AgreementMessage> on(const GenerationEnded& order);

  enum class Phase { kNone, kAsked, kKnown, kOpen } phase_ = Phase::kNone;
  bool proposed_ = false;
  bool made_ = false;  // the change, before all others knew of it
  int64_t round_ = 0;  // the one under way, or the last
  int64_t last_begun_;
  int64_t stop_before_ = kNever;
  int signal_ = 0;
  int heard_signal_ = 0;  // by this process
  std::string change_;
  std::deque<AtDrain> at_drain_;
  int64_t decided_up_to_ = -1, ended_generations_ = -1;  // the last that came
};

}  // namespace pipewright
