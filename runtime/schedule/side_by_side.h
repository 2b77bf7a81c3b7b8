// A plan whose stages all have N replicas as N pipelines side by side: what loose synchronisation
// (graph/sync_rules.h) trains.
#pragma once

#include "graph/plan.h"
#include "graph/sync_rules.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

/// Pipeline `index` of `count`: of the run's minibatches it trains index, index + count, ..., which it counts
/// from 0 by itself. The only pipeline of a run (0 of 1) counts as the run does.
struct PipelineTurn {
  int64_t index = 0;
  int64_t count = 1;

  int64_t to_run(int64_t own) const { return own * count + index; }
  /// Of a minibatch that is its own.
  int64_t to_own(int64_t of_run) const { return of_run / count; }
  /// How many of its own come before a minibatch of the run, whosever that is.
  int64_t before(int64_t of_run) const { return of_run <= index ? 0 : (of_run - index + count - 1) / count; }
  Span own(Span of_run) const {
    const int64_t first = before(of_run.first);
    return {first, before(of_run.end()) - first};
  }
};

/// The turn of the rank's replica of the plan; 0 of 1 under a rule that keeps replicas equal.
PipelineTurn turn_of(const Plan& plan, const SyncFacts& sync, int64_t replica);

/// What pipeline `turn` of the plan runs: one replica of each stage, and its part of an update interval. The
/// plan itself for 0 of 1.
Plan pipeline_of(const Plan& plan, PipelineTurn turn);

/// Minibatches that are in flight in a pipeline, over its update interval, rounded up.
int64_t updates_in_flight(const Plan& pipeline, int64_t gradient_accumulation);

/// PlanError unless the plan can be run so under the SPEC `sync`: equal replicas without shares, an interval
/// that they can divide, copies of tied parameters that stay equal, and pipelines that run by themselves
/// (check_plan_runs).
void check_side_by_side(const Plan& plan, const std::string& sync, int64_t gradient_accumulation);

}  // namespace pipewright
