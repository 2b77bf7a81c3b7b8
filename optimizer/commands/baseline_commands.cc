#include "optimizer/commands/baseline_commands.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <utility>
#include <vector>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "graph/plan.h"
#include "graph/rows.h"
#include "graph/units.h"
#include "optimizer/baselines/dnn_partitioning.h"
#include "optimizer/baselines/dynpipe.h"
#include "optimizer/baselines/max_load.h"
#include "optimizer/baselines/pipedream.h"
#include "optimizer/baselines/piper.h"
#include "optimizer/commands/option_values.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/report.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

constexpr auto kToTheLeft = TableColumn::Side::kLeft;

enum class Objective { kPipewright, kPipeDream, kMaxLoad, kPiper, kDynPipe };
struct ObjectiveRow {
  Objective objective;
  const char* name;
  std::vector<std::string> options;  ///< of its problem, beside the profile and what is printed
};

/// What the usual problem has not.
const std::vector<std::string> kOfOthersAlone = {"cpus", "staleness-weight"};

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const std::vector<ObjectiveRow>& objectives() {
  static const std::vector<ObjectiveRow> rows = {
      {Objective::kPipewright, "pipewright", {}},
      {Objective::kPipeDream,
       "pipedream",
       {"gpus", "topology", "levels", "bandwidths", "shared", "device-classes"}},
      {Objective::kMaxLoad,
       "max-load",
       {"gpus", "topology", "levels", "bandwidths", "latency", "shared", "device-classes", "memory", "cpus"}},
      {Objective::kPiper, "piper", {"gpus", "bandwidths", "memory"}},
      {Objective::kDynPipe,
       "dynpipe",
       {"gpus", "topology", "levels", "bandwidths", "shared", "device-classes", "max-stages",
        "staleness-weight"}}};
  return rows;
}

const ObjectiveRow& objective_of(const po::variables_map& values) {
  return row_named(objectives(), "--objective", values["objective"].as<std::string>());
}

/// InputError for an option that the problem has no use for.
void refuse_others(const po::variables_map& values, const std::string& objective,
                   const std::vector<std::string>& options) {
  static const std::vector<std::string> of_all = {"objective", "profile", "json", "output", "wide"};
  for (const auto& [option, value] : values) {
    if (value.defaulted() || is_among(option, of_all) || is_among(option, options)) continue;
    throw InputError(
        "--objective " + objective + ": not together with --" + option + ", which is no part of it",
        is_among(option, kOfOthersAlone) ? "Leave it out."
                                         : "Leave it out, or use --objective pipewright, which takes it.");
  }
}

std::string proof_text(double seconds, double bound) {
  if (bound >= seconds * (1 - 1e-8)) return "; nothing is better";
  return bound > 0 ? "; nothing is better than " + format_seconds(bound) : "";
}

/// Prints the table or the JSON, and writes.
void give(const po::variables_map& values, const std::string& sentence, const TextTable& table,
          const Json& json, const std::string& document) {
  const int64_t width = output_width(values);
  std::cout << (values["json"].as<bool>() ? json_text(json)
                                          : wrapped(sentence, width) + "\n\n" + table.text(width));
  if (values.count("output") == 0) return;
  const std::filesystem::path output = values["output"].as<std::string>();
  if (output.extension() != ".json")
    throw InputError("--output: got " + in_quotes(output.string()) + "; expected a name that ends in .json");
  write_file(output, document.empty() ? json_text(json) : document);
  std::cerr << "wrote " << output.string() << "\n";
}

/// The stages as a plan of the profile, as deep as there are ranks behind each.
std::string plan_text(const Profile& profile, const std::string& strategy, std::vector<Stage> stages) {
  Plan plan;
  plan.model = profile.model;
  plan.graph_digest = profile.graph_digest;
  plan.device_passes = profile.device_passes();
  plan.profile_digest = document_digest(profile);
  plan.strategy = strategy;
  plan.stages = std::move(stages);
  std::vector<int64_t> replicas;
  for (const Stage& stage : plan.stages) {
    replicas.push_back(static_cast<int64_t>(stage.ranks.size()));
    plan.world_size += replicas.back();
  }
  const std::vector<int64_t> depths = pipedream_in_flight(replicas);
  for (size_t s = 0; s < depths.size(); ++s) plan.stages[s].in_flight = std::min(kMostInFlight, depths[s]);
  return document_text(plan);
}

