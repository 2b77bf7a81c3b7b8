// The training loop of a rank: what it does next, from its first minibatch to the end of the run. Ranks with
// a part in a plan come to the same commands before the same minibatches, whatever happens when, so that none
// waits for another in vain. A state machine without clock, socket, file or thread: it knows what was settled
// before the run and what rank 0 has ordered (follower.h); runtime/train/training.h carries out what it says.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/coordinator/follower.h"
#include "runtime/coordinator/run_points.h"
#include "runtime/messages/agreement.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

/// Checkpoints of the run folder, and of the state that is kept in memory for lost ranks.
enum class CheckpointKind { kRun, kKept };

// What the rank is to do.
/// Trains the span, but nothing from stop_before() on.
struct TrainSpan {
  Span span;
  /// The minibatches within it before which checkpoints are due, ascending.
  std::map<CheckpointKind, std::vector<int64_t>> checkpoints;
};
/// The pipeline is empty: all before the minibatch is trained, and nothing from it on has begun.
struct Drained {
  int64_t minibatch = 0;
  bool early = false;  ///< the span was to end later
};
/// The change that all ranks have stopped for becomes one of the run's: plan_added() follows.
struct TakeAgreedChange {
  int64_t minibatch = 0;
};
/// A policy decides, on rank 0; the others hear of it. plan_added() follows where it is a change.
struct Decide {
  int64_t minibatch = 0;
};
/// An epoch, or the run within one, is over for this rank, which tells what it did in it.
struct TellEpoch {
  int64_t epoch = 0;
  int64_t minibatches = 0;  ///< of the epoch, that this rank has not told of
};
struct Evaluate {
  int64_t epoch = 0;
  int64_t minibatches = 0;  ///< trained before, within the epoch; 0: at its end
};
struct WriteCheckpoints {
  std::vector<CheckpointKind> kinds;
  int64_t minibatch = 0;  ///< the first that is not trained
  std::string cause;      ///< "interval", "signal", "end"
};
/// The plan in force has trained all that it should, or a signal has ended the run under it.
struct EndGeneration {
  GenerationEnded how;
};
/// Of a rank without a part in the plan: waits until it hears of a change that was decided (plan_added()) or
/// of the end (generation_ended()).
struct AwaitEndOfGeneration {};
/// The next plan comes into force: begin_generation() follows.
struct ChangePlan {
  int64_t generation = 0;
};
/// A signal ends the run; the last command.
struct StopRun {};
using LoopCommand = std::variant<TrainSpan, Drained, TakeAgreedChange, Decide, TellEpoch, Evaluate,
                                 WriteCheckpoints, EndGeneration, AwaitEndOfGeneration, ChangePlan, StopRun>;

/// What rank 0 has ordered, as Follower says it.
struct OrdersNow {
  int64_t stop_before = Follower::kNever;
  int signal = 0;
};
/// A signal ends the run before `minibatch` or earlier.
bool ends_before(const OrdersNow& orders, int64_t minibatch, const RunLength& length);

/// What was settled before the run.
struct LoopRules {
  bool evaluates = false;
  /// Replicas have equal weights at every update (sync_facts()): checkpoints need no drain.
  bool keeps_replicas_equal = true;
  std::map<CheckpointKind, CheckpointSettings> checkpoints;
  /// A policy decides where the pipeline drains for that: every so many minibatches, 0: at ends of epochs.
  std::optional<int64_t> decides_every;
};

/// Where the rank begins: behind a checkpoint, or at 0.
struct LoopStart {
  int64_t minibatch = 0;
  int64_t pipeline_began = 0;  ///< as TrainingLoop::pipeline_began()
  int64_t evaluated_epochs = 0;
  std::vector<int64_t> plan_begins = {0};  ///< the first minibatch of each plan that is known beforehand
};

/// One thread.
class TrainingLoop {
 public:
  TrainingLoop(LoopRules rules, LoopStart start);

  /// A plan is in force from the minibatch done() on, and this rank has a part in it or not.
  void begin_generation(int64_t number, const RunLength& length, bool takes_part);
  /// The next command; nothing: the run is over. The command before has been carried out.
  std::optional<LoopCommand> next(const OrdersNow& orders);
  /// A further plan follows the last one that is known, from the minibatch on.
  void plan_added(int64_t minibatch);
  /// Of a rank that waits for it.
  void generation_ended(const GenerationEnded& how, const OrdersNow& orders);

  /// Minibatches: the next one is the first that is not done.
  int64_t done() const { return done_; }
  /// The minibatch before which the pipeline was last empty.
  int64_t pipeline_began() const { return pipeline_began_; }
  int64_t evaluated_epochs() const { return evaluated_epochs_; }
  int64_t generation() const { return generation_; }
  /// A plan is known that follows the one in force.
  bool knows_next_plan() const { return generation_ + 1 < static_cast<int64_t>(plan_begins_.size()); }

 private:
  void carried_out(const LoopCommand& command, const OrdersNow& orders);
  void span_trained(const TrainSpan& trained, const OrdersNow& orders);
  void add_changes(bool whole, const OrdersNow& orders);
  void add_end_of_epoch();
  void add_checkpoints(const TrainSpan& trained, bool stops);
  bool agreed_change(const OrdersNow& orders) const;
  int64_t end_of_generation() const;
  TrainSpan next_span() const;
  std::optional<Evaluate> evaluation_of_ended_epoch() const;

  const LoopRules rules_;
  std::vector<int64_t> plan_begins_;  // by generation
  int64_t generation_ = -1;
  RunLength length_;  // with what the plan in force says
  bool takes_part_ = false;
  int64_t done_, pipeline_began_, evaluated_epochs_;
  int64_t told_up_to_;                  // minibatches of which this rank has told an epoch
  bool generation_over_ = false;        // said
  std::deque<LoopCommand> coming_;      // before anything else is trained
  std::optional<LoopCommand> current_;  // that was said last
};

}  // namespace pipewright
