#include "runtime/journal/slowness.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "graph/units.h"
#include "runtime/journal/predicted_times.h"

namespace pipewright {
namespace {

constexpr double kExplains = 0.2;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2g" : "%.0f", value);  // 181, not 1.8e+02
  return text;
}

struct Cause {
  double seconds = 0;  ///< of the busiest rank's training, beyond the plan
  std::string words;
};

// The median leaves out the first minibatches, and while another rank evaluates or writes a checkpoint, or
// the pipeline fills: what was waited may be of that time.
double outside_steady_seconds(const Summary& summary, const MeasuredTimes& times, double part) {
  return std::max(
      0.0, times.trained_seconds - static_cast<double>(times.minibatches) * summary.minibatch_seconds / part);
}

std::vector<Cause> causes_of(const Summary& summary, const RankSummary& rank, const ExpectedTimes& expected,
                             double outside, bool knows_cores) {
  const MeasuredTimes& times = *rank.times;
  const auto minibatches = static_cast<double>(std::max<int64_t>(times.minibatches, 1));
  const auto each = [&](double seconds) {
    return format_seconds(seconds / minibatches) + " a minibatch in the mean";
  };
  const std::string name = "rank " + std::to_string(rank.rank);
  std::vector<Cause> causes;
  if (rank.device.rfind("cuda", 0) != 0) {
    const double computing = times.busy_seconds - times.load_wait_seconds - times.injected_seconds;
    const auto on_host = std::count_if(summary.ranks.begin(), summary.ranks.end(),
                                       [&](const RankSummary& other) { return other.host == rank.host; });
    const bool crowded = summary.cores > 0 && on_host > summary.cores;
    const bool expected_that = crowded && knows_cores;
    causes.push_back(
        {expected_that ? 0 : computing * (1 - times.core_share()),
         name + " got " + number(times.core_share()) + " of a core" +
             (crowded ? ": " + std::to_string(on_host) + " ranks share " + std::to_string(summary.cores) +
                            (summary.cores == 1 ? " core" : " cores")
                      : ", other programs had the rest")});
    const double planned = expected.compute_seconds + expected.update_seconds;
    causes.push_back({times.cpu_seconds - minibatches * planned,
                      "the compute of " + name + " takes " + each(times.cpu_seconds) + ", the profile says " +
                          format_seconds(planned) + ": profile again on this machine"});
    const double between =
        times.trained_seconds - times.busy_seconds - rank.receive_wait_seconds - rank.sync_wait_seconds;
    causes.push_back({between - outside,
                      name + " spends " + each(between) +
                          " between its actions: others had its core, or minibatches are too small for what "
                          "the runtime does beside them"});
  }
  causes.push_back(
      {times.injected_seconds, name + " waits " + each(times.injected_seconds) + " because of --disturb"});
  causes.push_back({times.load_wait_seconds - outside,
                    name + " waits " + each(times.load_wait_seconds) + " for its samples"});
  causes.push_back({rank.sync_wait_seconds - minibatches * expected.sync_seconds - outside,
                    name + " waits " + each(rank.sync_wait_seconds) +
                        " for the sum of gradients, the plan says " + format_seconds(expected.sync_seconds) +
                        ": `probe` measures the links"});
  const double planned_waiting = std::max(0.0, expected.period_seconds - expected.compute_seconds -
                                                   expected.update_seconds - expected.sync_seconds);
  causes.push_back({rank.receive_wait_seconds - minibatches * planned_waiting - outside,
                    "messages: even the busiest rank, " + std::to_string(rank.rank) + ", waits " +
                        each(rank.receive_wait_seconds) + " for its neighbours: `probe` measures the links"});
  return causes;
}

}  // namespace

std::string slowness_text(const Summary& summary, const Plan& plan) {
  if (summary.counts_several_plans()) return "";  // plan_verdicts() judges each
  const double predicted = summary.predicted_minibatch_seconds;
  if (!plan.predicted || !(predicted > 0) || !(summary.minibatch_seconds > kSlow * predicted)) return "";
  const std::string text = number(summary.minibatch_seconds / predicted) + " times slower than predicted";
  const RankSummary* busiest = nullptr;
  for (const RankSummary& rank : summary.ranks) {
    if (rank.times && (!busiest || rank.times->busy_seconds > busiest->times->busy_seconds)) busiest = &rank;
  }
  if (!busiest) return text + "; what its ranks waited for is not known: none has told its times";
  if (!(busiest->times->trained_seconds > 0)) return "";  // the run failed
  const ExpectedTimes expected = expected_of(plan, busiest->rank);
  const double outside = outside_steady_seconds(summary, *busiest->times, expected.part);
  const std::vector<Cause> causes =
      causes_of(summary, *busiest, expected, outside, plan.predicted->shared_cores > 0);
  const auto likely = std::max_element(causes.begin(), causes.end(),
                                       [](const Cause& a, const Cause& b) { return a.seconds < b.seconds; });
  const double beyond =
      (1 - predicted / summary.minibatch_seconds) * (busiest->times->trained_seconds - outside);
  if (likely->seconds <= 0 || likely->seconds < kExplains * beyond)
    return text + "; of the causes that are measured (" +
           (busiest->device.rfind("cuda", 0) == 0 ? ""
                                                  : "a share of a core, compute, time between actions, ") +
           "samples, sums of gradients, messages) none explains a fifth of it: trace.json in the run folder "
           "has each action";
  return text + "; likely: " + likely->words;
}

std::string how_true_text(const Summary& summary, const Plan& plan) {
  const std::string slow = slowness_text(summary, plan);
  return slow.empty() ? prediction_text(summary, plan) : slow;
}

std::string crowding_text(int64_t ranks, int64_t threads, int64_t cores, const Plan& plan) {
  if (cores <= 0 || ranks * threads <= cores) return "";
  const bool expected_that = plan.predicted && plan.predicted->shared_cores > 0;
  return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
         (threads > 1 ? " of " + std::to_string(threads) + " threads" : "") + " on " + std::to_string(cores) +
         (cores == 1 ? " core" : " cores") +
         (expected_that
              ? ": they take turns, as the plan says"
              : ": they take turns, so the run is slower than its plan, and its times say nothing of it");
}

}  // namespace pipewright
