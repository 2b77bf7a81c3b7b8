// Tensors of a part of a model on a device, mostly of the whole, and the passes over it that are measured.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "models/run/interpreter.h"
#include "profiler/crossing.h"
#include "profiler/marks.h"
#include "profiler/part.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

/// The part in one piece, and an update of it by a rule of the runtime's, SGD with momentum unless another is
/// asked: into the memory of a version that has died, and in place. Between the two what else is done with
/// gradients.
struct WholePass {
  Stretch forward, backward, step, step_in_place;
  Stretch gradient_copy, gradient_add, gradient_divide;
};

/// A minibatch of a replica: forward, backward and the copies of its gradients, until the slowest replica has
/// made them; then what follows their sum.
struct ReplicaPass {
  double compute_seconds = 0, update_seconds = 0;
};

/// Per node.
struct NodesPass {
  std::vector<Stretch> forward, backward;
};

/// What is kept when only the backward pass is to come.
struct SavedPass {
  std::vector<int64_t> bytes;  ///< made by each node of the part and kept here
  /// Of what came in, what is kept here: `saved` is for the caller to set.
  std::vector<std::shared_ptr<CrossingMemory>> kept;
  CrossingValues leaving;
  /// Of each value that leaves: the values that came in which its gradient reaches.
  std::map<std::string, std::set<std::string>> gradient_reaches;
};

/// The most that forward and backward of each node hold at a time, beside what a profile counts anyway: the
/// values that are made, or those that are read and their gradients, and gradients of parameters.
struct NodePeaks {
  std::vector<int64_t> forward_bytes, backward_bytes;
};

/// Every pass over the part waits for the device once, at its end, and for nothing else. Where the part is
/// not the whole model, each pass begins with copies of the values that come in, as if they had just been
/// received, and values that leave have a gradient of normal numbers.
class Bench {
 public:
  /// Moves `inputs`, a tensor per graph.inputs, and the first weights of `seed` to the device, as far as the
  /// part reads them. `arriving` has the values of earlier parts that this one reads. Borrows the model.
  /// InputError if nothing of the model can be trained.
  Bench(const Model& model, const Part& part, const CrossingValues& arriving,
        const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device);
  /// The whole model.
  Bench(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device);

  /// Before the first pass: the rule of the updates, instead of SGD; its momentum is 0.9.
  void update_by(OptimizerSettings rule) { settings_ = std::move(rule); }

  size_t size() const { return singles_.size(); }
  bool is_trainable(const std::string& parameter) const { return trainable_.count(parameter) > 0; }
  /// Of the copies in bfloat16 that an update writes. Known after a pass with one.
  int64_t copied_bytes() const;
  /// Nodes are counted from the part's first.
  const Segment& single(size_t node) const { return singles_[node]; }
  /// Does the gradient flow into this value? Known after find_gradient_flow().
  bool has_gradient(const std::string& value) const { return has_gradient_.count(value) > 0; }
  void find_gradient_flow();

  /// The part in one piece, as training runs it: nothing is watched but the times. Here and below, `record`:
  /// while the driver keeps a record of kernels, with Stretch::kernels.
  WholePass time_whole(bool record = false);
  /// Forward, backward and an update in place, untimed: no more than training does.
  void train();
  /// A minibatch whose backward is to come.
  class InFlight {
    friend class Bench;
    at::Tensor root;
    torch::autograd::edge_list targets;
    std::vector<at::Tensor> held;
  };
  /// Forward of another minibatch, then backward of the one in flight, as a rank of a pipeline makes them
  /// that has two in flight: what the backward reads has left the caches since. The first time that is a
  /// minibatch made for it, untimed.
  Stretch time_in_pipeline(InFlight& in_flight);
  /// Forward and backward, as a rank makes them that computes by turns with others: `others` is called before
  /// each of the two, untimed, and returns when it is this one's turn.
  Stretch time_by_turns(const std::function<void()>& others);
  /// What one of several replicas does. `slowest` is called when its gradients are there, with what they
  /// took, and returns when those of all are there, with what the slowest took. Between the two stretches,
  /// untimed, `sum` is called with its gradients, to make their sum over the replicas of them, in place.
  ReplicaPass time_replica(const std::function<double(double own_seconds)>& slowest,
                           const std::function<void(const std::vector<at::Tensor>& gradients)>& sum);
  /// The same pass with each node timed where it stands.
  NodesPass time_nodes(bool record = false);
  /// With records. Nothing where the driver keeps none.
  struct TracedPass {
    WholePass whole;
    NodesPass nodes;
    std::vector<Stretch> input_parts;
    double gap_seconds = 0;  ///< between two kernels, where the host is ahead
  };
  std::optional<TracedPass> trace();
  /// Time of the input part of each node's backward: a pass in which no parameter wants a gradient. What
  /// would have no gradient then, but has one in training, is cut off and made a leaf of its own.
  std::vector<Stretch> time_input_parts(bool record = false);

