// PipeTransformer's rule for shortening a pipeline as layers freeze (He et al., "PipeTransformer: Automated
// Elastic Pipelining for Distributed Training of Large-scale Models", ICML 2021, section 3.2, and its
// published code), for comparison with it: parameter counts stand for time and memory, and the number of
// stages is halved. The planner's own solution is make_plan() of a frozen_profile().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {

/// Sizes of sub-layers, in the order of the model, in millions of parameters: a transformer's block is two of
/// them, its attention and its MLP, each with the connection around it; what comes before the blocks is one,
/// and so is each part of what comes after them.
using SubLayerSizes = std::vector<double>;

/// How many sub-layers each of `stages` takes, front to back: a stage takes the next one as long as its sum
/// stays within the mean of what is left over the stages that are left, plus the variance of the sizes that
/// are left over that number (sizes in millions, as published: the units of the two differ). The last stage
/// takes the rest; a stage may stay empty.
std::vector<int64_t> greedy_partition(const SubLayerSizes& sizes, int64_t stages);
/// The largest sum of a stage of it.
double largest_part(const SubLayerSizes& sizes, const std::vector<int64_t>& counts);

/// The stages that are left of `stages` (a power of two) once the first `frozen` sub-layers are frozen:
/// halved as long as the largest part of what remains is no larger than the largest of the whole model on all
/// `most_stages`. Never below 1.
int64_t halved_stages(const SubLayerSizes& sizes, int64_t frozen, int64_t stages, int64_t most_stages);

/// Microbatches of an update on so many stages, the published table: 16, 16, 16 and 4 on 8, 4, 2 and 1; twice
/// the stages on more.
int64_t halving_microbatches(int64_t stages);

/// The sub-layers of a profile: stretches of its nodes, in their order, between places where a single value
/// crosses, so no connection is cut; one without parameters belongs to the one before it.
struct ProfiledSubLayers {
  SubLayerSizes sizes;       ///< of 4 bytes a parameter, frozen ones too
  std::vector<size_t> ends;  ///< by sub-layer, the position behind its last node
  int64_t frozen = 0;        ///< the first so many lie in the frozen prefix
};
ProfiledSubLayers sub_layers(const Profile& profile);

/// The plan of this rule for a frozen_profile() on the devices of the topology: pipelines of halved_stages()
/// stages each, as many as fit, the frozen sub-layers with the first stage; schedule gpipe. The first number
/// of stages is the largest power of two that there are devices for. Stages that the partition leaves empty
/// are left out, and their devices idle. `predicted` is filled; InputError as make_plan().
Plan halving_plan(const Profile& frozen, const Topology& topology, const PlanRequest& request);

}  // namespace pipewright
