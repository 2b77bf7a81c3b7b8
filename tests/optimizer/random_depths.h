// Depths for plans of tests.
#pragma once

#include <random>
#include <vector>

#include "graph/plan.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright::testing {

inline void deepen_at_random(std::mt19937& random, Plan* plan) {
  for (Stage& stage : plan->stages) stage.in_flight = pick(random, 1, 6);
  const std::vector<int64_t> usable = usable_in_flight(shape_of(*plan));
  for (size_t s = 0; s < usable.size(); ++s) plan->stages[s].in_flight = usable[s];
}

}  // namespace pipewright::testing
