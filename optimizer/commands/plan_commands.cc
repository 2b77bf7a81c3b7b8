// The commands that search: plan and compare.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/limits.h"
#include "graph/rows.h"
#include "graph/strategies.h"
#include "graph/units.h"
#include "optimizer/baselines/halving.h"
#include "optimizer/commands/baseline_commands.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/comparison.h"
#include "optimizer/commands/option_values.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_page.h"
#include "optimizer/commands/report.h"
#include "optimizer/commands/sync_choice.h"
#include "optimizer/commands/sync_comparison.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/schedule/disturbance.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

constexpr const char* kConvergence = "convergence";

void add_problem_options(po::options_description* options) {
  options->add_options()("profile", po::value<std::string>(), "profile.json, or PipeDream's graph.txt");
  add_device_options(options);
  add_pricing_options(options);
  add_run_options(options);
  options->add_options()  //
      ("frozen-layers", po::value<int64_t>()->default_value(0),
       "so many, from the front, run forward only")                                             //
      ("cached", po::bool_switch(), "their values come from a cache")                           //
      ("use-all-devices", po::bool_switch(), "leave none idle, also where that gains nothing")  //
      ("json", po::bool_switch(), "print JSON instead of tables")                               //
      ("print-config", po::bool_switch(),
       "print every setting and its origin, and stop")  //
      ("time", po::bool_switch(), "print how long planning took, on standard error");
  add_wide_option(options);
}

/// Whether that is all that is asked for.
bool prints_config(const po::variables_map& values, const Inputs& inputs) {
  if (!values["print-config"].as<bool>()) return false;
  std::cout << (values["json"].as<bool>() ? json_text(settings_json(inputs.settings))
                                          : settings_table(inputs.settings).text(output_width(values)));
  return true;
}

Inputs problem_from(const po::variables_map& values) {
  Inputs inputs;
  const std::string file = required(values, "profile");
  inputs.settings.push_back({"profile", file, "command line"});
  inputs.topology = topology_from(values, 0, &inputs.settings);
  inputs.request = request_from(values, &inputs.settings);
  inputs.request.class_profiles = class_profiles_from(values, inputs.topology, &inputs.settings);
  const bool output = values.count("output") != 0;
  inputs.settings.push_back(
      {"output", output ? values["output"].as<std::string>() : "none", output ? "command line" : "default"});
  const int64_t frozen = in_range(values, "frozen-layers", 0, kMostFrozenLayers);
  const bool cached = values["cached"].as<bool>();
  if (cached && frozen == 0) {
    throw InputError("--cached: only with --frozen-layers",
                     "What the frozen layers make is cached: --frozen-layers 6 --cached.");
  }
  inputs.settings.push_back({"frozen-layers", std::to_string(frozen), source_of(values, "frozen-layers")});
  if (values.count(kConvergence) != 0)
    inputs.settings.push_back({kConvergence, values[kConvergence].as<std::string>(), "command line"});
  if (frozen > 0) inputs.settings.push_back({"cached", cached ? "yes" : "no", source_of(values, "cached")});
  if (!values["print-config"].as<bool>()) inputs.profile = frozen_profile(read_profile(file), frozen, cached);
  return inputs;
}

bool is_file_name(const std::string& path) {
  return std::filesystem::path(path).extension() == ".json" && !std::filesystem::is_directory(path);
}

std::filesystem::path made_folder(const std::string& path) {
  std::filesystem::path folder = path;
  const FileWatch watch(folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder)) {
    throw RunError("--output: cannot make folder " + in_quotes(path) + (error ? ": " + error.message() : ""));
  }
  return folder;
}

std::string minibatch_text(const Inputs& inputs, const Prediction& prediction) {
  std::string text = format_seconds(prediction.minibatch_seconds) + " per minibatch";
  if (inputs.profile.minibatch_samples > 0) {
    text += " of " + std::to_string(inputs.profile.minibatch_samples) + " (" +
            number_text(prediction.samples_per_second) + " samples/s)";
  }
  return text;
}

