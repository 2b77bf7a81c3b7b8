// Runs any subset of a graph's nodes by boxed calls through the dispatcher, with autograd as usual.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// Names the random stream of one pass: the same minibatch draws the same numbers under every plan.
struct RandomKey {
  uint64_t seed = 0;
  int64_t minibatch = 0;
  /// For a pass that is recorded (runtime/stage/recorded_stage.h): a generator for each of
  /// Segment::random_nodes(), which the node draws from in the default one's place, as it is. Borrowed. Null:
  /// seeded as below.
  const std::vector<at::Generator>* streams = nullptr;
  /// Of a pass over a part of the minibatch: the first of its samples. Each part draws numbers of its own.
  int64_t first_sample = 0;
};

/// The default generator of a device is one for the whole process: seeding it and drawing from it must not be
/// torn apart when several ranks are threads of it, nor a recording that it takes part in. Held by Segment
/// while a node draws.
std::recursive_mutex& generator_mutex();

/// Called around every node, with the node's position in Segment::nodes(): for profiling and for error
/// messages.
struct NodeObserver {
  std::function<void(size_t)> before;
  std::function<void(size_t)> after;
  /// Between the two, for each output of the node: its number, and the tensor (may be undefined).
  std::function<void(size_t, size_t, const at::Tensor&)> made;
};

/// A prepared, executable part of a graph. One thread runs it at a time.
///
///   inputs()      in graph order: values made outside the segment (graph inputs included) that its nodes
///   read, or that `outputs` names
///                 and no node of the segment makes: those are passed through
///   parameters()  and buffers(): names the nodes read, in graph order
///   outputs()     as asked for
///
/// A random node (dropout) seeds the default generator with a hash of (seed, minibatch, node name) before it
/// draws. The default generator is the process's, one for each device: all segments take turns at it. Values
/// are dropped after their last use; move the inputs in, so that this holds for them too. Buffers are changed
/// in place by the nodes that write them (batch norm, statistics of a module's own), but for the first
/// `keeping_buffers` of the graph's nodes: what one of these would write into memory of a buffer is not
/// written, and who reads its result reads the buffer as it was. Where graph.autocast is set, the nodes run
/// under bfloat16 autocast (models/run/autocast.h), but for those whose `autocast` says otherwise. Nodes
/// whose `gradient` is false run without autograd. Nodes that depend on nothing (arange, masks of fixed
/// shape) run in the first forward; what others read of them is kept from then on, unless
/// graph.fold_constants is off. An operator that makes a list of tensors (split, unbind) makes one value per
/// element. All tensors given to it are on its device; nodes that say where they make a tensor, or make one
/// of nothing, make it there.
class Segment {
 public:
  /// `nodes`: positions in graph.nodes, ascending. `outputs`: values to hand out. InputError for an operator
  /// that this LibTorch does not know or arguments that do not fit its schema, naming the node. Does not keep
  /// `graph`.
  Segment(const Graph& graph, const std::vector<size_t>& nodes, std::vector<std::string> outputs,
          at::Device device = at::kCPU, size_t keeping_buffers = 0);
  ~Segment();
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;

  const std::vector<size_t>& nodes() const;
  const std::vector<std::string>& inputs() const;
  const std::vector<std::string>& parameters() const;
  const std::vector<std::string>& buffers() const;
  const std::vector<std::string>& outputs() const;
  /// Positions in parameters() of those of which a node reads the bfloat16 copy, if there is one, ascending:
  /// none without the device pass "weights-cast-once" (models/run/device_passes.h). A node that wants the
  /// weight itself reads that.
  const std::vector<size_t>& copied() const;
  /// For messages: "node 'conv1' (features.0, aten::conv2d)".
  const std::string& label(size_t position) const;

  /// Positions in nodes() of those that draw random numbers, ascending.
  const std::vector<size_t>& random_nodes() const;
  /// The seed of random_nodes()[i] in a pass.
  uint64_t seed_of(size_t i, RandomKey key) const;
  /// What is kept of nodes that depend on nothing: none before the first forward.
  const std::vector<at::Tensor>& constants() const;

  /// One tensor per inputs(), parameters(), buffers(), in their order; returns one per outputs(). Runs under
  /// the caller's grad mode. `copies`: none, or one per parameters(): the same numbers in bfloat16, or
  /// undefined, where autocast then casts the weight at each read, as ever; the bits, also of gradients, are
  /// the same. RunError names the node and its layer if an operator fails.
  std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& parameters,
                                  const std::vector<at::Tensor>& buffers, RandomKey key,
                                  const NodeObserver* observer = nullptr,
                                  const std::vector<at::Tensor>& copies = {}) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace pipewright
