// One stage as one rank has it: its program, weight versions, buffers, optimizer, and the gradients of the
// round under way. Knows no peers and no order of actions. Minibatches are counted as the run counts them;
// turns and rounds are those of the stage's pipeline (runtime/schedule/pipeline_span.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/sample_ranges.h"
#include "models/definition/model.h"
#include "runtime/schedule/pipeline_span.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage/buffers_before.h"
#include "runtime/stage/deferred.h"
#include "runtime/stage/finite_guard.h"
#include "runtime/stage/prefix_cut.h"
#include "runtime/stage/recorded_stage.h"
#include "runtime/stage/round_gradients.h"
#include "runtime/stage/stage_learning_rate.h"
#include "runtime/stage/stage_program.h"
#include "runtime/stage/stage_state.h"
#include "runtime/stage/stage_versions.h"
#include "runtime/stage/training_rules.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

class StageReplica {
 public:
  /// Replica `replica` of the stage in the run's plan. Starts from what `source` has for it, else from the
  /// initialisers of its parameters and buffers and rules.seed. `plan`, which fits `model.graph`, is that of
  /// the stage's pipeline (pipeline_of): the run's own for the only one. `own_pipeline`: it is one of
  /// several.
  StageReplica(const Model& model, const Plan& plan, int64_t stage, int64_t replica,
               const TrainingRules& rules, StateSource* source = nullptr, bool own_pipeline = false);

  int64_t stage() const { return stage_; }
  int64_t replica() const { return replica_; }
  /// Among the replicas of its pipeline.
  int64_t place() const { return place_; }
  const StageProgram& program() const { return program_; }
  /// What forward() runs: program(), or what lies behind the frozen layers.
  const StageProgram& running() const { return cut_ ? cut_->behind() : program_; }
  at::Device device() const { return rules_.device; }
  /// What the stage's device still owes the host: losses, and whether numbers are finite. Whoever runs the
  /// stage polls it, and flushes it at the end of a span.
  Deferred& deferred() { return deferred_; }
  const StageTurns& turns() const { return turns_; }
  /// What it has of each minibatch that it takes part in while training; all, unless the stage splits them.
  const SampleRange& samples() const { return samples_; }

  /// Parameters as they are now, by StageProgram::parameters(); buffers by StageProgram::buffers().
  const std::vector<at::Tensor>& weights() const { return versions_.latest(); }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  const WeightVersions& versions() const { return versions_.all(); }
  /// The largest number of minibatches that were between forward and the end of their backward.
  int64_t peak_in_flight() const { return peak_in_flight_; }
  /// Null with rules.cuda_graphs "off", and where there is a reason against it.
  const RecordedStage* recordings() const { return recorded_.get(); }
  /// Unless rules.cuda_graphs is "off": why minibatches run without, as far as it is known; "": nothing
  /// stands against it.
  std::string recording_obstacle() const { return recorded_ ? recorded_->obstacle() : no_recordings_; }

  /// Goes on from `state`, before the first span; the stage takes its tensors over.
  void restore(StageState state);

  /// The stage, the plan's first, cut behind nodes [0, end) of the graph, which are frozen; graph and plan
  /// are those that it was made of.
  std::shared_ptr<const PrefixCut> cut(const Graph& graph, const Plan& plan, size_t end) const;
  /// Between spans: from now on forward() takes the fields of cut->behind() and runs that. Weights, versions,
  /// gradients and states are those of the whole stage as before.
  void run_behind(std::shared_ptr<const PrefixCut> cut);

  /// Training: the span that forwards, backwards and updates belong to, until the next one begins. Between
  /// spans nothing is in flight. The pipeline was last empty before minibatch `began`: the span's first, or,
  /// for one that goes on from a checkpoint, an earlier one. `checkpoints`: minibatches N of the span, each
  /// the begin of a round, for which state_before() will be asked as soon as the round before has its update.
  void begin(std::shared_ptr<PipelineSpan> span, int64_t began, std::vector<int64_t> checkpoints = {});
  /// All that was begun has come back, and the span ends before minibatch n, earlier than it was to: what
  /// further minibatches would have read is forgotten.
  void end(int64_t n);
  /// The state before minibatch n, once: one of `checkpoints`, or where all has come back that was begun. Of
  /// the older versions those whose first reader is a minibatch of this replica: the replicas together have
  /// all. On the CPU nothing is copied but buffers; nothing of it changes while training goes on.
  StageState state_before(int64_t n);
  /// As it is, where all has come back that was begun: where the stage computes, nothing is copied.
  StageState state() const;
  /// Goes on from `state` instead, which is there, too; its tensors are this replica's alone.
  void replace(StageState state);
  /// Runs minibatch k, or its part of it, with the version that the plan's rule gives it. The rest of its
  /// pass waits here for the backward, which begins with the gradient `loss_weight` of the loss on the last
  /// stage.
  struct Forwarded {
    std::vector<at::Tensor> sent;
    at::Tensor loss;
    std::vector<at::Tensor> handed_out;  ///< all as in Pass
  };
  Forwarded forward(int64_t k, std::vector<at::Tensor> received, std::vector<at::Tensor> fields,
                    double loss_weight = 1);
  using GradientComplete = RoundGradients::Complete;
  /// Gradients of the received values; adds those of the weights to the round's. `complete`, for the
  /// replica's last minibatch of a round: is called for every trainable parameter, which is left alone from
  /// then on.
  std::vector<at::Tensor> backward(int64_t k, std::vector<at::Tensor> sent_gradients,
                                   const GradientComplete& complete = {});
  /// rules.nan_guard: NumericalError that names the node where the forward of minibatch k, in flight, first
  /// made a number that is not finite, if its loss is none or a value sent has none. `received`, `fields` as
  /// in forward(). On another device than the CPU the host hears of it later, from deferred(), and the
  /// inputs have gone: no node is named then. So it is with all NumericalErrors of a stage.
  void check_forward(int64_t k, const Forwarded& forwarded, std::vector<at::Tensor> received,
                     std::vector<at::Tensor> fields);
  /// The same in two parts; needs a program that splits (plan's schedule).
  std::vector<at::Tensor> backward_input(int64_t k, std::vector<at::Tensor> sent_gradients);
  void backward_weight(int64_t k, const GradientComplete& complete = {});

