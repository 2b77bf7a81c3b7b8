#include "optimizer/plan/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/limits.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

constexpr double kHopeless = 1.6;  // what takes so many times the limit with all depth is given up
constexpr double kPace = 2e-3;     // a bound is as near to the best pace as that: no depth for so little

Plan skeleton(const Chain& chain, const States& states) {
  Plan plan;
  for (const FoundStage& found : chain.stages) {
    Stage stage;
    stage.ranks = found.ranks;
    for (int64_t q = 0; found.ranks.empty() && q < found.replicas; ++q)
      stage.ranks.push_back(plan.world_size + q);
    stage.shares = found.shares;
    stage.frozen = states.states[static_cast<size_t>(found.to)].frozen;
    stage.recompute = found.recompute && !stage.frozen;
    plan.world_size += found.replicas;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace

Evaluator::Evaluator(const Question& question, const PlanRequest& request)
    : q_(question),
      request_(request),
      drains_(drains(request)),
      limited_(question.memory_bytes > 0 || !question.inputs.memories.empty()) {}

int64_t Evaluator::replicas_part(int64_t replicas) const { return (q_.interval + replicas - 1) / replicas; }

int64_t Evaluator::usual_depth(const Chain& chain, size_t s, int64_t later) const {
  if (schedule_facts(request_.schedule).depth == DepthChoice::kAsTheFirst)
    later = chain.devices() - chain.stages[0].replicas;
  return assumed_in_flight(q_, later, chain.stages[s].replicas);
}

int64_t Evaluator::memory_of(const FoundStage& stage) const {
  return memory_limit_bytes(q_.inputs, q_.memory_bytes, stage.ranks);
}

std::vector<StageLoad> Evaluator::loads_of(const Chain& chain) const {
  std::vector<StageLoad> loads;
  for (const FoundStage& stage : chain.stages) {
    StageLoad load = load_between(*q_.states, stage.from, stage.to);
    if (limited_) load.workspace = workspace_between(*q_.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    loads.push_back(std::move(load));
  }
  return loads;
}

int64_t Evaluator::wanted_depth(Room room, const Chain& chain, size_t s, int64_t later, double behind,
                                double seconds) const {
  const int64_t replicas = chain.stages[s].replicas;
  if (q_.whole_interval) return replicas_part(replicas);
  const auto m = static_cast<double>(replicas);
  // Little's law: so many are under way on a rank at that pace, or more.
  auto wanted = static_cast<int64_t>(
      std::clamp(std::ceil(behind / (seconds * m) * (1 - kPace)), 1.0, static_cast<double>(kMostInFlight)));
  if (room == Room::kUsual) wanted = std::max(wanted, usual_depth(chain, s, later));
  if (room == Room::kPlenty && s + 1 < chain.stages.size())  // the last holds nothing back
    wanted = std::max(wanted, 2 * in_flight_bound(later, replicas) + 2);
  if (room == Room::kOne) wanted = 1;
  return drains_ ? std::min(wanted, replicas_part(replicas)) : wanted;
}

int64_t Evaluator::needed_depth(const Chain& chain, size_t s, int64_t later) const {
  if (q_.whole_interval) return replicas_part(chain.stages[s].replicas);
  return drains_ ? 1 : usual_depth(chain, s, later);
}

bool Evaluator::fit(Room room, double seconds, Chain* chain) const {
  int64_t later = 0;
  double behind = 0;  // work of a minibatch from the stage on, there and back
  for (size_t s = chain->stages.size(); s-- > 0;) {
    FoundStage& stage = chain->stages[s];
    stage.recompute = q_.recompute == Recompute::kAlways;
    if (!limited_) continue;
    StageLoad load = load_between(*q_.states, stage.from, stage.to);
    load.workspace = workspace_between(*q_.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    behind += load.forward_seconds + load.backward_seconds;
    const int64_t needed = needed_depth(*chain, s, later);
    const int64_t wanted = std::max(needed, wanted_depth(room, *chain, s, later, behind, seconds));
    later += stage.replicas;
    const int64_t memory = memory_of(stage);
    int64_t fits = in_flight_that_fits(load, stage.replicas, wanted, memory, q_.inputs);
    if (fits < wanted && q_.recompute == Recompute::kWhereNeeded) {
      load.recompute = true;
      const int64_t more = in_flight_that_fits(load, stage.replicas, wanted, memory, q_.inputs);
      if (more > fits) {
        stage.recompute = true;
        fits = more;
      }
    }
    if (fits < needed) return false;
  }
  return true;
}

NetworkPace Evaluator::floor(Chain* chain) const {
  std::vector<StageLoad> loads = loads_of(*chain);
  if (limited_) {
    int64_t later = chain->devices();
    for (size_t s = 0; s < loads.size(); ++s) {
      const FoundStage& stage = chain->stages[s];
      later -= stage.replicas;
      const int64_t least = needed_depth(*chain, s, later);
      if (in_flight_that_fits(loads[s], stage.replicas, least, memory_of(stage), q_.inputs) < least)
        return {kInfeasible, kInfeasible};
    }
  }
  std::vector<Stage> stages;
  for (size_t s = 0; s < loads.size(); ++s) {
    FoundStage& found = chain->stages[s];
    Stage stage;
    stage.ranks = found.ranks;
    found.shares.clear();
    if (!q_.inputs.speeds.empty() && found.replicas > 1) {
      std::vector<double> seconds;
      for (const int64_t rank : found.ranks) seconds.push_back(compute_seconds_on(loads[s], q_.inputs, rank));
      const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
      if (*least < *most) found.shares = best_shares(seconds, q_.inputs.most_minibatches_of_round);
      if (std::all_of(found.shares.begin(), found.shares.end(), [](int64_t share) { return share == 1; }))
        found.shares.clear();
    }
    stage.shares = found.shares;
    stages.push_back(std::move(stage));
  }
  NetworkPace pace;
  pace.floor_seconds = price_placed(loads, stages, q_.inputs).total_seconds();
  pace.likely_seconds = pace.floor_seconds;
  if (drains_)  // and fills
    pace.likely_seconds *= 1 + static_cast<double>(stages.size() - 1) / static_cast<double>(q_.interval);
  return pace;
}

std::pair<size_t, double> Evaluator::busiest(const Chain& chain) const {
  const std::vector<StageLoad> loads = loads_of(chain);
  std::vector<StagePeriod> periods;
  if (q_.inputs.placed()) {
    periods = price_placed(loads, skeleton(chain, *q_.states).stages, q_.inputs).stages;
  } else {
    for (size_t s = 0; s < loads.size(); ++s)
      periods.push_back(stage_period(loads[s], chain.stages[s].replicas, q_.inputs));
  }
  std::pair<size_t, double> most(0, 0);
  for (size_t s = 0; s < periods.size(); ++s)
    if (periods[s].total_seconds() > most.second) most = {s, periods[s].total_seconds()};
  return most;
}

std::optional<ChainPrice> Evaluator::with_all_depth(const Plan& plan, const PlanCost& cost, double limit) {
  PipelineShape shape = shape_of(plan);
  std::vector<int64_t> most, usual = pipedream_in_flight(shape.replicas);
  for (size_t s = 0; s < cost.loads.size(); ++s) {
    const int64_t part = replicas_part(shape.replicas[s]);
    const int64_t memory = memory_limit_bytes(q_.inputs, q_.memory_bytes, plan.stages[s].ranks);
    most.push_back(in_flight_that_fits(cost.loads[s], shape.replicas[s], part, memory, cost.inputs));
    if (most.back() < 1) return std::nullopt;
    usual[s] = std::min(usual[s], most[s]);
  }
  most.back() = 1;  // the last stage holds nothing back; running ahead it would keep gradients waiting
  ChainPrice price{kInfeasible, {}};
  for (const std::vector<int64_t>& depths : {most, usual}) {
    shape.in_flight = depths;
    shape.in_flight = usable_in_flight(shape);
    const double seconds =
        settled_minibatch_seconds(plan.schedule, shape, cost.times, cost.shared, &spent_, limit);
    if (seconds < price.seconds) price = {seconds, shape.in_flight};
  }
  return price;
}

std::optional<ChainPrice> Evaluator::price(const Chain& chain, double floor, double limit) {
  std::vector<StageLoad> loads = loads_of(chain);
  Plan plan = skeleton(chain, *q_.states);
  if (!q_.states->ties.empty()) {
    std::vector<NodeSet> nodes;
    for (const FoundStage& stage : chain.stages)
      nodes.push_back(q_.states->states[static_cast<size_t>(stage.to)].done -
                      q_.states->states[static_cast<size_t>(stage.from)].done);
    const std::vector<SplitGroup> split = split_groups(q_.states->ties, nodes);
    plan.tied_parameters = tied_parameters(split);
    set_tied(split, plan.stages, &loads);
  }
  run_by(rules_of(request_), &plan);
  PlanCost cost(plan, std::move(loads), q_.inputs);
  DepthAim aim;
  aim.floor_seconds = floor;
  aim.most_seconds = limit;
  aim.known = &known_depths_;
  const bool simulates = q_.inputs.speeds.empty();
  const bool searched = schedule_facts(request_.schedule).depth == DepthChoice::kSearched;
  if (drains_ && searched && simulates) {
    const std::optional<ChainPrice> roomy = with_all_depth(plan, cost, kHopeless * limit);
    if (!roomy || roomy->seconds > kHopeless * limit) return roomy;
    if (limit < kInfeasible && roomy->seconds <= limit) return roomy;
  }
  if (!choose_depths(q_.memory_bytes, true, &plan, &cost, &aim)) return std::nullopt;
  spent_ += aim.simulated;
  std::optional<double> seconds;
  if (simulates) {
    if (!drains_ || !searched) seconds = aim.seconds;
    if (seconds.value_or(0) == 0)  // or too large for choosing depths
      seconds = settled_minibatch_seconds(plan.schedule, shape_of(plan), cost.times, cost.shared, &spent_);
  }
  ChainPrice price;
  price.seconds = price_seconds(plan, cost, seconds);
  for (const Stage& stage : plan.stages) price.depths.push_back(stage.in_flight);
  return price;
}

}  // namespace pipewright
