// The part of a model that one rank runs: forward and backward of its nodes. Knows tensors, not peers.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/run/interpreter.h"
#include "runtime/stage/backward_cuts.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/weight_versions.h"
#include "runtime/transport/message.h"

namespace pipewright {

struct StageProgramOptions {
  /// Activations are dropped after the forward; the backward runs it again, with the same random numbers and
  /// on the buffers as they were. So the bits are the same, and buffers change once.
  bool recompute = false;
  /// The position in graph.nodes of the first node for which that holds; what earlier nodes save stays. 0:
  /// for all nodes.
  size_t recompute_from = 0;
  /// The backward can be run in two parts.
  bool split_backward = false;
  /// So many of graph.nodes, from the front, write no buffers (Segment): all in evaluation, those of frozen
  /// layers.
  size_t keeping_buffers = 0;
  /// Where all its tensors are.
  at::Device device = at::kCPU;
};

/// What a forward leaves behind for its backward. Holds the weight version it read.
struct Pass {
  std::shared_ptr<const WeightVersion> version;
  std::vector<at::Tensor> sent;  ///< without autograd graph; the backward does not need them
  at::Tensor loss;               ///< last stage; likewise without
  double loss_weight = 1;  ///< what it counts in that of the minibatch: the gradient that it begins with
  at::Tensor
      loss_gradient;  ///< if it is defined that gradient: a recording's, which has a weight at each replay
  std::vector<at::Tensor> handed_out;  ///< last stage: the graph's outputs behind the loss; as sent

  /// Where the backward begins: at the sent values, or at the loss. Invalid: no gradient flows. Holding these
  /// and not the values frees what no operator has saved.
  std::vector<torch::autograd::Edge> roots;
  /// Where it ends: at the received values that are differentiable. These do not hold the values either.
  std::vector<torch::autograd::Edge> received_edges;

  // For recomputing.
  std::vector<at::Tensor> received;
  std::vector<at::Tensor> fields;
  std::vector<at::Tensor> buffers;  ///< as they were before the forward
  std::vector<at::Tensor>
      between;  ///< of a part: what it reads of the nodes before, with their autograd graph
  RandomKey key;

  // For the split backward: where the autograd graph is cut, and what has come there from behind.
  std::vector<torch::autograd::Edge> cut_edges;  ///< by BackwardCuts::values; invalid: no gradient flows
  std::vector<at::Tensor> cut_gradients;
  std::vector<at::Tensor> weight_gradients;  ///< of weights whose gradient is part of BI; undefined: of BW
};

/// Gradients of one backward.
struct StageGradients {
  std::vector<at::Tensor> received;  ///< one per received value that is differentiable: the message upstream
  std::vector<at::Tensor> weights;   ///< one per trainable parameter, in order
};

/// Called while a backward runs, with the gradient of a trainable parameter (by trainable()) as soon as all
/// of it is there; not for parameters that no gradient reaches. It must not change the gradient.
using GradientMade = std::function<void(size_t trainable, const at::Tensor& gradient)>;

/// One stage of a partitioned graph, for minibatches of the graph's batch size. Immutable; borrows nothing.
class StageProgram {
 public:
  StageProgram(const Graph& graph, const std::vector<StageInterface>& stages, size_t index,
               StageProgramOptions options = {});

  const Segment& segment() const { return segment_; }
  const std::vector<std::string>& fields() const { return fields_; }
  /// Parameters and buffers the stage reads, in the order in which forward takes them.
  const std::vector<std::string>& parameters() const { return segment_.parameters(); }
  const std::vector<std::string>& buffers() const { return segment_.buffers(); }
  /// Positions of the trainable ones in parameters(): StageGradients::weights follows it.
  const std::vector<size_t>& trainable() const { return trainable_; }

  /// Values that cross the cuts before and behind it, and which of them have gradients.
  const std::vector<std::string>& received() const { return received_; }
  const std::vector<std::string>& sent() const { return sent_; }
  const std::vector<bool>& received_differentiable() const { return received_differentiable_; }
  const std::vector<bool>& sent_differentiable() const { return sent_differentiable_; }
  /// Messages: values downstream, gradients upstream.
  const std::vector<MessagePart>& received_parts() const { return received_parts_; }
  const std::vector<MessagePart>& sent_parts() const { return sent_parts_; }
  const std::vector<MessagePart>& received_gradient_parts() const { return received_gradient_parts_; }
  const std::vector<MessagePart>& sent_gradient_parts() const { return sent_gradient_parts_; }

  /// `fields`: one tensor per fields(). With gradient mode off nothing is kept for a backward.
  Pass forward(std::vector<at::Tensor> received, std::vector<at::Tensor> fields,
               std::shared_ptr<const WeightVersion> version, const std::vector<at::Tensor>& buffers,
               RandomKey key) const;

