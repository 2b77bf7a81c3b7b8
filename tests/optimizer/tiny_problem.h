// Problems so small that every plan of them can be tried.
#pragma once

#include <algorithm>
#include <random>

#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright::testing {

inline Profile tiny_profile(std::mt19937& random) {
  const bool chain = pick(random, 0, 1) == 0;
  Profile profile = random_profile(random, static_cast<int>(pick(random, 3, 5)), chain, 50);
  if (pick(random, 0, 1) == 0) return profile;
  for (ProfiledNode& node : profile.nodes) {  // all different
    node.forward_seconds *= 1 + 1e-3 * static_cast<double>(pick(random, 0, 500));
    node.backward_input_seconds *= 1 + 1e-3 * static_cast<double>(pick(random, 0, 500));
    node.outputs[0].bytes += pick(random, 0, 900);
    node.saved_bytes += pick(random, 0, 900);
  }
  return profile;
}

struct TinyProblem {
  const char* kind;
  Topology topology;
};

/// Some of what the best plan without a limit has on its fullest device.
inline int64_t limited_memory(std::mt19937& random, const Profile& profile, const Topology& topology) {
  const Plan plan = make_plan(profile, topology, PlanRequest());
  int64_t most = 0;
  for (const StagePrediction& stage : plan.predicted->stages)
    most = std::max(most, stage.memory.total_bytes());
  return most * pick(random, 20, 99) / 100 + 1;
}

inline TinyProblem tiny_problem(std::mt19937& random, const Profile& profile) {
  const double rates[] = {1e5, 3e5, 1e6, 3e6, 1e7, 1e9};
  const auto rate = [&] { return rates[pick(random, 0, 5)]; };
  const double latency = pick(random, 0, 2) == 0 ? 2e-4 : 0;
  TinyProblem problem{"flat", flat_topology(pick(random, 2, 5), rate(), latency, 0)};
  switch (pick(random, 0, 4)) {
    case 0:
      return problem;
    case 1:
      problem.kind = "flat, memory";
      problem.topology.memory_bytes = limited_memory(random, profile, problem.topology);
      return problem;
    case 2:
      problem.kind = "flat, shared";
      problem.topology.levels[0].shared = true;
      return problem;
    default:
      break;
  }
  problem.kind = "levels";
  const bool wide = pick(random, 0, 1) == 0;
  problem.topology = flat_topology(wide ? 3 : 2, rate(), latency, 0);
  problem.topology.levels.push_back({wide ? 2 : pick(random, 2, 3), rate(), 2 * latency, false});
  if (pick(random, 0, 2) == 0) problem.topology.levels[pick(random, 0, 1)].shared = true;
  if (pick(random, 0, 2) == 0) {
    problem.kind = "levels, memory";
    problem.topology.memory_bytes = limited_memory(random, profile, problem.topology);
  }
  return problem;
}

}  // namespace pipewright::testing
