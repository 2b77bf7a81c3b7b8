// What a model says of each sample, as files.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/run.h"
#include "runtime/data/dataset.h"

namespace pipewright {

/// "" = not asked for.
struct PredictionFiles {
  std::string scores;   ///< .safetensors
  std::string classes;  ///< .jsonl
  bool any() const { return !scores.empty() || !classes.empty(); }
};

/// InputError unless the model has scores, and for classes a cross entropy of them that says which they are
/// (models/definition/scoring.h), and the files' names and folders are what they should be.
void check_predictions(const Graph& graph, const PredictionFiles& files);

/// Of one minibatch: what travels from the rank that computed it.
struct Scored {
  at::Tensor classes;  ///< int64: the largest score's along their dimension, of equal ones the first;
                       ///< undefined: none
  at::Tensor best;     ///< float32, that score
  at::Tensor scores;   ///< float32, as the graph has them; undefined unless they are asked for
  std::vector<at::Tensor> parts() const;
};
/// `dimension`: of the classes, if there are any.
Scored scored(const at::Tensor& scores, std::optional<int64_t> dimension, bool whole);
/// Of the right shapes for `samples` samples of a graph for `batch_size`, to be received into.
Scored empty_scored(const Graph& graph, std::optional<int64_t> dimension, int64_t batch_size, int64_t samples,
                    bool whole);

/// Samples stand in data order (docs/evaluating.md has the files). RunError if they cannot be written.
void write_predictions(const PredictionFiles& files, const Run& run, const Graph& graph, const Dataset& data,
                       const std::map<int64_t, Scored>& minibatches);

}  // namespace pipewright
