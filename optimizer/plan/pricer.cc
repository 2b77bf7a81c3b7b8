#include "optimizer/plan/pricer.h"

#include <algorithm>
#include <cmath>

#include "graph/limits.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

// Where all the depth there is room for takes so much more than is of use, no depths are of use.
constexpr double kHopeless = 1.05;

}  // namespace

Pricer::Pricer(const Question& question, const PlanRequest& request)
    : q_(question),
      request_(request),
      drains_(drains(request)),
      facts_(question, request),
      floor_(question.inputs) {}

bool Pricer::takes(const Question& q, const PlanRequest& request) {
  const ScheduleFacts& schedule = schedule_facts(request.schedule);
  return schedule.trains() && !schedule.several_stages && schedule.kind != ScheduleKind::kModelParallel &&
         !q.inputs.devices_differ() && !q.one_in_flight;
}

NetworkPace Pricer::pace(Candidate* candidate, double seconds) {
  std::vector<StageLoad> loads = facts_.loads(*candidate);
  int64_t later = 0;
  double behind = 0;  // work of a minibatch from the stage on, there and back
  for (size_t s = loads.size(); s-- > 0;) {
    const FoundStage& stage = candidate->stages[s];
    StageLoad& load = loads[s];
    behind += load.forward_seconds + load.backward_seconds;
    const bool given = !candidate->room;
    load.recompute = q_.recompute == Recompute::kAlways || (given && stage.recompute);
    if (q_.memory_bytes > 0) {
      const int64_t wanted =
          facts_.wanted_depth(candidate->room.value_or(Room::kPaced), *candidate, s, later, behind, seconds);
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
      if (fits < 1) return {kInfeasible, kInfeasible};
    }
    candidate->stages[s].recompute = load.recompute;
  }
  return pace(*candidate, loads);
}

int64_t Pricer::memory_of(const FoundStage& stage) const {
  return memory_limit_bytes(q_.inputs, q_.memory_bytes, stage.ranks);
}

NetworkPace Pricer::pace(const Chain& chain, const std::vector<StageLoad>& loads) const {
  std::vector<FloorStage> stages;
  std::vector<int64_t> memories;
  for (const FoundStage& stage : chain.stages) {
    stages.push_back({stage.replicas, stage.ranks, stage.shares});
    memories.push_back(memory_of(stage));
  }
  NetworkPace pace = floor_.pace(loads, stages);
  if (q_.memory_bytes > 0) wait_for_room(stages, memories, loads, &pace);
  return pace;
}

void Pricer::wait_for_room(const std::vector<FloorStage>& stages, const std::vector<int64_t>& memories,
                           const std::vector<StageLoad>& loads, NetworkPace* pace) const {
  const double busy = pace->floor_seconds;
  double trip = 0;  // of a minibatch from the stage on, there and back
  for (size_t s = loads.size(); s-- > 0 && !loads[s].frozen;) {
    const double waits = q_.inputs.split_backward ? floor_.waited_part(loads[s]) : 1;
    trip += waits * floor_.least_compute_seconds(loads[s], stages[s]) +
            (s + 1 < loads.size() ? pace->between_seconds[s] : 0);
    const int64_t replicas = stages[s].replicas;
    const double together = trip / static_cast<double>(replicas);
    const auto wanted =
        static_cast<int64_t>(std::clamp(std::ceil(together / std::max(pace->floor_seconds, 1e-300)), 1.0,
                                        static_cast<double>(kMostInFlight)));
    const int64_t fits = in_flight_that_fits(loads[s], replicas, wanted, memories[s], q_.inputs);
    if (fits >= wanted || fits < 1) continue;
    pace->floor_seconds = std::max(pace->floor_seconds, together / static_cast<double>(fits));
    // An update waits for the last of the replicas, which begin one after the other.
    const double behind = static_cast<double>(replicas - 1) / static_cast<double>(replicas) * busy;
    pace->likely_seconds = std::max(pace->likely_seconds, (together + behind) / static_cast<double>(fits));
  }
  pace->likely_seconds = std::max(pace->likely_seconds, pace->floor_seconds);
}

std::optional<CandidatePrice> Pricer::with_all_depth(const Chain& chain, const Plan& plan,
                                                     const PlanCost& cost, double limit) {
  PipelineShape shape = shape_of(plan);
  std::vector<int64_t> most, usual = pipedream_in_flight(shape.replicas);
  for (size_t s = 0; s < cost.loads.size(); ++s) {
    const int64_t part = StageTurns(shape, static_cast<int64_t>(s)).most_of_one_replica(shape.microbatches);
    const int64_t memory = memory_of(chain.stages[s]);
    most.push_back(in_flight_that_fits(cost.loads[s], shape.replicas[s], part, memory, cost.inputs));
    if (most.back() < 1) return std::nullopt;
    usual[s] = std::min(usual[s], most[s]);
  }
  most.back() = 1;  // the last stage holds nothing back; running ahead it would keep gradients waiting
  CandidatePrice price{kInfeasible, {}};
  for (const std::vector<int64_t>& depths : {most, usual}) {
    shape.in_flight = depths;
    shape.in_flight = usable_in_flight(shape);
    const double seconds =
        settled_minibatch_seconds(plan.schedule, shape, cost.times, cost.shared, &spent_, limit);
    if (seconds < price.seconds) price = {seconds, shape.in_flight};
  }
  return price;
}

std::optional<CandidatePrice> Pricer::price(const Chain& chain, double floor, double limit) {
  std::vector<StageLoad> loads = facts_.loads(chain);
  Plan plan = facts_.plan(chain, &loads);
  PlanCost cost(plan, std::move(loads), q_.inputs);
  DepthAim aim;
  aim.floor_seconds = floor;
  aim.most_seconds = limit;
  aim.known = &known_depths_;
  const bool searched = schedule_facts(request_.schedule).depth == DepthChoice::kSearched;
  if (drains_ && searched) {
    const std::optional<CandidatePrice> roomy = with_all_depth(chain, plan, cost, kHopeless * limit);
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
