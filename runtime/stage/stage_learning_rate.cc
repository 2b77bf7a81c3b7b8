#include "runtime/stage/stage_learning_rate.h"

#include "graph/update_rules.h"

namespace pipewright {

StageLearningRate::StageLearningRate(const TrainingRules& rules, const PipelineShape& shape, int64_t stage)
    : policy_(rules.learning_rate_policy),
      base_(rules.optimizer.learning_rate),
      minibatches_per_epoch_(rules.minibatches_per_epoch),
      total_minibatches_(rules.total_minibatches) {
  if (rules.learning_rate_scaling == "pipedream") {
    factor_ = static_cast<double>(StageTurns(shape, stage).round_length()) /
              static_cast<double>(StageTurns(shape, 0).round_length());
  }
}

double StageLearningRate::at(int64_t first) const {
  return factor_ * learning_rate_at(policy_, base_, first, minibatches_per_epoch_, total_minibatches_);
}

}  // namespace pipewright
