#include "runtime/schedule/versions.h"

namespace pipewright {

ReadVersions::ReadVersions(const std::string& schedule, const PipelineShape& shape, int64_t stage, Span span,
                           int64_t began) {
  const StageTurns turns(shape, stage);
  round_length_ = turns.round_length();
  first_round_ = turns.round_of(span.first);
  empty_round_ = turns.round_of(began);
  switch (shape.weights) {
    case WeightRule::kStash:
      lag_ = turns.run_ahead(schedule_named(schedule).depths(shape)[stage]);
      break;
    case WeightRule::kVertical:
      lag_ = StageTurns(shape, 0).run_ahead(schedule_named(schedule).depths(shape)[0]);
      break;
    case WeightRule::kTwoVersions:
      lag_ = round_length_;
      break;
    case WeightRule::kFlush:
      lag_ = 0;
      break;
  }
}

}  // namespace pipewright
