// What the values of a graph are to the samples of a minibatch, by operator: whether a part of the samples
// can be computed without the others, and what the loss of a part counts in that of all (docs/semantics.md,
// "What a loss divides by").
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/run/batch_relation.h"

namespace pipewright {

/// Values that are known from the fields of a minibatch without the model: made without random numbers of
/// inputs of the graph and of buffers and parameters that never change.
std::set<std::string> values_of_fields(const Graph& graph);

/// Nodes that `wanted`, of values_of_fields(), are made by: positions, ascending.
std::vector<size_t> makers_of(const Graph& graph, const std::vector<std::string>& wanted);

struct BatchAnalysis {
  /// Of every value that `nodes` read or make.
  std::map<std::string, BatchRelation> values;
  /// Buffers that `nodes` write with what is not the same in every part, and why.
  std::map<std::string, std::string> buffers;
};

/// `whole`, `part`: the graph for minibatches of two sizes. `nodes`: positions, ascending, of those that run
/// together; what they read of others counts by its shape: rows, or whole. `samples_meet`: nodes may make a
/// sample's result of the others' too (batch norm): a value with a dimension of samples then counts as rows.
/// So the loss is seen as the sum or mean that it is, though not of terms of one sample.
BatchAnalysis analyse_batch(const Graph& whole, const Graph& part, const std::vector<size_t>& nodes,
                            bool samples_meet = false);

}  // namespace pipewright
