// Memory of each rank over the time of a simulation.
#pragma once

#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Bytes of one stage on one rank.
struct StageBytes {
  int64_t fixed_bytes = 0;    ///< weights, optimizer, buffers: always there
  int64_t version_bytes = 0;  ///< of each version of the weights but the latest
  int64_t saved_bytes = 0;    ///< of one minibatch, for its backward; what was received included
  bool recompute = false;     ///< between forward and backward only kept_bytes of them are there
  int64_t kept_bytes = 0;
  int64_t activation_bytes = 0;       ///< message to the next stage
  int64_t gradient_bytes = 0;         ///< message to the previous stage
  int64_t weight_gradient_bytes = 0;  ///< of weights, summed over the minibatches of an update
};

struct MemoryPoint {
  double seconds = 0;
  int64_t bytes = 0;  ///< from this time on
};

struct RankMemory {
  int64_t peak_bytes = 0;
  double peak_seconds = 0;             ///< when it is first reached
  std::vector<int64_t> peak_versions;  ///< by stage of the rank
  std::vector<MemoryPoint> points;     ///< ascending times, no bytes twice in a row
};

/// By rank. What a minibatch saves is there from the begin of its forward to the end of its backward (of the
/// last part); in a frozen stage to the end of the
/// forward, and it has one version; with recompute, all of it while the forward runs and again from the begin
/// of its backward. Gradients of weights are there from the end of an update's first backward to its end,
/// always where replicas sum them. A message is there at its sender from when it is made until it has been
/// sent, and at its receiver from when it begins to come until the forward begins (it is then among what is
/// saved), or the backward that needs it has ended. `simulation` is that of the schedule, shape and span; one
/// StageBytes a stage.
std::vector<RankMemory> memory_over_time(const Simulation& simulation, const std::string& schedule,
                                         const PipelineShape& shape, Span span,
                                         const std::vector<StageBytes>& bytes);

}  // namespace pipewright
