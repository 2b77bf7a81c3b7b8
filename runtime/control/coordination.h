// Rank 0's decisions carried out: what happens on its threads goes to the Coordinator, one event at a time,
// and what that says is done.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/coordinator/coordinator.h"

namespace pipewright {

/// From any thread.
class Coordination {
 public:
  struct Settings {
    CoordinatorRules rules;
    /// To ranks `first_rank` to `end_rank` - 1. Does not wait; in a world of one rank what the order makes
    /// rank 0 say may come back before it returns.
    std::function<void(int64_t first_rank, int64_t end_rank, const Order&)> tell;
    /// A minibatch as PlaceStop asks for it.
    std::function<int64_t(int64_t last_begun)> stop_behind;
  };
  explicit Coordination(Settings settings);

  /// What a rank has said.
  void take(int64_t rank, AgreementMessage message) { happen(Heard{rank, std::move(message)}); }
  /// All ranks are to stop for a change. While nothing is under way on this rank.
  void propose(std::string change) { happen(ChangeProposed{std::move(change)}); }
  /// The plan's ranks are done with a generation, of which further ones wait for the end.
  void end_generation(GenerationOver over) { happen(std::move(over)); }

  /// Where a decision is due: waits until the policy can be asked, and calls `check` meanwhile, which may
  /// throw. Nothing: it is not to be asked, nothing is decided. Otherwise decided() follows.
  std::optional<AskPolicy> await_decision(DecisionDue due, const std::function<void()>& check);
  /// What the policy has decided, "" for no change; this rank knows of the change already.
  void decided(int64_t minibatch, std::string change);
  /// Norms are waited for, which may come soon.
  bool waits() const;

 private:
  void happen(CoordinatorEvent event);
  void carry_out(const CoordinatorCommand& command);

  const Settings settings_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Coordinator coordinator_;
  std::deque<CoordinatorEvent> events_;
  bool at_work_ = false;  // a thread takes the events; the others leave theirs to it
  // Of the decision that is due.
  bool due_ = false;
  std::optional<AskPolicy> ask_;
};

}  // namespace pipewright
