// What a rank tells of the epochs of its run: where the time went since it last told of one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/plan.h"
#include "graph/summary.h"
#include "runtime/coordinator/training_loop.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

/// How a run stands where an epoch is over for a rank.
struct EpochEnd {
  const Plan& plan;  ///< in force
  std::string plan_file;
  int64_t update_samples = 0;              ///< of the plan's largest update
  double trained_seconds = 0;              ///< of all spans so far
  std::optional<CacheSummary> cache = {};  ///< so far; nothing: the run keeps none
};

/// Samples of the largest update of a plan's trained stages.
int64_t update_samples_of(const PipelineShape& shape, int64_t batch_size);

class EpochReport {
 public:
  /// Where the time goes, but for the whole: who measures adds to it.
  EpochTimes& times() { return times_; }
  /// The figures since the last call; the next ones begin at 0.
  EpochSummary take(const TellEpoch& what, const EpochEnd& end);

 private:
  EpochTimes times_;
  double trained_before_seconds_ = 0;
  CacheSummary cache_before_;
};

}  // namespace pipewright
