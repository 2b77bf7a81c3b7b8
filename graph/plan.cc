#include "graph/plan.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "graph/byte_fields.h"
#include "graph/document.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "graph/pipeline_rules.h"
#include "graph/rows.h"
#include "graph/strategies.h"

namespace pipewright {

namespace {

const std::vector<ByteField<StageMemory>>& memory_fields() {
  static const std::vector<ByteField<StageMemory>> fields = {
      {"weights_bytes", &StageMemory::weights_bytes},
      {"versions_bytes", &StageMemory::versions_bytes},
      {"gradients_bytes", &StageMemory::gradients_bytes},
      {"optimizer_bytes", &StageMemory::optimizer_bytes},
      {"activations_bytes", &StageMemory::activations_bytes},
      {"messages_bytes", &StageMemory::messages_bytes},
      {"workspace_bytes", &StageMemory::workspace_bytes}};
  return fields;
}

}  // namespace

StageMemory& StageMemory::operator+=(const StageMemory& other) {
  for (const ByteField<StageMemory>& field : memory_fields()) this->*field.bytes += other.*field.bytes;
  return *this;
}

StageMemory stage_memory_from_json(JsonReader reader) {
  return read_byte_fields(std::move(reader), memory_fields());
}

Json stage_memory_to_json(const StageMemory& memory) { return write_byte_fields(memory, memory_fields()); }

namespace {

StagePrediction stage_prediction_from_json(JsonReader& reader) {
  reader.expect({"compute_seconds", "send_seconds", "receive_seconds", "gradient_sync_seconds",
                 "step_seconds", "memory"});
  StagePrediction stage;
  stage.compute_seconds = reader.number("compute_seconds", 0, kMostSeconds);
  stage.send_seconds = reader.number("send_seconds", 0, kMostSeconds);
  stage.receive_seconds = reader.number("receive_seconds", 0, kMostSeconds);
  stage.gradient_sync_seconds = reader.number("gradient_sync_seconds", 0, kMostSeconds);
  stage.step_seconds = reader.number("step_seconds", 0, kMostSeconds);
  stage.memory = stage_memory_from_json(reader.object("memory"));
  reader.finish();
  return stage;
}

/// `of`: the priced_digest() of the plan that it is of; "": it does not say.
Prediction prediction_from_json(JsonReader& reader, std::string* of) {
  reader.expect({"minibatch_seconds", "bottleneck", "transfers", "lower_bound_seconds", "samples_per_second",
                 "shared_cores", "stages", "plan_digest"});
  if (reader.has("plan_digest")) *of = reader.string("plan_digest");
  Prediction prediction;
  prediction.minibatch_seconds = reader.number("minibatch_seconds", 0, kMostSeconds);
  prediction.bottleneck = reader.string("bottleneck");
  if (reader.has("transfers")) {
    prediction.transfers = reader.string_one_of("transfers", {"overlapped", "blocking"});
  }
  prediction.lower_bound_seconds = reader.number("lower_bound_seconds", 0, kMostSeconds);
  prediction.samples_per_second = reader.number("samples_per_second", 0, kLargestNumber);
  if (reader.has("shared_cores")) prediction.shared_cores = reader.integer("shared_cores", 1, kMostRanks);
  for (JsonReader& stage : reader.objects("stages"))
    prediction.stages.push_back(stage_prediction_from_json(stage));
  reader.finish();
  return prediction;
}

/// Of what a prediction depends on in its plan.
std::string priced_digest(Plan plan) {
  plan.predicted.reset();
  plan.tied_parameters.clear();  // they follow from the nodes
  for (std::string* name : {&plan.model, &plan.graph_digest, &plan.profile_digest, &plan.topology_digest,
                            &plan.device_passes, &plan.strategy})
    name->clear();
  for (Stage& stage : plan.stages) stage.layers.clear();
  return digest_of(plan.to_json().dump());
}

Json prediction_to_json(const Prediction& prediction) {
  Json json;
  json["minibatch_seconds"] = prediction.minibatch_seconds;
  json["bottleneck"] = prediction.bottleneck;
  if (prediction.transfers != Prediction().transfers) json["transfers"] = prediction.transfers;
  json["lower_bound_seconds"] = prediction.lower_bound_seconds;
  json["samples_per_second"] = prediction.samples_per_second;
  if (prediction.shared_cores > 0) json["shared_cores"] = prediction.shared_cores;
  json["stages"] = Json::array();
  for (const StagePrediction& stage : prediction.stages) {
    Json entry;
    entry["compute_seconds"] = stage.compute_seconds;
    entry["send_seconds"] = stage.send_seconds;
    entry["receive_seconds"] = stage.receive_seconds;
    entry["gradient_sync_seconds"] = stage.gradient_sync_seconds;
    entry["step_seconds"] = stage.step_seconds;
    entry["memory"] = stage_memory_to_json(stage.memory);
    json["stages"].push_back(std::move(entry));
  }
  return json;
}

std::string place(size_t stage) { return list_element("stages", stage); }

void validate_nodes(const Plan& plan, const std::string& where) {
  std::unordered_map<std::string, size_t> stage_of;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<std::string>& nodes = plan.stages[s].nodes;
    if (nodes.empty()) fail_document(where, place(s) + ".nodes", "empty; expected at least one node");
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto [it, fresh] = stage_of.emplace(nodes[i], s);
      if (fresh) continue;
      fail_document(where, place(s) + ".nodes[" + std::to_string(i) + "]",
                    in_quotes(nodes[i]) + " is in stage " + std::to_string(it->second) + " already");
    }
  }
}

