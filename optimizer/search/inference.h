// Plans for inference, not training: forward only, least latency at a given rate of minibatches.
#pragma once

#include <optional>

#include "optimizer/search/search.h"

namespace pipewright {

/// What one stage costs without a backward.
struct InferenceCost {
  double forward_seconds = 0;  ///< on its slowest replica
  double receive_seconds = 0;  ///< what comes in, once
  double link_seconds = 0;     ///< the larger direction of its link, a minibatch
  int64_t memory_bytes = 0;    ///< inference_memory_bytes()
};

struct InferenceSolution {
  Solution solution;           ///< period_seconds: of its slowest stage or link
  double latency_seconds = 0;  ///< of one minibatch through all stages: forwards and transfers
};

/// On one level of equal devices.
InferenceCost inference_cost(const StageLoad& load, const CostInputs& inputs);
/// Weights, buffers, messages each way twice, workspace.
StageMemory inference_memory(const StageLoad& load);
int64_t inference_memory_bytes(const StageLoad& load);

/// The least latency with which a minibatch can enter every `period_seconds`: a stage of m replicas takes at
/// most m periods for its forward, and as long for each direction of its link. As forwards add up to the same
/// for every plan, that is the least sum of transfers. Exact over the problem's states, at most `devices`
/// devices, memory, stages and replicas as the problem says. Ties: fewest devices, fewest stages. Nothing if
/// there is none. On one level of equal devices.
std::optional<InferenceSolution> search_inference(const Problem& problem, double period_seconds);

}  // namespace pipewright
