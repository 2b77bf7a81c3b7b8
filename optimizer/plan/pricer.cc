#include "optimizer/plan/pricer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/limits.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

constexpr double kPace = 2e-3;  // a bound is as near to the best pace as that: no depth for so little
// Where all the depth there is room for takes so much more than is of use, no depths are of use.
constexpr double kHopeless = 1.05;

Plan skeleton(const Candidate& candidate, const States& states) {
  Plan plan;
  for (const FoundStage& found : candidate.stages) {
    Stage stage;
    stage.ranks = found.ranks;
    for (int64_t q = 0; found.ranks.empty() && q < found.replicas; ++q)
      stage.ranks.push_back(plan.world_size + q);
    stage.frozen = states.states[static_cast<size_t>(found.to)].frozen;
    stage.recompute = found.recompute && !stage.frozen;
    plan.world_size += found.replicas;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace

Pricer::Pricer(const Question& question, const PlanRequest& request)
    : q_(question), request_(request), drains_(drains(request)), floor_(question.inputs) {}

bool Pricer::takes(const Question& q, const PlanRequest& request) {
  const ScheduleFacts& schedule = schedule_facts(request.schedule);
  return schedule.trains() && !schedule.several_stages && schedule.kind != ScheduleKind::kModelParallel &&
         q.inputs.speeds.empty() && q.inputs.memories.empty() && !q.one_in_flight;
}

int64_t Pricer::replicas_part(int64_t replicas) const { return (q_.interval + replicas - 1) / replicas; }

int64_t Pricer::usual_depth(const Candidate& candidate, size_t s, int64_t later) const {
  const int64_t replicas = candidate.stages[s].replicas;
  if (schedule_facts(request_.schedule).depth == DepthChoice::kAsTheFirst)
    later = candidate.devices() - candidate.stages[0].replicas;
  return assumed_in_flight(q_, later, replicas);
}

std::vector<StageLoad> Pricer::loads_of(const Candidate& candidate) const {
  std::vector<StageLoad> loads;
  for (const FoundStage& stage : candidate.stages) {
    StageLoad load = load_between(*q_.states, stage.from, stage.to);
    if (q_.memory_bytes > 0) load.workspace = workspace_between(*q_.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    loads.push_back(load);
  }
  return loads;
}

NetworkPace Pricer::pace(Candidate* candidate, double seconds) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<StageLoad> loads = loads_of(*candidate);
  int64_t later = 0;
  double behind = 0;  // work of a minibatch from the stage on, there and back
  for (size_t s = loads.size(); s-- > 0;) {
    const FoundStage& stage = candidate->stages[s];
    StageLoad& load = loads[s];
    behind += load.forward_seconds + load.backward_seconds;
    const bool given = candidate->room == Candidate::Room::kGiven;
    load.recompute = q_.recompute == Recompute::kAlways || (given && stage.recompute);
    if (q_.memory_bytes > 0) {
      const auto m = static_cast<double>(stage.replicas);
      // Little's law: so many are under way on a rank at that pace, or more.
      auto wanted = static_cast<int64_t>(std::clamp(std::ceil(behind / (seconds * m) * (1 - kPace)), 1.0,
                                                    static_cast<double>(kMostInFlight)));
      if (candidate->room == Candidate::Room::kUsual)
        wanted = std::max(wanted, usual_depth(*candidate, s, later));
      if (candidate->room == Candidate::Room::kPlenty && s + 1 < loads.size())  // the last holds nothing back
        wanted = std::max(wanted, 2 * in_flight_bound(later, stage.replicas) + 2);
      if (candidate->room == Candidate::Room::kOne) wanted = 1;
      if (drains_) wanted = std::min(wanted, replicas_part(stage.replicas));
      if (q_.whole_interval) wanted = replicas_part(stage.replicas);
      later += stage.replicas;
      int64_t fits = in_flight_that_fits(load, stage.replicas, wanted, q_.memory_bytes, q_.inputs);
      if (fits < wanted && q_.recompute == Recompute::kWhereNeeded && !given) {
        StageLoad again = load;
        again.recompute = true;
        const int64_t more = in_flight_that_fits(again, stage.replicas, wanted, q_.memory_bytes, q_.inputs);
        if (more > fits) {
          load.recompute = true;
          fits = more;
        }
      }
      if (fits < 1) return {kNever, kNever};
    }
    candidate->stages[s].recompute = load.recompute;
  }
  std::vector<int64_t> replicas;
  for (const FoundStage& stage : candidate->stages) replicas.push_back(stage.replicas);
  NetworkPace pace = floor_.pace(loads, replicas, candidate->ranks());
  if (q_.memory_bytes > 0) wait_for_room(*candidate, loads, &pace);
  return pace;
}

void Pricer::wait_for_room(const Candidate& candidate, const std::vector<StageLoad>& loads,
                           NetworkPace* pace) const {
  const double busy = pace->floor_seconds;
  double trip = 0;  // of a minibatch from the stage on, there and back
  for (size_t s = loads.size(); s-- > 0 && !loads[s].frozen;) {
    const double later = q_.inputs.split_backward ? loads[s].backward_weight_seconds : 0;
    trip += loads[s].compute_seconds() - later + (s + 1 < loads.size() ? pace->between_seconds[s] : 0);
    const int64_t replicas = candidate.stages[s].replicas;
    const double together = trip / static_cast<double>(replicas);
    const auto wanted =
        static_cast<int64_t>(std::clamp(std::ceil(together / std::max(pace->floor_seconds, 1e-300)), 1.0,
                                        static_cast<double>(kMostInFlight)));
    const int64_t fits = in_flight_that_fits(loads[s], replicas, wanted, q_.memory_bytes, q_.inputs);
    if (fits >= wanted || fits < 1) continue;
    pace->floor_seconds = std::max(pace->floor_seconds, together / static_cast<double>(fits));
    // An update waits for the last of the replicas, which begin one after the other.
    const double behind = static_cast<double>(replicas - 1) / static_cast<double>(replicas) * busy;
    pace->likely_seconds = std::max(pace->likely_seconds, (together + behind) / static_cast<double>(fits));
  }
  pace->likely_seconds = std::max(pace->likely_seconds, pace->floor_seconds);
}

std::optional<CandidatePrice> Pricer::with_all_depth(const Plan& plan, const PlanCost& cost, double limit) {
  PipelineShape shape = shape_of(plan);
  std::vector<int64_t> most, usual = pipedream_in_flight(shape.replicas);
  for (size_t s = 0; s < cost.loads.size(); ++s) {
    const int64_t part = replicas_part(shape.replicas[s]);
    most.push_back(in_flight_that_fits(cost.loads[s], shape.replicas[s], part, q_.memory_bytes, cost.inputs));
    if (most.back() < 1) return std::nullopt;
    usual[s] = std::min(usual[s], most[s]);
  }
  most.back() = 1;  // the last stage holds nothing back; running ahead it would keep gradients waiting
  CandidatePrice price{std::numeric_limits<double>::infinity(), {}};
  for (const std::vector<int64_t>& depths : {most, usual}) {
    shape.in_flight = depths;
    shape.in_flight = usable_in_flight(shape);
    const double seconds =
        settled_minibatch_seconds(plan.schedule, shape, cost.times, cost.shared, &spent_, limit);
    if (seconds < price.seconds) price = {seconds, shape.in_flight};
  }
  return price;
}

std::optional<CandidatePrice> Pricer::price(const Candidate& candidate, double floor, double limit) {
  std::vector<StageLoad> loads = loads_of(candidate);
  Plan plan = skeleton(candidate, *q_.states);
  if (!q_.states->ties.empty()) {
    std::vector<NodeSet> nodes;
    for (const FoundStage& stage : candidate.stages)
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
  const bool searched = schedule_facts(request_.schedule).depth == DepthChoice::kSearched;
  if (drains_ && searched) {
    const std::optional<CandidatePrice> roomy = with_all_depth(plan, cost, kHopeless * limit);
    if (!roomy || roomy->seconds > kHopeless * limit) return roomy;
  }
  if (!choose_depths(q_.memory_bytes, true, &plan, &cost, &aim)) return std::nullopt;
  spent_ += aim.simulated;
  double seconds = drains_ && searched ? 0 : aim.seconds;
  if (seconds == 0) {  // or too large for choosing depths
    seconds = settled_minibatch_seconds(plan.schedule, shape_of(plan), cost.times, cost.shared, &spent_);
  }
  CandidatePrice price;
  price.seconds = price_seconds(plan, cost, seconds);
  for (const Stage& stage : plan.stages) price.depths.push_back(stage.in_flight);
  return price;
}

}  // namespace pipewright
