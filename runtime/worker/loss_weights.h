// What the loss of each pass of a last stage counts (docs/semantics.md, "What a loss divides by").
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/schedule/shape.h"
#include "runtime/stage/loss_shares.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

struct LossWeight {
  double in_minibatch = 1;  ///< of the pass's loss in that of its minibatch
  double gradient = 1;      ///< that its backward begins with
};

/// Of one span of training. Minibatches are counted as the rank's pipeline does.
class LossWeights {
 public:
  /// Borrows `shares`. `fields(k)`: shares.fields() of any minibatch of `span`, whole; only asked where
  /// updates are averaged over labels.
  LossWeights(const LossShares& shares, Span span, std::function<std::vector<at::Tensor>(int64_t k)> fields);

  /// `stage`: a replica of the last one. `fields`: StageReplica::running().fields() of minibatch k, whole.
  LossWeight of(const StageReplica& stage, const std::vector<at::Tensor>& fields, int64_t k);

 private:
  const LossFields& tables_of(const StageReplica& stage);
  LossFields minibatch_of(const StageReplica& stage, int64_t k);
  double count_of_round(const StageReplica& stage, int64_t round);

  const LossShares& shares_;
  const Span span_;
  const std::function<std::vector<at::Tensor>(int64_t)> fields_;
  std::optional<int64_t> counted_round_;
  double labels_of_round_ = 0;
  LossFields tables_;
};

/// The parameter or buffer of that name as the stage has it now, on the CPU; nothing if it is none of the
/// stage's.
std::optional<at::Tensor> tensor_named(const StageReplica& stage, const std::string& name);

/// Of minibatch k a part that divides by 0 has `loss`, which counts nothing: 0 / 0. RunError if it is
/// anything / 0: the sum that the loss of all samples needs is lost. `divides_several`: LossShares'; then one
/// may hide the other.
void check_counts_nothing(int64_t k, const at::Tensor& loss, bool divides_several);

}  // namespace pipewright
