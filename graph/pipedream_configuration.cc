#include "graph/pipedream_configuration.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/pipeline_rules.h"

namespace pipewright {
namespace {

constexpr int64_t kMostStages = 1 << 16;

/// The object's values by its keys "0", "1", ...: every stage once.
std::vector<Json> by_stage(JsonReader& reader, const std::string& key) {
  const Json& json = reader.raw(key);
  if (!json.is_object() || json.empty() || static_cast<int64_t>(json.size()) > kMostStages) {
    reader.fail(key,
                "got " + described(json) + ", expected an object with the stages \"0\", \"1\", ... as keys");
  }
  std::vector<Json> values;
  for (size_t stage = 0; stage < json.size(); ++stage) {
    const auto it = json.find(std::to_string(stage));
    if (it == json.end()) {
      reader.fail(key, "has " + std::to_string(json.size()) + " stages, but none with the key \"" +
                           std::to_string(stage) + "\"; stages count from 0");
    }
    values.push_back(*it);
  }
  return values;
}

int64_t integer_of(JsonReader& reader, const std::string& key, const Json& json, int64_t most) {
  const bool fits = json.is_number_integer() &&
                    (json.is_number_unsigned() ? json.get<uint64_t>() <= static_cast<uint64_t>(most)
                                               : json.get<int64_t>() >= 0 && json.get<int64_t>() <= most);
  if (!fits) {
    reader.fail(key, "got " + described(json) + ", expected an integer in 0.." + std::to_string(most));
  }
  return json.get<int64_t>();
}

}  // namespace

PipedreamConfiguration parse_pipedream_configuration(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonReader reader(json, where);
  reader.expect({"module_to_stage_map", "stage_to_rank_map", "stage_to_depth_map"});
  PipedreamConfiguration configuration;
  configuration.module_to_stage = reader.integers("module_to_stage_map", 0, kMostStages);
  int64_t stage = 0;
  for (const int64_t next : configuration.module_to_stage) {
    if (next != stage && next != stage + 1) {
      reader.fail("module_to_stage_map", "stage " + std::to_string(next) + " comes after stage " +
                                             std::to_string(stage) + "; modules run in the order of stages");
    }
    stage = next;
  }
  if (configuration.module_to_stage.empty() || configuration.module_to_stage[0] != 0)
    reader.fail("module_to_stage_map", "does not begin with stage 0");

  std::set<int64_t> taken;
  for (const Json& ranks : by_stage(reader, "stage_to_rank_map")) {
    if (!ranks.is_array() || ranks.empty())
      reader.fail("stage_to_rank_map", "got " + described(ranks) + ", expected the ranks of a stage");
    std::vector<int64_t> list;
    for (const Json& rank : ranks) {
      list.push_back(integer_of(reader, "stage_to_rank_map", rank, kMostRanks - 1));
      if (!taken.insert(list.back()).second)
        reader.fail("stage_to_rank_map", "rank " + std::to_string(list.back()) + " is there twice");
    }
    configuration.stage_to_ranks.push_back(std::move(list));
  }
  if (*taken.rbegin() + 1 != static_cast<int64_t>(taken.size())) {
    reader.fail("stage_to_rank_map", "names rank " + std::to_string(*taken.rbegin()) + " but only " +
                                         std::to_string(taken.size()) + " ranks; they count from 0");
  }
  const auto stages = static_cast<int64_t>(configuration.stage_to_ranks.size());
  if (stage + 1 != stages) {
    reader.fail("stage_to_rank_map", "has " + std::to_string(stages) + " stages; module_to_stage_map has " +
                                         std::to_string(stage + 1));
  }
  if (reader.has("stage_to_depth_map")) {
    for (const Json& depth : by_stage(reader, "stage_to_depth_map"))
      configuration.stage_to_depth.push_back(
          integer_of(reader, "stage_to_depth_map", depth, kMostInFlight - 1));
    if (static_cast<int64_t>(configuration.stage_to_depth.size()) != stages) {
      reader.fail("stage_to_depth_map", "has " + std::to_string(configuration.stage_to_depth.size()) +
                                            " stages, expected " + std::to_string(stages));
    }
  }
  reader.finish();
  return configuration;
}

std::string pipedream_configuration_text(const PipedreamConfiguration& configuration) {
  Json json;
  json["module_to_stage_map"] = configuration.module_to_stage;
  for (size_t s = 0; s < configuration.stage_to_ranks.size(); ++s)
    json["stage_to_rank_map"][std::to_string(s)] = configuration.stage_to_ranks[s];
  for (size_t s = 0; s < configuration.stage_to_depth.size(); ++s)
    json["stage_to_depth_map"][std::to_string(s)] = configuration.stage_to_depth[s];
  return json_text(json);
}

bool looks_like_pipedream_configuration(const std::string& text) {
  return text.find("\"module_to_stage_map\"") != std::string::npos &&
         text.find("\"schema\"") == std::string::npos;
}

PipedreamConfiguration configuration_of(const Plan& plan) {
  const auto refuse = [](const std::string& what) {
    throw PlanError("plan: PipeDream's configuration cannot hold " + what);
  };
  // PipeDream's runtime stashes, and nothing else.
  if (!schedule_facts(plan.schedule).goes_with(WeightRule::kStash))
    refuse("schedule '" + plan.schedule + "'");
  if (weight_rule_named(plan.weights) != WeightRule::kStash) refuse("weights '" + plan.weights + "'");
  PipedreamConfiguration configuration;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (std::any_of(stage.shares.begin(), stage.shares.end(), [](int64_t share) { return share != 1; }))
      refuse("shares (stage " + std::to_string(s) + ")");
    if (stage.splits()) refuse("split (stage " + std::to_string(s) + ")");
    if (stage.recompute) refuse("recompute of single stages (stage " + std::to_string(s) + ")");
    configuration.module_to_stage.push_back(static_cast<int64_t>(s));
    configuration.stage_to_ranks.push_back(stage.ranks);
    configuration.stage_to_depth.push_back(stage.in_flight - 1);
  }
  configuration.module_to_stage.push_back(static_cast<int64_t>(plan.stages.size()) - 1);  // the criterion
  return configuration;
}

