// Optimizer rules: out of place in the weights unless asked otherwise, in place in their own slots, which are
// copied first where a checkpoint holds them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/run.h"
#include "graph/update_rules.h"

namespace pipewright {

/// What a rule remembers from step to step. Two stages that are joined may have made different numbers of
/// updates, so they are counted for each weight.
struct UpdateState {
  std::vector<int64_t> updates;  ///< made of each weight; empty: none yet
  /// By name, in the order of slot_names(): one tensor a weight, of slot_shape(). None while no weight has an
  /// update; with some, a weight of 0 updates has zeros.
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> slots;
};

/// One stage's rule with its slots. The arithmetic is that of models/device/step_arithmetic.h, in one pass
/// over the memory of each weight; those of whole weights are runtime/update/muon_step.h and
/// adafactor_step.h. All tensors of a step are on one device (runtime/update/device_step.h).
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// Returns the next weights, leaves that require gradients. One gradient per weight, of its shape; weights
  /// are contiguous. `into`: where to write them, one per weight or none: the weight itself (a step in
  /// place), a tensor that nobody reads any more, or an undefined one, for a fresh tensor. `copies`: none, or
  /// one per weight: bfloat16 tensors that get the next weight, too, or undefined ones. Other weights stay as
  /// they are, and so do gradients. `delay`: how many updates the weights have had since those that the
  /// gradients were taken at, for the settings' correction (graph/delay_corrections.h).
  virtual std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights,
                                       const std::vector<at::Tensor>& gradients, double learning_rate,
                                       std::vector<at::Tensor> into = {},
                                       const std::vector<at::Tensor>& copies = {}, int64_t delay = 0) = 0;

  /// into[i] becomes what weights[i] are expected to be after `updates` further steps at the learning rate,
  /// which is one of a rule that predicts (graph/update_rules.h): before the first step, what they are.
  /// Neither is the other's memory.
  virtual void predict(const std::vector<at::Tensor>& weights, double learning_rate, int64_t updates,
                       const std::vector<at::Tensor>& into) const = 0;

  /// Of the last step: the last weight whose gradient held a number that is not finite.
  std::optional<size_t> not_finite() const { return not_finite_; }
  /// The same plus 1, or 0, where the weights are on a device: an integer there. Undefined on the CPU.
  const at::Tensor& not_finite_on_device() const { return not_finite_on_device_; }

  /// For checkpoints. The tensors stay as they are as long as somebody holds them: the next step then works
  /// on copies.
  virtual UpdateState state() const = 0;
  /// Goes on from `state`, which the rule takes over; it comes from a rule with equal slot_names().
  virtual void restore(UpdateState state) = 0;

 protected:
  std::optional<size_t> not_finite_;
  at::Tensor not_finite_on_device_;
};

/// `names`: of the weights that it will step, which say what groups they are in (graph/parameter_groups.h);
/// none: they are in no group. InputError with the nearest name for an unknown rule.
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerSettings& settings,
                                             const std::vector<std::string>& names = {});

}  // namespace pipewright
