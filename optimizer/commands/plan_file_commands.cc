// The commands that look at a plan that is there.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/memory_chart.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/report.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/schedule/disturbance.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

/// Of a timeline in text.
constexpr int64_t kMostColumns = 2000;

void add_plan_option(po::options_description* options) {
  options->add_options()("plan", po::value<std::string>(), "gpus=N.json");
}

void add_profile_option(po::options_description* options) {
  options->add_options()("profile", po::value<std::string>(), "profile.json, or PipeDream's graph.txt");
}

/// Profile, devices and pricing for a plan that is already there.
Inputs inputs_for(const po::variables_map& values, const Plan& plan) {
  Inputs inputs;
  inputs.profile = read_profile(required(values, "profile"));
  inputs.topology = topology_from(values, plan.world_size, &inputs.settings);
  inputs.request = request_from(values, &inputs.settings);
  inputs.request.class_profiles = class_profiles_from(values, inputs.topology, &inputs.settings);
  if (!plan.graph_digest.empty() && !inputs.profile.graph_digest.empty() &&
      plan.graph_digest != inputs.profile.graph_digest) {
    throw PlanError("plan: was made for graph " + plan.graph_digest + "; the profile is of graph " +
                        inputs.profile.graph_digest,
                    "The model or its options changed: plan again with the new profile.");
  }
  if (!plan.profile_digest.empty() && plan.profile_digest != document_digest(inputs.profile)) {
    std::cerr << "note: the plan was made with another profile of this model\n";
  }
  return inputs;
}

/// The line's beginning, to the last slot that fits; ">" says that it goes on.
std::string clipped(const std::string& drawing, int64_t width) {
  if (width == kAnyWidth) return drawing;
  std::istringstream lines(drawing);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (static_cast<int64_t>(line.size()) > width) {
      const size_t last = line.rfind(' ', static_cast<size_t>(std::max<int64_t>(width - 1, 0)));
      line = line.substr(0, last == std::string::npos ? 0 : last);
      line.erase(line.find_last_not_of(' ') + 1);
      line += " >";
    }
    text += line + "\n";
  }
  return text;
}

void write_text(const std::string& file, const std::string& text) {
  write_file(file, text);
  std::cerr << "wrote " << file << "\n";
}

std::string suffix_of(const std::string& file) { return std::filesystem::path(file).extension().string(); }

/// Times of a plan: of its profile where there is one, else a slot for each forward and backward.
std::vector<StageTimes> slot_times(const Plan& plan) {
  StageTimes slot;
  slot.forward_seconds = 1;
  slot.backward_seconds = 1;
  return std::vector<StageTimes>(plan.stages.size(), slot);
}

/// What the simulator needs to play a plan of a profile on its devices.
struct Measured {
  Measured(const Plan& plan, const Inputs& inputs)
      : cost(inputs_of_plan(plan, inputs.profile, inputs.topology, inputs.request)),
        loads(loads_of_plan(plan, Dataflow(inputs.profile, inputs.request.class_profiles),
                            cost_model_named("pipewright"))),
        times(times_of(plan, loads, cost)),
        how(links_in_common(plan, loads, cost)) {}
  CostInputs cost;
  std::vector<StageLoad> loads;
  std::vector<StageTimes> times;
  SimulationOptions how;
};

}  // namespace

void run_check(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_wide_option(&options);
  const po::variables_map values = parse_options(
      arguments, options,
      "pipewright-optimizer check --plan FILE [--profile FILE] [--topology FILE | --memory 16GiB]");
  const Plan plan = read_plan(values);
  const int64_t width = output_width(values);
  const auto say = [width](const std::string& what, const std::string& text) {
    constexpr int64_t kText = 10;
    std::cout << wrapped(what + std::string(kText - what.size(), ' ') + text, width, kText) << "\n";
  };
  const ScheduleCheck check = check_plan_runs(plan);
  const Span span = rehearsal_span(shape_of(plan));
  say("world", "ok: " + std::to_string(plan.world_size) + " ranks from 0 on, each with its stages");
  say("rules", "ok: schedule " + plan.schedule + " with weights " + plan.weights +
                   (plan.microbatches > 1 ? ", " + std::to_string(plan.microbatches) + " microbatches" : ""));
  say("schedule", "ok: no rank waits for ever; each of " + std::to_string(span.count) +
                      " minibatches runs once, in order, on its replica");
  int64_t versions = 0;
  int64_t in_flight = 0;
  for (const RankCheck& rank : check.ranks) {
    versions = std::max(versions, rank.peak_versions);
    in_flight = std::max(in_flight, rank.peak_in_flight);
  }
  say("depth",
      "ok: no rank holds more minibatches than its in_flight, none more than " + std::to_string(in_flight));
  say("versions",
      "ok: forwards find the versions of the rule; no rank holds more than " + std::to_string(versions));
  if (values.count("profile") == 0) {
    for (const char* what : {"cover", "order", "tied", "placement", "memory"})
      say(what, "not checked: no --profile");
    return;
  }
  const Inputs inputs = inputs_for(values, plan);
  const Prediction prediction = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  say("cover", "ok: " + std::to_string(inputs.profile.nodes.size()) + " nodes, each in one stage");
  say("order", "ok: values flow to later stages only, nodes stand in the order of the profile");
  const std::string ties = ties_text(plan, inputs.profile);
  say("tied", (plan.tied_parameters.empty() ? "ok: no parameter is read by two stages"
                                            : "ok: named with the stages that have a copy") +
                  std::string(ties.empty() ? "" : ". " + ties));
  say("placement", "ok: rank r is device r of " + std::to_string(inputs.topology.device_count()));
  Plan recomputing = plan;
  for (Stage& stage : recomputing.stages) stage.recompute = true;
  check_plan_memory(plan, prediction,
                    evaluate_plan(recomputing, inputs.profile, inputs.topology, inputs.request),
                    inputs.topology, inputs.profile.minibatch_samples);
  const int64_t limit = memory_limit_bytes(inputs.topology);
  say("memory",
      "ok: the fullest stage holds " + format_bytes(static_cast<double>(largest_memory(prediction))) +
          " of tensors on a rank" +
          (limit == 0 ? "; no limit was given" : " of " + format_bytes(static_cast<double>(limit))));
  if (inputs.profile.device.rfind("cpu", 0) == 0)
    say("beside", "on the CPU a process has some 200 MiB more: libraries, what kernels use");
}

