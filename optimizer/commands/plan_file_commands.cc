// The commands that look at a plan that is there.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/memory_chart.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_sequences.h"
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

/// Times of a plan: of its profile where there is one, else a slot for each forward and backward.
std::vector<StageTimes> slot_times(const Plan& plan) {
  StageTimes slot;
  slot.forward_seconds = 1;
  slot.backward_seconds = 1;
  return std::vector<StageTimes>(plan.stages.size(), slot);
}

}  // namespace

namespace {

void demand_memory(const Plan& plan, const Prediction& prediction, const Inputs& inputs) {
  Plan recomputing = plan;
  for (Stage& stage : recomputing.stages) stage.recompute = true;
  check_plan_memory(plan, prediction,
                    evaluate_plan(recomputing, inputs.profile, inputs.topology, inputs.request),
                    inputs.topology, inputs.profile.minibatch_samples);
}

/// The run of --plan, --changes and --minibatches, priced, with its table.
void print_sequence(const PlanSequence& sequence, int64_t minibatches, const Inputs& inputs, int64_t width) {
  const auto generations = price(sequence, minibatches, inputs);
  const PlanSequence alone{{sequence.names[0]}, {sequence.plans[0]}, {0}};
  const double without = price(alone, minibatches, inputs)[0].seconds;
  std::cout << sequence_table(generations).text(width) << "\n"
            << wrapped(sequence_text(generations, without), width) << "\n";
}

void check_changes(const po::variables_map& values, const Plan& plan) {
  const PlanSequence sequence = read_sequence(values, plan);
  const Inputs inputs = inputs_for(values, sequence.largest());
  const int64_t minibatches = values.count("minibatches") != 0
                                  ? in_range(values, "minibatches", 1, 1000000000)
                                  : sequence.firsts.back() + 1000;
  for (size_t i = 1; i < sequence.plans.size(); ++i) {
    try {
      demand_memory(sequence.plans[i],
                    evaluate_plan(sequence.plans[i], inputs.profile, inputs.topology, inputs.request),
                    inputs);
    } catch (const InfeasibleError& error) {
      throw InfeasibleError(sequence.names[i] + ": " + error.what(), error.remedy());
    } catch (const PlanError& error) {
      throw PlanError(sequence.names[i] + ": " + error.what(), error.remedy());
    }
  }
  std::cout << "changes   ok: " << sequence.plans.size() - 1 << " plans, each checked as the first\n\n";
  print_sequence(sequence, minibatches, inputs, output_width(values));
  std::cout << "\n";
}

}  // namespace

void run_check(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_changes_option(&options);
  options.add_options()("minibatches", po::value<int64_t>(),
                        "of the run of --changes; default: 1000 behind the last change");
  add_wide_option(&options);
  const po::variables_map values = parse_options(arguments, options,
                                                 "pipewright-optimizer check --plan FILE [--profile FILE] "
                                                 "[--topology FILE | --memory 16GiB] [--changes FILE]");
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
    if (values.count("changes") != 0) {
      const PlanSequence sequence = read_sequence(values, plan);
      say("changes", "ok: " + std::to_string(sequence.plans.size() - 1) +
                         " plans that run by themselves; not priced: no --profile");
    }
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
  demand_memory(plan, prediction, inputs);
  const int64_t limit = memory_limit_bytes(inputs.topology);
  say("memory",
      "ok: the fullest stage holds " + format_bytes(static_cast<double>(largest_memory(prediction))) +
          " of tensors on a rank" +
          (limit == 0 ? "; no limit was given" : " of " + format_bytes(static_cast<double>(limit))));
  if (values.count("changes") != 0) check_changes(values, plan);
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

namespace {

/// What is drawn of one plan cannot be drawn of several.
void refuse_with_changes(const po::variables_map& values, const std::vector<const char*>& others) {
  for (const char* other : others) {
    if (values.count(other) == 0 || values[other].defaulted()) continue;
    throw InputError(std::string("--") + other + ": not together with --changes",
                     "Leave it out, or simulate the plans one by one.");
  }
}

void simulate_changes(const po::variables_map& values, const Plan& plan, int64_t minibatches) {
  refuse_with_changes(values, {"disturb", "transfers", "slot", "memory-over-time"});
  const PlanSequence sequence = read_sequence(values, plan);
  if (minibatches <= sequence.firsts[1]) {
    throw InputError("--minibatches: got " + std::to_string(minibatches) +
                         "; the first change is at minibatch " + std::to_string(sequence.firsts[1]),
                     "Give more, such as --minibatches " + std::to_string(sequence.firsts.back() + 64));
  }
  const Inputs inputs = inputs_for(values, sequence.largest());
  print_sequence(sequence, minibatches, inputs, output_width(values));
  if (values.count("output") == 0 && values.count("trace") == 0) return;
  const Simulation all = play(price(sequence, minibatches, inputs), inputs);
  const std::string title = plan.model + ", " + std::to_string(sequence.plans.size() - 1) +
                            " changes of the plan, " + std::to_string(minibatches) + " minibatches";
  if (values.count("output") != 0) write_text(values["output"].as<std::string>(), draw_svg(all, title));
  if (values.count("trace") != 0) write_text(values["trace"].as<std::string>(), trace_json(all));
}

}  // namespace

void run_simulate(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_wide_option(&options);
  add_changes_option(&options);
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
  const po::variables_map values = parse_options(arguments, options,
                                                 "pipewright-optimizer simulate --plan FILE --profile FILE "
                                                 "[--minibatches N] [--changes FILE] [--output FILE.svg]");
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
  if (values.count("changes") != 0) return simulate_changes(values, plan, span.count);
  const PipelineShape shape = shape_of(plan);
  MeasuredPlan measured(plan, inputs);
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

namespace {

/// The plan in words and its table; returns its timeline in equal slots.
Simulation show_plan(const Plan& plan, Span span, int64_t width) {
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
  return simulate(plan.schedule, shape_of(plan), slot_times(plan), span);
}

}  // namespace

void run_show(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_option(&options);
  add_profile_option(&options);
  add_device_options(&options);
  add_pricing_options(&options);
  add_wide_option(&options);
  add_changes_option(&options);
  options.add_options()                                                           //
      ("minibatches", po::value<int64_t>()->default_value(8), "in the timeline")  //
      ("output", po::value<std::string>(),
       "file.svg: the timeline; with --profile in its times, else in equal slots");
  const po::variables_map values = parse_options(
      arguments, options,
      "pipewright-optimizer show --plan FILE [--changes FILE] [--profile FILE] [--output FILE.svg]");
  const Plan plan = read_plan(values);
  const Span span = {0, in_range(values, "minibatches", 1, 4096)};
  const int64_t width = output_width(values);
  if (values.count("changes") != 0) {
    refuse_with_changes(values, {"output"});
    const PlanSequence sequence = read_sequence(values, plan);
    for (size_t i = 0; i < sequence.plans.size(); ++i) {
      std::cout << (i == 0 ? "" : "\n") << "From minibatch " << sequence.firsts[i] << " on ("
                << sequence.names[i] << ")\n";
      const Simulation slots = show_plan(sequence.plans[i], span, width);
      std::cout << "\n" << clipped(draw_text(slots, 1), width);
    }
    return;
  }
  const Simulation slots = show_plan(plan, span, width);
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
    const MeasuredPlan measured(plan, inputs_for(values, plan));
    write_text(output,
               draw_svg(simulate(plan.schedule, shape_of(plan), measured.times, span, measured.how), title));
  }
}

}  // namespace pipewright
