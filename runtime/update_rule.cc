#include "runtime/update_rule.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <numbers>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

std::vector<at::Tensor> as_leaves(std::vector<at::Tensor> weights) {
  for (at::Tensor& weight : weights) weight.requires_grad_(true);
  return weights;
}

std::vector<at::Tensor> zeros_for(const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> zeros;
  for (const at::Tensor& weight : weights) zeros.push_back(at::zeros_like(weight));
  return zeros;
}

// d = g + decay w;  v = momentum v + d (v = d at first);  w' = w - rate (nesterov ? d + momentum v : v)
class Sgd : public UpdateRule {
 public:
  explicit Sgd(const OptimizerSettings& settings) : settings_(settings) {}

  std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> gradients,
                               double learning_rate) override {
    const at::NoGradGuard no_grad;
    if (weights.empty()) return {};
    updates_.resize(weights.size(), 0);
    std::vector<at::Tensor> direction = std::move(gradients);
    if (settings_.weight_decay != 0) {
      direction = at::_foreach_add(direction, weights, settings_.weight_decay);
    }
    if (settings_.momentum != 0) {
      if (velocity_.empty()) {
        for (const at::Tensor& d : direction) velocity_.push_back(d.clone());
      } else {
        at::_foreach_mul_(velocity_, settings_.momentum);
        at::_foreach_add_(velocity_, direction, 1);
      }
      direction = settings_.nesterov ? at::_foreach_add(direction, velocity_, settings_.momentum) : velocity_;
    }
    for (int64_t& updates : updates_) ++updates;
    return as_leaves(at::_foreach_add(weights, direction, -learning_rate));
  }

  UpdateState state() const override {
    UpdateState state{updates_, {}};
    if (!velocity_.empty()) state.slots = {{"momentum", velocity_}};
    return state;
  }

  void restore(UpdateState state) override {
    updates_ = std::move(state.updates);
    velocity_.clear();
    if (!state.slots.empty()) velocity_ = std::move(state.slots.at(0).second);
  }

 private:
  OptimizerSettings settings_;
  std::vector<int64_t> updates_;
  std::vector<at::Tensor> velocity_;
};

// m = m + (1-b1)(g - m);  v = b2 v + (1-b2) g g;  w' = w - rate/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps)
// Adam adds decay w to g first; AdamW shrinks w by (1 - rate decay) instead.
class Adam : public UpdateRule {
 public:
  Adam(const OptimizerSettings& settings, bool decoupled) : settings_(settings), decoupled_(decoupled) {}

  std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> gradients,
                               double learning_rate) override {
    const at::NoGradGuard no_grad;
    if (weights.empty()) return {};
    if (first_moment_.empty()) {
      first_moment_ = zeros_for(weights);
      second_moment_ = zeros_for(weights);
    }
    updates_.resize(weights.size(), 0);
    std::vector<at::Tensor> from = weights;
    if (settings_.weight_decay != 0) {
      if (decoupled_) {
        from = at::_foreach_mul(weights, 1 - learning_rate * settings_.weight_decay);
      } else {
        gradients = at::_foreach_add(gradients, weights, settings_.weight_decay);
      }
    }
    at::_foreach_lerp_(first_moment_, gradients, 1 - settings_.beta1);
    at::_foreach_mul_(second_moment_, settings_.beta2);
    at::_foreach_addcmul_(second_moment_, gradients, gradients, 1 - settings_.beta2);
    std::vector<at::Scalar> scale;   // by weight: sqrt(1 - b2^t)
    std::vector<at::Scalar> factor;  // -rate / (1 - b1^t)
    for (int64_t& updates : updates_) {
      const auto t = static_cast<double>(++updates);
      scale.emplace_back(std::sqrt(1 - std::pow(settings_.beta2, t)));
      factor.emplace_back(-learning_rate / (1 - std::pow(settings_.beta1, t)));
    }
    std::vector<at::Tensor> denominator = at::_foreach_sqrt(second_moment_);
    at::_foreach_div_(denominator, scale);
    at::_foreach_add_(denominator, settings_.epsilon);
    return as_leaves(at::_foreach_addcdiv(from, first_moment_, denominator, factor));
  }

  UpdateState state() const override {
    if (first_moment_.empty()) return {};
    return {updates_, {{"exp_avg", first_moment_}, {"exp_avg_sq", second_moment_}}};
  }

  void restore(UpdateState state) override {
    updates_ = std::move(state.updates);
    first_moment_.clear();
    second_moment_.clear();
    if (state.slots.empty()) return;
    first_moment_ = std::move(state.slots.at(0).second);
    second_moment_ = std::move(state.slots.at(1).second);
  }

 private:
  OptimizerSettings settings_;
  bool decoupled_;
  std::vector<int64_t> updates_;
  std::vector<at::Tensor> first_moment_;
  std::vector<at::Tensor> second_moment_;
};

}  // namespace

const std::vector<UpdateRuleRow>& update_rules() {
  static const std::vector<UpdateRuleRow> rows = {
      {"sgd",
       [](const OptimizerSettings& s) -> std::unique_ptr<UpdateRule> { return std::make_unique<Sgd>(s); }},
      {"adam",
       [](const OptimizerSettings& s) -> std::unique_ptr<UpdateRule> {
         return std::make_unique<Adam>(s, false);
       }},
      {"adamw",
       [](const OptimizerSettings& s) -> std::unique_ptr<UpdateRule> {
         return std::make_unique<Adam>(s, true);
       }},
  };
  return rows;
}

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerSettings& settings) {
  std::vector<std::string> names;
  for (const UpdateRuleRow& row : update_rules()) {
    if (settings.name == row.name) return row.make(settings);
    names.push_back(row.name);
  }
  throw InputError("optimizer: '" + settings.name + "' is no update rule" + suggestion(settings.name, names));
}

std::vector<std::string> slot_names(const OptimizerSettings& settings) {
  if (settings.name != "sgd") return {"exp_avg", "exp_avg_sq"};
  if (settings.momentum != 0) return {"momentum"};
  return {};
}

double learning_rate_at(const LearningRatePolicy& policy, double base, int64_t minibatch,
                        int64_t minibatches_per_epoch, int64_t total_minibatches) {
  if (minibatch < policy.warmup_minibatches) {
    return base * static_cast<double>(minibatch + 1) / static_cast<double>(policy.warmup_minibatches);
  }
  const double epoch =
      static_cast<double>(minibatch) / static_cast<double>(std::max<int64_t>(1, minibatches_per_epoch));
  const double progress =
      static_cast<double>(minibatch) / static_cast<double>(std::max<int64_t>(1, total_minibatches));
  if (policy.name == "step") return base * std::pow(policy.gamma, std::floor(epoch / policy.step_epochs));
  if (policy.name == "polynomial") return base * std::pow(1 - progress, policy.power);
  if (policy.name == "exponential") return base * std::pow(policy.gamma, progress);
  if (policy.name == "cosine") return base * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  PW_CHECK(policy.name == "constant", policy.name);
  return base;
}

}  // namespace pipewright