  /// The round's sum over this replica's minibatches, one for each trainable parameter: zeros if it had none.
  /// A plain tensor each, free to be overwritten.
  std::vector<at::Tensor>& round_gradients() { return round_->all(); }
  /// Which of them count where stages are put together: all but those of parameters that an earlier stage
  /// counts (tied ones).
  const std::vector<size_t>& counted() const { return counted_; }
  /// Where they lie, if the stage has replicas to reduce them with; else null.
  const GradientBuckets* buckets() const { return round_->buckets(); }
  /// Divides the gradients of round j (by now summed over the replicas) by its number of minibatches.
  void average(int64_t round);
  /// Of the averaged gradients that are counted(). One float64 on the stage's device.
  at::Tensor gradient_square_sum();
  /// Of the update that round j makes, the correction of its delay included, before the scale of a parameter's
  /// group.
  double learning_rate(int64_t round) const;
  /// Of the update that minibatch k is part of.
  double learning_rate_of(int64_t k) const { return learning_rate(turns_.round_of(span_->to_own(k))); }
  /// Under way, or the last one.
  const PipelineSpan& span() const { return *span_; }
  /// Made in the span under way, or the last one.
  int64_t updates_of_span() const { return versions_.updates_of_span(); }
  /// One update with them, scaled so that their norm is at most rules.gradient_clipping_norm (0: as they
  /// are). `square_sum` of the gradients that are clipped together, on any device. NumericalError if one is
  /// not finite (rules.nan_guard).
  void update(int64_t round, const at::Tensor& square_sum = {});

  /// The trained weights of the newest version, by trainable(), become these, in place. Nobody may have read
  /// it yet.
  void set_trained_weights(const std::function<at::Tensor(size_t trainable)>& numbers);

  /// Forward only, of evaluation's `program`, with the latest weights; leaves weights and buffers alone.
  Forwarded evaluate(const StageProgram& program, int64_t k, std::vector<at::Tensor> received,
                     std::vector<at::Tensor> fields) const;
  /// For the average over the replicas at the drain.
  std::vector<at::Tensor>& mutable_buffers() { return buffers_; }
  /// Positions of those that are averaged: of floating-point numbers, and not of frozen layers, whose mean
  /// could be another bit.
  const std::vector<size_t>& averaged_buffers() const { return averaged_buffers_; }

 private:
  // All but what source and weights decide. `graph`: the model's, for the replica's samples.
  StageReplica(const Graph& graph, const Plan& plan, const PipelineShape& shape, int64_t stage,
               int64_t replica, int64_t place, const TrainingRules& rules, SampleRange samples);
  void prepare_recordings(const Graph& graph, const Plan& plan, const PipelineShape& shape);
  Pass take_pass(int64_t k);
  /// The version as running() reads it.
  std::shared_ptr<const WeightVersion> version_for_running(
      std::shared_ptr<const WeightVersion> version) const;
  bool is_empty() const { return in_flight_.empty() && round_->empty(); }

  int64_t stage_;
  int64_t replica_;
  int64_t place_;  // of the replica in its pipeline
  StageTurns turns_;
  SampleRange samples_;
  TrainingRules rules_;
  StageLearningRate learning_rate_;
  StageProgram program_;
  std::shared_ptr<const PrefixCut> cut_;  // null: whole
  std::vector<size_t> counted_;
  Deferred deferred_;
  FiniteGuard guard_;
  StageVersions versions_;
  std::vector<at::Tensor> buffers_;
  std::vector<size_t> averaged_buffers_;
  BuffersBefore buffers_before_;
  std::unique_ptr<UpdateRule> update_rule_;
  std::unique_ptr<RoundGradients> round_;
  std::unique_ptr<RecordedStage> recorded_;  // borrows program_
  std::string no_recordings_;

  // Before the first one: nothing. A stage of a plan that goes again without a step has a state, too.
  std::shared_ptr<PipelineSpan> span_ = std::make_shared<TurnSpan>(Span{0, 0}, PipelineTurn{});
  std::map<int64_t, Pass> in_flight_;
  int64_t peak_in_flight_ = 0;
};

}  // namespace pipewright
