// `calibrate`: how far runs were from their plans' prices, and a topology whose prices are nearer.
#include <filesystem>
#include <iostream>
#include <map>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/summary.h"
#include "graph/text_table.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/report.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/calibration.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using Words = std::vector<std::string>;
using Profiles = std::map<std::string, Profile>;  // by the digest of what was measured

/// Whether a plan with this digest was made for these links: calibrated before, or not.
bool is_of(const std::string& digest, Topology topology) {
  if (digest == document_digest(topology)) return true;
  topology.factors = {};
  return digest == document_digest(topology);
}

/// InputError for a run that says nothing of its plan's price, or of another's links or profile.
MeasuredRun read_run(const fs::path& folder, const Profiles& profiles, const Topology& topology) {
  MeasuredRun run;
  run.name = folder.string();
  run.plan = read_document<Plan>(folder / "plan.json");
  const auto summary = read_document<Summary>(folder / "summary.json");
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw InputError("--runs " + run.name + ": " + what, remedy);
  };
  if (summary.status != "done" || !(summary.minibatch_seconds > 0))
    refuse(
        "status \"" + summary.status + "\", " + format_seconds(summary.minibatch_seconds) + " per minibatch",
        "Give runs that have ended, of a few dozen minibatches or more.");
  if (summary.generations.size() > 1)
    refuse("its plan changed on the way", "Give runs of one plan: without --adapt and --changes.");
  if (summary.ranks_share_cores())
    refuse("its host had " + std::to_string(summary.cores) + (summary.cores == 1 ? " core" : " cores") +
               " for more ranks than that",
           "Give runs in which each rank has a core or a device of its own.");
  if (run.plan.world_size > topology.device_count())
    refuse("it has " + std::to_string(run.plan.world_size) + " ranks, the topology " +
               std::to_string(topology.device_count()) + " devices",
           "Give the topology that its plan was made for.");
  // One device knows no links.
  if (run.plan.world_size > 1 && !is_of(run.plan.topology_digest, topology))
    refuse("its plan was made for other links than --topology has",
           "Give the topology that it was planned with, and runs over other links apart.");
  const auto of_run = profiles.find(run.plan.profile_digest);
  if (of_run == profiles.end())
    refuse("none of --profile is the one that its plan was made from (of model '" + run.plan.model + "')",
           "Add --profile FILE of that model.");
  run.profile = of_run->second;
  run.minibatch_seconds = summary.minibatch_seconds;
  return run;
}

std::string name_of(double HostFactors::*kind) {
  for (const HostFactorRow& row : host_factor_rows())
    if (row.factor == kind) return row.name;
  return "several";
}

std::string percent(double measured, double priced) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", 100 * (measured / priced - 1));
  return text;
}

TextTable table_of(const std::vector<MeasuredRun>& runs, const Calibration& calibration) {
  constexpr auto kNames = TableColumn::Side::kLeft;
  TextTable table({{"run", kNames, 0, 12},
                   {"plan", kNames},
                   {"measured"},
                   {"priced", TableColumn::Side::kRight, 3},
                   {"error"},
                   {"computes as", kNames, 2},
                   {"factor", TableColumn::Side::kRight, 1},
                   {"left out, priced", TableColumn::Side::kRight, 4},
                   {"error, left out"}});
  for (size_t i = 0; i < runs.size(); ++i) {
    const CalibratedRun& run = calibration.runs[i];
    const double measured = runs[i].minibatch_seconds;
    table.add({runs[i].name, runs[i].plan.shape_text() + " " + runs[i].plan.schedule,
               format_seconds(measured), format_seconds(run.plain_seconds),
               percent(measured, run.plain_seconds), name_of(run.kind),
               run.factor ? number_text(*run.factor) : "-", format_seconds(run.left_out_seconds),
               percent(measured, run.left_out_seconds)});
  }
  return table;
}

Json json_of(const std::vector<MeasuredRun>& runs, const Calibration& calibration) {
  Json json;
  json["mean_error"] = calibration.plain_error;
  json["mean_error_left_out"] = calibration.left_out_error;
  json["runs"] = Json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    const CalibratedRun& run = calibration.runs[i];
    Json row = {{"run", runs[i].name},
                {"measured_seconds", runs[i].minibatch_seconds},
                {"priced_seconds", run.plain_seconds},
                {"left_out_seconds", run.left_out_seconds},
                {"computes_as", run.kind != nullptr ? Json(name_of(run.kind)) : Json(nullptr)}};
    row["factor"] = run.factor ? Json(*run.factor) : Json(nullptr);
    json["runs"].push_back(std::move(row));
  }
  return json;
}

}  // namespace

void run_calibrate(const Arguments& arguments) {
  po::options_description options("Options");
  options.add_options()  //
      ("runs", po::value<Words>()->composing()->multitoken(),
       "run folders, of plans that were made from --profile for --topology")  //
      ("profile", po::value<Words>()->composing()->multitoken(), "their profiles, in any order")(
          "topology", po::value<std::string>(), "topology.json, of probe")                             //
      ("output", po::value<std::string>(), "file.json: the topology with the factors; without: none")  //
      ("json", po::bool_switch(), "print JSON instead of a table");
  add_wide_option(&options);
  const po::variables_map values = parse_options(
      arguments, options,
      "pipewright-optimizer calibrate --runs DIR... --profile FILE... --topology FILE [--output FILE]");
  for (const char* name : {"runs", "profile"})
    if (values.count(name) == 0) required(values, name);
  const auto topology_file = required(values, "topology");
  auto topology = read_document<Topology>(topology_file);
  Profiles profiles;
  for (const std::string& file : values["profile"].as<Words>()) {
    Profile profile = read_profile(file);
    for (const std::string& digest : profile.combines) profiles.emplace(digest, profile);
    profiles.emplace(measured_digest(profile), std::move(profile));
  }
  std::vector<MeasuredRun> runs;
  for (const std::string& folder : values["runs"].as<Words>())
    runs.push_back(read_run(folder, profiles, topology));
  const Calibration calibration = calibrate(runs, topology);
  topology.factors = calibration.factors;
  if (values["json"].as<bool>()) {
    Json json = json_of(runs, calibration);
    json["calibration"] = topology.to_json()["calibration"];
    std::cout << json_text(json);
  } else {
    const int64_t width = output_width(values);
    char errors[160];
    std::snprintf(errors, sizeof errors,
                  "Mean error %.1f %%; with factors fitted to the runs of other profiles %.1f %%.\n",
                  100 * calibration.plain_error, 100 * calibration.left_out_error);
    std::cout << table_of(runs, calibration).text(width) << "\n"
              << wrapped(errors + calibration_text(calibration.factors) + "\n", width);
  }
  if (values.count("output") != 0) write_text(values["output"].as<std::string>(), document_text(topology));
}

}  // namespace pipewright
