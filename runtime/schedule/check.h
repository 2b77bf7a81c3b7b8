// Dry run of a schedule: proves, before anything starts, that all ranks finish; counts what is in flight.
#pragma once

#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// What one rank does and holds at one stage over the span. Indices of `forward_version` follow its own F
/// actions.
struct RankCheck {
  int64_t rank = 0;
  Placement placement;         ///< of this stage alone
  int64_t peak_in_flight = 0;  ///< forward started, backward (all of it) not ended
  /// Distinct weight versions held at once: the latest, and those that are there and that a minibatch reads
  /// or read whose backward has not ended.
  int64_t peak_versions = 0;
  int64_t updates = 0;
  std::vector<int64_t> minibatches;      ///< in the order of their forwards
  std::vector<int64_t> forward_version;  ///< what F of minibatches[i] read: number of updates of the span
};

struct ScheduleCheck {
  bool completes = false;
  /// Empty, or what is wrong: one line; for a deadlock the grid of all ranks, the waiting actions marked "<--
  /// waits".
  std::string problem;
  std::vector<RankCheck> ranks;  ///< stage by stage, replica by replica
};

/// Runs all ranks' lists against each other without time. Sends never block; a receive waits for its message;
/// a reduce waits until all replicas of the stage reach it. Also checks that each minibatch of the span runs
/// forward (and backward, whole or in its two parts, unless the schedule has none) exactly once at each stage
/// on the right replica, in the right order and in flight within the depth; rounds in order; the gradient
/// sent upstream before the round's reduce; that each forward finds the version that the shape's rule says
/// (versions.h); and with a rule that bounds it, that no stage makes more than one update between a
/// minibatch's forward and its backward. A schedule without backward has nothing in flight between forwards.
/// Errors as in schedule_of_all().
ScheduleCheck check_schedule(const std::string& schedule, const PipelineShape& shape, Span span);

/// The same for lists from elsewhere, in the order of placements(). `trains`: each minibatch must also run
/// backward. Only lists of a named schedule are held to its versions. PlanError for a bad shape.
ScheduleCheck check_lists(const std::vector<std::vector<Action>>& lists, const PipelineShape& shape,
                          Span span, bool trains, const std::string& schedule = "");

/// A span that shows all that can go wrong on a longer one: long enough for every stage to reach its depth,
/// with several rounds, the first and the last of them short.
Span rehearsal_span(const PipelineShape& shape);

}  // namespace pipewright