  /// `sent_gradients`: one per differentiable sent value; empty on the last stage. Where a received value is
  /// both used here and carried on, its gradient is that from downstream and then what each use here adds,
  /// the last first: as on one device. Frees the pass's autograd graph unless `keep_graph`: then a backward
  /// of a copy of the pass can follow.
  StageGradients backward(Pass pass, std::vector<at::Tensor> sent_gradients, const GradientMade& made = {},
                          bool keep_graph = false) const;

  /// The same gradients in two parts (options.split_backward). First those of the received values. The graph
  /// is cut behind each node that alone reads a trainable parameter; what arrives there is kept.
  std::vector<at::Tensor> backward_input(Pass& pass, std::vector<at::Tensor> sent_gradients) const;
  /// Then those of the weights, node by node from the last to the first. Only weights that several nodes of
  /// the stage read have had theirs from the first part: cut there, they would need it run once more.
  std::vector<at::Tensor> backward_weight(Pass pass, const GradientMade& made = {},
                                          bool keep_graph = false) const;

  /// options.recompute_from lies within the stage.
  bool recomputes_a_part() const { return first_part_ != nullptr; }

  /// Runs the forward of `pass` again, on the inputs that it had, and names the node that first made a number
  /// that is not finite; "" if none does. Buffers are left alone.
  std::string where_not_finite(const Pass& pass, std::vector<at::Tensor> received,
                               std::vector<at::Tensor> fields, const std::vector<at::Tensor>& buffers) const;
  /// For messages: the first node of the stage that reads trainable parameter `i`, by trainable().
  const std::string& reader_of(size_t i) const { return segment_.label(trainable_reader_.at(i)); }

 private:
  struct Roots {
    std::vector<torch::autograd::Edge> edges;
    std::vector<at::Tensor> gradients;
  };
  /// Runs the segment and fills in what comes of it.
  void run(Pass& pass, std::vector<at::Tensor> received, std::vector<at::Tensor> fields,
           const std::vector<at::Tensor>& buffers, const NodeObserver* observer = nullptr) const;
  Roots roots_of(const Pass& pass, std::vector<at::Tensor> sent_gradients) const;
  /// The message upstream, from the gradients of the differentiable received values.
  std::vector<at::Tensor> message_upstream(const std::vector<at::Tensor>& gradients) const;
  void recompute(Pass& pass) const;
  /// The two parts of a stage that recomputes the second: the first runs, then the second, whose inputs stay.
  std::vector<at::Tensor> run_parts(Pass& pass, std::map<std::string, at::Tensor> values,
                                    const std::vector<at::Tensor>& buffers) const;
  /// The second part, on pass.between.
  std::vector<at::Tensor> run_second_part(const Pass& pass, const std::vector<at::Tensor>& buffers) const;
  /// Notes what the segment's outputs are, and where a backward begins.
  void take_outputs(Pass& pass, std::vector<at::Tensor> outputs) const;

  /// Nodes of the stage that run by themselves.
  struct Part {
    Part(const Graph& graph, const std::vector<size_t>& nodes, std::vector<std::string> outputs,
         const Segment& whole, const StageProgramOptions& options);
    std::vector<at::Tensor> weights_of(const WeightVersion& version) const;
    std::vector<at::Tensor> copies_of(const WeightVersion& version) const;
    /// Of those that the whole stage reads.
    std::vector<at::Tensor> buffers_of(const std::vector<at::Tensor>& all) const;

    Segment segment;
    std::vector<size_t> parameters, buffers;  ///< positions among the whole stage's
  };

  StageProgramOptions options_;
  bool last_ = false;
  BackwardCuts cuts_;  // none unless options_.split_backward
  Segment segment_;    // outputs: what is sent (or the graph's), then cuts_.values
  // Where the second recomputes and the first does not; else null. The second hands out all that the segment
  // does.
  std::unique_ptr<Part> first_part_, second_part_;
  std::vector<std::string> fields_;
  std::vector<std::string> received_;
  std::vector<std::string> sent_;
  std::vector<bool> received_differentiable_;
  std::vector<bool> sent_differentiable_;
  std::vector<size_t> trainable_;
  std::vector<size_t> trainable_reader_;          // position of a node that reads it
  std::vector<std::vector<size_t>> cut_weights_;  // by cut: positions in trainable_
  std::vector<size_t> uncut_weights_;             // the other positions
  std::vector<MessagePart> received_parts_;
  std::vector<MessagePart> sent_parts_;
  std::vector<MessagePart> received_gradient_parts_;
  std::vector<MessagePart> sent_gradient_parts_;
};

}  // namespace pipewright
