// Single links between ranks that take longer than the topology says.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph/plan.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

struct CostInputs;
struct StageLoad;

/// The link in one direction between two ranks: everything on it takes `slowdown` times as long as the
/// topology says, and at least so many seconds for each byte, where that was measured.
struct SlowLink {
  int64_t from = 0, to = 0;
  double slowdown = 1;
  double seconds_per_byte = 0;  ///< 0: not known
  bool operator==(const SlowLink&) const = default;
};
using SlowLinks = std::vector<SlowLink>;

/// The stages' times with these links. The messages of a stage take the longest that any of its senders
/// takes, on average over whom it sends to; a sum over replicas on a slow link takes that much longer.
std::vector<StageTimes> slowed(std::vector<StageTimes> times, const std::vector<Stage>& stages,
                               const std::vector<StageLoad>& loads, const SlowLinks& links);

/// Of the stages' times with the inputs' slow links their messages alone.
std::vector<StageTimes> slowed_messages(const std::vector<Stage>& stages, const std::vector<StageLoad>& loads,
                                        const CostInputs& inputs);

/// Of one minibatch of the stage: no sender passes minibatches on faster than its messages.
double message_period_seconds(const StageTimes& times, int64_t replicas);

}  // namespace pipewright
