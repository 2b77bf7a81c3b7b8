// The gradients of the round under way, as one replica of a stage has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "runtime/stage/gradient_buckets.h"
#include "runtime/stage/stage_program.h"

namespace pipewright {

/// By trainable parameter, the sum over the minibatches of the round that this replica has run.
class RoundGradients {
 public:
  /// Called while a backward runs: the sum for a trainable parameter is complete, and left alone from then
  /// on.
  using Complete = std::function<void(size_t trainable)>;

  /// One for each of `parameters`, with its shape, dtype and device.
  explicit RoundGradients(const std::vector<at::Tensor>& parameters);

  /// From now on they lie in buckets of up to so many bytes, for a sum over replicas.
  void keep_in_buckets(const std::vector<at::Tensor>& parameters, int64_t most_bytes);
  /// From now on they lie at one place each, unless they have one already; those of the round under way are
  /// moved there.
  void keep_in_place(const std::vector<at::Tensor>& parameters);
  /// Null unless they lie in buckets.
  const GradientBuckets* buckets() const { return buckets_.get(); }
  /// Where each is to lie; empty where it does not matter.
  const std::vector<at::Tensor>& places() const { return buckets_ ? buckets_->gradients() : fixed_; }

  /// No minibatch of the round has come yet.
  bool empty() const;
  void add(size_t trainable, at::Tensor gradient);
  /// Somebody else has put the round's sums at places(), or added to them there.
  void take_from_places(const Complete& complete);
  /// Zeros where there was no minibatch. A plain tensor each, free to be overwritten.
  std::vector<at::Tensor>& all();
  void divide(int64_t minibatches);
  /// The next round begins.
  void clear() { sums_.assign(sums_.size(), {}); }

 private:
  // A parameter's shape and options, and not the parameter: whoever holds one keeps its weight version's
  // memory.
  struct Like {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };
  std::vector<Like> like_;
  std::vector<at::Tensor> sums_;  // undefined: no minibatch of the round yet
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<at::Tensor> fixed_;
};

/// Adds the gradients of one backward to a round: where somebody asks when they are complete, each as soon as
/// it is there, and the others at the end.
class EarlyGradients {
 public:
  /// Both outlive the object.
  EarlyGradients(RoundGradients& round, const RoundGradients::Complete& complete, size_t count);
  /// For the backward; empty where nobody asks.
  const GradientMade& made() const { return made_; }
  void add_others(std::vector<at::Tensor> gradients);

 private:
  void add(size_t i, at::Tensor gradient);

  RoundGradients& round_;
  const RoundGradients::Complete& complete_;
  std::vector<bool> added_;
  GradientMade made_;
};

}  // namespace pipewright