void run_evaluate(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_wide_option(&options);
  options.add_options()                                                                    //
      ("output", po::value<std::string>(), "file.json: the plan with the new prediction")  //
      ("json", po::bool_switch(), "print the plan with the new prediction instead of tables");
  const po::variables_map values =
      parse_options(arguments, options, "pipewright-optimizer evaluate --plan FILE --profile FILE");
  Plan plan = read_plan(values);
  const Inputs inputs = inputs_for(values, plan);
  const std::optional<Prediction> before = plan.predicted;
  plan.predicted = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  if (values["json"].as<bool>()) {
    std::cout << document_text(plan);
  } else {
    std::ostringstream head;
    head << shape_and_recompute_text(plan) << ": " << format_seconds(plan.predicted->minibatch_seconds)
         << " per minibatch, bound by " << plan.predicted->bottleneck << "\n";
    if (before && before->minibatch_seconds > 0) {
      const double change = 100 * (before->minibatch_seconds / plan.predicted->minibatch_seconds - 1);
      head << "The plan itself says " << format_seconds(before->minibatch_seconds);
      if (std::abs(change) > 0.1) {
        head << ": " << number_text(std::abs(change)) << " % " << (change > 0 ? "more" : "less")
             << "; it was made with another profile, other links or another objective";
      }
      head << "\n";
    }
    const int64_t width = output_width(values);
    std::cout << wrapped(head.str(), width) << "\n"
              << stage_table(plan, *plan.predicted, inputs).text(width) << "\nMemory of one rank\n"
              << memory_table(*plan.predicted).text(width);
  }
  if (values.count("output") != 0) write_text(values["output"].as<std::string>(), document_text(plan));
}

