// rules.nan_guard: a stage's numbers are looked at, and the first that is not finite stops the run with its
// node.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/stage/deferred.h"
#include "runtime/stage/stage_program.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

/// All that is found is a NotFiniteError. On the CPU it is thrown at once; on another device the host hears
/// of it later, from `deferred`, and no node of a forward is named then. One that is off looks at nothing.
class FiniteGuard {
 public:
  /// `program` and `deferred` outlive the object, and the object what it has deferred.
  FiniteGuard(bool is_on, at::Device device, int64_t stage, const StageProgram& program, Deferred& deferred);
  FiniteGuard(const FiniteGuard&) = delete;
  FiniteGuard& operator=(const FiniteGuard&) = delete;

  /// Loss and values of minibatch k. `where`: what StageProgram::where_not_finite() says, asked if it is so.
  void look_at_forward(int64_t k, const at::Tensor& loss, const std::vector<at::Tensor>& sent,
                       const std::function<std::string()>& where);
  /// What goes upstream from the backward of minibatch k is looked at before it spreads; the weights' own
  /// gradients are at the update.
  void look_at_backward(int64_t k, const StageGradients& gradients);
  /// The gradients of minibatches `first` to `last`, whose norm is known.
  void look_at_norm(const at::Tensor& square_sum, const std::vector<at::Tensor>& gradients, int64_t first,
                    int64_t last) const;
  /// What the update rule has met in them.
  void look_at_update(const UpdateRule& rule, int64_t first, int64_t last);

 private:
  void look_at_forward_later(int64_t k, const at::Tensor& loss, const std::vector<at::Tensor>& sent);
  [[noreturn]] void stop_at_forward(int64_t k, std::optional<double> loss, const std::string& where) const;
  [[noreturn]] void stop_at_received_gradient(int64_t k) const;
  [[noreturn]] void stop_at_gradient(size_t trainable, int64_t first, int64_t last) const;

  const bool is_on_;
  const at::Device device_;
  const int64_t stage_;
  const StageProgram& program_;
  Deferred& deferred_;
};

}  // namespace pipewright
