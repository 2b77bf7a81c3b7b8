#include "runtime/commands/report_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "pages/page.h"
#include "runtime/commands/metrics_export.h"
#include "runtime/commands/run_page.h"
#include "runtime/commands/run_report.h"

namespace pipewright {

namespace po = boost::program_options;

namespace {

/// Of --profile, and --topology or --bandwidths and --latency.
std::optional<PredictedWith> predicted_with(const po::variables_map& values, const Plan& plan) {
  if (values.count("profile") == 0) {
    for (const char* other : {"topology", "bandwidths", "latency"})
      if (values.count(other) != 0 && !values[other].defaulted())
        throw InputError(std::string("--") + other + ": goes with --profile",
                         "give --profile profile.json, too");
    return std::nullopt;
  }
  for (const char* other : {"bandwidths", "latency"})
    if (values.count("topology") != 0 && !values[other].defaulted())
      throw InputError(std::string("--") + other + ": does not go with --topology, which says it");
  PredictedWith predicted{
      read_document<Profile>(values["profile"].as<std::string>()),
      values.count("topology") != 0
          ? read_document<Topology>(values["topology"].as<std::string>())
          : flat_topology(plan.world_size,
                          parse_bytes_per_second(values["bandwidths"].as<std::string>(), "--bandwidths"),
                          parse_seconds(values["latency"].as<std::string>(), "--latency"), 0)};
  if (predicted.topology.device_count() < plan.world_size)
    throw InputError("--topology: has " + std::to_string(predicted.topology.device_count()) +
                         " devices, the run " + std::to_string(plan.world_size) + " ranks",
                     "Give the topology that the plan was made with.");
  return predicted;
}

/// --output.
void write_runs(const po::variables_map& values, const std::vector<FinishedRun>& runs) {
  const std::filesystem::path file = values["output"].as<std::string>();
  check_page_name("--output", file);
  if (runs.size() > 1 && values.count("profile") != 0)
    throw InputError("--profile: goes with one run, got " + std::to_string(runs.size()));
  write_page(file, run_page(runs, predicted_with(values, runs.front().plan), file));
}

}  // namespace

void run_report_command(const std::vector<std::string>& arguments) {
  po::options_description description("Options");
  description.add_options()("output", po::value<std::string>()->value_name("FILE"),
                            "file.html: a page instead of tables; default: writes none")(
      "profile", po::value<std::string>()->value_name("FILE"),
      "with --output, of one run: its plan's profile, to draw what was predicted; default: drawn without")(
      "topology", po::value<std::string>()->value_name("FILE"),
      "with --profile: the plan's topology; default: one link for each rank, of --bandwidths")(
      "bandwidths", po::value<std::string>()->value_name("RATE")->default_value("10Gbit/s"),
      "with --profile: of these links, as the plan was made")(
      "latency", po::value<std::string>()->value_name("TIME")->default_value("50us"),
      "with --profile: of these links")(
      "csv", po::value<std::string>()->value_name("FILE"),
      "writes all numbers of metrics.jsonl there, a row for each line; default: writes none")(
      "tensorboard", po::value<std::string>()->value_name("FOLDER"),
      "writes curves there for TensorBoard, a folder for each run; default: writes none");
  // Folders come as plain words; what begins with -- is an option, and the word behind it its value.
  std::vector<std::string> options;
  std::vector<FinishedRun> runs;
  std::vector<std::filesystem::path> folders;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].rfind("-", 0) != 0) {
      folders.emplace_back(arguments[i]);
      continue;
    }
    options.push_back(arguments[i]);
    const auto* option =
        description.find_nothrow(arguments[i].substr(std::min<size_t>(2, arguments[i].size())),
                                 /*approx=*/false);
    if (option && option->semantic()->max_tokens() > 0 && i + 1 < arguments.size())
      options.push_back(arguments[++i]);
  }
  const po::variables_map values =
      parse_options(options, description, "pipewright-runtime report RUN_FOLDER ... [options]");
  if (folders.empty())
    throw InputError("report: no run folder given", "pipewright-runtime report runs/a runs/b");
  const std::vector<std::string> names = run_names({folders.begin(), folders.end()});
  for (size_t i = 0; i < folders.size(); ++i) {
    runs.push_back(finished_run(folders[i]));
    runs.back().name = names[i];
  }
  if (values.count("output") != 0) {
    write_runs(values, runs);
  } else {
    if (values.count("profile") != 0)
      throw InputError("--profile: the prediction is drawn on a page", "give --output run.html, too");
    std::cout << run_report(runs);
  }
  if (values.count("csv")) write_metrics_csv(folders, values["csv"].as<std::string>());
  if (values.count("tensorboard")) write_tensorboard(folders, values["tensorboard"].as<std::string>());
}

}  // namespace pipewright
