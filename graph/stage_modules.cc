#include "graph/stage_modules.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "graph/model_layers.h"
#include "graph/pipeline_rules.h"
#include "graph/synchronous_plan.h"

namespace pipewright {
namespace {

// Module paths: where the next part begins behind `from`.
size_t end_of_part(const std::string& path, size_t from) {
  return std::min(path.find('.', from), path.size());
}

/// All paths above that of a numbered module.
std::set<std::string> lists_in(const Profile& profile) {
  std::set<std::string> lists;
  for (const ProfiledNode& node : profile.nodes) {
    const std::string numbered = numbered_module(node.layer);
    for (size_t end = numbered.rfind('.'); end != std::string::npos && end > 0;
         end = numbered.rfind('.', end - 1))
      lists.insert(numbered.substr(0, end));
  }
  return lists;
}

/// "" for what is of no module.
std::string module_of_node(const ProfiledNode& node, const std::set<std::string>& lists) {
  if (node.layer.empty() || (node.layer == "loss" && node.parameters.empty())) return "";
  if (const std::string numbered = numbered_module(node.layer); !numbered.empty()) return numbered;
  for (size_t end = end_of_part(node.layer, 0);; end = end_of_part(node.layer, end + 1)) {
    const std::string path = node.layer.substr(0, end);
    if (lists.count(path) == 0) return path;
    if (end == node.layer.size()) return "";  // between the modules of a list
  }
}

/// A module of the model itself, or an entry of a list among them.
bool torchtitan_finds(const std::string& module) {
  const size_t dot = module.find('.');
  return dot == std::string::npos ||
         (module.find('.', dot + 1) == std::string::npos && numbered_module(module) == module);
}

/// "plan again with" a constraint: the optimizer takes none where ranks have several stages.
std::string plan_again_with(const Plan& plan, const std::string& constraint) {
  const ScheduleFacts* const schedule = find_schedule(plan.schedule);
  const bool several = schedule != nullptr && schedule->several_stages;
  return std::string("plan again with ") + (several ? "--schedule 1f1b-flush " : "") + constraint;
}

}  // namespace

std::vector<std::vector<std::string>> modules_of_stages(const Plan& plan, const Profile& profile) {
  std::map<std::string, size_t> stage_of;
  for (size_t s = 0; s < plan.stages.size(); ++s)
    for (const std::string& node : plan.stages[s].nodes) stage_of[node] = s;
  const std::set<std::string> lists = lists_in(profile);
  std::map<std::string, size_t> stage_of_module;
  std::vector<std::vector<std::string>> modules(plan.stages.size());
  for (const ProfiledNode& node : profile.nodes) {
    const auto stage = stage_of.find(node.name);
    if (stage == stage_of.end())
      throw PlanError(
          "plan: no stage holds node '" + node.name + "' of the profile of '" + profile.model + "'",
          "Give the profile that the plan was made with.");
    const std::string module = module_of_node(node, lists);
    if (module.empty()) continue;
    const auto [known, fresh] = stage_of_module.emplace(module, stage->second);
    if (fresh) modules[stage->second].push_back(module);
    if (known->second == stage->second) continue;
    throw PlanError("plan: cuts module '" + module + "': stage " + std::to_string(known->second) +
                        " and stage " + std::to_string(stage->second) + " have nodes of it",
                    "Keep it in one stage: " +
                        plan_again_with(plan, "--pin " + module + "=" + std::to_string(known->second)) +
                        ", or move its nodes.");
  }
  for (size_t s = 0; s < modules.size(); ++s)
    if (modules[s].empty())
      throw PlanError(
          "plan: stage " + std::to_string(s) + " has no module, only what is computed between modules",
          "Give it a module by hand, or " +
              plan_again_with(plan, "--max-stages " + std::to_string(plan.stages.size() - 1)) + ".");
  return modules;
}

std::string torchtitan_modules_text(const Plan& plan, const Profile& profile) {
  synchronous_replicas(plan, "torchtitan");
  if (!plan.tied_parameters.empty())
    throw PlanError("plan: torchtitan cannot hold parameter '" + plan.tied_parameters[0].name +
                        "', which is tied across stages",
                    "Put all nodes that read it into one stage: " + plan_again_with(plan, "--pin") + ".");
  Json json = Json::array();
  for (const std::vector<std::string>& modules : modules_of_stages(plan, profile)) {
    for (const std::string& module : modules)
      if (!torchtitan_finds(module))
        throw PlanError("plan: torchtitan cannot hold module '" + module +
                            "': it finds a model's own modules and the entries of lists among them",
                        "Export a model whose lists of layers are its own, as torchtitan's models are.");
    json.push_back(modules);
  }
  return json_text(json);
}

std::string deepspeed_partition_text(const Plan& plan, const Profile& profile) {
  synchronous_replicas(plan, "DeepSpeed");
  const ScheduleFacts& schedule = schedule_facts(plan.schedule);
  if (schedule.kind != ScheduleKind::k1F1BFlush)
    throw PlanError(
        "plan: DeepSpeed cannot hold schedule '" + plan.schedule + "': it runs one stage on a rank, by 1F1B",
        "Plan with --schedule 1f1b-flush.");
  const std::vector<std::vector<std::string>> by_stage = modules_of_stages(plan, profile);
  std::map<std::string, size_t> stage_of;
  std::vector<std::string> layers;
  std::vector<int64_t> parts = {0};
  for (size_t s = 0; s < by_stage.size(); ++s) {
    for (const std::string& module : by_stage[s]) {
      stage_of[module] = s;
      layers.push_back(module);
    }
    parts.push_back(static_cast<int64_t>(layers.size()));
  }
  const std::set<std::string> lists = lists_in(profile);
  size_t reached = 0;
  for (const ProfiledNode& node : profile.nodes) {
    const std::string module = module_of_node(node, lists);
    if (module.empty()) continue;
    const size_t stage = stage_of.at(module);
    if (stage < reached)
      throw PlanError("plan: module '" + module + "' of stage " + std::to_string(stage) +
                          " runs after one of stage " + std::to_string(reached) +
                          "; DeepSpeed's layers run one after the other",
                      "Export a model that is a sequence of layers.");
    reached = stage;
  }
  Json json;
  json["layers"] = layers;
  json["parts"] = parts;
  return json_text(json);
}

}  // namespace pipewright
