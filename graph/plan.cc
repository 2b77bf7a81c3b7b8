#include "graph/plan.h"

#include <algorithm>
#include <unordered_map>

#include "graph/document.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

const std::vector<std::string>& strategies() {
  static const std::vector<std::string> names = {"best",           "dp",    "straight", "hybrid",
                                                 "model-parallel", "manual"};
  return names;
}

const std::vector<std::string>& version_rules() {
  static const std::vector<std::string> names = {"stash", "vertical", "2bw", "flush"};
  return names;
}

StagePrediction stage_prediction_from_json(JsonReader& reader) {
  reader.expect({"compute_seconds", "send_seconds", "receive_seconds", "gradient_sync_seconds",
                 "step_seconds", "memory"});
  StagePrediction stage;
  stage.compute_seconds = reader.number("compute_seconds", 0, kMostSeconds);
  stage.send_seconds = reader.number("send_seconds", 0, kMostSeconds);
  stage.receive_seconds = reader.number("receive_seconds", 0, kMostSeconds);
  stage.gradient_sync_seconds = reader.number("gradient_sync_seconds", 0, kMostSeconds);
  stage.step_seconds = reader.number("step_seconds", 0, kMostSeconds);
  JsonReader memory = reader.object("memory");
  memory.expect({"weights_bytes", "versions_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes",
                 "messages_bytes", "workspace_bytes"});
  stage.memory.weights_bytes = memory.integer("weights_bytes", 0, kMostBytes);
  stage.memory.versions_bytes = memory.integer("versions_bytes", 0, kMostBytes);
  stage.memory.gradients_bytes = memory.integer("gradients_bytes", 0, kMostBytes);
  stage.memory.optimizer_bytes = memory.integer("optimizer_bytes", 0, kMostBytes);
  stage.memory.activations_bytes = memory.integer("activations_bytes", 0, kMostBytes);
  stage.memory.messages_bytes = memory.integer("messages_bytes", 0, kMostBytes);
  stage.memory.workspace_bytes = memory.integer("workspace_bytes", 0, kMostBytes);
  memory.finish();
  reader.finish();
  return stage;
}

Prediction prediction_from_json(JsonReader& reader) {
  reader.expect({"minibatch_seconds", "bottleneck", "lower_bound_seconds", "samples_per_second", "stages"});
  Prediction prediction;
  prediction.minibatch_seconds = reader.number("minibatch_seconds", 0, kMostSeconds);
  prediction.bottleneck = reader.string("bottleneck");
  prediction.lower_bound_seconds = reader.number("lower_bound_seconds", 0, kMostSeconds);
  prediction.samples_per_second = reader.number("samples_per_second", 0, kLargestNumber);
  for (JsonReader& stage : reader.objects("stages"))
    prediction.stages.push_back(stage_prediction_from_json(stage));
  reader.finish();
  return prediction;
}

Json prediction_to_json(const Prediction& prediction) {
  Json json;
  json["minibatch_seconds"] = prediction.minibatch_seconds;
  json["bottleneck"] = prediction.bottleneck;
  json["lower_bound_seconds"] = prediction.lower_bound_seconds;
  json["samples_per_second"] = prediction.samples_per_second;
  json["stages"] = Json::array();
  for (const StagePrediction& stage : prediction.stages) {
    Json entry;
    entry["compute_seconds"] = stage.compute_seconds;
    entry["send_seconds"] = stage.send_seconds;
    entry["receive_seconds"] = stage.receive_seconds;
    entry["gradient_sync_seconds"] = stage.gradient_sync_seconds;
    entry["step_seconds"] = stage.step_seconds;
    entry["memory"] = {{"weights_bytes", stage.memory.weights_bytes},
                       {"versions_bytes", stage.memory.versions_bytes},
                       {"gradients_bytes", stage.memory.gradients_bytes},
                       {"optimizer_bytes", stage.memory.optimizer_bytes},
                       {"activations_bytes", stage.memory.activations_bytes},
                       {"messages_bytes", stage.memory.messages_bytes},
                       {"workspace_bytes", stage.memory.workspace_bytes}};
    json["stages"].push_back(std::move(entry));
  }
  return json;
}

std::string place(size_t stage) { return "stages[" + std::to_string(stage) + "]"; }

}  // namespace

