#include "optimizer/plan/chain.h"

#include <algorithm>
#include <boost/container_hash/hash.hpp>
#include <utility>

#include "graph/limits.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/search/stage_places.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

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

void keep_to(const States& states, int from, int kept_to, StageLoad* load) {
  const StageLoad first = load_between(states, from, kept_to);
  load->once_forward_seconds = std::min(first.forward_seconds, load->forward_seconds);
  load->once_saved_bytes = first.saved_bytes;
  load->once_held_bytes = first.held_bytes;
}

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

bool Chain::allowed_by(const Problem& q) const {
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

ChainFacts::ChainFacts(const Problem& problem, const PlanRequest& request) : q_(problem), request_(request) {}

size_t ChainFacts::HashOfKey::operator()(const Key& key) const {
  return boost::hash_range(key.begin(), key.end());
}

std::vector<StageLoad> ChainFacts::loads(const Chain& chain) {
  std::vector<StageLoad> loads;
  std::vector<int64_t> replicas;
  loads.reserve(chain.stages.size());
  replicas.reserve(chain.stages.size());
  for (const FoundStage& stage : chain.stages) {
    const auto [known, added] = loads_.try_emplace({stage.from, stage.to, recomputed(stage)});
    if (added) {
      StageLoad& load = known->second = launched_between(*q_.states, stage.from, stage.to);
      if (q_.memory_bytes > 0) load.workspace = workspace_between(*q_.states, stage.from, stage.to);
      load.recompute = stage.recompute;
      if (stage.recompute && stage.kept_to >= 0) keep_to(*q_.states, stage.from, stage.kept_to, &load);
    }
    loads.push_back(known->second);
    replicas.push_back(stage.replicas);
  }
  set_later_devices(replicas, &loads);
  return loads;
}

int64_t ChainFacts::depth_that_fits(const FoundStage& stage, const StageLoad& load, int64_t most) {
  const int64_t limit = memory_limit_bytes(q_.inputs, q_.memory_bytes, stage.ranks);
  if (limit == 0) return most;
  const auto [known, added] = depths_.try_emplace(
      {stage.from, stage.to, recomputed(stage), stage.replicas, load.later_devices, limit});
  if (added) known->second = in_flight_that_fits(load, stage.replicas, kMostInFlight, limit, q_.inputs);
  return std::min(known->second, most);
}

int64_t ChainFacts::replicas_part(int64_t replicas) const { return (q_.interval + replicas - 1) / replicas; }

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
