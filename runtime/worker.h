// Runs one rank's schedule: the only place where actions meet tensors.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "graph/plan.h"
#include "graph/run.h"
#include "models/model.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage_program.h"
#include "runtime/update_rule.h"
#include "runtime/weight_versions.h"

namespace pipewright {

/// What a worker needs to know of a training run.
struct TrainingRules {
  OptimizerSettings optimizer;
  LearningRatePolicy learning_rate_policy;
  std::string learning_rate_scaling = "none";
  uint64_t seed = 0;
  int64_t minibatches_per_epoch = 1;
  int64_t total_minibatches = 1;
};

/// What a worker asks of its surroundings. All calls come from the worker's thread.
struct WorkerHooks {
  /// The stage's fields of one minibatch, one per StageProgram::fields(). Called in the order of the rank's
  /// forwards.
  std::function<std::vector<at::Tensor>(int64_t minibatch)> fields;
  /// Last stage only: the loss of a forward, and its scores (may be undefined).
  std::function<void(int64_t minibatch, double loss, const at::Tensor& scores)> forward_done;
  /// Before every action; throws to stop the rank.
  std::function<void(const Action&)> before;
  /// Minibatches from this one on are left out, and rounds that begin there: asked for again and again while
  /// training, it may fall from "none" to a number that no stage has reached, once. Then every stage has
  /// ended a round before it.
  std::function<int64_t()> stop_before;
  /// After every action.
  std::function<void(const Action&, std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end)>
      after;
};

/// Counted over all calls of train().
struct WorkerCounts {
  double busy_seconds = 0;  ///< forward, backward, update
  double receive_wait_seconds = 0;
  double sync_wait_seconds = 0;
  int64_t sent_bytes = 0;
  int64_t peak_in_flight = 0;
};

/// What the next span depends on of a stage whose pipeline has drained, on one replica.
struct StageState {
  int64_t updates = 0;              ///< the number of the latest version
  std::vector<at::Tensor> weights;  ///< by StageProgram::parameters()
  std::vector<at::Tensor> buffers;  ///< by StageProgram::buffers()
  UpdateState optimizer;            ///< by StageProgram::trainable()
};

class Worker {
 public:
  /// `plan` fits `model.graph`; `transport` may be null when the world has one rank. Borrows `transport`
  /// only. Parameters and buffers of the rank's stage start from their initialisers and rules.seed.
  Worker(const Model& model, const Plan& plan, int64_t rank, Transport* transport,
         const TrainingRules& rules);

  const StageProgram& stage() const { return *stage_; }
  int64_t stage_index() const { return stage_index_; }
  int64_t replica() const { return replica_; }
  /// Minibatches of the span that this rank processes, in order.
  std::vector<int64_t> minibatches(Span span) const;

  /// Trains the span from an empty pipeline to an empty one. At its end the replicas of a stage hold equal
  /// weights, and their floating buffers are set to their average (docs/semantics.md).
  void train(Span span, const WorkerHooks& hooks);

  /// Forward only, in evaluation mode, with the latest weights. `stages[k]` runs minibatch k of the span,
  /// which starts at 0; all have this rank's place in the plan. Weights and buffers do not change.
  void evaluate(const std::vector<const StageProgram*>& stages, const WorkerHooks& hooks);

  /// Parameters of the stage as they are now, by StageProgram::parameters(); buffers by
  /// StageProgram::buffers().
  const std::vector<at::Tensor>& weights() const { return versions_->latest()->weights; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  const WeightVersions& versions() const { return *versions_; }
  /// Between two spans. The tensors are the worker's own: training on changes buffers and optimizer.
  StageState state() const;
  /// Goes on from `state`, before the first span; the worker takes its tensors over.
  void restore(StageState state);
  const WorkerCounts& counts() const { return counts_; }

 private:
  class Execution;

  /// Average over the round's minibatches, summed over the replicas in their order.
  std::vector<at::Tensor> reduce(std::vector<at::Tensor> gradients, int64_t round_minibatches);
  void update(const std::vector<at::Tensor>& gradients, int64_t first_minibatch_of_round);
  void average_buffers();

  Plan plan_;
  PipelineShape shape_;
  int64_t rank_;
  int64_t stage_index_ = 0;
  int64_t replica_ = 0;
  Transport* transport_;
  TrainingRules rules_;
  std::unique_ptr<StageProgram> stage_;
  std::unique_ptr<WeightVersions> versions_;
  std::vector<at::Tensor> buffers_;
  std::unique_ptr<UpdateRule> update_rule_;
  WorkerCounts counts_;
};

}  // namespace pipewright
