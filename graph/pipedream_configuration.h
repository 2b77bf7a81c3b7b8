// The configuration that PipeDream's runtime reads beside its generated modules: which module belongs to
// which stage, which ranks run a stage. Independent implementation from the format's description
// (docs/formats.md).
//
//   { "module_to_stage_map": [0, 1, 1],  "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]},
//     "stage_to_depth_map": {"0": 1, "1": 0} }
//
// The modules are those of graph.txt with stage ids (module k: the nodes of stage_id k), in order, and after
// them the criterion. A depth is the number of forwards before the first backward: one less than `in_flight`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"

namespace pipewright {

struct PipedreamConfiguration {
  std::vector<int64_t> module_to_stage;              ///< does not fall
  std::vector<std::vector<int64_t>> stage_to_ranks;  ///< by stage
  std::vector<int64_t> stage_to_depth;               ///< by stage; empty: PipeDream computes them
};

/// InputError with the place of what is wrong: a missing key, a stage without module or rank, a rank twice.
PipedreamConfiguration parse_pipedream_configuration(const std::string& text, const std::string& where);
std::string pipedream_configuration_text(const PipedreamConfiguration& configuration);

/// True for JSON with a `module_to_stage_map` in place of a schema.
bool looks_like_pipedream_configuration(const std::string& text);

/// Each stage is a module of its own. PlanError for a plan that the format cannot hold: shares, a rank with
/// several stages, another schedule than 1f1b and model-parallel, weights other than stash.
PipedreamConfiguration configuration_of(const Plan& plan);

/// The plan of a configuration: `module_of` names the module of every node (parse_pipedream_stages).
/// InputError if a node has none, or there are more modules than the configuration knows. Without depths,
/// `in_flight` is left at 1 for the caller to choose.
Plan plan_of_configuration(const PipedreamConfiguration& configuration, const Profile& profile,
                           const std::map<std::string, int64_t>& module_of, const std::string& where);

}  // namespace pipewright
