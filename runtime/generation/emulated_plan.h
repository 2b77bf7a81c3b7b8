// A plan in force all of whose ranks are one process (`train --emulate`): the serial reference, driven as a
// rank's worker is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "models/definition/model.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/generation/state_moves.h"
#include "runtime/serial/serial_training.h"
#include "runtime/stage/stage_program.h"
#include "runtime/stage/training_rules.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// One thread.
class EmulatedPlan {
 public:
  /// Every replica of every stage starts from what `source` has for it. The plan is of one pipeline: replicas
  /// are held equal.
  EmulatedPlan(const Model& model, const Plan& plan, const TrainingRules& rules, StateSource& source);

  /// The whole model as one stage: the plan of who evaluates.
  const Plan& whole() const { return whole_; }
  /// As Worker::train(), with one walk for all ranks: observers are told of a forward and a backward of each
  /// minibatch and of the updates behind it. `hooks.fields` is asked for the fields `fields` of a stage 0;
  /// `checkpoint` is called where hooks.checkpoint of all stages would be.
  void train(Span span, const std::vector<std::string>& fields, const WorkerHooks& hooks,
             const std::function<void(int64_t n)>& checkpoint, int64_t began);
  /// As Worker::end_span().
  void end_span(int64_t n);

  /// StageReplica::state_before(n) of every replica of every stage: replica 0 has all older versions.
  using TakeState = std::function<void(const StatePlace& place, StageState state)>;
  void states_before(int64_t n, const TakeState& take) const;
  /// Stages, each replica counted.
  size_t places() const;
  /// Parameters and buffers of stage `s` as they are now, replica 0's.
  NamedTensors tensors_of(size_t s) const;
  int64_t stages() const { return static_cast<int64_t>(programs_.size()); }
  /// As it is now under the names of a program that has all of it; without the optimizer's state.
  StageState latest_for(const StageProgram& whole) const;
  /// The same by name and with it, where the pipeline is empty: what a next plan goes on from.
  NamedState drained_state(const StageProgram& whole) const;

  /// What it holds of tensors at most: of weights, versions, gradients and the optimizer's state exactly, of
  /// the rest as the plan's prediction says, if it has one, for one minibatch. One version is the evaluating
  /// worker's.
  StageMemory memory() const;
  /// InfeasibleError unless there is room for what of that is not there yet: before the first span.
  void demand_memory() const;

  /// StageReplica::learning_rate_of() of the last stage.
  double learning_rate_of(int64_t minibatch) const;
  int64_t most_versions() const;  ///< of a stage's weights at a time, as its rule says
  const WorkerCounts& counts() const { return counts_; }
  int64_t peak_versions() const { return peak_versions_; }

 private:
  StageState gathered(const StageProgram& whole, bool with_optimizer) const;

  const Plan& plan_;
  const Plan whole_;
  const OptimizerSettings optimizer_;
  std::vector<StageProgram> programs_;  // by stage: what their tensors are called
  mutable SerialTraining serial_;
  Span span_;
  int64_t last_round_length_ = 1;
  WorkerCounts counts_;
  int64_t peak_versions_ = 1;
};

}  // namespace pipewright
