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

std::vector<Answer> answers_of(const std::vector<Plan>& plans, const Question& question,
                               const Profile& profile) {
  std::unordered_map<std::string, size_t> number;
  for (size_t v = 0; v < profile.nodes.size(); ++v) number[profile.nodes[v].name] = v;
  std::vector<Answer> answers;
  for (const Plan& plan : plans) {
    if (schedule_facts(plan.schedule).several_stages) continue;
    Answer answer;
    answer.exact = false;
    NodeSet done(profile.nodes.size());
    std::optional<int> from = 0;
    for (const Stage& stage : plan.stages) {
      for (const std::string& node : stage.nodes) done.set(number.at(node));
      const std::optional<int> to = state_of(done, *question.states);
      if (!to) break;
      FoundStage found{*from, *to, static_cast<int64_t>(stage.ranks.size())};
      if (!question.inputs.levels.empty()) found.ranks = stage.ranks;
      answer.devices += found.replicas;
      answer.stages.push_back(std::move(found));
      from = to;
    }
    if (answer.stages.size() == plan.stages.size() && from == question.states->last())
      answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace pipewright
