#include "optimizer/cost/recompute.h"

namespace pipewright {

const std::vector<RecomputeChoice>& recompute_choices() {
  static const std::vector<RecomputeChoice> rows = {
      {Recompute::kWhereNeeded, "auto", "where a stage fits its memory no other way"},
      {Recompute::kNever, "never", "no stage"},
      {Recompute::kAlways, "always", "every stage"},
  };
  return rows;
}

}  // namespace pipewright
