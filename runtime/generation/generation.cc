#include "runtime/generation/generation.h"

#include "runtime/schedule/plan_shape.h"

namespace pipewright {

PlanGeneration::PlanGeneration(const Job& job, const TrainingData& data, int64_t number, int64_t rank,
                               Transport* transport, StateSource* source, PipelineServices services)
    : job_(job),
      number_(number),
      plan_(job.plan_of(number)),
      shape_(shape_of(plan_, job.gradient_accumulation_of(number))),
      length_(data.length_of(number)) {
  if (rank < plan_.world_size)
    worker_ = std::make_unique<Worker>(job.model_of(number), plan_, rank, transport, data.rules_of(number),
                                       source, services);
}

Evaluation& PlanGeneration::evaluation(const Dataset& data) {
  if (!evaluation_) evaluation_ = std::make_unique<Evaluation>(job_.run, job_.model, plan_, data, *worker_);
  return *evaluation_;
}

}  // namespace pipewright
