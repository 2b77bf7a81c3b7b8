#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "models/run/interpreter.h"
#include "runtime/serial/reference.h"
#include "runtime/serial/serial_versions.h"

namespace pipewright {
namespace {

bool draws(const Graph& graph) {
  std::vector<size_t> nodes(graph.nodes.size());
  std::iota(nodes.begin(), nodes.end(), size_t{0});
  return !Segment(graph, nodes, graph.outputs).random_nodes().empty();
}

}  // namespace

Plan one_device_plan(const Model& model, const Plan& plan, const TrainingRules& rules) {
  Plan single = single_stage_plan(model.graph, 1);
  single.schedule = "gpipe";
  single.weights = "flush";
  single.frozen_layers = plan.frozen_layers;
  const size_t cycle = cycle_of(plan.stages[0]).size();
  if (rules.sync != "all-reduce" && cycle > 1) {
    single.schedule.clear();
    return single;
  }
  // Parts of a minibatch draw numbers of their own.
  if (std::any_of(plan.stages.begin(), plan.stages.end(),
                  [](const Stage& stage) { return stage.splits(); }) &&
      draws(model.graph)) {
    single.schedule.clear();
    return single;
  }
  const bool together = std::all_of(plan.stages.begin(), plan.stages.end(),
                                    [&](const Stage& stage) { return cycle_of(stage).size() == cycle; });
  // Nobody runs ahead of the first stage.
  const bool fresh =
      plan.weights != "2bw" && (plan.schedule == "model-parallel" ||
                                run_ahead(cycle_of(plan.stages[0]), plan.stages[0].in_flight) == 0);
  const bool clips_alike = plan.stages.size() == 1 || rules.gradient_clipping_norm == 0;
  if (plan.weights == "flush") {
    single.microbatches = plan.microbatches;
  } else if (fresh && together && clips_alike) {
    single.microbatches = rules.gradient_accumulation * static_cast<int64_t>(cycle);
  } else {
    single.schedule.clear();
  }
  single.stages[0].in_flight = single.microbatches;
  return single;
}

}  // namespace pipewright
