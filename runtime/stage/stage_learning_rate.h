// The learning rate of a stage's updates.
#pragma once

#include <cstdint>

#include "runtime/schedule/schedule.h"
#include "runtime/stage/training_rules.h"

namespace pipewright {

class StageLearningRate {
 public:
  /// `shape`: of the stage's pipeline.
  StageLearningRate(const TrainingRules& rules, const PipelineShape& shape, int64_t stage);

  /// Of the update whose round begins with the run's minibatch `first`, before the scale of a parameter's
  /// group.
  double at(int64_t first) const;

 private:
  const LearningRatePolicy policy_;
  const double base_;
  const int64_t minibatches_per_epoch_, total_minibatches_;
  double factor_ = 1;  // learning_rate_scaling
};

}  // namespace pipewright