/// What is to be said of a plan that was found: a line each, the plan's first.
std::string plan_words(const Plan& plan, const Inputs& inputs, const PlanNotes& notes) {
  if (is_for_inference(plan)) return inference_text(plan, inputs) + "\n";
  const Prediction& predicted = *plan.predicted;
  std::ostringstream head;
  const double alone = one_device_seconds(inputs);
  head << inputs.profile.model << ": " << shape_and_recompute_text(plan) << " on " << plan.world_size
       << " of " << inputs.topology.device_count() << " devices, " << minibatch_text(inputs, predicted)
       << ", " << number_text(alone / predicted.minibatch_seconds) << " times one device\n"
       << "Bound by " << predicted.bottleneck << "; no " << notes.family << " is faster than "
       << format_seconds(predicted.lower_bound_seconds) << "\n";
  if (notes.capped) {
    head
        << "There were more plans to simulate than planning takes time for: a faster one is possible down to "
           "that\n";
  }
  if (!notes.exact) {
    head << "The model has too many cuts to try all: searched along several orders of its nodes and "
            "around the "
            "best cuts\n";
  }
  const std::string ties = ties_text(plan, inputs.profile);
  if (!ties.empty() && !strategy_facts(plan.strategy).one_stage && inputs.topology.device_count() > 1)
    head << ties << "\n";
  if (const std::string crowd = crowd_text(plan, inputs); !crowd.empty()) head << crowd << "\n";
  if (const std::string sums = sums_text(plan, inputs); !sums.empty()) head << sums << "\n";
  if (inputs.topology.factors.runs > 0) head << calibration_text(inputs.topology.factors) << "\n";
  return head.str();
}

void print_plan(const Plan& plan, const Inputs& inputs, const PlanNotes& notes, int64_t width) {
  const Prediction& predicted = *plan.predicted;
  std::cout << wrapped(plan_words(plan, inputs, notes), width) << "\n";
  if (is_for_inference(plan)) {
    std::cout << plan_table(plan).text(width);
    return;
  }
  std::cout << stage_table(plan, predicted, inputs).text(width) << "\n"
            << wrapped(memory_heading(inputs) + "\n", width) << memory_table(predicted).text(width);
}

class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Of --convergence; null without it.
std::unique_ptr<Convergence> convergence_from(const po::variables_map& values) {
  if (values.count(kConvergence) == 0) return nullptr;
  if (values.count("optimizer") == 0)
    throw InputError("--convergence: goes with --optimizer",
                     "How many samples it takes to a loss depends on that: --optimizer adamw.");
  return std::make_unique<Convergence>(read_document<Convergence>(values[kConvergence].as<std::string>()));
}

/// Where --weights is a list, the best plan by each; the rule of the best of them becomes what is asked for.
std::optional<Comparison> compared_weights(const po::variables_map& values, Inputs* inputs) {
  const std::vector<std::string> rules = list_of(inputs->request.weights);
  const std::unique_ptr<Convergence> table = convergence_from(values);
  if (rules.size() < 2) {
    if (table != nullptr)
      throw InputError("--convergence: with plan it goes with several rules",
                       "--weights stash,2bw,paci,flush, or compare --convergence FILE.");
    return std::nullopt;
  }
  for (const char* other : {"compat", "for"})
    if (given(values, other))
      throw InputError(std::string("--") + other + ": not together with several --weights");
  Comparison comparison = compare_weights(*inputs, rules, table.get());
  const Plan& best = *comparison.contenders[comparison.best].plan;
  inputs->request.weights = best.weights;
  inputs->request.schedule = best.schedule;
  inputs->request.microbatches = weight_rule_facts(best.weights).one_update_for_all ? best.microbatches : 0;
  return comparison;
}

void print_compared(const Comparison& comparison, const Inputs& inputs, int64_t width) {
  std::string notes = comparison.advice + "\n";
  for (const Contender& each : comparison.contenders)
    if (!each.plan) notes += each.name + ": " + each.why_not + "\n";
  std::cout << comparison_table(comparison, inputs).text(width) << "\n" << wrapped(notes, width) << "\n";
}

void add_convergence_option(po::options_description* options) {
  options->add_options()(kConvergence, po::value<std::string>(), "of experiments/convergence; without: none");
}

}  // namespace

