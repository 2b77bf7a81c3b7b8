#include "optimizer/plan/known_plans.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "graph/pipeline_rules.h"

namespace pipewright {
namespace {

/// The state in which just these nodes are done; nothing if there is none.
std::optional<int> state_of(const NodeSet& done, const States& states) {
  for (int state = 0; state < states.size(); ++state)
    if (states.states[static_cast<size_t>(state)].done == done) return state;
  return std::nullopt;
}

}  // namespace

std::vector<Solution> solutions_of(const std::vector<Plan>& plans, const Problem& problem,
                                   const Profile& profile) {
  std::unordered_map<std::string, size_t> number;
  for (size_t v = 0; v < profile.nodes.size(); ++v) number[profile.nodes[v].name] = v;
  std::vector<Solution> solutions;
  for (const Plan& plan : plans) {
    if (schedule_facts(plan.schedule).several_stages) continue;
    Solution solution;
    solution.exact = false;
    NodeSet done(profile.nodes.size());
    std::optional<int> from = 0;
    for (const Stage& stage : plan.stages) {
      for (const std::string& node : stage.nodes) done.set(number.at(node));
      const std::optional<int> to = state_of(done, *problem.states);
      if (!to) break;
      FoundStage found{*from, *to, static_cast<int64_t>(stage.ranks.size())};
      if (!problem.inputs.levels.empty()) found.ranks = stage.ranks;
      solution.devices += found.replicas;
      solution.stages.push_back(std::move(found));
      from = to;
    }
    if (solution.stages.size() == plan.stages.size() && from == problem.states->last())
      solutions.push_back(std::move(solution));
  }
  return solutions;
}

}  // namespace pipewright
