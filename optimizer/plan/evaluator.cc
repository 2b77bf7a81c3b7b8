#include "optimizer/plan/evaluator.h"

#include <algorithm>

#include "optimizer/cost/levels.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"

namespace pipewright {

Evaluator::Evaluator(const Question& question, const PlanRequest& request)
    : q_(question), facts_(question, request), pricer_(question, request), drains_(drains(request)) {}

int64_t Evaluator::memory_of(const FoundStage& stage) const {
  return memory_limit_bytes(q_.inputs, q_.memory_bytes, stage.ranks);
}

int64_t Evaluator::needed_depth(const FoundStage& stage) const {
  return q_.whole_interval ? facts_.replicas_part(stage.replicas) : 1;
}

bool Evaluator::fit(Room room, double seconds, Chain* chain) const {
  int64_t later = 0;
  double behind = 0;  // work of a minibatch from the stage on, there and back
  for (size_t s = chain->stages.size(); s-- > 0;) {
    FoundStage& stage = chain->stages[s];
    stage.recompute = q_.recompute == Recompute::kAlways;
    if (q_.memory_bytes == 0) continue;
    StageLoad load = load_between(*q_.states, stage.from, stage.to);
    load.workspace = workspace_between(*q_.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    behind += load.forward_seconds + load.backward_seconds;
    const int64_t needed = needed_depth(stage);
    const int64_t wanted = std::max(needed, facts_.wanted_depth(room, *chain, s, later, behind, seconds));
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
  std::vector<StageLoad> loads = facts_.loads(*chain);
  if (q_.memory_bytes > 0) {
    for (size_t s = 0; s < loads.size(); ++s) {
      const FoundStage& stage = chain->stages[s];
      const int64_t least = needed_depth(stage);
      if (in_flight_that_fits(loads[s], stage.replicas, least, memory_of(stage), q_.inputs) < least)
        return {kInfeasible, kInfeasible};
    }
  }
  for (size_t s = 0; s < loads.size(); ++s) {
    FoundStage& found = chain->stages[s];
    found.shares.clear();
    if (found.replicas == 1) continue;
    std::vector<double> seconds;
    for (const int64_t rank : found.ranks) seconds.push_back(compute_seconds_on(loads[s], q_.inputs, rank));
    const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
    if (*least < *most) found.shares = best_shares(seconds, q_.inputs.most_minibatches_of_round);
    if (std::all_of(found.shares.begin(), found.shares.end(), [](int64_t share) { return share == 1; }))
      found.shares.clear();
  }
  NetworkPace pace = pricer_.pace(*chain, loads);
  if (drains_)  // and fills
    pace.likely_seconds *=
        1 + static_cast<double>(chain->stages.size() - 1) / static_cast<double>(q_.interval);
  return pace;
}

std::pair<size_t, double> Evaluator::busiest(const Chain& chain) const {
  std::vector<StageLoad> loads = facts_.loads(chain);
  std::vector<Stage> stages;
  for (const FoundStage& found : chain.stages) {
    Stage stage;
    stage.ranks = found.ranks;
    stage.shares = found.shares;
    stages.push_back(std::move(stage));
  }
  const std::vector<StagePeriod> periods = price_placed(loads, stages, q_.inputs).stages;
  std::pair<size_t, double> most(0, 0);
  for (size_t s = 0; s < periods.size(); ++s)
    if (periods[s].total_seconds() > most.second) most = {s, periods[s].total_seconds()};
  return most;
}

}  // namespace pipewright
