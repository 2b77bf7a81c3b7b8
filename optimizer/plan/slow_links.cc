#include "optimizer/plan/slow_links.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/renamed_ranks.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

/// What takes off less is no improvement.
constexpr double kBetter = 0.999;

/// Prices the messages of a plan's stages.
class LinkPrices {
 public:
  LinkPrices(const Plan& plan, std::vector<StageTimes> times, const std::vector<StageLoad>& loads,
             const SlowLinks& links)
      : stages_(plan.stages), quiet_(std::move(times)), loads_(loads) {
    for (const SlowLink& link : links) links_[{link.from, link.to}] = link;
  }

  /// Of every stage, the longest that any of its senders takes for a message, on average over whom it sends
  /// to; and of replicas that exchange gradients over a slow link.
  std::vector<StageTimes> slowed() const {
    std::vector<StageTimes> times = quiet_;
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (s + 1 < stages_.size())
        times[s].send_activation_seconds =
            slowest(stages_[s], stages_[s + 1], quiet_[s].send_activation_seconds, loads_[s].out_bytes);
      if (s > 0)
        times[s].send_gradient_seconds =
            slowest(stages_[s], stages_[s - 1], quiet_[s].send_gradient_seconds, loads_[s].in_bytes);
      times[s].reduce_seconds *= slowest_exchange(stages_[s].ranks);
    }
    return times;
  }

 private:
  double slowest(const Stage& senders, const Stage& receivers, double seconds, int64_t bytes) const {
    double most = 0;
    for (const int64_t from : senders.ranks) {
      double sum = 0;
      for (const int64_t to : receivers.ranks) sum += on_link(from, to, seconds, bytes);
      most = std::max(most, sum / static_cast<double>(receivers.ranks.size()));
    }
    return most;
  }
  double on_link(int64_t from, int64_t to, double seconds, int64_t bytes) const {
    const auto link = links_.find({from, to});
    if (from == to || link == links_.end() || seconds == 0) return seconds;
    return std::max(seconds * link->second.slowdown,
                    link->second.seconds_per_byte * static_cast<double>(bytes));
  }
  double slowest_exchange(const std::vector<int64_t>& ranks) const {
    const std::set<int64_t> replicas(ranks.begin(), ranks.end());
    double most = 1;
    for (const auto& [ends, link] : links_)
      if (replicas.contains(ends.first) && replicas.contains(ends.second))
        most = std::max(most, link.slowdown);
    return most;
  }

  const std::vector<Stage>& stages_;
  const std::vector<StageTimes> quiet_;
  const std::vector<StageLoad>& loads_;
  std::map<std::pair<int64_t, int64_t>, SlowLink> links_;
};

/// The slowest stage's messages of a minibatch, which no sender is faster than; and all of them together.
std::pair<double, double> message_seconds_of(const Plan& plan, const std::vector<StageTimes>& times) {
  double most = 0, sum = 0;
  for (size_t s = 0; s < times.size(); ++s) {
    const auto replicas = static_cast<double>(plan.stages[s].ranks.size());
    const double longest = std::max(times[s].send_activation_seconds, times[s].send_gradient_seconds);
    most = std::max(most, longest / replicas);
    sum += times[s].send_activation_seconds + times[s].send_gradient_seconds + times[s].reduce_seconds;
  }
  return {most, sum};
}

/// A plan, and what is the same whatever ranks it runs on.
struct Measured {
  const Profile& profile;
  const PlanRequest& request;
  std::vector<StageLoad> loads;
  CostInputs inputs;

  Measured(const Plan& plan, const Profile& of, const Topology& topology, const PlanRequest& asked)
      : profile(of),
        request(asked),
        loads(loads_of_plan(plan, Dataflow(of, asked.class_profiles), cost_model_named(asked.objective))),
        inputs(inputs_of_plan(plan, of, topology, asked)) {}
  std::vector<StageTimes> quiet(const Plan& plan) const { return times_of(plan, loads, inputs); }
  std::vector<StageTimes> slowed(const Plan& plan, const SlowLinks& links) const {
    return slowed(plan, links, quiet(plan));
  }
  std::vector<StageTimes> slowed(const Plan& plan, const SlowLinks& links,
                                 std::vector<StageTimes> quiet) const {
    return LinkPrices(plan, std::move(quiet), loads, links).slowed();
  }

  bool fits(const Plan& plan, const Topology& topology) const {
    Prediction prediction;
    const std::vector<StageTimes> times = quiet(plan);
    for (size_t s = 0; s < loads.size(); ++s)
      prediction.stages.push_back(stage_prediction(loads[s],
                                                   static_cast<int64_t>(plan.stages[s].ranks.size()),
                                                   plan.stages[s].in_flight, times[s], inputs));
    return memory_deficits(plan, prediction, prediction, topology).empty();
  }

