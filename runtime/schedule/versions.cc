#include "runtime/schedule/versions.h"

namespace pipewright {

ReadVersions::ReadVersions(const std::string& schedule, const PipelineShape& shape, int64_t stage, Span span,
                           int64_t began) {
  const StageTurns turns(shape, stage);
  round_length_ = turns.round_length();
  first_round_ = turns.round_of(span.first);
  empty_round_ = turns.round_of(began);
  first_ = span.first;
  rule_ = &facts_of(shape.weights);
  const auto run_ahead = [&](const StageTurns& of, int64_t at) {
    return of.run_ahead(schedule_named(schedule).depths(shape)[at]);
  };
  if (!shape.trains(stage)) {  // its versions are all alike
    lag_ = 0;
    return;
  }
  switch (facts_of(shape.weights).lag) {
    case WeightLag::kOwnStage:
      lag_ = run_ahead(turns, stage);
      break;
    case WeightLag::kFirstStage:
      lag_ = run_ahead(StageTurns(shape, shape.frozen_stages), shape.frozen_stages);
      break;
    case WeightLag::kInterval:
      lag_ = round_length_;
      break;
    case WeightLag::kNone:
      lag_ = 0;
      break;
  }
}

int64_t ReadVersions::first_reader(int64_t minibatch) const {
  const int64_t read = of(minibatch), found = at_backward(minibatch);
  while (minibatch > first_ && of(minibatch - 1) == read && at_backward(minibatch - 1) == found) --minibatch;
  return minibatch;
}

int64_t further_versions(WeightRule weights, int64_t in_flight, int64_t pipeline_depth) {
  if (facts_of(weights).in_place) return facts_of(weights).predicts && in_flight > 1 ? 1 : 0;
  switch (facts_of(weights).lag) {
    case WeightLag::kOwnStage:
      return in_flight - 1;
    case WeightLag::kFirstStage:
      return std::max(in_flight, pipeline_depth) - 1;
    case WeightLag::kInterval:
      return 1;
    case WeightLag::kNone:
      break;
  }
  return 0;
}

int64_t older_in_checkpoint(WeightRule weights, int64_t in_flight, int64_t pipeline_depth) {
  if (facts_of(weights).predicts) return 2 * (in_flight - 1);  // of and for so many versions
  if (facts_of(weights).in_place) return in_flight > 1 ? 1 : 0;
  return further_versions(weights, in_flight, pipeline_depth);
}

}  // namespace pipewright
