// What a replica exchanges at one cut while training, where it or its neighbours have parts of the
// minibatches.
#pragma once

#include <vector>

#include "runtime/stage/sample_split.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

/// Messages of a minibatch across the cut, one for each piece; the order of the pieces is that of the
/// samples.
class Crossing {
 public:
  /// Between the replica and its neighbouring stage `other`. Borrows nothing.
  Crossing(const SampleSplit& split, const StageReplica& stage, int64_t other);

  size_t pieces() const { return pieces_.size(); }
  const SampleSplit::Piece& piece(size_t i) const { return pieces_.at(i).piece; }
  /// What a message of the piece consists of.
  const std::vector<MessagePart>& values(size_t i) const { return pieces_.at(i).values; }
  const std::vector<MessagePart>& gradients(size_t i) const { return pieces_.at(i).gradients; }

  /// The piece's part of what the replica sends.
  std::vector<at::Tensor> values_for(size_t i, const std::vector<at::Tensor>& values) const;
  std::vector<at::Tensor> gradients_for(size_t i, const std::vector<at::Tensor>& gradients) const;
  /// What the replica receives, of one message for each piece.
  std::vector<at::Tensor> join_values(const std::vector<std::vector<at::Tensor>>& pieces) const;
  std::vector<at::Tensor> join_gradients(const std::vector<std::vector<at::Tensor>>& pieces) const;

 private:
  struct Part {
    SampleSplit::Piece piece;
    std::vector<MessagePart> values, gradients;
  };
  std::vector<at::Tensor> cut(size_t i, const std::vector<at::Tensor>& tensors,
                              const std::vector<int64_t>& dimensions) const;
  static std::vector<at::Tensor> join(const std::vector<std::vector<at::Tensor>>& pieces,
                                      const std::vector<int64_t>& dimensions);

  SampleRange own_;
  std::vector<int64_t> dimensions_,
      gradient_dimensions_;  // of the values that cross, and of those with gradients
  std::vector<Part> pieces_;
};

}  // namespace pipewright