Stage stage_of(const Profile& profile, const std::vector<int>& nodes, std::vector<int64_t> ranks) {
  Stage stage;
  for (const int v : nodes) stage.nodes.push_back(profile.nodes[static_cast<size_t>(v)].name);
  stage.ranks = std::move(ranks);
  return stage;
}

/// A rank for each stage.
std::string plan_text(const MaxLoadPlan& found, const Profile& profile) {
  std::vector<Stage> stages;
  for (const MaxLoadStage& stage : found.stages)
    stages.push_back(stage_of(profile, stage.nodes, {static_cast<int64_t>(stages.size())}));
  return plan_text(profile, "straight", std::move(stages));
}

/// Layers and ranks in order.
std::string plan_text(const DynPipePlan& found, const Profile& profile) {
  std::vector<Stage> stages;
  int node = 0;
  int64_t rank = 0;
  for (const DynPipeStage& from : found.stages) {
    std::vector<int> nodes(static_cast<size_t>(from.layers));
    std::vector<int64_t> ranks(static_cast<size_t>(from.replicas));
    std::iota(nodes.begin(), nodes.end(), node);
    std::iota(ranks.begin(), ranks.end(), rank);
    node += static_cast<int>(from.layers);
    rank += from.replicas;
    stages.push_back(stage_of(profile, nodes, std::move(ranks)));
  }
  return plan_text(profile, found.stages.size() == 1 ? "dp" : "best", std::move(stages));
}

std::string plan_text(const PipeDreamPlan& found, const Profile& profile) {
  std::vector<Stage> stages;
  for (const PipeDreamStage& stage : found.stages)
    stages.push_back(stage_of(profile, stage.nodes, stage.ranks));
  return plan_text(profile, "best", std::move(stages));
}

void plan_pipedream(const po::variables_map& values) {
  const Profile profile = read_profile(required(values, "profile"));
  std::vector<Setting> settings;
  const Topology topology = topology_from(values, 0, &settings);
  const PipeDreamPlan plan = search_pipedream(profile, topology);
  Json json;
  json["objective"] = "pipedream";
  json["minibatch_seconds"] = plan.seconds;
  json["devices"] = plan.devices;
  json["cuts"] = plan.cuts;
  json["stages"] = Json::array();
  TextTable table({{"stage"}, {"replicas"}, {"nodes", kToTheLeft, 0, 12}});
  for (const PipeDreamStage& stage : plan.stages) {
    const Stage named = stage_of(profile, stage.nodes, stage.ranks);
    table.add({std::to_string(json["stages"].size()), std::to_string(stage.ranks.size()),
               layers_text(named.nodes)});
    Json row;
    row["ranks"] = stage.ranks;
    row["nodes"] = named.nodes;
    json["stages"].push_back(row);
  }
  give(values,
       format_seconds(plan.seconds) + " per minibatch on " + std::to_string(plan.devices) + " of " +
           std::to_string(topology.device_count()) + " devices by PipeDream's formula; nothing is better",
       table, json, plan_text(plan, profile));
}

