#include "optimizer/commands/options.h"

#include "graph/delay_corrections.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/pipedream.h"
#include "graph/pipeline_rules.h"
#include "graph/rows.h"
#include "graph/run_fields.h"
#include "graph/units.h"
#include "graph/update_rules.h"
#include "optimizer/commands/option_values.h"
#include "optimizer/cost/recompute.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

/// Constraints for stages beyond are slips.
constexpr int64_t kMostNamedStage = 255;
constexpr const char* kDataWorkers = "data-workers";

}  // namespace

void add_pricing_options(po::options_description* options) {
  options->add_options()                                                                                   //
      ("optimizer", po::value<std::string>(), ("of the run: " + join(update_rule_names(), ", ")).c_str())  //
      ("delay-correction", po::value<std::string>(),
       "of the run; without: none")  //
      ("optimizer-slots", po::value<int64_t>()->default_value(1),
       "values it keeps: SGD 0, momentum 1, Adam 2")                                        //
      ("ignore-crowd", po::bool_switch(), "as if ranks of a host did not slow each other")  //
      (kDataWorkers, po::value<int64_t>()->default_value(Run().data_workers),
       "of the run, on GPUs; 0: by its host's cores");
}

namespace {

std::string schedules_where(bool drains) {
  std::string names;
  for (const ScheduleFacts& schedule : schedule_table())
    if (schedule.trains() && schedule.drains() == drains)
      names += (names.empty() ? "" : ", ") + std::string(schedule.name);
  return names;
}

}  // namespace

void add_run_options(po::options_description* options) {
  options->add_options()  //
      ("schedule", po::value<std::string>()->default_value("1f1b"),
       ("one of " + schedules_where(false) + "; or, drained at every update: " + schedules_where(true))
           .c_str())  //
      ("weights", po::value<std::string>(),
       "stash (default), 2bw, vertical, paci, predict or flush; with plan a,b: the faster")   //
      ("microbatches", po::value<int64_t>(), "of an update; without: a few for each device")  //
      ("stages-per-rank", po::value<int64_t>()->default_value(2),
       "with --schedule interleaved; zbv, dualpipev: 2")  //
      ("recompute", po::value<std::string>()->default_value("auto"),
       ("run forwards twice: " + join(names_of(recompute_choices()), ", ")).c_str());
}

void add_constraint_options(po::options_description* options) {
  options->add_options()                                                                      //
      ("max-stages", po::value<int64_t>(), "at most so many stages")                          //
      ("replicas", po::value<std::string>(), "0:3,1:1: 3 replicas of stage 0, 1 of stage 1")  //
      ("pin", po::value<std::vector<std::string>>(), "LAYER=STAGE, again for each layer: features.3=0");
}

StageConstraints replicas_from(const po::variables_map& values, std::vector<Setting>* settings) {
  StageConstraints constraints;
  if (values.count("replicas") == 0) return constraints;
  const auto text = values["replicas"].as<std::string>();
  for (const std::string& part : list_of(text)) {
    const auto [stage_text, replicas] =
        pair_of(part, ':', "replicas", "STAGE:REPLICAS, separated by commas: 0:3,1:1", 1, kMostRanks);
    const int64_t stage = whole_number(stage_text, "replicas", 0, kMostNamedStage);
    if (!constraints.replicas.emplace(stage, replicas).second)
      throw InputError("--replicas: names stage " + std::to_string(stage) + " twice");
  }
  settings->push_back({"replicas", text, "command line"});
  return constraints;
}

StageConstraints constraints_from(const po::variables_map& values, std::vector<Setting>* settings) {
  StageConstraints constraints;
  if (values.count("max-stages") != 0) {
    constraints.most_stages = in_range(values, "max-stages", 1, kMostRanks);
    settings->push_back({"max-stages", std::to_string(constraints.most_stages), "command line"});
  }
  constraints.replicas = replicas_from(values, settings).replicas;
  if (values.count("pin") != 0) {
    for (const std::string& part : values["pin"].as<std::vector<std::string>>()) {
      const auto [layer, stage] = pair_of(part, '=', "pin", "LAYER=STAGE: features.3=0", 0, kMostNamedStage);
      const auto [it, fresh] = constraints.pins.emplace(layer, stage);
      if (!fresh && it->second != stage) {
        throw InputError("--pin: layer " + in_quotes(layer) + " is pinned to stages " +
                         std::to_string(it->second) + " and " + std::to_string(stage));
      }
      settings->push_back({"pin", part, "command line"});
    }
  }
  return constraints;
}

