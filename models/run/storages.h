// Which tensors of a graph may share memory, and who writes it: by what operators' schemas say.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// Values share memory if an operator's schema says that its result is a view of an argument (or may be), or
/// that it writes the argument and returns it. Borrows the graph, which must not change meanwhile. InputError
/// that names the node for an operator that this LibTorch has not (a custom one, say).
class Storages {
 public:
  explicit Storages(const Graph& graph);

  /// A number for each piece of memory: tensors with equal ones may share it. `name`: a value, parameter or
  /// buffer.
  size_t class_of(const std::string& name) const;

  /// A write: the node, and the tensor as the node names it.
  struct Write {
    size_t node;
    std::string tensor;
  };
  /// In the order of the nodes. Norms that train write their running statistics.
  const std::vector<Write>& writes() const { return writes_; }

 private:
  void add(const std::string& name);
  void join(const std::string& a, const std::string& b);
  void look_at(size_t number);

  const Graph& graph_;
  std::unordered_map<std::string, size_t> position_;
  std::vector<size_t> parent_;  // union-find
  std::vector<Write> writes_;
};

/// Buffers that the graph writes and whose numbers reach what it hands out: a mean of its own, a counter that
/// scales. Not the running statistics of norms that train.
std::vector<std::string> buffers_read_back(const Graph& graph);

}  // namespace pipewright