  /// By node: the values, read or made, whose memory its backward needs, as ProfiledNode::keeps. Each node
  /// runs by itself on copies of what it reads. After find_gradient_flow().
  std::vector<std::vector<std::string>> keeps();

  /// Before any other pass but find_gradient_flow() and keeps(), which says whose memory values are that
  /// leave.
  SavedPass saved();
  NodePeaks peaks();
  /// The most that a forward and backward allocate at a time, beside weights, what comes in, and the
  /// gradients of what leaves before they are copied.
  int64_t peak_bytes();
  struct Allocated {
    int64_t pass_bytes = 0;     ///< the most during forward and backward, above what there was before
    int64_t library_bytes = 0;  ///< before: beside weights and what comes in
  };
  /// What the device's allocator gives out; nothing where it keeps no count.
  std::optional<Allocated> allocated();

 private:
  using Tensors = std::map<std::string, at::Tensor>;
  using Edges = torch::autograd::edge_list;

  /// Memory that comes in: on the device, and the values in it that are read here.
  struct Arriving {
    std::shared_ptr<CrossingMemory> memory;
    at::Tensor bytes;
    std::map<std::string, CrossingValue> values;
    bool stays;  // until after the backward: earlier nodes keep it for theirs
  };
  /// Copies of it for one pass.
  struct Received {
    Tensors values;
    std::vector<std::string> names;   // of the values that want a gradient
    Edges edges;                      // where it comes to
    std::vector<const void*> places;  // by Arriving
    std::vector<at::Tensor> held;     // what stays
  };

  static std::vector<at::Tensor> pick(const Tensors& tensors, const std::vector<std::string>& names);
  /// By the node's parameters, as Segment::forward() takes them.
  std::vector<at::Tensor> copies_for(const Segment& node) const;
  RandomKey key() const { return {seed_, 0}; }
  void take_inputs(const std::vector<at::Tensor>& inputs, const CrossingValues& arriving);
  void make_weights(const Model& model);
  std::string owner(const std::string& value) const;
  void pass_once(Received received);
  InFlight set_out();
  Received receive() const;
  /// Returns a tensor for each value that leaves. Keeps none of `arriving` beyond its last reader.
  std::vector<at::Tensor> forward(Tensors arriving, const NodeObserver* observer) const;
  /// What backward begins from: the loss, or what hands a gradient to each of `leaving` that has one.
  /// Undefined where nothing has.
  at::Tensor root_of(const std::vector<at::Tensor>& leaving);
  /// Where gradients come to: of parameters, then of what came in.
  Edges targets(const Received& received) const;
  /// Before the first update: which parameters have a gradient, room for the next version and for sums.
  void prepare_updates(const std::vector<at::Tensor>& gradients);
  /// Before a pass: in training an update lies between two, and leaves other things in the caches than a pass
  /// does. Changes no weight.
  void update_before_pass();
  template <typename ParameterOf, typename Around, typename ValueOf>
  std::vector<at::Tensor> walk(Tensors arriving, const ParameterOf& parameter_of, const Around& around,
                               const ValueOf& value_of) const;

  const Graph& graph_;
  const Part part_;
  at::Device device_;
  Segment whole_;  // part
  uint64_t seed_;
  Marks marks_;
  std::vector<Segment> singles_;
  std::map<std::string, size_t> last_reader_;
  Tensors values_;  // of the minibatch
  std::vector<Arriving> arriving_;
  std::map<std::string, std::string> view_of_;   // of a value that lies in an earlier one's memory: which
  std::map<std::string, at::Tensor> gradients_;  // of the values that leave
  Tensors parameters_, buffers_;
  std::vector<at::Tensor> whole_parameters_, whole_buffers_;
  Tensors copies_;  // in bfloat16, of the parameters that have one
  std::vector<at::Tensor> leaves_;
  std::vector<std::string> leaf_names_;
  std::vector<bool> leaf_is_updated_;  // a tied parameter is, in the first part that reads it
  // Of those that have gradients: what is updated, room for it and for sums of gradients.
  std::vector<size_t> updated_;
  std::vector<at::Tensor> weights_, next_weights_, weight_copies_, next_copies_, sums_;
  OptimizerSettings settings_;
  std::unique_ptr<UpdateRule> rule_;
  std::set<std::string> trainable_, has_gradient_;
};

}  // namespace pipewright
