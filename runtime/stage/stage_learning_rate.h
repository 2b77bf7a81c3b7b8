// The learning rate of a stage's updates.
#pragma once

#include <cstdint>

#include "graph/learning_rate.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage/training_rules.h"

namespace pipewright {

LearningRateSettings learning_rate_settings(const TrainingRules& rules);

class StageLearningRate {
 public:
  /// `shape`: of the stage's pipeline.
  StageLearningRate(const TrainingRules& rules, const PipelineShape& shape, int64_t stage);

  /// Of the update whose round begins with the run's minibatch `first`, before the scale of a parameter's
  /// group.
  double at(int64_t first) const;

 private:
  const LearningRateSettings settings_;
  double factor_ = 1;  // learning_rate_scaling
};

}  // namespace pipewright
