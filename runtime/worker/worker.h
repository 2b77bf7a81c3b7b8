// Runs one rank's schedule: the only place where actions meet tensors.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "graph/plan.h"
#include "models/definition/model.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage/loss_shares.h"
#include "runtime/stage/sample_split.h"
#include "runtime/stage/stage_replica.h"
#include "runtime/stage/streams.h"
#include "runtime/sync/gradient_exchange.h"
#include "runtime/sync/replica_sync.h"
#include "runtime/transport/transport.h"
#include "runtime/worker/action_observer.h"

namespace pipewright {

class CudaPlugin;

/// Of pipelines side by side, what they ask of rank 0. Borrowed.
struct PipelineServices {
  Groups* groups = nullptr;                ///< where they average their weights in groups
  MinibatchSource* minibatches = nullptr;  ///< where these are handed out (shares_minibatches)
};

/// What a worker asks of its surroundings. All calls come from the worker's thread. Minibatches, also those
/// of actions, are counted as the run counts them; rounds as the stage does.
struct WorkerHooks {
  /// The stage's fields of one minibatch, whole, one per StageProgram::fields(). Called for stages that have
  /// some, in the order of the stage's forwards.
  std::function<std::vector<at::Tensor>(int64_t stage, int64_t minibatch)> fields;
  /// LossShares::fields() of any minibatch, whole. Only the last stage asks, where an update's loss is
  /// averaged over labels.
  std::function<std::vector<at::Tensor>(int64_t minibatch)> loss_fields;
  /// Last stage only: the loss of a forward; where the stage splits its minibatches, of this replica's part,
  /// times what that counts: the minibatch's is the sum over the replicas, in their order. While training on
  /// a device some actions later, in order; the last ones at the end of the span. In an evaluation also what
  /// else the program's graph hands out (outputs behind the loss), where the stage computes.
  std::function<void(int64_t minibatch, double loss, const std::vector<at::Tensor>& handed_out)> forward_done;
  /// A stage has all gradients of a round, summed over its replicas and over stages where they are tied, and
  /// averaged; they are not clipped yet, and its update comes next.
  std::function<void(StageReplica&)> averaged;
  /// Last stage only, where gradients are clipped: the norm that they had, of the update that the minibatches
  /// up to `end` - 1 make which no update before has taken. After their forward_done, before `checkpoint`.
  std::function<void(int64_t end, double norm)> gradient_norm;
  /// Minibatches from this one on are left out, and rounds that begin there: asked for again and again while
  /// training, it may fall from "none" to a number that no stage has reached, once. Then every stage has
  /// ended a round before it.
  std::function<int64_t()> stop_before;
  /// Minibatches of the span before which a checkpoint is due, ascending; each begins a round of every stage.
  std::vector<int64_t> checkpoints;
  /// One of the rank's stages has made all updates before minibatch n, one of `checkpoints`, and none from it
  /// on: its state_before(n) can be taken. For each stage in the order of `checkpoints`.
  std::function<void(int64_t n, StageReplica&)> checkpoint;
  /// What watches; every action is told to all, in this order.
  std::vector<std::shared_ptr<ActionObserver>> observers;
  /// Every action is a range of NVIDIA's tools; null: none is. Borrowed.
  CudaPlugin* ranges = nullptr;
};

/// Counted over all calls of train().
struct WorkerCounts {
  double busy_seconds = 0;  ///< forward, backward, update
  double receive_wait_seconds = 0;
  double sync_wait_seconds = 0;
  int64_t sent_bytes = 0;
  double largest_spread = 0;  ///< Worker::drain_spread(), of all drains

  WorkerCounts& operator+=(const WorkerCounts& other) {
    busy_seconds += other.busy_seconds;
    receive_wait_seconds += other.receive_wait_seconds;
    sync_wait_seconds += other.sync_wait_seconds;
    sent_bytes += other.sent_bytes;
    largest_spread = std::max(largest_spread, other.largest_spread);
    return *this;
  }
};

class Worker {
 public:
  /// `plan` fits `model.graph`; `transport` may be null when the world has one rank, `services` have what
  /// rules.sync asks for (graph/sync_rules.h) where there are several replicas. Borrows these two only. The
  /// rank's stages start from what `source` has for them, as StageReplica says.
  Worker(const Model& model, const Plan& plan, int64_t rank, Transport* transport, const TrainingRules& rules,
         StateSource* source = nullptr, PipelineServices services = {});
  ~Worker();

  /// The stages of this rank, ascending: one, or several with some schedules.
  size_t stage_count() const { return stages_.size(); }
  const StageReplica& stage(size_t i = 0) const { return *stages_[i]; }
  StageReplica& stage(size_t i = 0) { return *stages_[i]; }
  /// What losses count in their minibatches and updates.
  const LossShares& loss_shares() const { return loss_shares_; }
  /// How the rank's replicas take turns in evaluations.
  StageTurns evaluation_turns(const StageReplica& stage) const {
    return StageTurns(evaluation_shape_, stage.stage());
  }
  /// In the run's plan; equal for all stages of the rank.
  int64_t replica() const { return stages_[0]->replica(); }

  /// What this rank's pipeline trains of a span. Before train() of it, or in it.
  std::shared_ptr<PipelineSpan> open(Span span);
  /// What it evaluates of one.
  std::shared_ptr<PipelineSpan> open_evaluation(Span span) const;
  /// Trains the span from an empty pipeline to an empty one. At its end the replicas of a stage are made
  /// equal (ReplicaSync::at_drain; docs/semantics.md) unless stop_before cut the span short. `began`: as
  /// StageReplica::begin(), the span's first minibatch if there is none.
  void train(Span span, const WorkerHooks& hooks, std::optional<int64_t> began = {});
  /// After a train() that stop_before cut short at minibatch n: it is as if the span had ended there.
  void end_span(int64_t n);

  /// Forward only, in evaluation mode, with the latest weights. `program(stage, k)` runs minibatch k of the
  /// span; it outlives the call. Weights and buffers do not change.
  using EvaluationProgram = std::function<const StageProgram&(int64_t stage, int64_t minibatch)>;
  void evaluate(Span span, const EvaluationProgram& program, const WorkerHooks& hooks);

  const WorkerCounts& counts() const { return counts_; }
  /// How far this rank's weights were from the mean of the replicas' where it drained last, as
  /// ReplicaSyncSettings::drained has it; nothing where replicas are held equal, or there is one.
  std::optional<double> drain_spread() const { return drain_spread_; }

 private:
  class Execution;

  void drain();

  PipelineTurn turn_;
  MinibatchSource* minibatches_;          // null: the pipelines take turns
  std::shared_ptr<PipelineSpan> opened_;  // the last one
  Plan plan_;                             // of this rank's pipeline
  PipelineShape shape_;
  PipelineShape evaluation_shape_;  // the same for evaluation
  SampleSplit split_;
  LossShares loss_shares_;
  StreamTags tags_;
  double clipping_norm_;
  bool averages_weights_;
  Transport* transport_;
  std::vector<std::unique_ptr<StageReplica>> stages_;
  std::vector<std::unique_ptr<ReplicaSync>> syncs_;  // by stage of this rank; null: one replica
  std::unique_ptr<TiedExchange> tied_;
  WorkerCounts counts_;
  std::optional<double> drain_spread_;
};

}  // namespace pipewright
