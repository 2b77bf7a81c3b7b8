// The part of a model that one rank runs: forward and backward of its nodes. Knows tensors, not peers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/interpreter.h"
#include "runtime/partition.h"
#include "runtime/transport/channel.h"
#include "runtime/weight_versions.h"

namespace pipewright {

/// What a forward leaves behind for its backward. Holds the weight version it read.
struct Pass {
  std::shared_ptr<const WeightVersion> version;
  std::vector<at::Tensor> received;  ///< leaves where a gradient flows back
  std::vector<at::Tensor> sent;      ///< with their autograd graph
  at::Tensor loss;                   ///< last stage
  at::Tensor scores;                 ///< last stage, if the graph has them; without autograd graph
};

/// Gradients of one backward.
struct StageGradients {
  std::vector<at::Tensor> received;  ///< one per received value that is differentiable: the message upstream
  std::vector<at::Tensor> weights;   ///< one per trainable parameter, in order
};

/// One stage of a partitioned graph, for minibatches of the graph's batch size. Immutable; borrows nothing.
class StageProgram {
 public:
  StageProgram(const Graph& graph, const std::vector<StageInterface>& stages, size_t index);

  const std::vector<std::string>& fields() const { return fields_; }
  /// Parameters and buffers the stage reads, in the order in which forward takes them.
  const std::vector<std::string>& parameters() const { return segment_.parameters(); }
  const std::vector<std::string>& buffers() const { return segment_.buffers(); }
  /// Positions of the trainable ones in parameters(): StageGradients::weights follows it.
  const std::vector<size_t>& trainable() const { return trainable_; }

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
  /// both used here and carried on, its gradient is (from here) + (from downstream). Frees the pass's
  /// autograd graph.
  StageGradients backward(Pass pass, std::vector<at::Tensor> sent_gradients) const;

 private:
  Segment segment_;
  bool last_ = false;
  std::vector<std::string> fields_;
  std::vector<std::string> received_;
  std::vector<std::string> sent_;
  std::vector<bool> received_differentiable_;
  std::vector<bool> sent_differentiable_;
  std::vector<size_t> trainable_;
  std::vector<MessagePart> received_parts_;
  std::vector<MessagePart> sent_parts_;
  std::vector<MessagePart> received_gradient_parts_;
  std::vector<MessagePart> sent_gradient_parts_;
  size_t scores_ = SIZE_MAX;  // position in the segment's outputs, last stage; the loss is at 0
};

}  // namespace pipewright