// Each rank has one stage; where ranks have several the first p stages hold the ranks, and the others repeat
// them: over and over, or back from the last to the first.
void validate_ranks(const Plan& plan, const std::string& where) {
  std::unordered_map<int64_t, size_t> stage_of;
  size_t firsts = 0;  // stages that hold new ranks
  const ScheduleFacts* const schedule = find_schedule(plan.schedule);
  const bool several_stages = schedule != nullptr && schedule->several_stages;
  const bool custom = schedule != nullptr && schedule->kind == ScheduleKind::kCustom;
  const bool back = several_stages && (schedule->v_shaped || (custom && plan.v_shaped()));
  const std::string rule = std::string("With schedule ") + in_quotes(plan.schedule) +
                           " stage s has the ranks of stage " + (back ? "2p - 1 - s" : "s mod p");
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<int64_t>& ranks = plan.stages[s].ranks;
    if (ranks.empty()) fail_document(where, place(s) + ".ranks", "empty; expected at least one rank");
    const bool repeats = several_stages && s > 0 && stage_of.count(ranks[0]) != 0;
    if (!repeats) {
      if (firsts != s) {
        fail_document(where, place(s) + ".ranks",
                      "new ranks after stage " + std::to_string(firsts) + " has repeated earlier ones",
                      rule + ".");
      }
      firsts = s + 1;
    } else if (const size_t like = back ? 2 * firsts - 1 - std::min(s, 2 * firsts - 1) : s % firsts;
               ranks != plan.stages[like].ranks || plan.stages[s].shares != plan.stages[like].shares) {
      fail_document(where, place(s) + ".ranks",
                    "differ from those of stage " + std::to_string(like) + " (ranks or shares)",
                    rule + ", and its shares; here p = " + std::to_string(firsts) + ".");
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      const std::string path = place(s) + ".ranks[" + std::to_string(i) + "]";
      check_range(where, path, ranks[i], 0, plan.world_size - 1);
      const auto [it, fresh] = stage_of.emplace(ranks[i], s);
      if (fresh || repeats) continue;
      fail_document(
          where, path,
          "rank " + std::to_string(ranks[i]) + " is in stage " + std::to_string(it->second) + " already",
          "Only the schedules 'interleaved', 'zbv', 'dualpipev' and 'custom' give a rank several stages.");
    }
  }
  const bool even = back ? plan.stages.size() == 2 * firsts : plan.stages.size() % firsts == 0;
  if (several_stages && !even) {
    fail_document(where, "stages",
                  "got " + std::to_string(plan.stages.size()) + ", expected " +
                      (back ? "twice " : "a multiple of ") + std::to_string(firsts) +
                      ", the stages with ranks of their own",
                  "Every rank has the same number of stages.");
  }
  for (int64_t rank = 0; rank < plan.world_size; ++rank) {
    if (stage_of.count(rank) != 0) continue;
    fail_document(
        where, "world_size",
        "is " + std::to_string(plan.world_size) + ", but rank " + std::to_string(rank) + " is in no stage",
        "Ranks are 0..world_size-1, each in one stage.");
  }
}

