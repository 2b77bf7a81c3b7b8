#include "runtime/schedule/plan_shape.h"

#include <algorithm>

namespace pipewright {

PipelineShape shape_of(const Plan& plan, int64_t gradient_accumulation) {
  PipelineShape shape;
  int64_t ranks = 0;  // of all stages, a rank counted once for each of its stages
  bool shares = false;
  for (const Stage& stage : plan.stages) {
    ranks += static_cast<int64_t>(stage.ranks.size());
    shape.replicas.push_back(static_cast<int64_t>(stage.ranks.size()));
    shape.in_flight.push_back(stage.in_flight);
    shape.shares.push_back(stage.shares);
    shares = shares || !stage.shares.empty();
  }
  if (!shares) shape.shares.clear();
  shape.weights = weight_rule_named(plan.weights);
  shape.microbatches = plan.microbatches;
  shape.accumulation = gradient_accumulation;
  // Every rank has equally many stages (Plan::validate).
  if (plan.world_size > 0) shape.stages_per_rank = std::max<int64_t>(1, ranks / plan.world_size);
  return shape;
}

}  // namespace pipewright