void plan_max_load(const po::variables_map& values) {
  const std::string file = required(values, "profile");
  const std::string text = read_file(file);
  const bool own = looks_like_dnn_partitioning(text);
  std::optional<Profile> profile;
  MaxLoadProblem problem;
  std::vector<Setting> settings;
  if (own) {
    refuse_others(values, "max-load of its own files", {"gpus", "memory", "cpus"});
    problem = parse_dnn_partitioning(text, file);
    if (given(values, "gpus")) problem.accelerators = in_range(values, "gpus", 0, kMostRanks);
    if (given(values, "memory"))
      problem.memory_bytes = static_cast<double>(parse_bytes(values["memory"].as<std::string>(), "memory"));
    if (given(values, "cpus")) problem.processors = in_range(values, "cpus", 0, 64);
  } else {
    if (given(values, "cpus") && values["cpus"].as<int64_t>() > 0) {
      throw InputError("--cpus: a profile knows the times of one kind of device",
                       "The input files of dnn-partitioning have those of CPUs too.");
    }
    profile = read_profile(file);
    problem = max_load_problem(*profile, topology_from(values, 0, &settings));
  }
  const std::optional<MaxLoadPlan> plan = search_max_load(problem);
  const std::string devices = std::to_string(problem.accelerators) + " accelerators and " +
                              std::to_string(problem.processors) + " CPUs";
  if (!plan) {
    throw InfeasibleError("max-load: no chain of stages on " + devices + " fits " +
                              format_bytes(problem.memory_bytes) + " of memory each",
                          "Give more --memory, --gpus or --cpus.");
  }
  Json json;
  json["objective"] = "max-load";
  json["load_seconds"] = plan->load_seconds;
  json["lower_bound_seconds"] = plan->lower_bound_seconds;
  json["down_sets"] = plan->down_sets;
  json["stages"] = Json::array();
  TextTable table({{"stage"}, {"device", kToTheLeft}, {"nodes", kToTheLeft, 0, 12}, {"load"}});
  for (size_t s = 0; s < plan->stages.size(); ++s) {
    const MaxLoadStage& stage = plan->stages[s];
    const std::string device = stage.processor ? "CPU" : "accelerator";
    std::vector<std::string> names;
    for (const int v : stage.nodes) names.push_back(problem.nodes[v].name);
    table.add({std::to_string(s), device, layers_text(names), format_seconds(stage.load_seconds)});
    Json row;
    row["device"] = device;
    row["load_seconds"] = stage.load_seconds;
    row["nodes"] = names;
    json["stages"].push_back(row);
  }
  give(values,
       "Largest load " + format_seconds(plan->load_seconds) + " on " + devices +
           proof_text(plan->load_seconds, plan->lower_bound_seconds),
       table, json, profile ? plan_text(*plan, *profile) : "");
}

void plan_piper(const po::variables_map& values) {
  const std::string file = required(values, "profile");
  const std::string text = read_file(file);
  if (!looks_like_piper(text)) {
    throw InputError("--objective piper: " + file + " is no input file of Piper",
                     "Its problem needs several ways to run each node, which a profile does not have.");
  }
  PiperProblem problem = parse_piper(text, file);
  if (given(values, "gpus")) problem.devices = in_range(values, "gpus", 1, kMostRanks);
  if (given(values, "memory"))
    problem.memory_bytes = static_cast<double>(parse_bytes(values["memory"].as<std::string>(), "memory"));
  if (given(values, "bandwidths")) {
    problem.bandwidth_bytes_per_second =
        parse_bytes_per_second(values["bandwidths"].as<std::string>(), "bandwidths");
  }
  const std::optional<PiperPlan> plan = search_piper(problem);
  if (!plan) {
    throw InfeasibleError("piper: no plan for " + std::to_string(problem.devices) + " devices fits " +
                              format_bytes(problem.memory_bytes) + " of memory each",
                          "Give more --memory or --gpus.");
  }
  Json json;
  json["objective"] = "piper";
  json["sample_seconds"] = plan->seconds;
  json["lower_bound_seconds"] = plan->lower_bound_seconds;
  json["devices"] = plan->devices();
  json["stages"] = Json::array();
  TextTable table(
      {{"stage"}, {"data"}, {"tensor"}, {"nodes", kToTheLeft, 0, 12}, {"per sample"}, {"memory"}});
  for (size_t s = 0; s < plan->stages.size(); ++s) {
    const PiperStage& stage = plan->stages[s];
    Json row;
    row["data_degree"] = stage.data_degree;
    row["tensor_degree"] = stage.tensor_degree;
    row["sample_seconds"] = stage.seconds;
    row["memory_bytes"] = stage.memory_bytes;
    row["nodes"] = Json::array();
    std::vector<std::string> names;
    for (size_t k = 0; k < stage.nodes.size(); ++k) {
      const PiperNode& node = problem.nodes[stage.nodes[k]];
      names.push_back(node.name);
      Json way;
      way["name"] = node.name;
      way["option"] = node.options.at(stage.tensor_degree).at(stage.options[k]).name;
      row["nodes"].push_back(way);
    }
    json["stages"].push_back(row);
    table.add({std::to_string(s), std::to_string(stage.data_degree), std::to_string(stage.tensor_degree),
               layers_text(names), format_seconds(stage.seconds), format_bytes(stage.memory_bytes)});
  }
  give(values,
       format_seconds(plan->seconds) + " per sample on " + std::to_string(plan->devices()) + " of " +
           std::to_string(problem.devices) + " devices" +
           proof_text(plan->seconds, plan->lower_bound_seconds),
       table, json, "");
}

