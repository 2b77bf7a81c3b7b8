#include "runtime/commands/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan.h"
#include "graph/regular_file.h"
#include "graph/summary.h"
#include "graph/units.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/journal/loss_curves.h"
#include "runtime/journal/loss_text.h"
#include "runtime/journal/plan_verdicts.h"
#include "runtime/journal/predicted_times.h"
#include "runtime/journal/slowness.h"

namespace pipewright {
namespace {

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

// One row for each rank: measured, and what the plan said in brackets.
std::string memory_rows(const std::string& name, const Summary& summary) {
  std::string rows;
  for (const RankSummary& rank : summary.ranks) {
    const StageMemory* const predicted = rank.predicted_memory ? &*rank.predicted_memory : nullptr;
    rows += "| " + name + " | " + std::to_string(rank.rank) + " | " + std::to_string(rank.stage) + " |";
    const auto cell = [&](int64_t bytes, int64_t StageMemory::*part) {
      rows += " " + format_bytes(static_cast<double>(bytes));
      if (predicted && part) rows += " (" + format_bytes(static_cast<double>(predicted->*part)) + ")";
      rows += " |";
    };
    cell(rank.memory.weights_bytes, &StageMemory::weights_bytes);
    cell(rank.memory.versions_bytes, &StageMemory::versions_bytes);
    cell(rank.memory.gradients_bytes, &StageMemory::gradients_bytes);
    cell(rank.memory.optimizer_bytes, &StageMemory::optimizer_bytes);
    cell(rank.memory.activations_bytes, &StageMemory::activations_bytes);
    cell(rank.memory.messages_bytes, &StageMemory::messages_bytes);
    cell(rank.memory.other_bytes, nullptr);
    rows += " " + format_bytes(static_cast<double>(rank.peak_memory_bytes));
    if (predicted) rows += " (" + format_bytes(static_cast<double>(predicted->total_bytes())) + ")";
    rows += " |";
    for (const int64_t bytes : {rank.cached_bytes, rank.peak_resident_bytes})
      rows += (bytes > 0 ? " " + format_bytes(static_cast<double>(bytes)) : " -") + " |";
    rows += "\n";
  }
  return rows;
}

std::string run_name(const std::filesystem::path& folder) {
  return (folder / "").parent_path().filename().string();
}

// One row for each plan of a run whose plan changed.
std::string generation_rows(const std::string& name, const Summary& summary) {
  std::string rows;
  for (const GenerationSummary& generation : summary.generations) {
    rows += "| " + name + " | " + std::to_string(generation.first_minibatch) + " | " + generation.plan +
            " | " + generation.reason + " | " + std::to_string(generation.ranks) + " |";
    for (const double seconds : {generation.minibatch_seconds, generation.predicted_minibatch_seconds})
      rows += seconds > 0 ? " " + format_seconds(seconds) + " |" : " - |";
    for (const double seconds : {generation.drain_seconds, generation.move_seconds, generation.start_seconds})
      rows += " " + format_seconds(seconds) + " |";
    rows += " " + format_bytes(static_cast<double>(generation.moved_bytes)) + " |\n";
  }
  return rows;
}

// One row for a run of pipelines side by side.
std::string sync_row(const std::string& name, const Summary& summary) {
  if (!summary.sync) return "";
  const SyncSummary& sync = *summary.sync;
  std::string sizes, minibatches;
  double spread = 0;
  for (const RankSummary& rank : summary.ranks) spread = std::max(spread, rank.largest_spread);
  for (const int64_t count : sync.group_sizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(count);
  for (const RankSummary& rank : summary.ranks)
    if (rank.stage == 0 && rank.times)
      minibatches += (minibatches.empty() ? "" : ", ") + std::to_string(rank.times->minibatches);
  return "| " + name + " | " + sync.rule + " | " + std::to_string(sync.pipelines) + " | " + minibatches +
         " | " + (sizes.empty() ? "-" : sizes) + " | " +
         (sizes.empty() ? "-" : text("%.1f", sync.longest_window_updates)) + " | " + text("%.2g", spread) +
         " |\n";
}

// A row for each epoch of a run whose layers freeze: what it took, and what the time of a rank went into.
std::string epoch_rows(const std::string& name, const Summary& summary) {
  const bool freezes = std::any_of(summary.epochs.begin(), summary.epochs.end(),
                                   [](const EpochSummary& epoch) { return epoch.frozen_layers > 0; });
  std::string rows;
  for (const EpochSummary& epoch : summary.epochs) {
    if (!freezes) break;
    const EpochTimes& times = epoch.times;
    const auto found = static_cast<double>(epoch.fetched + epoch.deepened);
    const double asked = found + static_cast<double>(epoch.computed);
    rows += "| " + name + " | " + std::to_string(epoch.epoch + 1) + " | " +
            std::to_string(epoch.frozen_layers) + " | " + epoch.plan + " | " + std::to_string(epoch.ranks) +
            " | " + std::to_string(epoch.update_samples) + " | " + text("%.3g", epoch.learning_rate) + " | " +
            text("%.0f", epoch.samples_per_second) + " | " + format_seconds(epoch.seconds) + " |";
    for (const double seconds :
         {times.load_seconds, times.cache_seconds, times.forward_seconds, times.backward_seconds,
          times.update_seconds, times.reduce_seconds, times.receive_seconds, times.change_seconds})
      rows += " " + format_seconds(seconds) + " |";
    rows += " " + (asked > 0 ? text("%.0f %%", 100 * found / asked) : "-") + " | " +
            format_bytes(static_cast<double>(epoch.cache_bytes)) + " |\n";
  }
  return rows;
}

// A row for each rank that kept what frozen layers make.
std::string cache_rows(const std::string& name, const Summary& summary) {
  std::string rows;
  for (const RankSummary& rank : summary.ranks) {
    if (!rank.cache) continue;
    const CacheSummary& cache = *rank.cache;
    const auto found = static_cast<double>(cache.fetched + cache.deepened);
    const double samples = found + static_cast<double>(cache.computed);
    rows +=
        "| " + name + " | " + std::to_string(rank.rank) + " | " +
        (samples > 0 ? text("%.1f %%", 100 * found / samples) : "-") + " | " + std::to_string(cache.fetched) +
        " | " + std::to_string(cache.deepened) + " | " + std::to_string(cache.computed) + " | " +
        format_seconds(cache.fetch_seconds) + " | " + format_seconds(cache.compute_seconds) + " | " +
        format_bytes(static_cast<double>(cache.memory_bytes)) + " | " +
        format_bytes(static_cast<double>(cache.disk_bytes)) + " | " + std::to_string(cache.evicted) + " | " +
        std::to_string(cache.damaged) + " | " + (cache.refused.empty() ? "-" : cache.refused) + " |\n";
  }
  return rows;
}

// How far the losses of the other runs are from the first one's; nothing for one run.
std::string loss_rows(const std::vector<std::filesystem::path>& folders) {
  if (folders.size() < 2) return "";
  std::string rows = "\nLosses against those of " + run_name(folders[0]) +
                     ", minibatch by minibatch (relative):\n\n"
                     "| run | minibatches | first that differs | largest of the first 100 | largest |\n"
                     "| --- | --- | --- | --- | --- |\n";
  const LossCurve first = read_losses(folders[0] / "metrics.jsonl");
  for (size_t i = 1; i < folders.size(); ++i) {
    const LossDifference difference = compare_losses(read_losses(folders[i] / "metrics.jsonl"), first);
    rows += "| " + run_name(folders[i]) + " | " + std::to_string(difference.minibatches) + " | " +
            (difference.first_different < 0 ? "none" : std::to_string(difference.first_different)) + " | " +
            text("%.2g", difference.largest_first_100) + " | " + text("%.2g", difference.largest) + " |\n";
  }
  return rows;
}

struct FinishedRun {
  std::string name;
  Summary summary;
  Plan plan;  ///< the last one

  /// Its times say nothing about the plan.
  bool crowded() const { return summary.ranks_share_cores(); }
};

FinishedRun finished_run(const std::filesystem::path& folder) {
  const auto summary_file = folder / "summary.json";
  if (!file_exists(summary_file)) {
    throw InputError(folder.string() + ": no summary.json: not the folder of a finished run",
                     "give the --output of a pipewright-runtime train or launch");
  }
  auto summary = read_document<Summary>(summary_file);
  Plan plan = last_plan_of(folder, summary);
  return {run_name(folder), std::move(summary), std::move(plan)};
}

constexpr const char* kMainTable =
    "| run | plan | samples/s | speed-up | minibatch | predicted | training loss | evaluation loss | top-1 "
    "| top-5 | peak memory of a rank | predicted | sent a minibatch |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";

std::string main_row(const FinishedRun& run, double first_samples_per_second) {
  const Summary& summary = run.summary;
  int64_t memory_bytes = 0;
  int64_t predicted_memory_bytes = 0;
  int64_t sent_bytes = 0;
  for (const RankSummary& rank : summary.ranks) {
    memory_bytes = std::max(memory_bytes, rank.peak_memory_bytes);
    predicted_memory_bytes = std::max(predicted_memory_bytes, rank.predicted_memory_bytes);
    sent_bytes += rank.sent_bytes;
  }
  std::string row = "|";
  const auto timed = [&](const std::string& value) { return run.crowded() ? "(" + value + ")" : value; };
  const auto cell = [&](const std::string& value) { row += " " + value + " |"; };
  cell(run.name + (summary.status == "done" ? "" : " (" + summary.status + ")"));
  cell(run.plan.strategy + " " + run.plan.shape_text());
  cell(timed(text("%.0f", summary.samples_per_second)));
  cell(timed(first_samples_per_second > 0
                 ? text("%.2f", summary.samples_per_second / first_samples_per_second)
                 : "-"));
  cell(timed(format_seconds(summary.minibatch_seconds)));
  cell(summary.predicted_minibatch_seconds > 0 ? format_seconds(summary.predicted_minibatch_seconds) : "-");
  cell(loss_text(summary.train_loss));
  cell(summary.evaluation ? loss_text(summary.evaluation->loss) : "-");
  const EvaluationSummary evaluation = summary.evaluation.value_or(EvaluationSummary{0, std::nan(""), 0});
  for (const double hits : {evaluation.top1, evaluation.top5})
    cell(std::isfinite(hits) ? text("%.2f %%", 100 * hits) : "-");
  cell(format_bytes(static_cast<double>(memory_bytes)));
  cell(predicted_memory_bytes > 0 ? format_bytes(static_cast<double>(predicted_memory_bytes)) : "-");
  cell(summary.minibatches > 0
           ? format_bytes(static_cast<double>(sent_bytes) / static_cast<double>(summary.minibatches))
           : "-");
  return row + "\n";
}

/// A table that is there if a run has rows for it.
struct FurtherTable {
  const char* heading;
  std::string (*rows)(const std::string& name, const Summary& summary);
};

constexpr FurtherTable kBeforeLosses[] = {
    {"\nPlans, from which minibatch on, and what the changes took:\n\n"
     "| run | from minibatch | plan | reason | ranks | minibatch | predicted | drain | move | start | moved "
     "|\n"
     "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
     generation_rows},
    {"\nEpochs, and what the time went into, in the mean over their ranks (fetching goes on beside the "
     "rest):\n\n"
     "| run | epoch | frozen layers | plan | ranks | global batch | rate | samples/s | time | loading | "
     "fetching | forward | backward | update | all-reduce | waiting | changing | hit rate | kept |\n"
     "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | "
     "--- | --- | --- |\n",
     epoch_rows},
    {"\nPipelines side by side: minibatches of each, groups of 1, 2, ... that averaged weights, most "
     "updates until groups had connected all, and how far a rank's weights were from their mean at a "
     "drain, as "
     "a part of it:\n\n"
     "| run | sync | pipelines | minibatches | groups | longest window | spread |\n"
     "| --- | --- | --- | --- | --- | --- | --- |\n",
     sync_row},
    {"\nKept values of frozen layers, by rank: samples that were fetched, computed from values of fewer "
     "layers (both are hits), computed from the beginning; bytes of the host, at most:\n\n"
     "| run | rank | hit rate | fetched | deepened | computed | fetching | computing | memory | disk | "
     "evicted | damaged | not used |\n"
     "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
     cache_rows},
};

constexpr FurtherTable kMemoryTable = {
    "\nMemory of each rank by purpose, at most at a time (predicted):\n\n"
    "| run | rank | stage | weights | versions | gradients | optimizer | activations | messages | other | "
    "peak | kept by the allocator | process at most |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    memory_rows};

std::string table_of(const FurtherTable& table, const std::vector<FinishedRun>& runs) {
  std::string rows;
  for (const FinishedRun& run : runs) rows += table.rows(run.name, run.summary);
  return rows.empty() ? "" : table.heading + rows;
}

/// Which runs took longer than predicted, and where the time went; of the others, the largest gap.
std::string how_true(const std::vector<FinishedRun>& runs) {
  std::string sentences;
  for (const FinishedRun& run : runs) {
    if (const std::string sentence = how_true_text(run.summary, run.plan); !sentence.empty())
      sentences += "\n" + run.name + ": " + sentence + ".\n";
    for (const std::string& verdict : plan_verdicts(run.summary))
      sentences += "\n" + run.name + ": " + verdict + ".\n";
  }
  return sentences;
}

/// Of each rank whose plan says what to expect.
std::string time_table(const std::vector<FinishedRun>& runs) {
  std::string rows;
  for (const FinishedRun& run : runs) {
    for (const RankTimes& rank : rank_times(run.summary, run.plan)) {
      rows += "| " + run.name + " | " + std::to_string(rank.rank) + " |";
      for (const int64_t stage : rank.stages) rows += " " + std::to_string(stage);
      rows += " |";
      for (double RankTime::*const part :
           {&RankTime::compute_seconds, &RankTime::other_seconds, &RankTime::period_seconds})
        rows +=
            " " + format_seconds(rank.measured.*part) + " (" + format_seconds(rank.predicted.*part) + ") |";
      rows += "\n";
    }
  }
  if (rows.empty()) return "";
  return "\nTime of each rank for one of its minibatches, in the mean over all (predicted, in the long "
         "run):\n\n"
         "| run | rank | stage | forward, backward, update | everything else, mostly waiting | from one to "
         "the "
         "next |\n| --- | --- | --- | --- | --- | --- |\n" +
         rows;
}

std::string note_of_crowded_runs(const std::vector<FinishedRun>& runs) {
  bool crowded = false;
  int64_t cores = 0;
  for (const FinishedRun& run : runs) {
    crowded = crowded || run.crowded();
    cores = std::max(cores, run.summary.cores);
  }
  if (!crowded) return "";
  return "\nIn brackets: more ranks than the host's " + std::to_string(cores) +
         " cores; such times say nothing about a plan.\n";
}

}  // namespace

std::string run_report(const std::vector<std::filesystem::path>& folders) {
  std::vector<FinishedRun> runs;
  for (const auto& folder : folders) runs.push_back(finished_run(folder));
  double first_samples_per_second = 0;
  std::string report = kMainTable;
  for (const FinishedRun& run : runs) {
    if (first_samples_per_second == 0) first_samples_per_second = run.summary.samples_per_second;
    report += main_row(run, first_samples_per_second);
  }
  report += note_of_crowded_runs(runs) + how_true(runs) + time_table(runs);
  for (const FurtherTable& table : kBeforeLosses) report += table_of(table, runs);
  return report + loss_rows(folders) + table_of(kMemoryTable, runs);
}

}  // namespace pipewright
