// Is a graph the one that a document was made for?
#pragma once

#include <cstdint>
#include <string>

#include "graph/graph.h"
#include "graph/plan.h"

namespace pipewright {

/// Whether `digest` is this graph's when it is called `name`. What a model is called (the path of a file,
/// say) is part of its document and so of the digest, but not of what it computes.
bool is_digest_of(const Graph& graph, const std::string& digest, const std::string& name);

/// Samples of the minibatches that the plan was made for; 0: it does not say.
int64_t planned_samples(const Plan& plan);

/// Samples of the graph's minibatches; 0: it has no inputs.
int64_t samples_of(const Graph& graph);

}  // namespace pipewright
