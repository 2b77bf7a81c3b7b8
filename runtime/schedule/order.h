// The order of actions of a stage. All replicas' actions have places on one line, and each rank runs its own
// in the order of their places. So replicas need not know of each other, any number of minibatches fits any
// replica counts, and one argument per schedule shows that no waits form a circle (docs/schedules.md).
#pragma once

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// The places F k: k, B k: k + ahead, U j: the last B of the whole round j; of equal ones F before B before
/// U. Updates stand between the same minibatches on every replica, also in rounds that are cut short.
std::vector<Action> asynchronous_order(const StageTurns& turns, int64_t replica, int64_t ahead, Span span);

/// The same within each update interval, nothing passing its U. With `hold` >= `ahead` the backward is split:
/// BI k: k + ahead, BW k: k + hold, in this order of equal ones.
constexpr int64_t kWholeBackward = -1;
std::vector<Action> interval_order(const StageTurns& turns, int64_t replica, int64_t ahead, int64_t hold,
                                   Span span);

/// What a rank of `group` does with the `minibatches` that it has of an update, for all its stages: F, BI and
/// BW, or F and B, in any order, with the number of the minibatch among these.
using IntervalList = std::vector<Action> (*)(const PipelineShape& shape, int64_t group, int64_t minibatches);

/// The rank's lists for the updates of a span, each with its U behind it, stage by stage. What the span has
/// not is left out.
std::vector<Action> listed_order(IntervalList list, const PipelineShape& shape, int64_t group,
                                 int64_t replica, Span span);
/// By stage, the most that a rank has between forward and backward.
std::vector<int64_t> listed_depths(IntervalList list, const PipelineShape& shape);

}  // namespace pipewright
