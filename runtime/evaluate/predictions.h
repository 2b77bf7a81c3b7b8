// What a model says of each sample, as files.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
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

/// InputError unless the model has scores, and the files' names and folders are what they should be.
void check_predictions(const Graph& graph, const PredictionFiles& files);

/// Of one minibatch: what travels from the rank that computed it.
struct Scored {
  at::Tensor classes;  ///< int64 (samples, ...): the largest score's; of equal ones the first
  at::Tensor best;     ///< float32, that score
  at::Tensor scores;   ///< float32 (samples, ..., classes); undefined unless they are asked for
  std::vector<at::Tensor> parts() const;
};
Scored scored(const at::Tensor& scores, bool whole);
/// Of the right shapes for `samples` samples of a graph for `batch_size`, to be received into.
Scored empty_scored(const Graph& graph, int64_t batch_size, int64_t samples, bool whole);

/// Samples stand in data order (docs/evaluating.md has the files). RunError if they cannot be written.
void write_predictions(const PredictionFiles& files, const Run& run, const Graph& graph, const Dataset& data,
                       const std::map<int64_t, Scored>& minibatches);

}  // namespace pipewright
