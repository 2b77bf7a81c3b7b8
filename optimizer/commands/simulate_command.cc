// `simulate`: a plan, or several one after the other, played on its devices.
#include <algorithm>
#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/memory_chart.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_sequences.h"
#include "optimizer/commands/report.h"
#include "optimizer/commands/sync_comparison.h"
#include "optimizer/plan/evaluate.h"
#include "pages/page.h"
#include "runtime/schedule/disturbance.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

/// Of a timeline in text.
constexpr int64_t kMostColumns = 2000;

// Ends with a new line, if there is any.
std::string crowd_line(const Plan& plan, const Inputs& inputs) {
  const std::string text = crowd_text(plan, inputs);
  return text.empty() ? text : text + "\n";
}

void simulate_changes(const po::variables_map& values, const Plan& plan, const PlanSequence& sequence,
                      const Inputs& inputs, int64_t minibatches) {
  refuse_with_changes(values, {"disturb", "transfers", "slot", "memory-over-time", "report"});
  if (minibatches <= sequence.firsts[1]) {
    throw InputError("--minibatches: got " + std::to_string(minibatches) +
                         "; the first change is at minibatch " + std::to_string(sequence.firsts[1]),
                     "Give more, such as --minibatches " + std::to_string(sequence.firsts.back() + 64));
  }
  const auto generations = print_sequence(sequence, minibatches, inputs, output_width(values));
  if (values.count("output") == 0 && values.count("trace") == 0) return;
  const Simulation all = play(generations, inputs);
  const std::string title = plan.model + ", " + std::to_string(sequence.plans.size() - 1) +
                            " changes of the plan, " + std::to_string(minibatches) + " minibatches";
  if (values.count("output") != 0)
    write_text(values["output"].as<std::string>(), draw_svg(all, title).file());
  if (values.count("trace") != 0) write_text(values["trace"].as<std::string>(), trace_json(all));
}

void print_syncs(const po::variables_map& values, const Plan& plan, const Inputs& inputs, int64_t minibatches,
                 const Disturbances* disturbances) {
  for (const char* other : {"transfers", "slot", "output", "memory-over-time", "trace", "report"}) {
    if (values.count(other) == 0 || values[other].defaulted()) continue;
    throw InputError(std::string("--") + other + ": not together with --sync",
                     "Leave it out; --output and the like draw the plan with its replicas held equal.");
  }
  const auto syncs = syncs_to_compare(values["sync"].as<std::vector<std::string>>());
  const std::vector<SyncRow> rows = compare_syncs(plan, inputs, syncs, minibatches, disturbances);
  if (values["json"].as<bool>()) {
    std::cout << json_text(sync_json(rows));
    return;
  }
  const int64_t width = output_width(values);
  const size_t stages = plan.stages.size();
  const std::string head = std::to_string(plan.stages.front().ranks.size()) +
                           " pipelines side by side, each of " + std::to_string(stages) +
                           (stages == 1 ? " stage, " : " stages, ") + std::to_string(minibatches) +
                           " minibatches" + (disturbances ? ", disturbed" : "") +
                           ", without the average at the end\n" + crowd_line(plan, inputs) + "\n";
  std::cout << wrapped(head, width) << sync_table(rows).text(width) << "\n"
            << wrapped(sync_advice(rows) + "\n", width);
}

/// --report: under `words`, a line each, the timeline as far as a drawing stays readable, and each rank's
/// time.
std::string simulation_page(const Plan& plan, const std::string& words, const Simulation& run,
                            const TextTable& ranks, int64_t minibatches) {
  constexpr int64_t kMostActions = 3000, kLeast = 8;
  const auto stages = static_cast<int64_t>(plan.stages.size());
  const int64_t drawn = std::min(minibatches, std::max(kLeast, kMostActions / (3 * stages)));
  const std::string title = plan.model + " " + plan.shape_text() + ", " + plan.schedule + ", " +
                            std::to_string(drawn) + " minibatches";
  Page page(plan.model + ", " + plan.strategy + " " + plan.shape_text() + ", simulated");
  page.words(words);
  page.figure(draw_svg(window_of(run, {0, drawn}), title),
              "What each rank does" +
                  (drawn < minibatches ? ": the first " + std::to_string(drawn) + " minibatches" : ""));
  page.table(ranks, "What each rank's time goes into, and what it holds");
  page.paragraph(
      "The bubble is the part of the time in which a rank is not busy. Planned is the memory that the plan "
      "has room for.");
  return page.html();
}

// --output, --memory-over-time, --trace.
void write_files(const po::variables_map& values, const Plan& plan, const Span& span, const Simulation& run,
                 const std::vector<RankMemory>& memory) {
  const std::string title = plan.model + " " + plan.shape_text() + ", " + plan.schedule + ", " +
                            std::to_string(span.count) + " minibatches";
  if (values.count("output") != 0)
    write_text(values["output"].as<std::string>(), draw_svg(run, title).file());
  if (values.count("memory-over-time") != 0) {
    const auto file = values["memory-over-time"].as<std::string>();
    std::vector<int64_t> numbers;
    for (const SimulatedRank& rank : run.ranks) numbers.push_back(rank.number);
    write_text(file, suffix_of(file) == ".csv"
                         ? memory_csv(memory, numbers)
                         : memory_svg(memory, numbers, run.total_seconds, title).file());
  }
  if (values.count("trace") != 0) write_text(values["trace"].as<std::string>(), trace_json(run));
}

}  // namespace

