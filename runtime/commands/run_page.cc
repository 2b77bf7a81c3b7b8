#include "runtime/commands/run_page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/plan_as_run.h"
#include "graph/regular_file.h"
#include "graph/run.h"
#include "graph/units.h"
#include "graph/update_rules.h"
#include "graph/verified.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/faster_links.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/stage_layers.h"
#include "pages/bandwidths.h"
#include "pages/charts.h"
#include "pages/model_graph.h"
#include "pages/page.h"
#include "pages/stages.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/journal/loss_text.h"
#include "runtime/journal/slowness.h"
#include "runtime/journal/throughput.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/time_use.h"
#include "runtime/verify/verify.h"

namespace pipewright {
namespace {

std::string percent(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * part);
  return text;
}

/// A stage's color bar and its ranks.
Svg stages_of(const Plan& plan) {
  std::vector<std::string> notes;
  for (const Stage& stage : plan.stages) {
    std::string ranks;
    for (const int64_t rank : stage.ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    notes.push_back((stage.ranks.size() == 1 ? "rank " : "ranks ") + ranks);
  }
  return stages_drawing(plan, notes);
}

std::string what_it_did(const FinishedRun& run) {
  const Summary& summary = run.summary;
  std::string text = run.plan.strategy + " " + run.plan.shape_text() + " on " +
                     std::to_string(summary.world_size) + (summary.world_size == 1 ? " rank" : " ranks") +
                     " trained " + trained_text(summary);
  if (const double speed = samples_over_wall_time(summary); speed > 0)
    text += " in " + format_seconds(summary.wall_seconds) + ", " + std::to_string(std::llround(speed)) +
            " samples/s with evaluations and checkpoints";
  if (summary.minibatch_seconds > 0)
    text += "; steady, one took " + format_seconds(summary.minibatch_seconds);
  if (summary.predicted_minibatch_seconds > 0)
    text += ", predicted " + format_seconds(summary.predicted_minibatch_seconds);
  text += ".";
  if (run.plan.predicted && !plan_as_run(run.plan, run.settings).predicted)
    text +=
        " What its plan predicts is of other runs: of an update after each of its rounds, by replicas that "
        "are held equal.";
  if (const std::string true_text = how_true_text(run.summary, run.plan); !true_text.empty())
    text += " It was " + true_text + ".";
  if (run.crowded())
    text += " More ranks than the host's " + std::to_string(summary.cores) +
            " cores: these times say nothing about the plan.";
  if (summary.emulated)
    text += " One process trained what these ranks would: its times say nothing about the plan.";
  if (const std::string end = end_text(run); !end.empty()) text += " " + end + ".";
  return text;
}

void add_losses(Page* page, const std::vector<FinishedRun>& runs, const std::vector<RunCurves>& all) {
  LineChart chart{"Loss by minibatch", "minibatch", "loss", {}};
  LineChart hits{"Evaluations", "minibatches trained", "top-1", {}};
  hits.y = Quantity::kPart;
  TextTable table({{"run", TableColumn::Side::kLeft}, {"minibatches"}, {"loss"}, {"top-1"}});
  for (size_t i = 0; i < runs.size(); ++i) {
    const FinishedRun& run = runs[i];
    const RunCurves& curves = all[i];
    Curve losses{runs.size() > 1 ? run.name : "training", {}}, evaluated{run.name + ", evaluation", {}},
        top1{run.name, {}};
    if (runs.size() == 1) evaluated.name = "evaluation";
    for (const auto& [minibatch, loss] : curves.losses)
      losses.points.emplace_back(static_cast<double>(minibatch), loss);
    for (const EvaluationPoint& each : curves.evaluations) {
      evaluated.points.emplace_back(static_cast<double>(each.minibatches), each.loss);
      if (std::isfinite(each.top1))
        top1.points.emplace_back(static_cast<double>(each.minibatches), each.top1);
      table.add({run.name, std::to_string(each.minibatches), loss_text(each.loss),
                 std::isfinite(each.top1) ? percent(each.top1) : "-"});
    }
    chart.curves.push_back(std::move(losses));
    if (!evaluated.points.empty()) chart.curves.push_back(std::move(evaluated));
    if (!top1.points.empty()) hits.curves.push_back(std::move(top1));
    if (runs.size() > 1) continue;
    for (const GenerationSummary& each : run.summary.generations)
      if (each.is_change())
        chart.marks.emplace_back(static_cast<double>(each.first_minibatch), "plan changed");
    for (const RecoverySummary& each : run.summary.recoveries)
      chart.marks.emplace_back(static_cast<double>(each.next_minibatch), "rank lost");
  }
  const auto is_empty = [](const Curve& curve) { return curve.points.empty(); };
  if (std::all_of(chart.curves.begin(), chart.curves.end(), is_empty)) return;  // nothing was trained
  page->heading("Loss");
  chart.y_logarithmic = spans_decades(chart.curves);
  page->figure(line_chart(chart), std::string("Loss of each minibatch") +
                                      (chart.y_logarithmic ? ", on a logarithmic axis" : ""));
  const bool is_line = std::any_of(hits.curves.begin(), hits.curves.end(),
                                   [](const Curve& curve) { return curve.points.size() > 1; });
  if (is_line)  // else the table says it all
    page->figure(line_chart(hits), "Hits of the evaluations");
  if (!table.rows().empty()) page->table(table, "Evaluations");
}

/// Minibatches in the middle of those of `timeline`, where the pipeline is full; nothing of one without.
std::optional<Span> middle_of(const Simulation& timeline, int64_t count) {
  int64_t first = -1, last = -1;
  for (const SimulatedAction& a : timeline.actions) {
    if (a.action.kind != ActionKind::kForward) continue;
    first = first < 0 ? a.action.index : std::min(first, a.action.index);
    last = std::max(last, a.action.index);
  }
  if (first < 0) return std::nullopt;
  const int64_t traced = last + 1 - first;
  count = std::min(count, traced);
  return Span{first + (traced - count) / 2, count};
}

/// As the run's plan is priced.
PlanRequest request_of(const Run& settings) {
  PlanRequest request;
  request.optimizer_slots = static_cast<int64_t>(slot_names(settings.optimizer).size());
  request.data_workers = settings.data_workers;
  return request;
}

/// The plan's timeline by the simulator under the run's settings, as long as the window; nothing, and why,
/// where it has no price.
std::optional<Simulation> predicted_timeline(Page* page, const Plan& plan, const Run& settings, Span shown,
                                             const PredictedWith& with) {
  // The pipeline is full in the window, as it is in a run by then.
  constexpr int64_t kMostBefore = 64;
  const int64_t before = std::min(shown.first, kMostBefore);
  const PlanRequest request = request_of(settings);
  const PipelineShape shape = shape_of(plan, settings.gradient_accumulation);
  try {
    const Profile profile = frozen_profile(with.profile, plan.frozen_layers, false, "plan: frozen_layers");
    const PlanCost cost = cost_of_plan(plan, profile, with.topology, request);
    return window_of(simulate(plan.schedule, shape, cost.times, {0, 2 * before + shown.count}, cost.shared),
                     {before, shown.count});
  } catch (const PlanError& error) {
    page->paragraph(std::string("What was predicted is not drawn: ") + error.what());
    return std::nullopt;
  }
}

void add_timelines(Page* page, const Plan& plan, const Run& settings, const Simulation& timeline, Span shown,
                   const PredictedWith* predicted) {
  std::vector<NamedTimeline> panels;
  if (predicted) {
    if (const auto simulated = predicted_timeline(page, plan, settings, shown, *predicted))
      panels.push_back({"predicted", *simulated});
  }
  panels.push_back({"measured", window_of(timeline, shown)});
  page->figure(
      draw_svg(panels,
               "Minibatches " + std::to_string(shown.first) + " to " + std::to_string(shown.end() - 1)),
      panels.size() > 1 ? "What each rank does: predicted, and below as it was" : "What each rank did");
}

/// Every second of the trace, by rank; all columns of a row add up to the whole.
void add_time_use(Page* page, const FinishedRun& run, const Simulation& timeline) {
  const std::vector<std::string> parts = {"compute",  "time slice", "all-reduce",     "dependency",
                                          "transfer", "samples",    "fill and drain", "other"};
  std::vector<TableColumn> columns = {{"rank"}};
  for (const std::string& part : parts) columns.push_back({part});
  TextTable table(columns);
  std::vector<Bar> bars;
  for (const TimeUse& use : time_use(timeline)) {
    // A rank of a run that was done may have had no minibatch.
    if (run.summary.status == "failed" && use.fill_drain_seconds >= timeline.total_seconds) {
      page->paragraph("Of rank " + std::to_string(use.rank) +
                      " no action is in the trace: a process that is killed writes none.");
      continue;
    }
    double share = 1;
    for (const RankSummary& rank : run.summary.ranks)
      if (rank.rank == use.rank && rank.times && !run.summary.counts_several_plans())
        share = std::clamp(rank.times->core_share(), 0.0, 1.0);
    const std::vector<double> seconds = {use.compute_seconds * share, use.compute_seconds * (1 - share),
                                         use.reduce_seconds,          use.dependency_seconds,
                                         use.transfer_seconds,        use.samples_seconds,
                                         use.fill_drain_seconds,      use.other_seconds};
    Bar bar{"rank " + std::to_string(use.rank), {}, ""};
    std::vector<std::string> row = {std::to_string(use.rank)};
    for (size_t i = 0; i < seconds.size(); ++i) {
      const double part = timeline.total_seconds > 0 ? std::max(0.0, seconds[i]) / timeline.total_seconds : 0;
      bar.parts.push_back({part, bar.name + ", " + parts[i] + ": " + percent(part) + ", " +
                                     format_seconds(std::max(0.0, seconds[i]))});
      row.push_back(percent(part));
    }
    bars.push_back(std::move(bar));
    table.add(std::move(row));
  }
  page->figure(bar_chart("Where the time of each rank went", parts, bars, Quantity::kPart),
               "Time of each rank, of " + format_seconds(timeline.total_seconds) + " that were traced");
  page->table(table, "Time of each rank, as a part of the traced time");
}

/// The ranks with most, over time, with what was predicted and the limit of the machine left to the reader.
void add_memory(Page* page, const FinishedRun& run, const Json& trace) {
  constexpr size_t kMostCharts = 4;
  std::vector<TracedMemory> all = memory_of_trace(trace);
  if (all.empty()) return;
  const auto peak_of = [&](int64_t number) {
    for (const RankSummary& rank : run.summary.ranks)
      if (rank.rank == number) return rank.peak_memory_bytes;
    return int64_t{0};
  };
  std::stable_sort(all.begin(), all.end(), [&](const TracedMemory& a, const TracedMemory& b) {
    return peak_of(a.rank) > peak_of(b.rank);
  });
  page->heading("Memory");
  const CheckpointSettings& checkpoint = run.settings.checkpoint;
  if (checkpoint.every_minibatches > 0 || checkpoint.every_epochs > 0)
    page->paragraph(
        "While a checkpoint is written a rank holds its optimizer's tensors once more, and versions of its "
        "weights; the prediction is without.");
  if (all.size() > kMostCharts) {
    page->paragraph("Of the " + std::to_string(kMostCharts) + " ranks with most.");
    all.resize(kMostCharts);
  }
  for (const TracedMemory& memory : all) {
    StackedChart chart{"Memory of rank " + std::to_string(memory.rank),
                       "time since the trace began",
                       memory.purposes,
                       memory.seconds,
                       {}};
    for (const auto& bytes : memory.bytes) chart.values.emplace_back(bytes.begin(), bytes.end());
    for (auto& values : chart.values)
      for (double& value : values) value = std::max(value, 0.0);
    for (const RankSummary& rank : run.summary.ranks) {
      if (rank.rank != memory.rank || rank.predicted_memory_bytes == 0) continue;
      const auto predicted = static_cast<double>(rank.predicted_memory_bytes);
      chart.limits.emplace_back(predicted, "predicted: " + format_bytes(predicted));
    }
    chart.x = Quantity::kSeconds;
    chart.y = Quantity::kBytes;
    page->figure(stacked_chart(chart), "Tensors of rank " + std::to_string(memory.rank) +
                                           " by purpose, after each action; within one it may be more");
  }
}

void add_verified(Page* page, const FinishedRun& run) {
  page->heading("Verified");
  const std::optional<Verified> verified = read_verified(run.folder);
  if (verified && !verified->difference.empty()) {
    page->paragraph("Not equal to one process that trains the plan: " + verified->difference +
                    ". Minibatches " + std::to_string(verified->first_minibatch) + " to " +
                    std::to_string(verified->first_minibatch + verified->minibatches - 1) + ", by " +
                    verified->program + ":");
    page->command(verified->command);
  } else if (verified) {
    page->paragraph("Equal to the bit to one process that trains the plan: minibatches " +
                    std::to_string(verified->first_minibatch) + " to " +
                    std::to_string(verified->first_minibatch + verified->minibatches - 1) + ", " +
                    std::to_string(verified->tensors) + " tensors and all losses, by " + verified->program +
                    ":");
    page->command(verified->command);
  } else {
    const std::string missing =
        list_checkpoints(run.folder).empty() ? "it has left no checkpoint to compare with"
        : !verified_from(run.folder, run.settings.resume)
            ? "it went on from a checkpoint, and none that is there has nothing in flight"
            : "";
    page->paragraph(missing.empty()
                        ? "Not yet. This trains the plan again in one process, and compares every bit:"
                        : "Not yet, and this run cannot be: " + missing +
                              ". One that is trained with --checkpoint-every-epochs 1 is verified by:");
    page->command("pipewright-runtime verify --run " + run.folder.string());
  }
  TextTable table({{"rank"}, {"stage"}, {"digest of the last weights", TableColumn::Side::kLeft}});
  for (const RankSummary& rank : run.summary.ranks)
    if (!rank.weights_digest.empty())
      table.add({std::to_string(rank.rank), std::to_string(rank.stage), rank.weights_digest});
  if (!table.rows().empty()) page->table(table, "Replicas of a stage have equal weights");
}

void add_tables(Page* page, const std::vector<FinishedRun>& runs, const std::vector<RunCurves>& curves) {
  for (const ReportPart& part : report_parts(runs, curves))
    part.table ? page->table(*part.table, part.text.empty() ? "Runs" : part.text)
               : page->paragraph(part.text);
}

void add_files(Page* page, const FinishedRun& run, const std::filesystem::path& file) {
  page->heading("More");
  const auto link = [&](const std::string& name, const std::string& what) {
    return std::pair{name + " in " + run.folder.string() + ": " + what,
                     file_exists(run.folder / name) ? relative_address(file, run.folder, name) : ""};
  };
  page->links({link("trace.json", "each action of each rank"),
               {"ui.perfetto.dev opens it", "https://ui.perfetto.dev"},
               link("metrics.jsonl", "every number, a line a minibatch")});
  page->paragraph("The numbers as a table, and for TensorBoard:");
  page->command("pipewright-runtime report " + run.folder.string() +
                " --csv metrics.csv --tensorboard events");
}

/// What one plan of a run trained.
struct Stretch {
  std::string plan_file;
  Plan plan;
  std::optional<Span> minibatches;  ///< absent: all
};

/// In order; of a run whose plan changed often the last ones.
std::vector<Stretch> stretches_of(const FinishedRun& run) {
  constexpr size_t kMost = 6;
  std::vector<Stretch> stretches;
  for (const GenerationSummary& each : run.summary.generations)
    if (each.minibatches > 0)
      stretches.push_back({each.plan, read_document<Plan>(run.folder / each.plan),
                           Span{each.first_minibatch, each.minibatches}});
  if (stretches.empty()) stretches.push_back({"plan.json", run.plan, std::nullopt});
  if (stretches.size() > kMost) stretches.erase(stretches.begin(), stretches.end() - kMost);
  return stretches;
}

/// The whole model on each of the run's ranks.
Plan data_parallelism(const Plan& as, const Profile& profile) {
  Plan plan;
  plan.model = as.model;
  plan.strategy = "dp";
  plan.world_size = as.world_size;
  plan.frozen_layers = as.frozen_layers;
  plan.stages.resize(1);
  for (const ProfiledNode& node : profile.nodes) plan.stages[0].nodes.push_back(node.name);
  for (int64_t rank = 0; rank < as.world_size; ++rank) plan.stages[0].ranks.push_back(rank);
  return plan;
}

/// Which of two plans is faster with links of `now`, and at which that is otherwise: a sentence. `ways`: the
/// run's plan and data parallelism, with seconds at `now`.
std::string advice(const std::vector<Curve>& ways, double now, int64_t ranks) {
  constexpr double kWorthwhile = 0.99;
  const auto &own = ways[0].points, &other = ways[1].points;
  const auto said = [&](size_t i) -> std::string {
    if (own[i].second < kWorthwhile * other[i].second) return "this plan is faster";
    if (other[i].second < kWorthwhile * own[i].second) return "data parallelism is faster";
    return "neither is more than 1 % faster";
  };
  const auto of_links = [&](size_t i) { return "links of " + format_bytes_per_second(own[i].first); };
  size_t at = 0;
  while (own[at].first < now) ++at;
  const auto turned = [&](size_t i) { return said(i) != said(at); };
  size_t below = at, above = at;  // the nearest to each side
  while (below > 0 && !turned(below)) --below;
  while (above + 1 < own.size() && !turned(above)) ++above;
  std::string text = "By the profile, with " + of_links(at) + ", this plan takes " +
                     format_seconds(own[at].second) + " a minibatch and data parallelism on the same " +
                     std::to_string(ranks) + " ranks " + format_seconds(other[at].second) + ": " + said(at);
  if (turned(below)) text += "; with " + of_links(below) + " " + said(below);
  if (turned(above)) text += "; with " + of_links(above) + " " + said(above);
  if (!turned(below) && !turned(above))
    text += ", and so from " + of_links(0) + " to " + of_links(own.size() - 1);
  return text + ".";
}

/// Whether data parallelism on the run's ranks would be faster, and what the links have to do with it.
struct OtherLinks {
  std::string advice;       ///< a sentence; "": nothing is to be said
  std::vector<Curve> ways;  ///< for add_bandwidths(); none where there is nothing to draw
};

/// Nothing of runs for which prices are not made: pipelines side by side, several minibatches an update.
OtherLinks other_links(const FinishedRun& run, const PredictedWith& with) {
  const Plan& plan = run.plan;
  const Run& settings = run.settings;
  if (plan.stages.size() < 2 || run.summary.sync || settings.gradient_accumulation > 1) return {};
  const Topology& links = with.topology;
  const PlanRequest request = request_of(settings);
  try {
    const Profile profile = frozen_profile(with.profile, plan.frozen_layers, false, "plan: frozen_layers");
    const Plan other = data_parallelism(plan, profile);
    const Prediction price = evaluate_plan(other, profile, links, request);
    try {
      check_plan_memory(other, price, price, links, profile.minibatch_samples);
    } catch (const InfeasibleError& error) {
      const double seconds = evaluate_plan(plan, profile, links, request).minibatch_seconds;
      return {"By the profile a minibatch takes " + format_seconds(seconds) +
                  "; data parallelism on the same ranks has no room: " + error.what(),
              {}};
    }
    const std::vector<Curve> ways = {
        {"this plan", seconds_by_bandwidth(plan, profile, links, request)},
        {"data parallelism", seconds_by_bandwidth(other, profile, links, request)}};
    for (const Curve& way : ways)
      for (const auto& [bandwidth, seconds] : way.points)
        if (!std::isfinite(seconds)) return {};
    return {advice(ways, links.levels.back().bandwidth_bytes_per_second, plan.world_size), ways};
  } catch (const PlanError&) {  // without a price, as is said where the prediction would be drawn
    return {};
  }
}

/// For each plan of the run its timeline, and where the time went.
void add_traced(Page* page, const FinishedRun& run, const Json& trace,
                const std::optional<PredictedWith>& given) {
  const Run& settings = run.settings;
  // The simulator knows replicas that are held equal only.
  const PredictedWith* predicted = given && !run.summary.sync ? &*given : nullptr;
  page->heading("What each rank did");
  if (settings.trace_minibatches == 0)
    return page->paragraph("Not known: the run was started with --trace-minibatches 0.");
  page->paragraph(
      "Below each timeline, where each rank's time went. Time slice: others had the core while the rank "
      "computed (over the whole run). Dependency: the message that the rank waited for was still being "
      "computed. Transfer: it was on its way, or being handed over. Other: evaluations, checkpoints, the "
      "runtime between two actions.");
  for (const Stretch& stretch : stretches_of(run)) {
    const Simulation timeline =
        timeline_of_trace(trace, shape_of(stretch.plan, settings.gradient_accumulation), stretch.minibatches);
    constexpr int64_t kShown = 12;
    const std::optional<Span> shown = middle_of(timeline, kShown);
    if (!shown) continue;
    if (stretch.minibatches)
      page->paragraph("Under " + stretch.plan_file + ", minibatches " +
                      std::to_string(stretch.minibatches->first) + " to " +
                      std::to_string(stretch.minibatches->end() - 1) + ":");
    add_timelines(page, stretch.plan, settings, timeline, *shown, predicted);
    add_time_use(page, run, timeline);
  }
  if (predicted || run.summary.sync) return;
  page->paragraph("With the profile that the plan was made with, the prediction stands above it:");
  page->command("pipewright-runtime report " + run.folder.string() +
                " --profile profile.json --output run.html");
}

void add_one_run(Page* page, const FinishedRun& run, const std::optional<PredictedWith>& predicted,
                 const std::filesystem::path& file) {
  page->lead(what_it_did(run));
  if (const std::string words = no_prediction_text(run); !words.empty()) {
    page->paragraph(words + ". This prices the plan as it was run:");
    page->command("pipewright-optimizer evaluate --plan " + (run.folder / "plan.json").string() +
                  " --profile profile.json --output priced.json");
  }
  const Plan& plan = run.plan;
  const Run& settings = run.settings;
  const OtherLinks links = predicted ? other_links(run, *predicted) : OtherLinks();
  if (!links.advice.empty()) page->lead(links.advice);
  const auto trace_file = run.folder / "trace.json";
  if (file_exists(trace_file)) {
    const Json trace = parse_json(read_file(trace_file), trace_file.string());
    if (!run.summary.emulated) add_traced(page, run, trace, predicted);
    add_memory(page, run, trace);
  }
  const std::vector<RunCurves> curves = curves_of({run});
  add_losses(page, {run}, curves);
  page->heading("Stages");
  if (predicted)
    page->figure(model_graph(plan, predicted->profile),
                 "The model coloured by stage, and what a minibatch sends across each cut");
  page->figure(stages_of(predicted ? with_layers(plan, predicted->profile) : plan),
               "The model in its stages");
  if (!run.summary.sync) {  // else a replica's versions are its own
    const PipelineShape shape = shape_of(plan, settings.gradient_accumulation);
    const int64_t rounds = std::max<int64_t>(24, 4 * plan.microbatches * settings.gradient_accumulation);
    page->figure(
        draw_versions(plan.schedule, shape,
                      {0, std::clamp<int64_t>(run.summary.minibatches, 1, std::min<int64_t>(rounds, 64))}),
        "Which version of its weights each minibatch reads, counted in updates");
  }
  if (!links.ways.empty()) {
    page->heading("With other links");
    add_bandwidths(page, links.ways, predicted->topology.levels.back().bandwidth_bytes_per_second);
  }
  add_verified(page, run);
  page->heading("In numbers");
  add_tables(page, {run}, curves);
  add_files(page, run, file);
}

}  // namespace

std::string run_page(const std::vector<FinishedRun>& runs, const std::optional<PredictedWith>& predicted,
                     const std::filesystem::path& file) {
  if (runs.size() == 1) {
    const Plan& plan = runs.front().plan;
    if (predicted && !plan.graph_digest.empty() && !predicted->profile.graph_digest.empty() &&
        plan.graph_digest != predicted->profile.graph_digest) {
      throw InputError("--profile: is of graph " + predicted->profile.graph_digest + ", the run's plan of " +
                           plan.graph_digest,
                       "Give the profile that the plan was made with.");
    }
    Page page("Run " + runs.front().name + ": " + plan.model);
    add_one_run(&page, runs.front(), predicted, file);
    return page.html();
  }
  Page page(std::to_string(runs.size()) + " runs side by side");
  const auto fastest =
      std::max_element(runs.begin(), runs.end(), [](const FinishedRun& a, const FinishedRun& b) {
        const auto rank = [](const FinishedRun& run) {
          return std::pair(run.summary.status == "done", samples_over_wall_time(run.summary));
        };
        return rank(a) < rank(b);
      });
  const double most = samples_over_wall_time(fastest->summary);
  if (most > 0)
    page.lead(fastest->name + " (" + fastest->plan.strategy + " " + fastest->plan.shape_text() +
              ") is the fastest with " + std::to_string(std::llround(most)) + " samples/s.");
  std::vector<Bar> bars;
  for (const FinishedRun& run : runs) {
    const double speed = samples_over_wall_time(run.summary), steady = run.summary.samples_per_second;
    std::string note = speed > 0 ? std::to_string(std::llround(speed)) : "not known";
    if (steady > 0) note += " (steady " + std::to_string(std::llround(steady)) + ")";
    bars.push_back({run.name, {{speed, run.name}}, note});
  }
  if (most > 0)
    page.figure(bar_chart("Throughput", {"samples/s"}, bars, {}),
                "Throughput: samples over the wall time of the run, with evaluations and checkpoints; in "
                "brackets that of its steady state");
  const std::vector<RunCurves> curves = curves_of(runs);
  add_losses(&page, runs, curves);
  page.heading("In numbers");
  add_tables(&page, runs, curves);
  for (const FinishedRun& run : runs) {
    page.heading(run.name);
    page.figure(stages_of(run.plan), "The model in its stages");
  }
  return page.html();
}

void check_page_place(const std::filesystem::path& file, const std::filesystem::path& run_folder) {
  check_page_name("--report", file);
  const std::filesystem::path folder = std::filesystem::absolute(file).lexically_normal().parent_path();
  const bool own = folder == std::filesystem::absolute(run_folder / "").lexically_normal().parent_path();
  std::error_code ignored;
  if (!own && !std::filesystem::is_directory(folder, ignored))
    throw InputError("--report: got " + file.string() + "; the folder does not exist",
                     "mkdir -p " + folder.string());
}

}  // namespace pipewright
