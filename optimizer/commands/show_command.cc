// `show`: a plan as tables and a timeline.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "graph/summary.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_page.h"
#include "optimizer/commands/plan_sequences.h"
#include "optimizer/commands/report.h"
#include "optimizer/plan/inference_plan.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

/// What it runs: a plan for inference goes forward only, whatever it says of training.
std::string schedule_of(const Plan& plan) { return is_for_inference(plan) ? "forward" : plan.schedule; }

/// Times of a plan: of its profile where there is one, else a slot for each forward and backward.
std::vector<StageTimes> slot_times(const Plan& plan) {
  StageTimes slot;
  slot.forward_seconds = 1;
  slot.backward_seconds = 1;
  return std::vector<StageTimes>(plan.stages.size(), slot);
}

/// The plan in words and its table; returns its timeline in equal slots.
Simulation show_plan(const Plan& plan, Span span, int64_t width) {
  std::ostringstream head;
  head << plan.model << ": " << shape_and_recompute_text(plan) << ", strategy " << plan.strategy
       << ", schedule " << schedule_of(plan) << ", " << plan.world_size
       << (plan.world_size == 1 ? " rank\n" : " ranks\n");
  if (plan.predicted) {
    head << "Expected: " << format_seconds(plan.predicted->minibatch_seconds) << " per minibatch, bound by "
         << plan.predicted->bottleneck << "\n";
  }
  std::cout << wrapped(head.str(), width) << "\n" << plan_table(plan).text(width);
  check_plan_runs(plan);
  return simulate(schedule_of(plan), shape_of(plan), slot_times(plan), span);
}

/// What one plan of a run trained.
struct Stretch {
  std::string plan_file;
  std::optional<Span> minibatches;  ///< absent: all
};

std::vector<Stretch> stretches_of(const std::filesystem::path& folder) {
  std::vector<Stretch> stretches;
  if (file_exists(folder / "summary.json")) {
    for (const GenerationSummary& each : read_document<Summary>(folder / "summary.json").generations)
      if (each.minibatches > 0)
        stretches.push_back({each.plan, Span{each.first_minibatch, each.minibatches}});
  }
  if (stretches.empty()) stretches.push_back({"plan.json", {}});
  return stretches;
}

/// What the run's trace has of `plan`: of several stretches, of the last that was traced.
Simulation timeline_in(const std::filesystem::path& folder, const Plan& plan) {
  std::string others;
  std::optional<Simulation> found;
  for (const Stretch& stretch : stretches_of(folder)) {
    const auto trained = read_document<Plan>(folder / stretch.plan_file);
    const bool same =
        trained.schedule == plan.schedule &&
        std::equal(trained.stages.begin(), trained.stages.end(), plan.stages.begin(), plan.stages.end(),
                   [](const Stage& a, const Stage& b) { return a.nodes == b.nodes && a.ranks == b.ranks; });
    if (!same) {
      others += (others.empty() ? "" : ", ") + stretch.plan_file + " (" + trained.shape_text() +
                ", schedule " + trained.schedule + ")";
      continue;
    }
    Simulation run = timeline_of_trace(read_file(folder / "trace.json"), shape_of(plan), stretch.minibatches);
    if (!found || !run.actions.empty()) found = std::move(run);
  }
  if (found) return *std::move(found);
  throw InputError("--run " + folder.string() + ": its plan is another one than --plan: " + others +
                       ", or of other nodes or ranks",
                   "give --plan " + (folder / stretches_of(folder).front().plan_file).string());
}

