// A plan in force, as one rank has it. A run is one generation after the other; what lives longer is in
// Training (runtime/train/training.h).
#pragma once

#include <memory>

#include "graph/plan.h"
#include "runtime/coordinator/run_points.h"
#include "runtime/generation/emulated_plan.h"
#include "runtime/generation/evaluation.h"
#include "runtime/worker/worker.h"

namespace pipewright {

class PlanGeneration {
 public:
  /// Number `number` of the job's, which trains the minibatches of `length`. `worker`: this rank's part in
  /// the plan; null if it has none. `emulated`: all ranks' parts, of a plan that is emulated; `worker` is
  /// then the whole model as one stage, for what is done where the pipeline is empty. Borrows the plan.
  PlanGeneration(int64_t number, const Plan& plan, int64_t gradient_accumulation, const RunLength& length,
                 std::unique_ptr<Worker> worker, std::unique_ptr<EmulatedPlan> emulated = nullptr);

  int64_t number() const { return number_; }
  const Plan& plan() const { return plan_; }
  const PipelineShape& shape() const { return shape_; }
  int64_t period() const { return length_.period; }  ///< of rounds (runtime/coordinator/run_points.h)
  const RunLength& length() const { return length_; }

  /// A rank that the plan has no place for waits until the plan changes, or for the end of the run.
  bool takes_part() const { return worker_ != nullptr; }
  /// Of a rank that takes part. Of an emulated plan it has what take_emulated() gave it last.
  Worker& worker() { return *worker_; }
  EmulatedPlan* emulated() { return emulated_.get(); }  ///< null: the plan is not emulated
  /// Of an emulated plan whose pipeline is empty: worker() has the weights and buffers as they are now.
  void take_emulated();
  /// Made when it is first asked for, of what is always the same. Borrows all.
  Evaluation& evaluation(const Run& run, const Model& model, const Dataset& data);

 private:
  const int64_t number_;
  const Plan& plan_;
  const PipelineShape shape_;
  const RunLength length_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<EmulatedPlan> emulated_;
  std::unique_ptr<Evaluation> evaluation_;
};

/// function(StageReplica&) for each of the rank's stages.
template <typename Function>
void for_each_stage(Worker& worker, Function function) {
  for (size_t i = 0; i < worker.stage_count(); ++i) function(worker.stage(i));
}

}  // namespace pipewright
