// A model as Pipewright knows it: a graph, and how each parameter and buffer starts. No tensors here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// How a tensor starts. The value is a pure function of (seed, name, type, initialiser): any rank can make
/// any parameter on its own, and the result does not depend on the plan.
struct Initialiser {
  enum class Kind { kConstant, kUniform, kNormal } kind = Kind::kConstant;
  double a = 0;  ///< constant: the value; uniform: lower bound; normal: mean
  double b = 0;  ///< uniform: upper bound; normal: standard deviation

  static Initialiser constant(double value) { return {Kind::kConstant, value, 0}; }
  static Initialiser uniform(double bound) { return {Kind::kUniform, -bound, bound}; }
  static Initialiser normal(double mean, double deviation) { return {Kind::kNormal, mean, deviation}; }
  bool operator==(const Initialiser&) const = default;
};

/// A first value that a file has: where in the archive it is (models/exported/pt2_archive.h).
struct StoredTensor {
  std::string record;         ///< the bytes of its storage; several tensors may share one
  int64_t record_bytes = 0;   ///< size of the storage
  TensorType type;            ///< of the tensor
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;  ///< elements
};

class Pt2Archive;

struct Model {
  Graph graph;
  std::vector<Initialiser> parameter_initialisers;  ///< one per graph.parameters
  std::vector<Initialiser> buffer_initialisers;     ///< one per graph.buffers
  /// Of an exported program: first values by name, which win over the initialisers, and the file they are in.
  std::map<std::string, StoredTensor> stored;
  std::shared_ptr<const Pt2Archive> archive;
  /// The model runs with the number of samples that its types speak of, and no other.
  bool fixed_batch = false;
  /// An exported program's: of fewer samples it need not compute what the model does.
  int64_t least_samples = 1;
  /// Builds the graph again for so many samples. Empty for a model that was put together by hand.
  std::function<Graph(int64_t samples)> graph_for;
};

/// Numbers (not bytes) in all parameters, trainable or not.
int64_t parameter_count(const Graph& graph);

/// The same graph for evaluation: dropout off, batch norm reads its running statistics and leaves them alone.
/// Node, value and parameter names are unchanged, so a plan for the training graph cuts this one too.
Graph evaluation_graph(const Graph& training);

/// model.graph for minibatches of another number of samples, for a short last minibatch: made anew, so that types and
/// arguments are what the model's own code, or the exported program's symbolic sizes, say. Names, order, sets and passes
/// are those of model.graph. InputError where model.fixed_batch.
Graph with_batch_size(const Model& model, int64_t samples);

}  // namespace pipewright
