// Dry run of a schedule: proves, before anything starts, that all ranks finish; counts what is in flight.
#pragma once

#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// What one rank does and holds over the span. Indices of `forward_version` follow the rank's own F actions.
struct RankCheck {
  Placement placement;
  int64_t peak_in_flight = 0;  ///< forward started, backward not ended
  int64_t peak_versions =
      0;  ///< distinct weight versions held at once: those of minibatches in flight, and the latest
  int64_t updates = 0;
  std::vector<int64_t> minibatches;      ///< in the order of their forwards
  std::vector<int64_t> forward_version;  ///< updates done when F of minibatches[i] ran
};

struct ScheduleCheck {
  bool completes = false;
  /// Empty, or what is wrong: one line; for a deadlock the grid of all ranks, the waiting actions marked "<--
  /// waits".
  std::string problem;
  std::vector<RankCheck> ranks;
};

/// Runs all ranks' lists against each other without time. Sends never block; a receive waits for its message;
/// a reduce waits for all replicas. Also checks that each minibatch of the span runs forward (and backward,
/// unless the schedule has none) exactly once on the right replica, backward after forward, in flight within
/// the depth, rounds in order, the gradient sent upstream before the round's reduce. A schedule without
/// backward has nothing in flight between forwards. PlanError for a bad shape or a negative span; InputError
/// for an unknown schedule.
ScheduleCheck check_schedule(const std::string& schedule, const PipelineShape& shape, Span span);

/// The same for lists from elsewhere, in the order of placements(). `trains`: each minibatch must also run
/// backward.
ScheduleCheck check_lists(const std::vector<std::vector<Action>>& lists, const PipelineShape& shape,
                          Span span, bool trains);

}  // namespace pipewright
