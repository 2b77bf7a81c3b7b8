#include "optimizer/plan/pricer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/limits.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

constexpr double kPace = 2e-3;  // a bound is as near to the best pace as that: no depth for so little
Plan skeleton(const Candidate& candidate) {
  Plan plan;
  for (const FoundStage& found : candidate.stages) {
    Stage stage;
    stage.ranks = found.ranks;
    for (int64_t q = 0; found.ranks.empty() && q < found.replicas; ++q)
      stage.ranks.push_back(plan.world_size + q);
    stage.recompute = found.recompute;
    plan.world_size += found.replicas;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace

int64_t Candidate::devices() const {
  int64_t all = 0;
  for (const FoundStage& stage : stages) all += stage.replicas;
  return all;
}

Ranks Candidate::ranks() const {
  Ranks all;
  for (const FoundStage& stage : stages) all.push_back(stage.ranks);
  return all;
}

Candidate Candidate::placed_on(const Ranks& ranks) const {
  Candidate placed = *this;
  for (size_t s = 0; s < ranks.size(); ++s) placed.stages[s].ranks = ranks[s];
  return placed;
}

std::vector<int64_t> Candidate::key(const std::vector<TopologyLevel>& levels) const {
  std::vector<int64_t> key;
  for (const FoundStage& stage : stages) {
    key.push_back(stage.to);
    key.push_back(stage.replicas);
  }
  for (const std::vector<int64_t>& stage : in_order_met(ranks(), levels))
    key.insert(key.end(), stage.begin(), stage.end());
  return key;
}

bool Candidate::allowed_by(const Question& q) const {
  if (static_cast<int64_t>(stages.size()) < q.least_stages || devices() > q.devices) return false;
  if (q.all_devices && devices() != q.devices) return false;
  bool replicated = false;
  for (const FoundStage& stage : stages) {
    if (stage.replicas < 1 || stage.replicas > q.most_replicas) return false;
    replicated = replicated || stage.replicas > 1;
  }
  return replicated || !q.replicated;
}

Pricer::Pricer(const Question& question, const PlanRequest& request) : q_(question), request_(request) {
  if (!question.inputs.levels.empty()) loads_ = std::make_unique<LinkLoads>(question.inputs);
}

bool Pricer::takes(const Question& q, const PlanRequest& request) {
  return schedule_facts(request.schedule).kind == ScheduleKind::k1F1B && !drains(request) &&
         !weight_rule_facts(request.weights).needs_equal_turns() && q.inputs.speeds.empty() &&
         q.inputs.memories.empty() && q.model->simulated && !q.one_in_flight;
}

std::vector<StageLoad> Pricer::loads_of(const Candidate& candidate) const {
  std::vector<StageLoad> loads;
  for (const FoundStage& stage : candidate.stages) {
    StageLoad load = load_between(*q_.states, stage.from, stage.to);
    if (q_.memory_bytes > 0) load.workspace_bytes = workspace_between(*q_.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    loads.push_back(load);
  }
  return loads;
}

double Pricer::floor_seconds(Candidate* candidate, double seconds) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<StageLoad> loads = loads_of(*candidate);
  int64_t later = 0;
  double behind = 0;  // work of a minibatch from the stage on, there and back
  for (size_t s = loads.size(); s-- > 0;) {
    const FoundStage& stage = candidate->stages[s];
    StageLoad& load = loads[s];
    behind += load.forward_seconds + load.backward_seconds;
    load.recompute = q_.recompute == Recompute::kAlways;
    if (q_.memory_bytes > 0) {
      const auto m = static_cast<double>(stage.replicas);
      // Little's law: so many are under way on a rank at that pace, or more.
      auto wanted = static_cast<int64_t>(std::clamp(std::ceil(behind / (seconds * m) * (1 - kPace)), 1.0,
                                                    static_cast<double>(kMostInFlight)));
      if (candidate->room == Candidate::Room::kUsual)
        wanted = std::max(wanted, in_flight_bound(later, stage.replicas));
      if (candidate->room == Candidate::Room::kPlenty)
        wanted = std::max(wanted, 2 * in_flight_bound(later, stage.replicas) + 2);
      if (candidate->room == Candidate::Room::kOne) wanted = 1;
      later += stage.replicas;
      int64_t fits = in_flight_that_fits(load, stage.replicas, wanted, q_.memory_bytes, q_.inputs);
      if (fits < wanted && q_.recompute == Recompute::kWhereNeeded) {
        StageLoad again = load;
        again.recompute = true;
        const int64_t more = in_flight_that_fits(again, stage.replicas, wanted, q_.memory_bytes, q_.inputs);
        if (more > fits) {
          load.recompute = true;
          fits = more;
        }
      }
      if (fits < 1) return kNever;
    }
    candidate->stages[s].recompute = load.recompute;
  }
  double floor = 0;
  if (loads_ == nullptr) {
    for (size_t s = 0; s < loads.size(); ++s) {
      const double own = q_.model->period(loads[s], candidate->stages[s].replicas, q_.inputs).total_seconds();
      floor = std::max(floor, own);
    }
    return floor;
  }
  return loads_->floor_seconds(loads, candidate->ranks());
}

std::optional<CandidatePrice> Pricer::price(const Candidate& candidate, double floor, double limit) {
  std::vector<StageLoad> loads = loads_of(candidate);
  Plan plan = skeleton(candidate);
  if (!q_.states->ties.empty()) {
    std::vector<NodeSet> nodes;
    for (const FoundStage& stage : candidate.stages)
      nodes.push_back(q_.states->states[static_cast<size_t>(stage.to)].done -
                      q_.states->states[static_cast<size_t>(stage.from)].done);
    const std::vector<SplitGroup> split = split_groups(q_.states->ties, nodes);
    plan.tied_parameters = tied_parameters(split);
    set_tied(split, plan.stages, &loads);
  }
  DepthAim aim;
  aim.floor_seconds = floor;
  aim.most_seconds = limit;
  if (!set_run_rules(request_, loads, q_.inputs, q_.memory_bytes, &plan, &aim)) return std::nullopt;
  spent_ += aim.simulated;
  CostInputs inputs = q_.inputs;
  set_run_rules(plan, &inputs);
  double seconds = aim.seconds;
  if (seconds == 0) {  // too large for choosing depths
    seconds = settled_minibatch_seconds(plan.schedule, shape_of(plan), times_of(plan, loads, inputs),
                                        links_in_common(plan, loads, inputs), &spent_);
  }
  if (loads_ == nullptr) seconds = std::max(seconds, formula_seconds(plan, loads, *q_.model, inputs));
  CandidatePrice price;
  price.seconds = seconds;
  for (const Stage& stage : plan.stages) price.depths.push_back(stage.in_flight);
  return price;
}

}  // namespace pipewright
