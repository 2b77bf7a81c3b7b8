// Valid documents: one small example of each type, and random ones from a seed.
#pragma once

#include <random>
#include <string>

#include "graph/graph.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/run.h"
#include "graph/summary.h"
#include "graph/topology.h"

namespace pipewright::testing {

/// images -> fc1 (weight, bias) -> relu -> fc2 (weight) -> loss(labels); nodes "linear", "relu", "linear_1",
/// "cross_entropy".
Graph sample_graph();
Profile sample_profile();
Topology sample_topology();
Plan sample_plan();  ///< two stages of sample_graph, 2-1, with prediction
Run sample_run();
Summary sample_summary();

Graph random_graph(std::mt19937_64& random);
Profile random_profile(std::mt19937_64& random);
Topology random_topology(std::mt19937_64& random);
Plan random_plan(std::mt19937_64& random);
Run random_run(std::mt19937_64& random);
Summary random_summary(std::mt19937_64& random);

}  // namespace pipewright::testing
