// Pipelines side by side on a virtual clock: how fast a run is under each way to hold them together
// (graph/sync_rules.h), who waits, and who averages with whom. What rank 0 decides in a run is decided by the
// same classes here; only time is another's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/schedule/shape.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

struct PipelinesToSimulate {
  std::string sync = "all-reduce";  ///< SPEC
  std::string schedule = "1f1b";
  PipelineShape pipeline;         ///< of one of them: a replica a stage
  std::vector<StageTimes> times;  ///< by stage; reduce_seconds: for all pipelines together
  /// By pipeline, where their devices differ: forwards, backwards, steps and messages of each; empty: as
  /// `times`.
  std::vector<std::vector<StageTimes>> own_times = {};
  int64_t pipelines = 2;
  int64_t minibatches = 1;                     ///< of the run, from its begin on, without a drain on the way
  uint64_t seed = 0;                           ///< of the run
  std::vector<std::vector<int64_t>> ranks;     ///< by stage, pipeline: what disturbances call them
  const Disturbances* disturbances = nullptr;  ///< borrowed; null: nobody is slow
};

struct SimulatedPipelines {
  double total_seconds = 0;          ///< until all are empty; without the average at the drain
  std::vector<int64_t> minibatches;  ///< by pipeline
  double waiting_fraction = 0;       ///< of all ranks' time: for other pipelines, and exchanging with them
  std::vector<int64_t> group_sizes;  ///< how many had 1, 2, ... members, over all stages; none without groups
  /// Updates of a pipeline, in the mean, until the groups of a stage had connected all; 0 without groups.
  double longest_window_updates = 0;
  /// By how many updates, at stage 0, one pipeline was ahead of another that was still training, at most.
  int64_t most_ahead_updates = 0;
};

/// Messages take StageTimes' seconds, beside compute, one after the other from each rank and kind; averages
/// and sums of gradients of n pipelines (n - 1) / n of those of all, over the same for all. PlanError as
/// check_schedule_shape(). CheckError if it ends with somebody waiting.
SimulatedPipelines simulate_pipelines(const PipelinesToSimulate& what);

}  // namespace pipewright
