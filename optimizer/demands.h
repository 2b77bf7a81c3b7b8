// What a user demands of certain stages: how many replicas, which layers, how many stages at most. The search
// for plans that obey.
//
// A stage's number counts from the front, the search's suffixes from the back; so suffixes are kept by the
// number of the stage they begin with, as far as demands name stages. From there on all stages are alike.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/dataflow.h"
#include "optimizer/search.h"

namespace pipewright {

struct StageDemands {
  std::map<int64_t, int64_t> replicas;  ///< stage -> replicas; there must be such a stage
  std::map<std::string, int64_t> pins;  ///< layer (with all below it: "features" has "features.3") or node
  int64_t most_stages = 0;              ///< 0: any number

  bool any() const { return !replicas.empty() || !pins.empty() || most_stages > 0; }
  bool operator==(const StageDemands&) const = default;
};

/// Nodes by the stage they are pinned to; as many entries as there are stages named by the demands.
/// InputError for a layer that the profile has not, with the nearest, and for a node pinned to two stages.
std::vector<NodeSet> pinned_nodes(const Profile& profile, const StageDemands& demands);

/// search() among the plans that obey. Ties: fewest devices, fewest stages, earliest cuts. PW_CHECKs that the
/// question is not for exactly all devices. Nothing if there is none. `proof`: no period smaller by this part
/// is possible.
std::optional<Answer> search_with_demands(const Question& question, const StageDemands& demands,
                                          const std::vector<NodeSet>& pinned, double proof = 1e-12);

}  // namespace pipewright