Plan plan_asked_for(const po::variables_map& values, const Inputs& inputs, PlanNotes* notes) {
  if (values.count("compat") == 0) return make_plan(inputs.profile, inputs.topology, inputs.request, notes);
  const auto rule = values["compat"].as<std::string>();
  if (rule != "halving") {
    throw InputError("--compat: got " + in_quotes(rule) + "; expected halving",
                     "halving is PipeTransformer's rule. Without --compat the planner takes its own.");
  }
  notes->family = "plan of this rule";
  return halving_plan(inputs.profile, inputs.topology, inputs.request);
}

void run_plan(const Arguments& arguments) {
  po::options_description options("Options");
  add_problem_options(&options);
  add_constraint_options(&options);
  add_baseline_options(&options);
  options.add_options()  //
      ("for", po::value<std::string>()->default_value("training"),
       "training, or inference: forward, least latency")                                  //
      ("period", po::value<std::string>(), "with --for inference: one comes every 20ms")  //
      ("compat", po::value<std::string>(), "halving: PipeTransformer's rule instead")(
          "strategy", po::value<std::string>()->default_value("best"),
          join(names_of(searched_strategies()), ", ").c_str())                      //
      ("output", po::value<std::string>(), "folder for gpus=N.json, or file.json")  //
      ("report", po::value<std::string>(), "file.html: a page; without: none");
  add_convergence_option(&options);
  const po::variables_map values = parse_options(
      arguments, options,
      {"pipewright-optimizer plan --profile FILE --gpus N [--output DIR]",
       "pipewright-optimizer plan --profile profile.json --gpus 2 --strategy straight --output plans",
       {"profile", "gpus", "bandwidths", "memory", "strategy", "output", "report"}});
  if (asks_baseline(values)) return plan_baseline(values);
  Inputs inputs = problem_from(values);
  if (prints_config(values, inputs)) return;
  if (values.count("report") != 0) check_page_name("--report", values["report"].as<std::string>());
  const Stopwatch stopwatch;
  PlanNotes notes;
  const std::optional<Comparison> rules = compared_weights(values, &inputs);
  if (rules) notes = rules->contenders[rules->best].notes;
  const Plan plan = rules ? *rules->contenders[rules->best].plan : plan_asked_for(values, inputs, &notes);
  const double spent = stopwatch.milliseconds();
  if (values["json"].as<bool>() && rules) {
    Json json = comparison_json(*rules);
    json["plan"] = parse_json(document_text(plan), "plan");
    std::cout << json_text(json);
  } else if (values["json"].as<bool>()) {
    std::cout << document_text(plan);
  } else {
    if (rules) print_compared(*rules, inputs, output_width(values));
    print_plan(plan, inputs, notes, output_width(values));
  }
  std::filesystem::path file;
  if (values.count("output") != 0) {
    const auto output = values["output"].as<std::string>();
    file = output;
    if (is_file_name(output)) {
      if (file.has_parent_path()) made_folder(file.parent_path().string());
    } else {
      file = made_folder(output) / ("gpus=" + std::to_string(inputs.topology.device_count()) + ".json");
    }
    write_document(file, plan);
    std::cerr << "wrote " << file.string() << "\n";
  } else if (!values["json"].as<bool>()) {
    std::cerr << "the plan was not written: --output DIR writes it\n";
  }
  if (values.count("report") != 0) {
    const std::string words = (rules ? rules->advice + "\n" : "") + plan_words(plan, inputs, notes);
    write_page(values["report"].as<std::string>(), plan_page(plan, inputs, words, file.string()));
  }
  if (values["time"].as<bool>()) {
    std::cerr << "planning took " << number_text(spent) << " ms (" << notes.cuts << " cuts)\n";
  }
}

namespace {

/// Of --sync; none without it.
std::vector<SyncChoice> sync_choices(const po::variables_map& values, const Comparison& comparison,
                                     const Inputs& inputs) {
  if (values.count("sync") == 0) {
    if (values.count("disturb") != 0)
      throw InputError("--disturb: goes with --sync",
                       "Add --sync all; plans are made for undisturbed ranks.");
    return {};
  }
  const auto syncs = syncs_to_compare(values["sync"].as<std::vector<std::string>>());
  const int64_t minibatches = in_range(values, "minibatches", 1, 1000000);
  Disturbances disturbances;
  if (values.count("disturb") != 0)
    disturbances = Disturbances(values["disturb"].as<std::vector<std::string>>());
  const auto ranks = [](const Contender& each) { return each.plan ? each.plan->world_size : 0; };
  const auto most =
      std::max_element(comparison.contenders.begin(), comparison.contenders.end(),
                       [&](const Contender& a, const Contender& b) { return ranks(a) < ranks(b); });
  disturbances.check(*most->plan);
  return choose_for_syncs(comparison, inputs, syncs, minibatches,
                          disturbances.empty() ? nullptr : &disturbances);
}

}  // namespace

