#include "optimizer/plan/chain.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/limits.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/search/stage_places.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

constexpr double kPace = 2e-3;  // a bound is as near to the best pace as that: no depth for so little

bool keep_places(const std::vector<FoundStage>& stages, const StagePlaces& places) {
  int64_t place = 0;
  for (const FoundStage& stage : stages) {
    if (place >= places.count() || !places.begins(place, stage.from)) return false;
    const int64_t replicas = places.replicas(place);
    if (replicas != 0 && stage.replicas != replicas) return false;
    place = places.next(place);
  }
  return places.ends(place) && places.begins(place, stages.back().to);
}

}  // namespace

int64_t Chain::devices() const {
  int64_t all = 0;
  for (const FoundStage& stage : stages) all += stage.replicas;
  return all;
}

Ranks Chain::ranks() const {
  Ranks all;
  for (const FoundStage& stage : stages) all.push_back(stage.ranks);
  return all;
}

Chain Chain::placed_on(const Ranks& ranks) const {
  Chain placed = *this;
  for (size_t s = 0; s < ranks.size(); ++s) placed.stages[s].ranks = ranks[s];
  return placed;
}

bool Chain::allowed_by(const Question& q) const {
  if (static_cast<int64_t>(stages.size()) < q.least_stages || devices() > q.devices) return false;
  if (q.all_devices && devices() != q.devices) return false;
  bool replicated = false;
  for (const FoundStage& stage : stages) {
    if (stage.replicas < 1 || stage.replicas > q.most_replicas) return false;
    replicated = replicated || stage.replicas > 1;
  }
  if (q.places != nullptr && !keep_places(stages, *q.places)) return false;
  return replicated || !q.replicated;
}

ChainFacts::ChainFacts(const Question& question, const PlanRequest& request)
    : q_(question), request_(request), drains_(drains(request)) {}

std::vector<StageLoad> ChainFacts::loads(const Chain& chain) const {
  std::vector<StageLoad> loads;
  for (const FoundStage& stage : chain.stages) {
    StageLoad load = launched_between(*q_.states, stage.from, stage.to);
    if (q_.memory_bytes > 0) load.workspace = workspace_between(*q_.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    loads.push_back(std::move(load));
  }
  return loads;
}

int64_t ChainFacts::replicas_part(int64_t replicas) const { return (q_.interval + replicas - 1) / replicas; }

int64_t ChainFacts::usual_depth(const Chain& chain, size_t s, int64_t later) const {
  if (schedule_facts(request_.schedule).depth == DepthChoice::kAsTheFirst)
    later = chain.devices() - chain.stages[0].replicas;
  return assumed_in_flight(q_, later, chain.stages[s].replicas);
}

int64_t ChainFacts::wanted_depth(Room room, const Chain& chain, size_t s, int64_t later, double behind,
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

Plan ChainFacts::plan(const Chain& chain, std::vector<StageLoad>* loads) const {
  Plan plan;
  std::vector<NodeSet> nodes;
  for (const FoundStage& found : chain.stages) {
    const State& from = q_.states->states[static_cast<size_t>(found.from)];
    const State& to = q_.states->states[static_cast<size_t>(found.to)];
    Stage stage;
    stage.ranks = found.ranks;
    for (int64_t q = 0; found.ranks.empty() && q < found.replicas; ++q)
      stage.ranks.push_back(plan.world_size + q);
    stage.shares = found.shares;
    stage.frozen = to.frozen;
    stage.recompute = found.recompute && !stage.frozen;
    plan.world_size += found.replicas;
    plan.stages.push_back(std::move(stage));
    if (!q_.states->ties.empty()) nodes.push_back(to.done - from.done);
  }
  if (!q_.states->ties.empty()) {
    const std::vector<SplitGroup> split = split_groups(q_.states->ties, nodes);
    plan.tied_parameters = tied_parameters(split);
    set_tied(split, plan.stages, loads);
  }
  run_by(rules_of(request_), &plan);
  return plan;
}

}  // namespace pipewright
