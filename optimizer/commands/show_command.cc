// `show`: a plan as tables and a timeline.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "graph/command_line.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_as_run.h"
#include "graph/units.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_page.h"
#include "optimizer/commands/plan_sequences.h"
#include "optimizer/commands/report.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/stage_layers.h"
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

bool names_layers(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return !stage.layers.empty(); });
}

/// room_text() within --memory or the topology's, by --profile or else by what the plan predicts.
std::string room_as_asked(const po::variables_map& values, const Plan& plan) {
  std::vector<Setting> ignored;
  const Topology topology = topology_from(values, plan.world_size, &ignored);
  if (memory_limit_bytes(topology) == 0) return "";
  if (values.count("profile") == 0 || is_for_inference(plan))
    return plan.predicted ? room_text(plan, *plan.predicted, topology) : "";
  const Inputs inputs = inputs_for(values, plan, plan.world_size);
  return room_text(plan, evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request), topology);
}

/// The plan in words and its table; returns its timeline in equal slots.
Simulation show_plan(const po::variables_map& values, const Plan& plan, Span span, int64_t width) {
  std::ostringstream head;
  head << plan.model << ": " << shape_and_recompute_text(plan) << ", strategy " << plan.strategy
       << ", schedule " << schedule_of(plan) << ", " << plan.world_size
       << (plan.world_size == 1 ? " rank\n" : " ranks\n");
  if (plan.predicted) {
    head << "Expected: " << format_seconds(plan.predicted->minibatch_seconds) << " per minibatch, bound by "
         << plan.predicted->bottleneck << "\n";
  }
  if (const std::string room = room_as_asked(values, plan); !room.empty()) head << room << "\n";
  const bool replicated = std::any_of(plan.stages.begin(), plan.stages.end(),
                                      [](const Stage& stage) { return stage.ranks.size() > 1; });
  if (plan.predicted && replicated)
    head << "Times are a rank's, for one of its own minibatches; evaluate and pages have a stage's, for each "
            "minibatch of the run.\n";
  std::cout << wrapped(head.str(), width) << "\n" << plan_table(plan).text(width);
  check_plan_runs(plan);
  return simulate(schedule_of(plan), shape_of(plan), slot_times(plan), span);
}

/// --report: with the price that --profile makes.
void write_plan_page(const po::variables_map& values, Plan plan) {
  const auto file = values["report"].as<std::string>();
  check_page_name("--report", file);
  if (values.count("profile") == 0)
    throw InputError("--report: what a plan takes is priced by its profile", "give --profile FILE, too");
  const Inputs inputs = inputs_for(values, plan, plan.world_size);
  plan.predicted = is_for_inference(plan)
                       ? plan.predicted
                       : evaluate_plan(plan, inputs.profile, inputs.topology, inputs.request);
  write_page(file, plan_page(plan, inputs,
                             shape_and_recompute_text(plan) + ": " +
                                 format_seconds(plan.predicted->minibatch_seconds) +
                                 " per minibatch, bound by " + plan.predicted->bottleneck + "\n" +
                                 room_text(plan, *plan.predicted, inputs.topology),
                             values["plan"].as<std::string>()));
}

}  // namespace

void run_show(const Arguments& arguments) {
  po::options_description options("Options");
  add_plan_options(&options);
  add_changes_option(&options);
  options.add_options()                                                           //
      ("minibatches", po::value<int64_t>()->default_value(8), "in the timeline")  //
      ("output", po::value<std::string>(),
       "file.svg: the timeline; with --profile in its times, else in equal slots")(
          "report", po::value<std::string>(), "file.html: a page; needs --profile; without: none");
  const po::variables_map values = parse_options(
      arguments, options,
      {"pipewright-optimizer show --plan FILE [--changes FILE] "
       "[--profile FILE] [--output FILE.svg]",
       "pipewright-optimizer show --plan plans/gpus=2.json --profile profile.json --report plan.html",
       {"plan", "profile", "bandwidths", "output", "report"}});
  // Names that the profile gives to what the stages hold now.
  std::optional<Profile> profile;
  if (values.count("profile") != 0) profile = read_profile(values["profile"].as<std::string>());
  const auto named = [&](Plan plan) {
    if (profile) return with_layers(std::move(plan), *profile);
    if (!plan.predicted)  // nothing says that they are still those of the nodes
      for (Stage& stage : plan.stages) stage.layers.clear();
    return plan;
  };
  const auto file = values["plan"].as<std::string>();
  const Plan given = read_plan(values), plan = named(given);
  if (const std::string text = outdated_text(file); !text.empty())
    std::cerr << "note: " << text << "\n";
  else if (names_layers(given) && !names_layers(plan))
    std::cerr
        << "note: " << file
        << " has no prediction by which its layers would be known to be those of its nodes, so nodes are "
           "shown; --profile FILE names their layers.\n";
  const Span span = {0, in_range(values, "minibatches", 1, 4096)};
  const int64_t width = output_width(values);
  if (values.count("changes") != 0) {
    refuse_with_changes(values, {"output", "report"});
    const PlanSequence sequence = read_sequence(values, plan);
    for (size_t i = 0; i < sequence.plans.size(); ++i) {
      std::cout << (i == 0 ? "" : "\n") << "From minibatch " << sequence.firsts[i] << " on ("
                << sequence.names[i] << ")\n";
      const Simulation slots = show_plan(values, named(sequence.plans[i]), span, width);
      std::cout << "\n" << clipped(draw_text(slots, 1), width);
    }
    return;
  }
  if (values.count("report") != 0) write_plan_page(values, plan);
  const Simulation slots = show_plan(values, plan, span, width);
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
    write_text(
        output,
        draw_svg(simulate(schedule_of(plan), shape_of(plan), cost.times, span, cost.shared), title).file());
  }
}

}  // namespace pipewright
