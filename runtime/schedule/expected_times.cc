#include "runtime/schedule/expected_times.h"

#include <algorithm>

#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/turns.h"

namespace pipewright {
namespace {

// Of all minibatches, those that this rank of the stage takes.
double part_of(const PipelineShape& shape, const Plan& plan, size_t stage, int64_t rank) {
  const StageTurns turns(shape, static_cast<int64_t>(stage));
  if (turns.splits()) return 1;
  const auto& ranks = plan.stages[stage].ranks;
  const auto& shares = plan.stages[stage].shares;
  const auto place = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return static_cast<double>(shares.empty() ? 1 : shares[place]) / static_cast<double>(turns.cycle_length());
}

}  // namespace

ExpectedTimes expected_of(const Plan& plan, int64_t rank) {
  ExpectedTimes expected;
  const PipelineShape shape = shape_of(plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const auto& ranks = plan.stages[s].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    const StagePrediction& stage = plan.predicted->stages.at(s);
    const double part = part_of(shape, plan, s, rank);
    const double round =
        part * static_cast<double>(StageTurns(shape, static_cast<int64_t>(s)).round_length());
    expected.period_seconds = plan.predicted->minibatch_seconds / part;
    expected.stages.push_back(static_cast<int64_t>(s));
    expected.compute_seconds += stage.compute_seconds;
    expected.update_seconds += stage.step_seconds / round;
    expected.sync_seconds += stage.gradient_sync_seconds / round;
  }
  return expected;
}

}  // namespace pipewright