void run_compare(const Arguments& arguments) {
  po::options_description options("Options");
  add_problem_options(&options);
  options.add_options()                                                                           //
      ("output", po::value<std::string>(), "folder for one plan file each: gpus=N.dp.json, ...")  //
      ("samples-per-update", po::value<int64_t>(),
       "of flush, interleaved, zb-h1, 2bw; default: what data parallelism makes")  //
      ("sync", po::value<std::vector<std::string>>()->composing(),
       "also the fastest plan under this rule; \"all\": each; without: none")  //
      ("disturb", po::value<std::vector<std::string>>()->composing(),
       "with --sync: slow ranks, as the runtime takes them; again and again")             //
      ("minibatches", po::value<int64_t>()->default_value(400), "with --sync: of a run")  //
      ("report", po::value<std::vector<std::string>>()->composing(),
       "file.md, or file.html: a page; again and again; without: none");
  add_convergence_option(&options);
  const po::variables_map values =
      parse_options(arguments, options,
                    {"pipewright-optimizer compare --profile FILE --gpus N [--output DIR]",
                     "pipewright-optimizer compare --profile profile.json --gpus 4 --report compare.html",
                     {"profile", "gpus", "bandwidths", "memory", "output", "report"}});
  const Inputs inputs = problem_from(values);
  if (prints_config(values, inputs)) return;
  const auto reports = values.count("report") != 0 ? values["report"].as<std::vector<std::string>>()
                                                   : std::vector<std::string>();
  for (const std::string& file : reports) check_comparison_suffix(file);
  const Stopwatch stopwatch;
  const int64_t samples = values.count("samples-per-update") != 0
                              ? in_range(values, "samples-per-update", 1, int64_t{1} << 40)
                              : 0;
  const std::unique_ptr<Convergence> table = convergence_from(values);
  const Comparison comparison = compare(inputs, samples, table.get());
  const std::vector<SyncChoice> choices = sync_choices(values, comparison, inputs);
  const double spent = stopwatch.milliseconds();
  Json json = comparison_json(comparison);
  if (!choices.empty()) json["syncs"] = sync_choice_json(choices, comparison);
  std::string notes;
  for (size_t i = 0; i < comparison.contenders.size(); ++i) {
    const Contender& contender = comparison.contenders[i];
    if (!contender.plan) {
      notes += contender.name + ": " + contender.why_not + "\n";
    } else if (values.count("output") != 0) {
      const std::filesystem::path file = made_folder(values["output"].as<std::string>()) / contender.file;
      write_document(file, *contender.plan);
      std::cerr << "wrote " << file.string() << "\n";
      json["strategies"][i]["plan"] = file.string();
    }
  }
  for (const std::string& file : reports) write_text(file, comparison_report(comparison, inputs, file));
  if (values["json"].as<bool>()) {
    std::cout << json_text(json);
  } else {
    const int64_t width = output_width(values);
    const std::string title = comparison.model + " on " + std::to_string(comparison.devices) +
                              (comparison.devices == 1 ? " device\n\n" : " devices\n\n");
    std::cout << wrapped(title, width) << comparison_table(comparison, inputs).text(width) << "\n"
              << wrapped(notes + (comparison.ties.empty() ? "" : comparison.ties + "\n") + comparison.advice,
                         width)
              << "\n";
    if (!choices.empty()) {
      std::cout << "\n"
                << sync_choice_table(choices, comparison).text(width) << "\n"
                << wrapped(sync_choice_advice(choices, comparison), width) << "\n";
    }
  }
  if (values["time"].as<bool>()) std::cerr << "planning took " << number_text(spent) << " ms\n";
}

}  // namespace pipewright