void validate_split(const Plan& plan, const std::string& where) {
  const ScheduleFacts* const schedule = find_schedule(plan.schedule);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.split.empty()) continue;
    const std::string path = place(s) + ".split";
    if (stage.split.size() != stage.ranks.size()) {
      fail_document(where, path,
                    "got " + std::to_string(stage.split.size()) + ", expected one for each of " +
                        std::to_string(stage.ranks.size()) + " ranks");
    }
    for (size_t q = 0; q < stage.split.size(); ++q)
      check_range(where, path + "[" + std::to_string(q) + "]", stage.split[q], 1, kMostShare);
    if (!stage.shares.empty()) {
      fail_document(where, path, "stands beside `shares`",
                    "Replicas share each minibatch (`split`), or take whole ones in turns (`shares`).");
    }
    if (schedule != nullptr && schedule->several_stages) {
      fail_document(where, path, "does not go with schedule " + in_quotes(plan.schedule),
                    "Its stages share their ranks: leave out `split`, or use schedule '1f1b-flush'.");
    }
  }
}

void validate_order(const Plan& plan, const std::string& where) {
  const ScheduleFacts* const schedule = find_schedule(plan.schedule);
  const bool custom = schedule != nullptr && schedule->kind == ScheduleKind::kCustom;
  if (custom && plan.order.empty()) {
    fail_document(where, "order", "is missing, and schedule 'custom' is what it lists",
                  "pipewright-optimizer convert makes it of a schedule in PyTorch's CSV.");
  }
  if (!custom && !plan.order.empty()) {
    fail_document(where, "order", "does not go with schedule " + in_quotes(plan.schedule),
                  "Leave it out, or use schedule 'custom'.");
  }
}

void validate_frozen(const Plan& plan, const std::string& where) {
  check_range(where, "frozen_layers", plan.frozen_layers, 0, kMostFrozenLayers);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].frozen) continue;
    if (plan.frozen_layers == 0) {
      fail_document(where, place(s) + ".frozen", "is true, but frozen_layers is 0",
                    "`frozen_layers` says how many layers of the model, from the front, are frozen.");
    }
    if (s > 0 && !plan.stages[s - 1].frozen) {
      fail_document(where, place(s) + ".frozen",
                    "is true behind stage " + std::to_string(s - 1) + ", which is trained",
                    "Layers are frozen from the front, so frozen stages stand before all others.");
    }
    if (s + 1 == plan.stages.size()) {
      fail_document(where, place(s) + ".frozen", "is true of the last stage, so nothing is trained",
                    "What holds the last parameters is never frozen.");
    }
  }
}

void validate_tied(const Plan& plan, const std::string& where) {
  for (size_t t = 0; t < plan.tied_parameters.size(); ++t) {
    const TiedParameter& tied = plan.tied_parameters[t];
    const std::string path = "tied_parameters[" + std::to_string(t) + "]";
    for (size_t u = 0; u < t; ++u) {
      if (plan.tied_parameters[u].name == tied.name)
        fail_document(where, path + ".name", in_quotes(tied.name) + " stands there twice");
    }
    if (tied.stages.size() < 2) fail_document(where, path + ".stages", "expected two stages or more");
    for (size_t i = 0; i < tied.stages.size(); ++i) {
      check_range(where, path + ".stages[" + std::to_string(i) + "]", tied.stages[i], 0,
                  static_cast<int64_t>(plan.stages.size()) - 1);
      if (i > 0 && tied.stages[i] <= tied.stages[i - 1])
        fail_document(where, path + ".stages", "not ascending");
    }
  }
}

// Says all that `recompute` does, so only one of them may stand there.
void set_recompute_ratio(Stage& stage, JsonReader& entry) {
  const double ratio = entry.number("recompute_ratio", 0, 1);
  if (entry.has("recompute")) {
    entry.fail("recompute_ratio", "stands beside `recompute`",
               "Keep one of them: `recompute` true is a ratio of 1, false one of 0.");
  }
  stage.recompute = ratio > 0;
  if (ratio > 0) stage.recompute_ratio = ratio;
}

}  // namespace

