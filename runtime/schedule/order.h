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

}  // namespace pipewright