namespace {

int64_t optimizer_slots_from(const po::variables_map& values, std::vector<Setting>* settings) {
  std::string source = source_of(values, "optimizer-slots");
  int64_t slots = in_range(values, "optimizer-slots", 0, 8);
  if (values.count("optimizer") != 0) {
    if (given(values, "optimizer-slots"))
      throw InputError("--optimizer-slots: not together with --optimizer, which says it");
    OptimizerSettings rule;
    rule.name = values["optimizer"].as<std::string>();
    rule.momentum = 0.9;
    slots = static_cast<int64_t>(slot_names(rule).size());
    source = "--optimizer " + rule.name;
  }
  if (values.count("delay-correction") != 0) {
    const DelayCorrectionFacts& correction =
        delay_correction_facts(values["delay-correction"].as<std::string>());
    if (correction.slot) ++slots;
    source += std::string(", --delay-correction ") + correction.name;
  }
  settings->push_back({"optimizer-slots", std::to_string(slots), source});
  return slots;
}

}  // namespace

std::string required(const po::variables_map& values, const std::string& name) {
  if (values.count(name) != 0) return values[name].as<std::string>();
  throw InputError("option --" + name + " is missing", "--help lists the options.");
}

int64_t in_range(const po::variables_map& values, const std::string& name, int64_t low, int64_t high) {
  const auto value = values[name].as<int64_t>();
  if (value >= low && value <= high) return value;
  throw InputError("--" + name + ": " + std::to_string(value) + " is not in " + std::to_string(low) + ".." +
                   std::to_string(high));
}

Profile read_profile(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  if (looks_like_pipedream_profile(text)) return parse_pipedream_profile(text, file.string());
  return parse_document<Profile>(text, file.string());
}

Plan read_plan(const po::variables_map& values) { return read_document<Plan>(required(values, "plan")); }

PlanRequest request_from(const po::variables_map& values, std::vector<Setting>* settings) {
  PlanRequest request;
  if (values.count("objective") != 0)
    settings->push_back({"objective", values["objective"].as<std::string>(), source_of(values, "objective")});
  request.optimizer_slots = optimizer_slots_from(values, settings);
  if (values.count("optimizer") != 0) request.optimizer = values["optimizer"].as<std::string>();
  if (values.count("delay-correction") != 0)
    request.delay_correction = values["delay-correction"].as<std::string>();
  request.ignore_crowd = values["ignore-crowd"].as<bool>();
  settings->push_back(
      {"ignore-crowd", request.ignore_crowd ? "yes" : "no", source_of(values, "ignore-crowd")});
  const FieldRule& workers = run_field_of(kDataWorkers).rule;
  request.data_workers = in_range(values, kDataWorkers, workers.least, workers.most);
  settings->push_back({kDataWorkers, std::to_string(request.data_workers), source_of(values, kDataWorkers)});
  if (values.count("strategy") != 0) {
    request.strategy = values["strategy"].as<std::string>();
    settings->push_back({"strategy", request.strategy, source_of(values, "strategy")});
  }
  request.constraints = constraints_from(values, settings);
  if (values.count("for") != 0) {
    const auto purpose = values["for"].as<std::string>();
    if (purpose != "training" && purpose != "inference")
      throw InputError("--for: got " + in_quotes(purpose) + "; expected training or inference");
    const bool inference = purpose == "inference";
    if (inference != (values.count("period") != 0)) {
      throw InputError(inference ? "--period is missing: how often a minibatch comes, with --for inference"
                                 : "--period: only with --for inference",
                       "--for inference --period 20ms: the least latency at 50 minibatches a second.");
    }
    if (inference) {
      for (const char* other : {"schedule", "weights", "microbatches", "strategy", "max-stages", "replicas",
                                "pin", "stages-per-rank", "recompute"}) {
        if (given(values, other))
          throw InputError(std::string("--") + other + ": not together with --for inference");
      }
      request.inference_period_seconds =
          positive(parse_seconds(values["period"].as<std::string>(), "--period"), "period");
    }
    settings->push_back({"for", purpose, source_of(values, "for")});
    if (inference) settings->push_back({"period", values["period"].as<std::string>(), "command line"});
  }
  if (values.count("schedule") != 0) {
    request.schedule = values["schedule"].as<std::string>();
    request.stages_per_rank = in_range(values, "stages-per-rank", 2, 64);
    if (values.count("weights") != 0) request.weights = values["weights"].as<std::string>();
    if (values.count("microbatches") != 0)
      request.microbatches = in_range(values, "microbatches", 1, kMostInFlight);
    settings->push_back({"schedule", request.schedule, source_of(values, "schedule")});
    settings->push_back({"weights", request.weights.empty() ? "that of the schedule" : request.weights,
                         request.weights.empty() ? "default" : "command line"});
    settings->push_back(
        {"microbatches",
         request.microbatches == 0 ? "a few for each device" : std::to_string(request.microbatches),
         request.microbatches == 0 ? "default" : "command line"});
    request.recompute = values["recompute"].as<std::string>();
    settings->push_back({"recompute", request.recompute, source_of(values, "recompute")});
  }
  if (values.count("use-all-devices") != 0) {
    request.use_all_devices = values["use-all-devices"].as<bool>();
    settings->push_back(
        {"use-all-devices", request.use_all_devices ? "yes" : "no", source_of(values, "use-all-devices")});
  }
  return request;
}

}  // namespace pipewright