Plan Plan::from_json(JsonReader& reader) {
  reader.expect({"schema", "model", "graph_digest", "profile_digest", "topology_digest", "device_passes",
                 "strategy", "schedule", "weights", "microbatches", "order", "world_size", "frozen_layers",
                 "stages", "tied_parameters", "predicted"});
  Plan plan;
  plan.model = reader.string("model");
  if (reader.has("graph_digest")) plan.graph_digest = reader.string("graph_digest");
  if (reader.has("profile_digest")) plan.profile_digest = reader.string("profile_digest");
  if (reader.has("topology_digest")) plan.topology_digest = reader.string("topology_digest");
  if (reader.has("device_passes")) plan.device_passes = reader.string("device_passes");
  if (reader.has("order")) plan.order = reader.strings("order");
  plan.strategy = reader.string_one_of("strategy", names_of(strategies()));
  plan.schedule = reader.string("schedule");
  plan.weights = reader.string_one_of("weights", weight_rule_names());
  if (reader.has("microbatches")) plan.microbatches = reader.integer("microbatches", 1, kMostInFlight);
  plan.world_size = reader.integer("world_size", 1, kMostRanks);
  if (reader.has("frozen_layers")) plan.frozen_layers = reader.integer("frozen_layers", 0, kMostFrozenLayers);
  for (JsonReader& entry : reader.objects("stages")) {
    entry.expect({"layers", "nodes", "ranks", "shares", "split", "in_flight", "recompute", "recompute_ratio",
                  "frozen"});
    Stage stage;
    if (entry.has("layers")) stage.layers = entry.strings("layers");
    stage.nodes = entry.strings("nodes");
    stage.ranks = entry.integers("ranks", 0, kMostRanks - 1);
    if (entry.has("shares")) stage.shares = entry.integers("shares", 1, kMostShare);
    if (entry.has("split")) stage.split = entry.integers("split", 1, kMostShare);
    stage.in_flight = entry.integer("in_flight", 1, kMostInFlight);
    if (entry.has("recompute")) stage.recompute = entry.boolean("recompute");
    if (entry.has("recompute_ratio")) set_recompute_ratio(stage, entry);
    if (entry.has("frozen")) stage.frozen = entry.boolean("frozen");
    entry.finish();
    plan.stages.push_back(std::move(stage));
  }
  if (reader.has("tied_parameters")) {
    for (JsonReader& entry : reader.objects("tied_parameters")) {
      entry.expect({"name", "stages"});
      plan.tied_parameters.push_back({entry.string("name"), entry.integers("stages", 0, kMostRanks - 1)});
      entry.finish();
    }
  }
  if (reader.has("predicted")) {
    JsonReader predicted = reader.object("predicted");
    std::string of;
    Prediction prediction = prediction_from_json(predicted, &of);
    // Somebody may have changed the plan since.
    if (of.empty() || of == priced_digest(plan))
      plan.predicted = std::move(prediction);
    else
      for (Stage& stage : plan.stages) stage.layers.clear();  // those of the nodes that were here before
  }
  return plan;
}

Json Plan::to_json() const {
  Json json;
  json["model"] = model;
  if (!graph_digest.empty()) json["graph_digest"] = graph_digest;
  if (!profile_digest.empty()) json["profile_digest"] = profile_digest;
  if (!topology_digest.empty()) json["topology_digest"] = topology_digest;
  if (!device_passes.empty()) json["device_passes"] = device_passes;
  json["strategy"] = strategy;
  json["schedule"] = schedule;
  json["weights"] = weights;
  json["microbatches"] = microbatches;
  if (!order.empty()) json["order"] = order;
  json["world_size"] = world_size;
  if (frozen_layers > 0) json["frozen_layers"] = frozen_layers;
  json["stages"] = Json::array();
  for (const Stage& stage : stages) {
    Json entry = {{"layers", stage.layers}, {"nodes", stage.nodes}, {"ranks", stage.ranks}};
    if (!stage.shares.empty()) entry["shares"] = stage.shares;
    if (!stage.split.empty()) entry["split"] = stage.split;
    entry["in_flight"] = stage.in_flight;
    if (stage.recompute && stage.recompute_ratio == 1) entry["recompute"] = true;
    if (stage.recompute && stage.recompute_ratio != 1) entry["recompute_ratio"] = stage.recompute_ratio;
    if (stage.frozen) entry["frozen"] = true;
    json["stages"].push_back(std::move(entry));
  }
  for (const TiedParameter& tied : tied_parameters) {
    json["tied_parameters"].push_back({{"name", tied.name}, {"stages", tied.stages}});
  }
  if (predicted) {
    json["predicted"] = prediction_to_json(*predicted);
    json["predicted"]["plan_digest"] = priced_digest(*this);
  }
  return json;
}

