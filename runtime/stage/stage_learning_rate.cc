#include "runtime/stage/stage_learning_rate.h"

namespace pipewright {

LearningRateSettings learning_rate_settings(const TrainingRules& rules) {
  return {rules.learning_rate_policy, rules.optimizer.learning_rate, rules.minibatches_per_epoch,
          rules.total_minibatches};
}

StageLearningRate::StageLearningRate(const TrainingRules& rules, const PipelineShape& shape, int64_t stage)
    : settings_(learning_rate_settings(rules)) {
  if (rules.learning_rate_scaling == "pipedream") {
    factor_ = static_cast<double>(StageTurns(shape, stage).round_length()) /
              static_cast<double>(StageTurns(shape, 0).round_length());
  }
}

double StageLearningRate::at(int64_t first) const { return factor_ * learning_rate_at(settings_, first); }

}  // namespace pipewright