void plan_dynpipe(const po::variables_map& values) {
  const Profile profile = read_profile(required(values, "profile"));
  std::vector<Setting> settings;
  const Topology topology = topology_from(values, 0, &settings);
  if (topology.levels.size() != 1 || topology.levels[0].shared || !topology.devices.empty()) {
    throw InputError("--objective dynpipe: for one level of separate links and equal devices",
                     "Use --objective pipewright, which takes all of them.");
  }
  DynPipeProblem problem = dynpipe_problem(profile);
  problem.devices = topology.device_count();
  problem.bandwidth_bytes_per_second = topology.levels[0].bandwidth_bytes_per_second;
  problem.most_stages =
      given(values, "max-stages") ? in_range(values, "max-stages", 1, kMostRanks) : problem.devices;
  const double weight = given(values, "staleness-weight") ? values["staleness-weight"].as<double>() : 0;
  if (!(weight >= 0) || weight > 1e6)
    throw InputError("--staleness-weight: got " + number_text(weight) + "; expected a number in 0..1e6");
  const std::vector<DynPipePlan> plans = search_dynpipe(problem);
  const DynPipePlan& best = least_stale(plans, weight);
  Json json;
  json["objective"] = "dynpipe";
  json["minibatch_seconds"] = best.seconds;
  json["staleness_weight"] = weight;
  json["by_stages"] = Json::array();
  TextTable table({{"stages"},
                   {"layers", kToTheLeft, 0, 12},
                   {"replicas", kToTheLeft},
                   {"minibatch"},
                   {"staleness"},
                   {"", kToTheLeft}});
  for (const DynPipePlan& plan : plans) {
    const auto stages = static_cast<int64_t>(plan.stages.size());
    std::vector<std::string> layers, replicas;
    Json row;
    row["minibatch_seconds"] = plan.seconds;
    row["staleness_factor"] = staleness_factor(stages, weight);
    for (const DynPipeStage& stage : plan.stages) {
      layers.push_back(std::to_string(stage.layers));
      replicas.push_back(std::to_string(stage.replicas));
      row["partition"].push_back(stage.layers);
      row["replicas"].push_back(stage.replicas);
    }
    json["by_stages"].push_back(row);
    table.add({std::to_string(stages), join(layers, " "), join(replicas, " "), format_seconds(plan.seconds),
               number_text(staleness_factor(stages, weight)), &plan == &best ? "least" : ""});
  }
  give(values,
       format_seconds(best.seconds) + " per minibatch on " + std::to_string(problem.devices) +
           " devices by DynPipe's rule; nothing is better for any number of stages",
       table, json, plan_text(best, profile));
}

}  // namespace

void add_baseline_options(po::options_description* options) {
  options->add_options()  //
      ("objective", po::value<std::string>()->default_value("pipewright"),
       join(names_of(objectives()), ", ").c_str())  //
      ("cpus", po::value<int64_t>(),
       "with max-load: CPUs beside the accelerators")  //
      ("staleness-weight", po::value<double>(), "dynpipe, 1 + this * (S^3 - 1); without: 0");
}

bool asks_baseline(const po::variables_map& values) {
  const ObjectiveRow& row = objective_of(values);
  if (row.objective != Objective::kPipewright) return true;
  for (const std::string& option : kOfOthersAlone)
    for (const ObjectiveRow& other : objectives())
      if (values.count(option) != 0 && is_among(option, other.options))
        throw InputError("--" + option + ": only with --objective " + other.name);
  return false;
}

void plan_baseline(const po::variables_map& values) {
  const ObjectiveRow& row = objective_of(values);
  refuse_others(values, row.name, row.options);
  switch (row.objective) {
    case Objective::kPipewright:
      break;
    case Objective::kPipeDream:
      return plan_pipedream(values);
    case Objective::kMaxLoad:
      return plan_max_load(values);
    case Objective::kPiper:
      return plan_piper(values);
    case Objective::kDynPipe:
      return plan_dynpipe(values);
  }
  PW_CHECK(false, "the planner's own problem is no other planner's");
}

}  // namespace pipewright
