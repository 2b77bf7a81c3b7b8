// DynPipe's problem (Yuan et al., "DynPipe: Toward Dynamic End-to-End Pipeline Parallelism for
// Interference-Aware DNN Training", IEEE TPDS 2025), from its published planner: a chain of layers cut into
// stages, on all devices, with replicas, where a transfer does not run beside the computing of both of its
// ends.
//
//   b = seconds of the stage's layers / r + 2 (r - 1) / r * parameter bytes / B      ring all-reduce, exposed
//   c = activation bytes at the cut / (r_left * r_right * B)
//
// The pipeline up to a stage, with a = the period of what is before it:
//
//   max(a, b)                  where c < |a - b| / 2: the faster side has the time for it
//   (a + b) / 2 + c            else
//
// That is exact for two stages with as many minibatches in flight as there are stages behind, and never
// optimistic for more. It grows with a, so the best plan of a prefix is part of a best plan: the search is
// exact.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"

namespace pipewright {

struct DynPipeLayer {
  std::string name;
  double seconds = 0;           ///< forward and backward
  double activation_bytes = 0;  ///< that cross a cut behind it
  double parameter_bytes = 0;
};

/// How a cut joins what is before and after it.
enum class DynPipeRule {
  kDynPipe,
  kPipeDream,         ///< max(a, b, 2 c): what DynPipe compares with
  kPipeDreamAsCoded,  ///< the same at the last cut, kDynPipe at all before: what its program computes
};

struct DynPipeProblem {
  std::vector<DynPipeLayer> layers;  ///< one at least, in the order in which they run
  int64_t devices = 1;
  double bandwidth_bytes_per_second = 1;
  int64_t most_stages = 1;
  DynPipeRule rule = DynPipeRule::kDynPipe;
};

struct DynPipeStage {
  int64_t layers = 0;
  int64_t replicas = 1;
};

struct DynPipePlan {
  std::vector<DynPipeStage> stages;
  double seconds = 0;  ///< of a minibatch
};

/// The best plan on all devices for each number of stages, from one on: as many as are possible. InputError
/// where the search would take hours.
std::vector<DynPipePlan> search_dynpipe(const DynPipeProblem& problem);

/// The time of a plan by direct sums. The stages have all layers.
double dynpipe_seconds(const DynPipeProblem& problem, const std::vector<DynPipeStage>& stages);

/// How many times as many minibatches a pipeline of `stages` needs as one stage, whose weights are not stale:
/// 1 + weight (stages^3 - 1). A heuristic: DynPipe's bound on the minibatches to a target has a term in the
/// cube of the stages, whose factor nobody knows. A weight of 0.001 gives the three stages that its authors
/// took for VGG16 by hand.
double staleness_factor(int64_t stages, double weight);

/// Of the plans, the one with the least seconds x staleness_factor(); of equal ones the first.
const DynPipePlan& least_stale(const std::vector<DynPipePlan>& plans, double staleness_weight);

/// The layers of a profile: its nodes, in their order; what crosses a cut is each value that is made before
/// it and read behind it.
DynPipeProblem dynpipe_problem(const Profile& profile);

}  // namespace pipewright