Plan plan_of_configuration(const PipedreamConfiguration& configuration, const Profile& profile,
                           const std::map<std::string, int64_t>& module_of, const std::string& where) {
  Plan plan;
  plan.model = profile.model;
  plan.graph_digest = profile.graph_digest;
  plan.strategy = "manual";
  for (size_t s = 0; s < configuration.stage_to_ranks.size(); ++s) {
    Stage stage;
    stage.ranks = configuration.stage_to_ranks[s];
    if (!configuration.stage_to_depth.empty()) stage.in_flight = configuration.stage_to_depth[s] + 1;
    plan.world_size += static_cast<int64_t>(stage.ranks.size());
    plan.stages.push_back(std::move(stage));
  }
  for (const ProfiledNode& node : profile.nodes) {
    const auto module = module_of.find(node.name);
    if (module == module_of.end()) {
      throw InputError(where + ": node " + in_quotes(node.name) + " of the profile has no stage_id",
                       "A configuration speaks of modules: give the graph.txt with stage ids that it was "
                       "made with (gpus=N.txt).");
    }
    if (module->second >= static_cast<int64_t>(configuration.module_to_stage.size())) {
      throw InputError(where + ": node " + in_quotes(node.name) + " is of module " +
                       std::to_string(module->second) + "; module_to_stage_map has " +
                       std::to_string(configuration.module_to_stage.size()) + " (with the criterion)");
    }
    Stage& stage =
        plan.stages[static_cast<size_t>(configuration.module_to_stage[static_cast<size_t>(module->second)])];
    stage.nodes.push_back(node.name);
    const bool listed = std::find(stage.layers.begin(), stage.layers.end(), node.layer) != stage.layers.end();
    if (!node.layer.empty() && !listed) stage.layers.push_back(node.layer);
  }
  plan.validate(where);
  return plan;
}

}  // namespace pipewright