void run_simulate(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_options(&options);
  add_changes_option(&options);
  options.add_options()                                                     //
      ("minibatches", po::value<int64_t>()->default_value(64), "how many")  //
      ("transfers", po::value<std::string>()->default_value("overlapped"),
       "overlapped: beside compute; blocking: both ends wait")  //
      ("disturb", po::value<std::vector<std::string>>()->composing(),
       "ranks that are slow, as the runtime's --disturb takes them; may be given several times")  //
      ("sync", po::value<std::vector<std::string>>()->composing(),
       "the plan's pipelines side by side under this --sync of the runtime, beside all-reduce; \"all\": "
       "under every "
       "one; may be given several times; default: held equal")                                 //
      ("json", po::bool_switch(), "with --sync: print JSON instead of a table")                //
      ("output", po::value<std::string>(), "file.svg: the timeline")                           //
      ("slot", po::value<std::string>(), "print the timeline too, a column for each 1ms")      //
      ("memory-over-time", po::value<std::string>(), "file.svg or .csv: memory of each rank")  //
      ("trace", po::value<std::string>(), "file: every action as a trace event, for Perfetto")(
          "report", po::value<std::string>(), "file.html: a page; without: none");
  const po::variables_map values = parse_options(
      arguments, options,
      {"pipewright-optimizer simulate --plan FILE --profile FILE "
       "[--minibatches N] [--changes FILE] [--output FILE.svg]",
       "pipewright-optimizer simulate --plan plans/gpus=2.json --profile profile.json --output timeline.svg",
       {"plan", "profile", "bandwidths", "minibatches", "output", "report"}});
  const Plan plan = read_plan(values);
  const PlanSequence sequence = read_sequence(values, plan);
  const Inputs inputs = inputs_for(values, plan, sequence.largest().world_size);
  const Span span = {0, in_range(values, "minibatches", 1, 1000000)};
  check_plan_runs(plan);
  const Prediction prediction = evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  const auto transfers = values["transfers"].as<std::string>();
  if (transfers != "overlapped" && transfers != "blocking")
    throw InputError("--transfers: got " + in_quotes(transfers) + "; expected overlapped or blocking");
  for (const auto& [option, known] : {std::pair<const char*, std::vector<std::string>>{"output", {".svg"}},
                                      {"memory-over-time", {".svg", ".csv"}},
                                      {"report", {".html"}}}) {
    if (values.count(option) == 0) continue;
    const auto file = values[option].as<std::string>();
    if (std::find(known.begin(), known.end(), suffix_of(file)) == known.end()) {
      throw InputError(std::string("--") + option + ": got " + in_quotes(file) +
                       "; expected a name that ends in " + join(known, " or "));
    }
  }
  double slot = 0;
  if (values.count("slot") != 0) slot = parse_seconds(values["slot"].as<std::string>(), "--slot");
  if (values.count("changes") != 0) return simulate_changes(values, plan, sequence, inputs, span.count);
  const PipelineShape shape = shape_of(plan);
  const PlanCost cost = cost_as_run(plan, inputs);
  SimulationOptions how = cost.shared;
  how.blocking_transfers = transfers == "blocking";
  Disturbances disturbances;
  if (values.count("disturb") != 0)
    disturbances = Disturbances(values["disturb"].as<std::vector<std::string>>());
  disturbances.check(plan);
  if (!disturbances.empty()) how.disturbances = &disturbances;
  if (values.count("sync") != 0)
    return print_syncs(values, plan, inputs, span.count, disturbances.empty() ? nullptr : &disturbances);
  if (values["json"].as<bool>())
    throw InputError("--json: goes with --sync", "Add --sync all, or leave it out.");
  const Simulation run = simulate(plan.schedule, shape, cost.times, span, how);
  if (values.count("slot") != 0 && (slot <= 0 || run.total_seconds / slot > kMostColumns)) {
    throw InputError("--slot: got " + values["slot"].as<std::string>() + " for " +
                     format_seconds(run.total_seconds) + "; expected 1 to " + std::to_string(kMostColumns) +
                     " columns");
  }
  const std::vector<StageBytes> bytes = bytes_of(cost.loads, cost.inputs);
  const std::vector<RankMemory> memory = memory_over_time(run, plan.schedule, shape, span, bytes);
  const int64_t width = output_width(values);
  // In the long run, as `plan` and `evaluate` have it; so few minibatches may say less or more.
  how.disturbances = nullptr;
  const double steady = how.blocking_transfers
                            ? settled_minibatch_seconds(plan.schedule, shape, cost.times, how)
                            : prediction.minibatch_seconds;
  std::string words = plan.shape_text() + ", " + std::to_string(span.count) +
                      (span.count == 1 ? " minibatch: " : " minibatches: ") +
                      format_seconds(run.total_seconds);
  if (!disturbances.empty())
    words += " disturbed, " + format_seconds(run.steady_minibatch_seconds) + " per minibatch in the middle";
  words += "; " + std::string(disturbances.empty() ? "" : "undisturbed ") + "in the long run " +
           format_seconds(steady) + " per minibatch\n" + crowd_line(plan, inputs);
  if (const std::string room = room_text(plan, prediction, inputs.topology); !room.empty())
    words += room + "\n";
  const TextTable ranks = simulation_table(run, memory, prediction);
  std::cout << wrapped(words + "\n", width) << ranks.text(width);
  if (slot > 0) std::cout << "\n" << clipped(draw_text(run, slot), width);
  write_files(values, plan, span, run, memory);
  if (values.count("report") != 0)
    write_page(values["report"].as<std::string>(), simulation_page(plan, words, run, ranks, span.count));
}

}  // namespace pipewright
