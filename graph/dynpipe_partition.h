// The partition file that DynPipe's runtime reads: how many of a chain of layers each stage has. Independent
// implementation from the format's description, which is this:
//
//   { "partition": [10, 11, 17],  "recompute_ratio": [0, 0, 0],
//     "batch_size_all": [72],  "batch_size": [18, 24, 72] }
//
// A stage's batch size is the minibatch divided by its replicas, which share each minibatch there (here they
// take turns). Which ranks they are says a second file, PipeDream's configuration
// (graph/pipedream_configuration.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"

namespace pipewright {

struct DynPipePartition {
  std::vector<int64_t> layers;           ///< by stage
  std::vector<double> recompute_ratios;  ///< by stage: the part of its layers, the last ones, run twice
  int64_t minibatch_samples = 1;
  std::vector<int64_t> replicas;  ///< by stage; each divides the minibatch
};

/// InputError with line and column of what is no JSON, or the place of what is wrong: lists of different
/// lengths, a batch size that does not divide the minibatch.
DynPipePartition parse_dynpipe_partition(const std::string& text, const std::string& where);
std::string dynpipe_partition_text(const DynPipePartition& partition);
/// True for a text with the key `partition` and no schema.
bool looks_like_dynpipe_partition(const std::string& text);

/// PlanError for a plan that the format cannot hold: stages that are not stretches of the profile's nodes, a
/// rank with several stages, shares, a number of replicas that does not divide the minibatch.
DynPipePartition partition_of(const Plan& plan, const Profile& profile, int64_t minibatch_samples);
/// Ranks in order, depths 1 for the caller to choose. InputError if the profile has another number of nodes.
Plan plan_of_partition(const DynPipePartition& partition, const Profile& profile, const std::string& where);

}  // namespace pipewright
