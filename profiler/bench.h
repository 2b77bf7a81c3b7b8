// A model's tensors on a device, and the passes over it that are measured.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "models/run/interpreter.h"
#include "profiler/marks.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

/// The unpartitioned model, in one piece, and an update of it by the runtime's own rule, SGD with momentum:
/// into the memory of a version that has died, and in place. Between the two what else is done with
/// gradients.
struct WholePass {
  Stretch forward, backward, step, step_in_place;
  Stretch gradient_copy, gradient_add, gradient_divide;
};

/// Per node.
struct NodesPass {
  std::vector<Stretch> forward, backward;
};

/// Every pass over the model waits for the device once, at its end, and for nothing else.
class Bench {
 public:
  /// Moves `inputs`, a tensor per graph.inputs, and the first weights of `seed` to the device. Borrows the
  /// model. InputError if nothing of it can be trained.
  Bench(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device);

  size_t size() const { return graph_.nodes.size(); }
  bool is_trainable(const std::string& parameter) const { return trainable_.count(parameter) > 0; }
  const Segment& single(size_t node) const { return singles_[node]; }
  /// Does the gradient flow into this value? Known after find_gradient_flow().
  bool has_gradient(const std::string& value) const { return has_gradient_.count(value) > 0; }
  void find_gradient_flow();

  /// The model in one piece, as training runs it: nothing is watched but the times.
  WholePass time_whole();
  /// Forward, backward and an update in place, untimed: no more than training does.
  void train();
  /// The same pass with each node timed where it stands.
  NodesPass time_nodes();
  /// Time of the input part of each node's backward: a pass in which no parameter wants a gradient. What
  /// would have no gradient then, but has one in training, is cut off and made a leaf of its own.
  std::vector<Stretch> time_input_parts();

  /// Bytes made by each node that are still there when only the backward pass is to come.
  std::vector<int64_t> saved_bytes();
  /// What each node's forward and backward allocate beside what a profile counts anyway: values that are read
  /// and made or their gradients, gradients of parameters, and in the forward `saved`. Buffers that
  /// operators fill for themselves, such as weights in another order. Takes saved_bytes().
  std::vector<int64_t> workspace_bytes(const std::vector<int64_t>& saved);
  /// The most that the device's allocator gives out during forward and backward, above what it had before;
  /// nothing where it keeps no count.
  std::optional<int64_t> allocated_bytes();

 private:
  using Tensors = std::map<std::string, at::Tensor>;

  static std::vector<at::Tensor> pick(const Tensors& tensors, const std::vector<std::string>& names);
  RandomKey key() const { return {seed_, 0}; }
  at::Tensor forward(const NodeObserver* observer) const;
  /// Before the first update: which parameters have a gradient, room for the next version and for sums.
  void prepare_updates(const std::vector<at::Tensor>& gradients);
  /// Before a pass: in training an update lies between two, and leaves other things in the caches than a pass
  /// does. Changes no weight.
  void update_before_pass();
  template <typename ParameterOf, typename Around, typename ValueOf>
  at::Tensor walk(const ParameterOf& parameter_of, const Around& around, const ValueOf& value_of) const;

  const Graph& graph_;
  at::Device device_;
  Segment whole_;
  uint64_t seed_;
  Marks marks_;
  std::vector<Segment> singles_;
  std::map<std::string, size_t> last_reader_;
  Tensors values_;  // the minibatch
  Tensors parameters_, buffers_;
  std::vector<at::Tensor> whole_parameters_, whole_buffers_;
  std::vector<at::Tensor> leaves_;
  // Of those that have gradients: what is updated, room for it and for sums of gradients.
  std::vector<size_t> updated_;
  std::vector<at::Tensor> weights_, next_weights_, sums_;
  std::unique_ptr<UpdateRule> rule_;
  std::set<std::string> trainable_, has_gradient_;
};

}  // namespace pipewright
