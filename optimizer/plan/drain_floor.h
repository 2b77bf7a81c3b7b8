// What filling and draining a pipeline cannot cost less than, for the pool of plans (pool.h).
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cost/cost_model.h"

namespace pipewright {

/// Seconds per minibatch that no schedule with weights `flush` goes below, of stages with so many replicas,
/// with inputs.minibatches_per_update minibatches in an update interval. Of an interval each stage has a
/// replica that runs its part of the minibatches, rounded up, one after the other: after the first has come
/// to it through all earlier stages, and before the last has gone back through them to the first stage's
/// update. `own_links`: messages and exchanges take what they take on a device's own link; otherwise they
/// count for nothing here.
double drain_floor_seconds(const std::vector<StageLoad>& loads, const std::vector<int64_t>& replicas,
                           const CostInputs& inputs, bool own_links);

}  // namespace pipewright
