#include "runtime/commands/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_as_run.h"
#include "graph/regular_file.h"
#include "graph/units.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/flight.h"
#include "runtime/journal/loss_text.h"
#include "runtime/journal/plan_verdicts.h"
#include "runtime/journal/predicted_times.h"
#include "runtime/journal/slowness.h"
#include "runtime/journal/throughput.h"

namespace pipewright {
namespace {

using Row = std::vector<std::string>;

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// Of what cannot be 0: 0 is not known, as of a run that failed before it was measured.
std::string known_bytes(int64_t bytes) { return bytes > 0 ? bytes_text(bytes) : "-"; }
std::string known_seconds(double seconds) { return seconds > 0 ? format_seconds(seconds) : "-"; }

/// Names stand left, numbers right.
TextTable table_of(const std::vector<std::string>& names, const std::vector<std::string>& numbers) {
  std::vector<TableColumn> columns;
  for (const std::string& name : names) columns.push_back({name, TableColumn::Side::kLeft});
  for (const std::string& name : numbers) columns.push_back({name});
  return TextTable(columns);
}

Row main_row(const FinishedRun& run, double first_samples_per_second) {
  const Summary& summary = run.summary;
  int64_t memory_bytes = 0, predicted_memory_bytes = 0, sent_bytes = 0;
  for (const RankSummary& rank : summary.ranks) {
    memory_bytes = std::max(memory_bytes, rank.peak_memory_bytes);
    predicted_memory_bytes = std::max(predicted_memory_bytes, rank.predicted_memory_bytes);
    sent_bytes += rank.sent_bytes;
  }
  const auto timed = [&](const std::string& value) {
    return run.crowded() && value != "-" ? "(" + value + ")" : value;
  };
  const double speed = samples_over_wall_time(summary);
  const EvaluationSummary evaluation = summary.evaluation.value_or(EvaluationSummary{0, std::nan(""), 0});
  const auto hits = [](double part) {
    return std::isfinite(part) ? text("%.2f %%", 100 * part) : std::string("-");
  };
  return {
      run.name + (summary.status == "done" ? "" : " (" + summary.status + ")"),
      run.plan.strategy + " " + run.plan.shape_text(), timed(speed > 0 ? text("%.0f", speed) : "-"),
      timed(speed > 0 && first_samples_per_second > 0 ? text("%.2f", speed / first_samples_per_second) : "-"),
      timed(known_seconds(summary.minibatch_seconds)), known_seconds(summary.predicted_minibatch_seconds),
      summary.minibatches > 0 ? loss_text(summary.train_loss) : "-",
      summary.evaluation ? loss_text(summary.evaluation->loss) : "-", hits(evaluation.top1),
      hits(evaluation.top5), known_bytes(memory_bytes), known_bytes(predicted_memory_bytes),
      // What ranks count begins anew where they do, and those of a run that failed have not said it.
      summary.status != "failed" && summary.own_minibatches() > 0 && !summary.ranks.empty() &&
              summary.recoveries.empty()
          ? format_bytes(static_cast<double>(sent_bytes) / static_cast<double>(summary.own_minibatches()))
          : "-"};
}

ReportPart main_part(const std::vector<FinishedRun>& runs) {
  TextTable table = table_of({"run", "plan"}, {"samples/s", "speed-up", "steady minibatch", "predicted",
                                               "training loss", "evaluation loss", "top-1", "top-5",
                                               "peak memory of a rank", "predicted", "sent a minibatch"});
  double first_samples_per_second = 0;
  for (const FinishedRun& run : runs) {
    if (first_samples_per_second == 0) first_samples_per_second = samples_over_wall_time(run.summary);
    table.add(main_row(run, first_samples_per_second));
  }
  return {"", table};
}

std::string note_of_crowded_runs(const std::vector<FinishedRun>& runs) {
  bool crowded = false;
  int64_t cores = 0;
  for (const FinishedRun& run : runs) {
    crowded = crowded || run.crowded();
    cores = std::max(cores, run.summary.cores);
  }
  if (!crowded) return "";
  return "In brackets: more ranks than the host's " + std::to_string(cores) +
         " cores; such times say nothing about a plan.";
}

/// Those that the plan in force at the end puts on the rank, "0 3"; "-" if none.
std::string stages_text(const Plan& plan, int64_t rank) {
  std::string text;
  for (const int64_t stage : stages_of_rank(plan, rank))
    text += (text.empty() ? "" : " ") + std::to_string(stage);
  return text.empty() ? "-" : text;
}

/// Of each rank whose plan says what to expect.
void add_times(const FinishedRun& run, TextTable* table) {
  for (const RankTimes& rank : rank_times(run.summary, run.plan)) {
    Row row = {run.name, std::to_string(rank.rank), stages_text(run.plan, rank.rank)};
    for (double RankTime::*const part :
         {&RankTime::compute_seconds, &RankTime::other_seconds, &RankTime::period_seconds})
      row.push_back(format_seconds(rank.measured.*part) + " (" + format_seconds(rank.predicted.*part) + ")");
    table->add(std::move(row));
  }
}

/// Of a run whose plan changed.
void add_generations(const FinishedRun& run, TextTable* table) {
  for (const GenerationSummary& generation : run.summary.generations) {
    Row row = {run.name, std::to_string(generation.first_minibatch), generation.plan, generation.reason,
               std::to_string(generation.ranks)};
    for (const double seconds : {generation.minibatch_seconds, generation.predicted_minibatch_seconds})
      row.push_back(known_seconds(seconds));
    for (const double seconds : {generation.drain_seconds, generation.move_seconds, generation.start_seconds})
      row.push_back(format_seconds(seconds));
    row.push_back(bytes_text(generation.moved_bytes));
    table->add(std::move(row));
  }
}

/// Of a run that went on after losses of ranks.
void add_recoveries(const FinishedRun& run, TextTable* table) {
  for (const RecoverySummary& each : run.summary.recoveries)
    table->add({run.name, std::to_string(each.next_minibatch), each.from, each.reason,
                std::to_string(each.ranks), std::to_string(each.again_minibatches),
                format_seconds(each.seconds)});
}

/// Of a run of pipelines side by side.
void add_sync(const FinishedRun& run, TextTable* table) {
  if (!run.summary.sync) return;
  const SyncSummary& sync = *run.summary.sync;
  std::string sizes, minibatches;
  double spread = 0;
  for (const RankSummary& rank : run.summary.ranks) spread = std::max(spread, rank.largest_spread);
  for (const int64_t count : sync.group_sizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(count);
  for (const RankSummary& rank : run.summary.ranks)
    if (rank.stage == 0 && rank.times)
      minibatches += (minibatches.empty() ? "" : ", ") + std::to_string(rank.times->minibatches);
  table->add({run.name, sync.rule, std::to_string(sync.pipelines), minibatches, sizes.empty() ? "-" : sizes,
              sizes.empty() ? "-" : text("%.1f", sync.longest_window_updates), text("%.2g", spread)});
}

/// A row for each epoch of a run whose layers freeze: what it took, and what the time of a rank went into.
void add_epochs(const FinishedRun& run, TextTable* table) {
  const std::vector<EpochSummary>& epochs = run.summary.epochs;
  if (std::none_of(epochs.begin(), epochs.end(),
                   [](const EpochSummary& epoch) { return epoch.frozen_layers > 0; }))
    return;
  for (const EpochSummary& epoch : epochs) {
    const EpochTimes& times = epoch.times;
    const auto found = static_cast<double>(epoch.fetched + epoch.deepened);
    const double asked = found + static_cast<double>(epoch.computed);
    Row row = {run.name,
               std::to_string(epoch.epoch + 1),
               std::to_string(epoch.frozen_layers),
               epoch.plan,
               std::to_string(epoch.ranks),
               std::to_string(epoch.update_samples),
               text("%.3g", epoch.learning_rate),
               text("%.0f", epoch.samples_per_second),
               format_seconds(epoch.seconds)};
    for (const double seconds :
         {times.load_seconds, times.cache_seconds, times.forward_seconds, times.backward_seconds,
          times.update_seconds, times.reduce_seconds, times.receive_seconds, times.change_seconds})
      row.push_back(format_seconds(seconds));
    row.push_back(asked > 0 ? text("%.0f %%", 100 * found / asked) : "-");
    row.push_back(bytes_text(epoch.cache_bytes));
    table->add(std::move(row));
  }
}

/// A row for each rank that kept what frozen layers make.
void add_caches(const FinishedRun& run, TextTable* table) {
  for (const RankSummary& rank : run.summary.ranks) {
    if (!rank.cache) continue;
    const CacheSummary& cache = *rank.cache;
    const auto found = static_cast<double>(cache.fetched + cache.deepened);
    const double samples = found + static_cast<double>(cache.computed);
    table->add({run.name, std::to_string(rank.rank),
                samples > 0 ? text("%.1f %%", 100 * found / samples) : "-", std::to_string(cache.fetched),
                std::to_string(cache.deepened), std::to_string(cache.computed),
                format_seconds(cache.fetch_seconds), format_seconds(cache.compute_seconds),
                bytes_text(cache.memory_bytes), bytes_text(cache.disk_bytes), std::to_string(cache.evicted),
                std::to_string(cache.damaged), cache.refused.empty() ? "-" : cache.refused});
  }
}

/// A row for each rank: measured, and what the plan said in brackets.
void add_memory(const FinishedRun& run, TextTable* table) {
  for (const RankSummary& rank : run.summary.ranks) {
    if (rank.peak_memory_bytes == 0) continue;  // it ended before anything was counted
    const StageMemory* const predicted = rank.predicted_memory ? &*rank.predicted_memory : nullptr;
    Row row = {run.name, std::to_string(rank.rank), stages_text(run.plan, rank.rank)};
    const auto cell = [&](int64_t bytes, std::optional<int64_t> said) {
      row.push_back(bytes_text(bytes) + (said ? " (" + bytes_text(*said) + ")" : ""));
    };
    const auto part = [&](int64_t bytes, int64_t StageMemory::*of) {
      cell(bytes, predicted ? std::optional(predicted->*of) : std::nullopt);
    };
    part(rank.memory.weights_bytes, &StageMemory::weights_bytes);
    part(rank.memory.versions_bytes, &StageMemory::versions_bytes);
    part(rank.memory.gradients_bytes, &StageMemory::gradients_bytes);
    part(rank.memory.optimizer_bytes, &StageMemory::optimizer_bytes);
    part(rank.memory.activations_bytes, &StageMemory::activations_bytes);
    part(rank.memory.messages_bytes, &StageMemory::messages_bytes);
    cell(rank.memory.other_bytes, std::nullopt);
    cell(rank.peak_memory_bytes, predicted ? std::optional(predicted->total_bytes()) : std::nullopt);
    for (const int64_t bytes : {rank.cached_bytes, rank.peak_resident_bytes})
      row.push_back(known_bytes(bytes));
    table->add(std::move(row));
  }
}

/// How far the losses of the other runs are from the first one's.
void add_losses(const std::vector<FinishedRun>& runs, const std::vector<RunCurves>& curves,
                TextTable* table) {
  for (size_t i = 1; i < runs.size(); ++i) {
    const LossDifference difference = compare_losses(curves[i].losses, curves[0].losses);
    if (difference.minibatches == 0) continue;  // nothing that both have
    table->add({runs[i].name, std::to_string(difference.minibatches),
                difference.first_different < 0 ? "none" : std::to_string(difference.first_different),
                text("%.2g", difference.largest_first_100), text("%.2g", difference.largest)});
  }
}

}  // namespace

FinishedRun finished_run(const std::filesystem::path& folder) {
  const auto summary_file = folder / "summary.json";
  if (!file_exists(summary_file)) {
    throw InputError(folder.string() + ": no summary.json: not the folder of a finished run",
                     "give the --output of a pipewright-runtime train or launch");
  }
  auto summary = read_document<Summary>(summary_file);
  Plan plan = last_plan_of(folder, summary);
  return {run_names({folder})[0], folder, std::move(summary), std::move(plan),
          read_document<Run>(folder / "run.json")};
}

std::string end_text(const FinishedRun& run) {
  if (run.summary.status == "interrupted") return "The run was interrupted: a signal has ended it";
  if (run.summary.status != "failed") return "";
  const std::string error = error_of_flights(run.folder);
  return "The run failed: " + (error.empty() ? "see " + (run.folder / "rank-*.log").string() : error);
}

std::string trained_text(const Summary& summary) {
  const int64_t own = summary.own_minibatches();
  std::string text = std::to_string(own) + (own == 1 ? " minibatch" : " minibatches");
  if (summary.first_minibatch > 0)
    text += ", from minibatch " + std::to_string(summary.first_minibatch) + " on,";
  return text;
}

std::string no_prediction_text(const FinishedRun& run) {
  const auto file = run.folder / "plan.json";
  if (run.plan.predicted || !run.summary.generations.empty() || outdated_text(file).empty()) return "";
  return "No prediction: the plan was changed after its own was made, so its predicted.plan_digest is of "
         "another plan";
}

std::vector<std::string> run_names(const std::vector<std::filesystem::path>& folders) {
  const auto whole = [](const std::filesystem::path& folder) {
    return std::filesystem::absolute(folder / "").lexically_normal().parent_path();
  };
  std::map<std::string, int> times;
  for (const auto& folder : folders) ++times[whole(folder).filename().string()];
  std::vector<std::string> names;
  for (const auto& folder : folders) {
    const std::string last = whole(folder).filename().string();
    names.push_back(times[last] == 1 ? last : whole(folder).relative_path().string());
  }
  if (std::set<std::string>(names.begin(), names.end()).size() < names.size())
    throw InputError("report: a run folder is given twice");
  return names;
}

std::vector<RunCurves> curves_of(const std::vector<FinishedRun>& runs) {
  std::vector<RunCurves> curves;
  for (const FinishedRun& run : runs) curves.push_back(read_curves(run.folder / "metrics.jsonl"));
  return curves;
}

std::vector<ReportPart> report_parts(const std::vector<FinishedRun>& runs,
                                     const std::vector<RunCurves>& curves) {
  std::vector<ReportPart> parts = {main_part(runs)};
  const auto sentence = [&](const std::string& words) {
    if (!words.empty()) parts.push_back({words});
  };
  // A table is there if a run has rows for it.
  const auto table = [&](const std::string& heading, TextTable columns,
                         void (*add)(const FinishedRun&, TextTable*)) {
    for (const FinishedRun& run : runs) add(run, &columns);
    if (!columns.rows().empty()) parts.push_back({heading, std::move(columns)});
  };
  sentence(note_of_crowded_runs(runs));
  for (const FinishedRun& run : runs) {
    if (const std::string words = end_text(run); !words.empty()) sentence(run.name + ": " + words + ".");
    if (const std::string words = no_prediction_text(run); !words.empty())
      sentence(run.name + ": " + words + ".");
    if (const std::string words = how_true_text(run.summary, run.plan); !words.empty())
      sentence(run.name + ": " + words + ".");
    for (const std::string& verdict : plan_verdicts(run.summary)) sentence(run.name + ": " + verdict + ".");
  }
  table("Time of each rank for one of its minibatches, in the mean over all (predicted, in the long run)",
        table_of({"run"}, {"rank", "stage", "forward, backward, update", "everything else, mostly waiting",
                           "from one to the next"}),
        add_times);
  table("Plans, from which minibatch on, and what the changes took",
        table_of({"run"}, {"from minibatch", "plan", "reason", "ranks", "minibatch", "predicted", "drain",
                           "move", "start", "moved"}),
        add_generations);
  table("Losses of ranks: where the run went on, and what was trained again",
        table_of({"run"}, {"from minibatch", "state from", "reason", "ranks", "trained again", "time"}),
        add_recoveries);
  table(
      "Epochs, and what the time went into, in the mean over their ranks (fetching goes on beside the rest)",
      table_of({"run"}, {"epoch", "frozen layers", "plan", "ranks", "global batch", "rate", "samples/s",
                         "time", "loading", "fetching", "forward", "backward", "update", "all-reduce",
                         "waiting", "changing", "hit rate", "kept"}),
      add_epochs);
  table(
      "Pipelines side by side: minibatches of each, groups of 1, 2, ... that averaged weights, most updates "
      "until groups had connected all, and how far a rank's weights were from their mean at a drain, as a "
      "part of it",
      table_of({"run", "sync"}, {"pipelines", "minibatches", "groups", "longest window", "spread"}),
      add_sync);
  table(
      "Kept values of frozen layers, by rank: samples that were fetched, computed from values of fewer "
      "layers (both are hits), computed from the beginning; bytes of the host, at most",
      table_of({"run"}, {"rank", "hit rate", "fetched", "deepened", "computed", "fetching", "computing",
                         "memory", "disk", "evicted", "damaged", "not used"}),
      add_caches);
  TextTable losses =
      table_of({"run"}, {"minibatches", "first that differs", "largest of the first 100", "largest"});
  add_losses(runs, curves, &losses);
  if (!losses.rows().empty())
    parts.push_back(
        {"Losses against those of " + runs[0].name + ", minibatch by minibatch (relative)", losses});
  table("Memory of each rank by purpose, at most at a time (predicted)",
        table_of({"run"}, {"rank", "stage", "weights", "versions", "gradients", "optimizer", "activations",
                           "messages", "other", "peak", "kept by the allocator", "process at most"}),
        add_memory);
  return parts;
}

std::string run_report(const std::vector<FinishedRun>& runs) {
  const std::vector<RunCurves> curves = runs.size() > 1 ? curves_of(runs) : std::vector<RunCurves>();
  std::string report;
  for (const ReportPart& part : report_parts(runs, curves)) {
    if (!part.text.empty()) report += "\n" + part.text + (part.table ? ":\n\n" : "\n");
    if (part.table) report += part.table->markdown();
  }
  return report;
}

}  // namespace pipewright