Plan Plan::from_json(JsonReader& reader) {
  reader.expect({"schema", "model", "graph_digest", "profile_digest", "topology_digest", "strategy",
                 "schedule", "weights", "microbatches", "world_size", "stages", "predicted"});
  Plan plan;
  plan.model = reader.string("model");
  if (reader.has("graph_digest")) plan.graph_digest = reader.string("graph_digest");
  if (reader.has("profile_digest")) plan.profile_digest = reader.string("profile_digest");
  if (reader.has("topology_digest")) plan.topology_digest = reader.string("topology_digest");
  plan.strategy = reader.string_one_of("strategy", strategies());
  plan.schedule = reader.string("schedule");
  plan.weights = reader.string_one_of("weights", version_rules());
  if (reader.has("microbatches")) plan.microbatches = reader.integer("microbatches", 1, kMostInFlight);
  plan.world_size = reader.integer("world_size", 1, kMostRanks);
  for (JsonReader& entry : reader.objects("stages")) {
    entry.expect({"layers", "nodes", "ranks", "in_flight"});
    Stage stage;
    if (entry.has("layers")) stage.layers = entry.strings("layers");
    stage.nodes = entry.strings("nodes");
    stage.ranks = entry.integers("ranks", 0, kMostRanks - 1);
    stage.in_flight = entry.integer("in_flight", 1, kMostInFlight);
    entry.finish();
    plan.stages.push_back(std::move(stage));
  }
  if (reader.has("predicted")) {
    JsonReader predicted = reader.object("predicted");
    plan.predicted = prediction_from_json(predicted);
  }
  return plan;
}

Json Plan::to_json() const {
  Json json;
  json["model"] = model;
  if (!graph_digest.empty()) json["graph_digest"] = graph_digest;
  if (!profile_digest.empty()) json["profile_digest"] = profile_digest;
  if (!topology_digest.empty()) json["topology_digest"] = topology_digest;
  json["strategy"] = strategy;
  json["schedule"] = schedule;
  json["weights"] = weights;
  json["microbatches"] = microbatches;
  json["world_size"] = world_size;
  json["stages"] = Json::array();
  for (const Stage& stage : stages) {
    json["stages"].push_back({{"layers", stage.layers},
                              {"nodes", stage.nodes},
                              {"ranks", stage.ranks},
                              {"in_flight", stage.in_flight}});
  }
  if (predicted) json["predicted"] = prediction_to_json(*predicted);
  return json;
}

void Plan::validate(const std::string& where) const {
  check_range(where, "world_size", world_size, 1, kMostRanks);
  check_range(where, "microbatches", microbatches, 1, kMostInFlight);
  if (stages.empty()) fail_document(where, "stages", "empty; expected at least one stage");
  std::unordered_map<std::string, size_t> stage_of_node;
  std::unordered_map<int64_t, size_t> stage_of_rank;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].nodes.empty())
      fail_document(where, place(s) + ".nodes", "empty; expected at least one node");
    for (size_t i = 0; i < stages[s].nodes.size(); ++i) {
      const std::string& node = stages[s].nodes[i];
      const auto [it, fresh] = stage_of_node.emplace(node, s);
      if (!fresh) {
        fail_document(where, place(s) + ".nodes[" + std::to_string(i) + "]",
                      in_quotes(node) + " is in stage " + std::to_string(it->second) + " already");
      }
    }
    if (stages[s].ranks.empty())
      fail_document(where, place(s) + ".ranks", "empty; expected at least one rank");
    for (size_t i = 0; i < stages[s].ranks.size(); ++i) {
      const int64_t rank = stages[s].ranks[i];
      const std::string path = place(s) + ".ranks[" + std::to_string(i) + "]";
      check_range(where, path, rank, 0, world_size - 1);
      const auto [it, fresh] = stage_of_rank.emplace(rank, s);
      if (!fresh) {
        fail_document(
            where, path,
            "rank " + std::to_string(rank) + " is in stage " + std::to_string(it->second) + " already");
      }
    }
    check_range(where, place(s) + ".in_flight", stages[s].in_flight, 1, kMostInFlight);
  }
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (stage_of_rank.count(rank) != 0) continue;
    fail_document(
        where, "world_size",
        "is " + std::to_string(world_size) + ", but rank " + std::to_string(rank) + " is in no stage",
        "Ranks are 0..world_size-1, each in one stage.");
  }
  if (predicted && predicted->stages.size() != stages.size()) {
    fail_document(
        where, "predicted.stages",
        "got " + std::to_string(predicted->stages.size()) + ", expected one for each of " +
            std::to_string(stages.size()) + " stages",
        "After an edit by hand leave `predicted` out, or make it again: pipewright-optimizer evaluate.");
  }
}

std::string Plan::shape_text() const {
  std::string text;
  for (const Stage& stage : stages) text += (text.empty() ? "" : "-") + std::to_string(stage.ranks.size());
  return text;
}

Plan single_stage_plan(const Graph& graph, int64_t replicas) {
  Plan plan;
  plan.model = graph.name;
  plan.graph_digest = document_digest(graph);
  plan.strategy = "dp";
  plan.world_size = replicas;
  Stage stage;
  for (const Node& node : graph.nodes) {
    stage.nodes.push_back(node.name);
    if (std::find(stage.layers.begin(), stage.layers.end(), node.layer) == stage.layers.end()) {
      stage.layers.push_back(node.layer);
    }
  }
  for (int64_t rank = 0; rank < replicas; ++rank) stage.ranks.push_back(rank);
  plan.stages.push_back(std::move(stage));
  return plan;
}

}  // namespace pipewright
