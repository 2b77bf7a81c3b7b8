#include "runtime/journal/predicted_times.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "graph/units.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/turns.h"

namespace pipewright {
namespace {

// Of all minibatches, those that this rank of the stage takes.
double part_of(const PipelineShape& shape, const Plan& plan, size_t stage, int64_t rank) {
  const StageTurns turns(shape, static_cast<int64_t>(stage));
  if (turns.splits()) return 1;
  const auto& ranks = plan.stages[stage].ranks;
  const auto& shares = plan.stages[stage].shares;
  const auto place = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return static_cast<double>(shares.empty() ? 1 : shares[place]) / static_cast<double>(turns.cycle_length());
}

std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * std::abs(ratio - 1));
  return text;
}

std::string stages_text(const std::vector<int64_t>& stages) {
  std::string text = stages.size() == 1 ? "stage " : "stages ";
  for (size_t i = 0; i < stages.size(); ++i) text += (i ? ", " : "") + std::to_string(stages[i]);
  return text;
}

// Why a rank computes longer, if what it counted shows it.
std::string cause_of_compute(const RankSummary& rank, const Summary& summary) {
  constexpr double kWholeCore = 0.97;
  if (rank.device.rfind("cuda", 0) == 0) return "";
  if (rank.times->core_share() < kWholeCore) {
    char text[64];
    std::snprintf(text, sizeof text, ": it had %.2f of a core", rank.times->core_share());
    return text;
  }
  const auto beside = std::count_if(summary.ranks.begin(), summary.ranks.end(),
                                    [&](const RankSummary& other) { return other.host == rank.host; });
  if (beside < 2) return "";
  return "; likely: " + std::to_string(beside) +
         " ranks share the host's caches and memory, the profile had them alone";
}

// What a rank waited for most.
std::string cause_of_waiting(const RankSummary& rank) {
  const MeasuredTimes& times = *rank.times;
  const std::pair<double, const char*> waits[] = {{rank.receive_wait_seconds, "messages of its neighbours"},
                                                  {rank.sync_wait_seconds, "the sum of gradients"},
                                                  {times.load_wait_seconds, "its samples"},
                                                  {times.injected_seconds, "--disturb"}};
  const auto& most = *std::max_element(std::begin(waits), std::end(waits));
  if (!(most.first > 0)) return "";
  return std::string(": most of it for ") + most.second;
}

}  // namespace

std::vector<int64_t> stages_of_rank(const Plan& plan, int64_t rank) {
  std::vector<int64_t> stages;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const auto& ranks = plan.stages[s].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) stages.push_back(static_cast<int64_t>(s));
  }
  return stages;
}

ExpectedTimes expected_of(const Plan& plan, int64_t rank) {
  ExpectedTimes expected;
  const PipelineShape shape = shape_of(plan);
  expected.stages = stages_of_rank(plan, rank);
  for (const int64_t own : expected.stages) {
    const auto s = static_cast<size_t>(own);
    const StagePrediction& stage = plan.predicted->stages.at(s);
    const double part = part_of(shape, plan, s, rank);
    const double round = part * static_cast<double>(StageTurns(shape, own).round_length());
    expected.part = part;
    expected.period_seconds = plan.predicted->minibatch_seconds / part;
    expected.compute_seconds += stage.compute_seconds;
    expected.update_seconds += stage.step_seconds / round;
    expected.sync_seconds += stage.gradient_sync_seconds / round;
  }
  return expected;
}

std::vector<RankTimes> rank_times(const Summary& summary, const Plan& plan) {
  std::vector<RankTimes> rows;
  if (!plan.predicted || !(summary.predicted_minibatch_seconds > 0) || summary.counts_several_plans())
    return rows;
  if (summary.ranks_share_cores()) return rows;
  for (const RankSummary& rank : summary.ranks) {
    // A rank of a run that failed has not told how long it trained.
    if (!rank.times || rank.times->minibatches == 0 || !(rank.times->trained_seconds > 0)) continue;
    const ExpectedTimes expected = expected_of(plan, rank.rank);
    if (expected.stages.empty()) continue;
    RankTimes row;
    row.rank = rank.rank;
    row.stages = expected.stages;
    const MeasuredTimes& times = *rank.times;
    const auto minibatches = static_cast<double>(times.minibatches);
    row.measured.compute_seconds =
        (times.busy_seconds - times.load_wait_seconds - times.injected_seconds) / minibatches;
    row.measured.period_seconds = times.trained_seconds / minibatches;
    row.predicted.compute_seconds = expected.compute_seconds + expected.update_seconds;
    row.predicted.period_seconds = expected.period_seconds;
    for (RankTime* time : {&row.measured, &row.predicted})
      time->other_seconds = std::max(0.0, time->period_seconds - time->compute_seconds);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string prediction_text(const Summary& summary, const Plan& plan) {
  const std::vector<RankTimes> rows = rank_times(summary, plan);
  if (rows.empty() || !(summary.minibatch_seconds > 0)) return "";  // of a single minibatch there is none
  struct Gap {
    double part = -1;  ///< of the rank's predicted period
    const RankTimes* row = nullptr;
    bool computes = true;
    double measured = 0, predicted = 0;
  } largest;
  for (const RankTimes& row : rows) {
    const auto consider = [&](bool computes, double measured, double predicted) {
      const double part = std::abs(measured - predicted) / row.predicted.period_seconds;
      if (part > largest.part) largest = {part, &row, computes, measured, predicted};
    };
    consider(true, row.measured.compute_seconds, row.predicted.compute_seconds);
    consider(false, row.measured.other_seconds, row.predicted.other_seconds);
  }
  const double ratio = summary.minibatch_seconds / summary.predicted_minibatch_seconds;
  const auto rank = std::find_if(summary.ranks.begin(), summary.ranks.end(),
                                 [&](const RankSummary& each) { return each.rank == largest.row->rank; });
  const bool more = largest.measured > largest.predicted;
  const RankTime &measured = largest.row->measured, &predicted = largest.row->predicted;
  const std::string off = percent(ratio);
  std::string text = (off == "0 %" ? "as fast as" : off + (ratio > 1 ? " slower than" : " faster than")) +
                     " predicted; the largest gap, in the mean over all minibatches: rank " +
                     std::to_string(largest.row->rank) + " (" + stages_text(largest.row->stages) + ") " +
                     (largest.computes ? "computes " : "waits ") + format_seconds(largest.measured) + " of " +
                     format_seconds(measured.period_seconds) + ", predicted " +
                     format_seconds(largest.predicted) + " of " + format_seconds(predicted.period_seconds);
  if (!more) return text;
  // While another rank evaluates or writes a checkpoint, too, a rank waits for messages: that is not the
  // messages' fault.
  const double steady = summary.minibatch_seconds / expected_of(plan, largest.row->rank).part;
  if (measured.period_seconds - steady > (largest.measured - largest.predicted) / 2)
    return text + ": most of it outside the steady state, where it has a minibatch every " +
           format_seconds(steady) +
           " (median); outside are the first minibatches, filling and draining, evaluations and checkpoints";
  return text + (largest.computes ? cause_of_compute(*rank, summary) : cause_of_waiting(*rank));
}

}  // namespace pipewright