  /// As in predict(): the simulation takes a stage's replicas for equally fast, and with several levels its
  /// messages take what the network gives them.
  bool simulated(const Plan& plan) const {
    const bool straight = std::all_of(plan.stages.begin(), plan.stages.end(),
                                      [](const Stage& stage) { return stage.ranks.size() == 1; });
    return (straight || inputs.speeds.empty()) && inputs.levels.size() < 2 &&
           worth_simulating(shape_of(plan));
  }

  /// With slow links.
  double seconds(const Plan& plan, const SlowLinks& links) const {
    const std::vector<StageTimes> times = slowed(plan, links);
    const double messages = message_seconds_of(plan, times).first;
    const CostModel& model = cost_model_named(request.objective);
    if (!simulated(plan))
      return std::max(messages,
                      predict(plan, loads, model, inputs, profile.minibatch_samples).minibatch_seconds);
    // What predict() makes of its simulation, which takes no longer than that with slow links.
    const double steady = settled_minibatch_seconds(plan.schedule, shape_of(plan), times);
    const double formula =
        facts_of(inputs.weights).drains() ? 0 : formula_seconds(plan, loads, model, inputs);
    return std::max({messages, steady, formula});
  }
};

Plan deepened_by(int64_t deeper, Plan plan) {
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s)
    if (!plan.stages[s].frozen) plan.stages[s].in_flight += deeper;
  return plan;
}

void swap_ranks(Plan* plan, int64_t a, int64_t b) {
  for (Stage& stage : plan->stages)
    for (int64_t& rank : stage.ranks) rank = rank == a ? b : rank == b ? a : rank;
}

/// The swap that takes most off the messages, if one does.
std::optional<std::pair<int64_t, int64_t>> best_swap(const Plan& plan, const Measured& measured,
                                                     const Topology& topology, const SlowLinks& links) {
  const std::vector<StageTimes> quiet = measured.quiet(plan);  // whoever changes places is as fast
  auto least = message_seconds_of(plan, measured.slowed(plan, links, quiet));
  std::optional<std::pair<int64_t, int64_t>> best;
  std::set<int64_t> ends;
  for (const SlowLink& link : links) ends.insert({link.from, link.to});
  for (const int64_t end : ends) {
    for (int64_t other = 0; other < topology.device_count(); ++other) {
      if (other == end || !may_change_places(topology, end, other)) continue;
      Plan swapped = plan;
      swap_ranks(&swapped, end, other);
      const auto seconds = message_seconds_of(swapped, measured.slowed(swapped, links, quiet));
      const bool better = seconds.first < kBetter * least.first ||
                          (seconds.first <= least.first && seconds.second < kBetter * least.second);
      if (!better) continue;
      least = seconds;
      best = {end, other};
    }
  }
  return best;
}

}  // namespace

int64_t message_bytes(const Plan& plan, const Profile& profile, int64_t from, int64_t to) {
  const PlanRequest request;
  const std::vector<StageLoad> loads =
      loads_of_plan(plan, Dataflow(profile, request.class_profiles), cost_model_named(request.objective));
  const auto has = [&](size_t stage, int64_t rank) {
    const std::vector<int64_t>& ranks = plan.stages[stage].ranks;
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    if (has(s, from) && has(s + 1, to)) return loads[s].out_bytes;
    if (has(s + 1, from) && has(s, to)) return loads[s + 1].in_bytes;
  }
  return 0;
}

double seconds_with_slow_links(const Plan& plan, const Profile& profile, const Topology& topology,
                               const PlanRequest& request, const SlowLinks& links) {
  if (links.empty()) return evaluate_plan(plan, profile, topology, request).minibatch_seconds;
  return Measured(plan, profile, topology, request).seconds(plan, links);
}

Plan clear_of_slow_links(Plan plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request, const SlowLinks& links) {
  if (links.empty() || topology.levels.size() > 1) return plan;
  const Measured measured(plan, profile, topology, request);
  for (size_t swaps = 0; swaps <= 2 * links.size(); ++swaps) {
    const auto swap = best_swap(plan, measured, topology, links);
    if (!swap) break;
    swap_ranks(&plan, swap->first, swap->second);
  }
  return plan;
}

Plan deepened_plan(Plan plan, const Profile& profile, const Topology& topology, const PlanRequest& request,
                   const SlowLinks& links) {
  // Where one update covers a given number of minibatches, that says how many are in flight.
  if (weight_rule_facts(plan.weights).one_update_for_all) return plan;
  const Measured measured(plan, profile, topology, request);
  double least = measured.seconds(plan, links);
  int64_t deepest = 0;
  for (int64_t deeper = 1; deeper <= kMostDeeper; ++deeper) {
    const Plan deep = deepened_by(deeper, plan);
    if (!measured.fits(deep, topology)) break;
    const double seconds = measured.seconds(deep, links);
    if (seconds >= 0.99 * least) continue;
    least = seconds;
    deepest = deeper;
  }
  if (deepest == 0) return plan;
  plan = deepened_by(deepest, std::move(plan));
  plan.predicted.reset();
  return plan;
}

}  // namespace pipewright