/// Minibatches in the middle of what the run's trace has of the plan, where the pipeline is full: predicted,
/// and below as they were.
std::vector<NamedTimeline> beside_run(const std::filesystem::path& folder, const Plan& plan,
                                      int64_t minibatches, const std::function<Simulation(Span)>& played) {
  const Simulation run = timeline_in(folder, plan);
  int64_t first = -1, last = -1;
  for (const SimulatedAction& a : run.actions) {
    if (is_of_round(a.action.kind) || is_of_message(a.action.kind)) continue;
    first = first < 0 ? a.action.index : std::min(first, a.action.index);
    last = std::max(last, a.action.index);
  }
  if (first < 0) {
    throw InputError((folder / "trace.json").string() + ": there is no minibatch in it",
                     "train with --trace-minibatches 64");
  }
  const int64_t traced = last + 1 - first;
  minibatches = std::min(minibatches, traced);
  const int64_t before = (traced - minibatches) / 2;
  return {{"predicted", window_of(played({0, traced}), {before, minibatches})},
          {"measured, minibatches " + std::to_string(first + before) + " to " +
               std::to_string(first + before + minibatches - 1),
           window_of(run, {first + before, minibatches})}};
}

/// --report: with the price that --profile makes.
void write_page(const po::variables_map& values, Plan plan) {
  const auto file = values["report"].as<std::string>();
  check_page_suffix("--report", file);
  if (values.count("profile") == 0)
    throw InputError("--report: what a plan takes is priced by its profile", "give --profile FILE, too");
  const Inputs inputs = inputs_for(values, plan, plan.world_size);
  plan.predicted = is_for_inference(plan)
                       ? plan.predicted
                       : evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  write_text(file, plan_page(plan, inputs,
                             shape_and_recompute_text(plan) + ": " +
                                 format_seconds(plan.predicted->minibatch_seconds) +
                                 " per minibatch, bound by " + plan.predicted->bottleneck));
}

}  // namespace

void run_show(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_options(&options);
  add_changes_option(&options);
  options.add_options()                                                           //
      ("minibatches", po::value<int64_t>()->default_value(8), "in the timeline")  //
      ("output", po::value<std::string>(),
       "file.svg: the timeline; with --profile in its times, else in equal slots")  //
      ("run", po::value<std::string>(),
       "folder of a run: what it did under this plan, below what --profile says; needs --output")(
          "report", po::value<std::string>(), "file.html: a page; needs --profile; without: none");
  const po::variables_map values = parse_options(arguments, options,
                                                 "pipewright-optimizer show --plan FILE [--changes FILE] "
                                                 "[--profile FILE] [--run DIR] [--output FILE.svg]");
  const Plan plan = read_plan(values);
  const Span span = {0, in_range(values, "minibatches", 1, 4096)};
  const int64_t width = output_width(values);
  if (values.count("changes") != 0) {
    refuse_with_changes(values, {"output", "report", "run"});
    const PlanSequence sequence = read_sequence(values, plan);
    for (size_t i = 0; i < sequence.plans.size(); ++i) {
      std::cout << (i == 0 ? "" : "\n") << "From minibatch " << sequence.firsts[i] << " on ("
                << sequence.names[i] << ")\n";
      const Simulation slots = show_plan(sequence.plans[i], span, width);
      std::cout << "\n" << clipped(draw_text(slots, 1), width);
    }
    return;
  }
  if (values.count("report") != 0) write_page(values, plan);
  const Simulation slots = show_plan(plan, span, width);
  if (values.count("run") != 0 && (values.count("output") == 0 || values.count("profile") == 0)) {
    throw InputError("--run: what a run did is drawn below what its profile says",
                     "give --profile FILE and --output FILE.svg, too");
  }
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
    write_text(output, draw_svg(slots, title + ", equal slots").file());
  } else {
    const PlanCost cost = cost_as_run(plan, inputs_for(values, plan, plan.world_size));
    const auto played = [&](Span minibatches) {
      return simulate(schedule_of(plan), shape_of(plan), cost.times, minibatches, cost.shared);
    };
    write_text(
        output,
        values.count("run") == 0
            ? draw_svg(played(span), title).file()
            : draw_svg(beside_run(values["run"].as<std::string>(), plan, span.count, played), title).file());
  }
}

}  // namespace pipewright