void run_simulate(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_wide_option(&options);
  options.add_options()                                                     //
      ("minibatches", po::value<int64_t>()->default_value(64), "how many")  //
      ("transfers", po::value<std::string>()->default_value("overlapped"),
       "overlapped: beside compute; blocking: both ends wait")  //
      ("disturb", po::value<std::vector<std::string>>()->composing(),
       "ranks that are slow, as the runtime's --disturb takes them; may be given several times")  //
      ("output", po::value<std::string>(), "file.svg: the timeline")                              //
      ("slot", po::value<std::string>(), "print the timeline too, a column for each 1ms")         //
      ("memory-over-time", po::value<std::string>(), "file.svg or .csv: memory of each rank")     //
      ("trace", po::value<std::string>(), "file: every action as a trace event, for Perfetto");
  const po::variables_map values = parse_options(
      arguments, options,
      "pipewright-optimizer simulate --plan FILE --profile FILE [--minibatches N] [--output FILE.svg]");
  const Plan plan = read_plan(values);
  const Inputs inputs = inputs_for(values, plan);
  const Span span = {0, in_range(values, "minibatches", 1, 1000000)};
  check_plan_runs(plan);
  const Prediction prediction = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  const auto transfers = values["transfers"].as<std::string>();
  if (transfers != "overlapped" && transfers != "blocking")
    throw InputError("--transfers: got " + in_quotes(transfers) + "; expected overlapped or blocking");
  for (const auto& [option, known] : {std::pair<const char*, std::vector<std::string>>{"output", {".svg"}},
                                      {"memory-over-time", {".svg", ".csv"}}}) {
    if (values.count(option) == 0) continue;
    const auto file = values[option].as<std::string>();
    if (std::find(known.begin(), known.end(), suffix_of(file)) == known.end()) {
      throw InputError(std::string("--") + option + ": got " + in_quotes(file) +
                       "; expected a name that ends in " + join(known, " or "));
    }
  }
  double slot = 0;
  if (values.count("slot") != 0) slot = parse_seconds(values["slot"].as<std::string>(), "--slot");
  const PipelineShape shape = shape_of(plan);
  Measured measured(plan, inputs);
  SimulationOptions& how = measured.how;
  how.blocking_transfers = transfers == "blocking";
  Disturbances disturbances;
  if (values.count("disturb") != 0)
    disturbances = Disturbances(values["disturb"].as<std::vector<std::string>>());
  disturbances.check(plan);
  if (!disturbances.empty()) how.disturbances = &disturbances;
  const Simulation run = simulate(plan.schedule, shape, measured.times, span, how);
  if (values.count("slot") != 0 && (slot <= 0 || run.total_seconds / slot > kMostColumns)) {
    throw InputError("--slot: got " + values["slot"].as<std::string>() + " for " +
                     format_seconds(run.total_seconds) + "; expected 1 to " + std::to_string(kMostColumns) +
                     " columns");
  }
  const std::vector<StageBytes> bytes = bytes_of(measured.loads, measured.cost);
  const std::vector<RankMemory> memory = memory_over_time(run, plan.schedule, shape, span, bytes);
  const int64_t width = output_width(values);
  // In the long run, as `plan` and `evaluate` have it; so few minibatches may say less or more.
  how.disturbances = nullptr;
  const double steady = how.blocking_transfers
                            ? settled_minibatch_seconds(plan.schedule, shape, measured.times, how)
                            : prediction.minibatch_seconds;
  std::string head = plan.shape_text() + ", " + std::to_string(span.count) +
                     " minibatches: " + format_seconds(run.total_seconds);
  if (!disturbances.empty())
    head += " disturbed, " + format_seconds(run.steady_minibatch_seconds) + " per minibatch in the middle";
  head += "; " + std::string(disturbances.empty() ? "" : "undisturbed ") + "in the long run " +
          format_seconds(steady) + " per minibatch\n\n";
  std::cout << wrapped(head, width) << simulation_table(run, memory, prediction).text(width);
  if (slot > 0) std::cout << "\n" << clipped(draw_text(run, slot), width);
  const std::string title = plan.model + " " + plan.shape_text() + ", " + plan.schedule + ", " +
                            std::to_string(span.count) + " minibatches";
  if (values.count("output") != 0) write_text(values["output"].as<std::string>(), draw_svg(run, title));
  if (values.count("memory-over-time") != 0) {
    const auto file = values["memory-over-time"].as<std::string>();
    std::vector<int64_t> numbers;
    for (const SimulatedRank& rank : run.ranks) numbers.push_back(rank.number);
    write_text(file, suffix_of(file) == ".csv" ? memory_csv(memory, numbers)
                                               : memory_svg(memory, numbers, run.total_seconds, title));
  }
  if (values.count("trace") != 0) write_text(values["trace"].as<std::string>(), trace_json(run));
}

void run_show(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_wide_option(&options);
  options.add_options()                                                           //
      ("minibatches", po::value<int64_t>()->default_value(8), "in the timeline")  //
      ("output", po::value<std::string>(),
       "file.svg: the timeline; with --profile in its times, else in equal slots");
  const po::variables_map values = parse_options(
      arguments, options, "pipewright-optimizer show --plan FILE [--profile FILE] [--output FILE.svg]");
  const Plan plan = read_plan(values);
  const Span span = {0, in_range(values, "minibatches", 1, 4096)};
  const int64_t width = output_width(values);
  std::ostringstream head;
  head << plan.model << ": " << shape_and_recompute_text(plan) << ", strategy " << plan.strategy
       << ", schedule " << plan.schedule << ", " << plan.world_size
       << (plan.world_size == 1 ? " rank\n" : " ranks\n");
  if (plan.predicted) {
    head << "Expected: " << format_seconds(plan.predicted->minibatch_seconds) << " per minibatch, bound by "
         << plan.predicted->bottleneck << "\n";
  }
  std::cout << wrapped(head.str(), width) << "\n" << plan_table(plan).text(width);
  check_plan_runs(plan);
  const Simulation slots = simulate(plan.schedule, shape_of(plan), slot_times(plan), span);
  if (values.count("output") == 0) {
    std::cout << "\n" << clipped(draw_text(slots, 1), width);
    return;
  }
  const auto output = values["output"].as<std::string>();
  if (suffix_of(output) != ".svg") {
    throw InputError("--output: got " + in_quotes(output) + "; expected a name that ends in .svg");
  }
  const std::string title = plan.model + " " + plan.shape_text();
  if (values.count("profile") == 0) {
    write_text(output, draw_svg(slots, title + ", equal slots"));
  } else {
    const Measured measured(plan, inputs_for(values, plan));
    write_text(output,
               draw_svg(simulate(plan.schedule, shape_of(plan), measured.times, span, measured.how), title));
  }
}

}  // namespace pipewright
