#include "optimizer/commands/published_commands.h"

#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "graph/plan.h"
#include "graph/rows.h"
#include "graph/units.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/report.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/published/dnn_partitioning.h"
#include "optimizer/published/max_load.h"
#include "optimizer/published/piper.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

constexpr auto kLeft = TableColumn::Side::kLeft;

bool given(const po::variables_map& values, const std::string& name) {
  return values.count(name) != 0 && !values[name].defaulted();
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

/// A profile's plan: a rank for each stage.
std::string plan_text(const MaxLoadPlan& found, const Profile& profile) {
  Plan plan;
  plan.model = profile.model;
  plan.graph_digest = profile.graph_digest;
  plan.profile_digest = document_digest(profile);
  plan.strategy = "straight";
  for (const MaxLoadStage& from : found.stages) {
    Stage stage;
    for (const int v : from.nodes) stage.nodes.push_back(profile.nodes[v].name);
    stage.ranks = {plan.world_size++};
    stage.in_flight =
        std::min<int64_t>(kMostInFlight, static_cast<int64_t>(found.stages.size() - plan.stages.size()));
    plan.stages.push_back(std::move(stage));
  }
  return document_text(plan);
}

void plan_max_load(const po::variables_map& values) {
  const std::string file = required(values, "profile");
  const std::string text = read_file(file);
  const bool own = looks_like_dnn_partitioning(text);
  std::optional<Profile> profile;
  MaxLoadProblem problem;
  std::vector<Setting> settings;
  if (own) {
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
  TextTable table({{"stage"}, {"device", kLeft}, {"nodes", kLeft, 0, 12}, {"load"}});
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
                     "Its question needs several ways to run each node, which a profile does not have.");
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
  TextTable table({{"stage"}, {"data"}, {"tensor"}, {"nodes", kLeft, 0, 12}, {"per sample"}, {"memory"}});
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

}  // namespace

void add_published_options(po::options_description* options) {
  options->add_options()("cpus", po::value<int64_t>(),
                         "with --objective max-load: CPUs beside the accelerators");
}

bool is_published(const po::variables_map& values) {
  return find_row(published_questions(), values["objective"].as<std::string>()) != nullptr;
}

void plan_published(const po::variables_map& values) {
  switch (row_named(published_questions(), "--objective", values["objective"].as<std::string>()).kind) {
    case PublishedKind::kMaxLoad:
      return plan_max_load(values);
    case PublishedKind::kPiper:
      return plan_piper(values);
  }
}

}  // namespace pipewright
