#include "graph/dynpipe_partition.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

constexpr int64_t kMostLayers = int64_t{1} << 24;

void demand_length(const JsonReader& reader, const std::string& key, size_t length, size_t stages) {
  if (length == stages) return;
  reader.fail(
      key, "has " + std::to_string(length) + " numbers; partition has " + std::to_string(stages) + " stages");
}

std::vector<double> ratios_of(JsonReader& reader, const std::string& key) {
  const Json& json = reader.raw(key);
  if (!json.is_array()) reader.fail(key, "got " + described(json) + ", expected a list of numbers in 0..1");
  std::vector<double> ratios;
  for (const Json& ratio : json) {
    if (!ratio.is_number() || !(ratio.get<double>() >= 0 && ratio.get<double>() <= 1))
      reader.fail(key, "got " + described(ratio) + ", expected a number in 0..1");
    ratios.push_back(ratio.get<double>());
  }
  return ratios;
}

}  // namespace

DynPipePartition parse_dynpipe_partition(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  JsonReader reader(json, where);
  reader.expect({"partition", "recompute_ratio", "batch_size_all", "batch_size"});
  DynPipePartition partition;
  partition.layers = reader.integers("partition", 1, kMostLayers);
  const size_t stages = partition.layers.size();
  if (stages == 0 || static_cast<int64_t>(stages) > kMostRanks)
    reader.fail("partition", "has " + std::to_string(stages) + " stages, expected 1 or more");
  partition.recompute_ratios.assign(stages, 0);
  if (reader.has("recompute_ratio")) partition.recompute_ratios = ratios_of(reader, "recompute_ratio");
  demand_length(reader, "recompute_ratio", partition.recompute_ratios.size(), stages);
  const auto whole = reader.integers("batch_size_all", 1, kMostCount);
  if (whole.size() != 1) {
    reader.fail("batch_size_all",
                "has " + std::to_string(whole.size()) + " numbers, expected one: the whole minibatch");
  }
  partition.minibatch_samples = whole[0];
  const auto local = reader.integers("batch_size", 1, kMostCount);
  demand_length(reader, "batch_size", local.size(), stages);
  for (size_t s = 0; s < stages; ++s) {
    const int64_t replicas = whole[0] / local[s];
    if (replicas * local[s] != whole[0] || replicas > kMostRanks) {
      reader.fail("batch_size", "stage " + std::to_string(s) + " has " + std::to_string(local[s]) +
                                    " samples, which no number of replicas makes of " +
                                    std::to_string(whole[0]));
    }
    partition.replicas.push_back(replicas);
  }
  reader.finish();
  return partition;
}

std::string dynpipe_partition_text(const DynPipePartition& partition) {
  Json json;
  json["partition"] = partition.layers;
  json["recompute_ratio"] = partition.recompute_ratios;
  json["batch_size_all"] = {partition.minibatch_samples};
  json["batch_size"] = Json::array();
  for (const int64_t replicas : partition.replicas)
    json["batch_size"].push_back(partition.minibatch_samples / replicas);
  return json_text(json);
}

bool looks_like_dynpipe_partition(const std::string& text) {
  return text.find("\"partition\"") != std::string::npos && text.find("\"schema\"") == std::string::npos;
}

DynPipePartition partition_of(const Plan& plan, const Profile& profile, int64_t minibatch_samples) {
  const auto refuse = [](const std::string& what, const std::string& remedy = "") {
    throw PlanError("plan: DynPipe's partition cannot hold " + what, remedy);
  };
  DynPipePartition partition;
  partition.minibatch_samples = minibatch_samples;
  std::vector<bool> taken(static_cast<size_t>(plan.world_size), false);
  size_t next = 0;  // node of the profile
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const std::string name = "stage " + std::to_string(s);
    std::vector<std::string> nodes = stage.nodes, stretch;
    for (size_t i = 0; i < nodes.size() && next < profile.nodes.size(); ++i)
      stretch.push_back(profile.nodes[next++].name);
    std::sort(nodes.begin(), nodes.end());
    std::sort(stretch.begin(), stretch.end());
    if (nodes != stretch)
      refuse(name + ": its nodes are not the next " + std::to_string(nodes.size()) + " of the profile",
             "Give the profile that the plan was made with; --objective dynpipe plans such stages.");
    for (const int64_t rank : stage.ranks) {
      if (taken.at(static_cast<size_t>(rank))) refuse("several stages on rank " + std::to_string(rank));
      taken[static_cast<size_t>(rank)] = true;
    }
    if (std::any_of(stage.shares.begin(), stage.shares.end(), [](int64_t share) { return share != 1; }))
      refuse("shares (" + name + ")");
    if (std::any_of(stage.split.begin(), stage.split.end(),
                    [&](int64_t weight) { return weight != stage.split.front(); }))
      refuse("parts of different sizes (" + name + ")");
    const auto replicas = static_cast<int64_t>(stage.ranks.size());
    if (minibatch_samples % replicas != 0) {
      refuse(std::to_string(minibatch_samples) + " samples in " + std::to_string(replicas) + " parts (" +
             name + ")");
    }
    partition.layers.push_back(static_cast<int64_t>(stage.nodes.size()));
    partition.recompute_ratios.push_back(stage.recompute ? stage.recompute_ratio : 0);
    partition.replicas.push_back(replicas);
  }
  if (next != profile.nodes.size()) refuse("a part of the profile's nodes");
  return partition;
}

Plan plan_of_partition(const DynPipePartition& partition, const Profile& profile, const std::string& where) {
  const auto layers = std::accumulate(partition.layers.begin(), partition.layers.end(), int64_t{0});
  if (layers != static_cast<int64_t>(profile.nodes.size())) {
    throw InputError(where + ": partition has " + std::to_string(layers) + " layers, the profile of '" +
                         profile.model + "' " + std::to_string(profile.nodes.size()) + " nodes",
                     "Give the profile whose nodes are these layers.");
  }
  Plan plan;
  plan.model = profile.model;
  plan.graph_digest = profile.graph_digest;
  plan.strategy = "manual";
  auto node = profile.nodes.begin();
  for (size_t s = 0; s < partition.layers.size(); ++s) {
    Stage stage;
    for (int64_t l = 0; l < partition.layers[s]; ++l, ++node) {
      stage.nodes.push_back(node->name);
      const bool listed =
          std::find(stage.layers.begin(), stage.layers.end(), node->layer) != stage.layers.end();
      if (!node->layer.empty() && !listed) stage.layers.push_back(node->layer);
    }
    for (int64_t q = 0; q < partition.replicas[s]; ++q) stage.ranks.push_back(plan.world_size++);
    const double ratio = partition.recompute_ratios[s];
    stage.recompute = ratio > 0;
    if (ratio > 0) stage.recompute_ratio = ratio;
    plan.stages.push_back(std::move(stage));
  }
  plan.validate(where);
  return plan;
}

}  // namespace pipewright