void Plan::validate(const std::string& where) const {
  check_range(where, "world_size", world_size, 1, kMostRanks);
  check_range(where, "microbatches", microbatches, 1, kMostInFlight);
  if (stages.empty()) fail_document(where, "stages", "empty; expected at least one stage");
  validate_nodes(*this, where);
  for (size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    check_range(where, place(s) + ".in_flight", stage.in_flight, 1, kMostInFlight);
    if (!stage.shares.empty() && stage.shares.size() != stage.ranks.size()) {
      fail_document(where, place(s) + ".shares",
                    "got " + std::to_string(stage.shares.size()) + ", expected one for each of " +
                        std::to_string(stage.ranks.size()) + " ranks");
    }
    check_range(where, place(s) + ".recompute_ratio", stage.recompute_ratio, 0, 1);
    for (size_t q = 0; q < stage.shares.size(); ++q) {
      check_range(where, place(s) + ".shares[" + std::to_string(q) + "]", stage.shares[q], 1, kMostShare);
    }
  }
  validate_split(*this, where);
  validate_order(*this, where);
  validate_ranks(*this, where);
  validate_tied(*this, where);
  validate_frozen(*this, where);
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

bool Plan::v_shaped() const {
  return stages.size() > 2 && stages.size() % 2 == 0 && stages.front().ranks == stages.back().ranks &&
         stages[stages.size() / 2 - 1].ranks == stages[stages.size() / 2].ranks;
}

bool Plan::splits_backward() const {
  const ScheduleFacts& facts = schedule_facts(schedule);
  return facts.splits_backward || std::any_of(order.begin(), order.end(), [](const std::string& actions) {
           return actions.find("BI") != std::string::npos;
         });
}

int64_t Plan::frozen_stages() const {
  return std::count_if(stages.begin(), stages.end(), [](const Stage& stage) { return stage.frozen; });
}

int64_t Plan::first_trained_depth() const {
  const auto first = static_cast<size_t>(frozen_stages());
  return first < stages.size() ? stages[first].in_flight : 0;
}

void check_schedule_and_weights(const Plan& plan) {
  const ScheduleFacts* const schedule = find_schedule(plan.schedule);
  if (schedule == nullptr || !schedule->trains()) {
    std::vector<std::string> names;
    for (const ScheduleFacts& row : schedule_table())
      if (row.trains()) names.emplace_back(row.name);
    throw PlanError(
        "plan: schedule " + in_quotes(plan.schedule) + " does not train" + suggestion(plan.schedule, names),
        "Known: " + join(names, ", ") + ".");
  }
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (!schedule->goes_with(rule.rule)) {
    std::vector<std::string> names;
    for (const WeightRule weights : schedule->weights) names.emplace_back(to_text(weights));
    throw PlanError("plan: schedule '" + plan.schedule + "' does not go with weights '" + plan.weights + "'",
                    "Set \"weights\" to " + join(names, " or ") + ", or choose another schedule.");
  }
  if (!plan.tied_parameters.empty() && !rule.one_update_for_all) {
    throw PlanError("plan: parameter " + in_quotes(plan.tied_parameters[0].name) +
                        " is tied across stages, and with weights '" + plan.weights +
                        "' stages update at different times",
                    "Put all nodes that read it into one stage, or use weights 'flush' or '2bw'.");
  }
  for (size_t s = 0; rule.in_place && s < plan.stages.size(); ++s) {
    if (!plan.stages[s].recompute) continue;
    throw PlanError("plan, stage " + std::to_string(s) + ": recomputes, and with weights '" + plan.weights +
                        "' its second forward would read newer weights than the first",
                    "Leave `recompute` out of its stages, or use other weights.");
  }
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
