#include "runtime/generation/generation.h"

#include "runtime/schedule/plan_shape.h"

namespace pipewright {

PlanGeneration::PlanGeneration(int64_t number, const Plan& plan, int64_t gradient_accumulation,
                               const RunLength& length, std::unique_ptr<Worker> worker,
                               std::unique_ptr<EmulatedPlan> emulated)
    : number_(number),
      plan_(plan),
      shape_(shape_of(plan, gradient_accumulation)),
      length_(length),
      worker_(std::move(worker)),
      emulated_(std::move(emulated)) {}

void PlanGeneration::take_emulated() {
  StageReplica& whole = worker_->stage();
  whole.replace(emulated_->latest_for(whole.program()));
}

Evaluation& PlanGeneration::evaluation(const Run& run, const Model& model, const Dataset& data) {
  if (!evaluation_)
    evaluation_ =
        std::make_unique<Evaluation>(run, model, emulated_ ? emulated_->whole() : plan_, data, *worker_);
  return *evaluation_;
}

}  // namespace pipewright
