#include "runtime/update/update_rule.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cmath>
#include <map>
#include <tuple>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "models/run/weight_copies.h"
#include "runtime/update/device_step.h"
#include "runtime/update/ownership.h"
#include "runtime/update/step_kernels.h"

namespace pipewright {
namespace {

// Larger versions are written round the cache. Measured (benchmarks/update_step.cc): what ordinary stores
// read first still comes from the last-level cache for smaller ones, and then they win.
constexpr int64_t kStreamingBytes = int64_t{16} << 20;

// Elements are independent, so how they are divided among threads does not change their bits.
constexpr int64_t kElementsPerThread = 1 << 15;

void check_step(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
                const std::vector<at::Tensor>& into, const std::vector<at::Tensor>& copies) {
  PW_CHECK_EQ(weights.size(), gradients.size());
  if (!into.empty()) PW_CHECK_EQ(weights.size(), into.size());
  if (!copies.empty()) PW_CHECK_EQ(weights.size(), copies.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    PW_CHECK(weights[i].is_contiguous() && weights[i].is_floating_point(),
             "weight " << i << " is no contiguous floating-point tensor");
    PW_CHECK(gradients[i].sizes() == weights[i].sizes() && gradients[i].device() == weights[i].device(),
             "gradient " << i << " has another shape or device");
    if (into.empty() || !into[i].defined()) continue;
    PW_CHECK(into[i].is_contiguous() && into[i].sizes() == weights[i].sizes() &&
                 into[i].scalar_type() == weights[i].scalar_type() && into[i].device() == weights[i].device(),
             "the place for the next weight " << i << " does not fit it");
  }
}

// The tensor itself where nothing has to be done: most of a small model's update would be operators that do
// nothing.
at::Tensor as_array(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype && tensor.is_contiguous()) return tensor;
  return tensor.to(dtype).contiguous();
}

// One tensor of a step, as arrays of T. Weights of less than 32 bits are stepped as floats.
template <typename T>
class Arrays {
 public:
  Arrays(const at::Tensor& old, const at::Tensor& gradient, at::Tensor next, at::Tensor first,
         at::Tensor second)
      : places_{std::move(next), std::move(first), std::move(second)},
        old_(as_array(old, kDtype)),
        gradient_(as_array(gradient, kDtype)) {
    for (size_t i = 0; i < 3; ++i) {
      if (places_[i].defined()) changed_[i] = as_array(places_[i], kDtype);
    }
  }

  /// Puts back what had to be converted.
  void finish() const {
    for (size_t i = 0; i < 3; ++i) {
      if (places_[i].defined() && !changed_[i].is_same(places_[i])) places_[i].copy_(changed_[i]);
    }
  }

  StepArrays<T> get() const {
    const auto data = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
    };
    return {data(old_), data(gradient_), data(changed_[0]), data(changed_[1]), data(changed_[2])};
  }

 private:
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

  at::Tensor places_[3];
  at::Tensor old_;
  at::Tensor gradient_;
  at::Tensor changed_[3];
};

// A place for every next weight that has none.
void make_room(const std::vector<at::Tensor>& weights, std::vector<at::Tensor>& into) {
  const MemoryScope scope(MemoryPurpose::kVersions);
  into.resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    if (!into[i].defined())
      into[i] = at::empty(weights[i].sizes(), weights[i].options().requires_grad(false));
}

// Calls step_one(i, arrays, begin, end, stores) for slices of every weight, which tells whether the gradient
// is finite; returns the next weights as leaves. `first` and `second`: slots, or none.
template <typename StepOne>
std::vector<at::Tensor> step_all(const std::vector<at::Tensor>& weights,
                                 const std::vector<at::Tensor>& gradients, std::vector<at::Tensor> into,
                                 const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& first,
                                 const std::vector<at::Tensor>& second, std::optional<size_t>& not_finite,
                                 const StepOne& step_one) {
  check_step(weights, gradients, into, copies);
  not_finite.reset();
  make_room(weights, into);
  int64_t bytes = 0;
  for (const at::Tensor& weight : weights) bytes += static_cast<int64_t>(weight.nbytes());
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor& next = into[i];
    const bool in_place = next.is_same(weights[i]);
    const Stores stores = bytes > kStreamingBytes && !in_place ? Stores::kStreaming : Stores::kOrdinary;
    const auto slot = [i](const std::vector<at::Tensor>& slots) {
      return slots.empty() ? at::Tensor() : slots[i];
    };
    std::atomic<bool> finite = true;
    const auto run = [&](auto zero) {
      const Arrays<decltype(zero)> arrays(weights[i], gradients[i], next, slot(first), slot(second));
      at::parallel_for(0, weights[i].numel(), kElementsPerThread, [&](int64_t begin, int64_t end) {
        if (!step_one(i, arrays.get(), begin, end, stores)) finite = false;
      });
      arrays.finish();
    };
    weights[i].scalar_type() == at::kDouble ? run(0.0) : run(0.0F);
    if (!finite) not_finite = i;
    if (!next.requires_grad()) next.requires_grad_(true);
  }
  cast_to_copies(into, copies);
  return into;
}

bool on_device(const std::vector<at::Tensor>& weights) { return !weights.empty() && !weights[0].is_cpu(); }

// Weights of one kind are stepped by one call on a device.
struct StepKind {
  int64_t updates = 0;  // or what else tells steps apart
  ParameterSettings settings;
  bool operator<(const StepKind& other) const {
    const auto key = [](const StepKind& kind) {
      return std::tuple(kind.updates, kind.settings.learning_rate_scale, kind.settings.weight_decay);
    };
    return key(*this) < key(other);
  }
};

// The same on a device: step_some(tensors, kind, finds) for all weights of one dtype and one kind, by
// `kinds`. `not_finite`: as UpdateRule::not_finite_on_device().
template <typename StepSome>
std::vector<at::Tensor> step_all_on_device(
    const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
    std::vector<at::Tensor> into, const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& first,
    const std::vector<at::Tensor>& second, const std::vector<StepKind>& kinds, at::Tensor& not_finite,
    const StepSome& step_some) {
  check_step(weights, gradients, into, copies);
  make_room(weights, into);
  not_finite = at::zeros({1}, at::TensorOptions(at::kInt).device(weights[0].device()));
  std::map<std::pair<at::ScalarType, StepKind>, std::vector<StepTensor>> groups;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].numel() == 0) continue;
    const auto slot = [i](const std::vector<at::Tensor>& slots) {
      return slots.empty() ? at::Tensor() : slots[i];
    };
    const at::ScalarType dtype = weights[i].scalar_type();
    groups[{dtype, kinds[i]}].push_back({weights[i], as_array(gradients[i], dtype), into[i], slot(first),
                                         slot(second), slot(copies), static_cast<int32_t>(i)});
  }
  for (const auto& [kind, tensors] : groups) step_some(tensors, kind.second, StepFinds{not_finite, {}});
  for (at::Tensor& next : into)
    if (!next.requires_grad()) next.requires_grad_(true);
  return into;
}

std::vector<at::Tensor> like(const std::vector<at::Tensor>& weights, bool zeros) {
  const MemoryScope scope(MemoryPurpose::kOptimizer);
  std::vector<at::Tensor> slots;
  for (const at::Tensor& weight : weights) {
    const auto options = weight.options().requires_grad(false);
    slots.push_back(zeros ? at::zeros(weight.sizes(), options) : at::empty(weight.sizes(), options));
  }
  return slots;
}

// Before a step changes slots: what a checkpoint holds stays as it is.
void own(std::vector<at::Tensor>& slots) {
  const MemoryScope scope(MemoryPurpose::kOptimizer);
  for (at::Tensor& slot : slots) {
    if (!unshared(slot)) slot = slot.clone();
  }
}

// Settings by weight; those of the optimizer where none are given.
class SettingsOfWeights {
 public:
  SettingsOfWeights(double weight_decay, std::vector<ParameterSettings> each)
      : all_{1, weight_decay}, each_(std::move(each)) {}
  const ParameterSettings& operator[](size_t i) const { return each_.empty() ? all_ : each_.at(i); }

 private:
  ParameterSettings all_;
  std::vector<ParameterSettings> each_;
};

class Sgd : public UpdateRule {
 public:
  Sgd(const OptimizerSettings& settings, std::vector<ParameterSettings> each)
      : settings_(settings), each_(settings.weight_decay, std::move(each)) {}

  std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights,
                               const std::vector<at::Tensor>& gradients, double learning_rate,
                               std::vector<at::Tensor> into, const std::vector<at::Tensor>& copies) override {
    const at::NoGradGuard no_grad;
    updates_.resize(weights.size(), 0);
    if (settings_.momentum != 0 && velocity_.empty()) velocity_ = like(weights, /*zeros=*/false);
    own(velocity_);
    if (on_device(weights)) {
      std::vector<StepKind> kinds;
      for (size_t i = 0; i < updates_.size(); ++i)
        kinds.push_back({static_cast<int64_t>(momentum_of(updates_[i]++)), each_[i]});
      return step_all_on_device(
          weights, gradients, std::move(into), copies, velocity_, {}, kinds, not_finite_on_device_,
          [&](const std::vector<StepTensor>& tensors, const StepKind& kind, const StepFinds& finds) {
            const auto& [scale, decay] = kind.settings;
            sgd_step_on_device(tensors, {learning_rate * scale, settings_.momentum, decay},
                               static_cast<Momentum>(kind.updates), decay != 0, finds);
          });
    }
    auto next =
        step_all(weights, gradients, std::move(into), copies, velocity_, {}, not_finite_,
                 [&](size_t i, const auto& arrays, int64_t begin, int64_t end, Stores stores) {
                   using T = std::remove_pointer_t<decltype(arrays.next)>;
                   const auto& [scale, decay] = each_[i];
                   const SgdFactors<T> factors{static_cast<T>(learning_rate * scale),
                                               static_cast<T>(settings_.momentum), static_cast<T>(decay)};
                   return sgd_step(factors, momentum_of(updates_[i]), decay != 0, arrays, begin, end, stores);
                 });
    for (int64_t& updates : updates_) ++updates;
    return next;
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
  Momentum momentum_of(int64_t updates) const {
    if (settings_.momentum == 0) return Momentum::kNone;
    if (settings_.nesterov) return updates == 0 ? Momentum::kNesterovFirst : Momentum::kNesterov;
    return updates == 0 ? Momentum::kFirst : Momentum::kClassic;
  }

  OptimizerSettings settings_;
  SettingsOfWeights each_;
  std::vector<int64_t> updates_;
  std::vector<at::Tensor> velocity_;
};

class Adam : public UpdateRule {
 public:
  Adam(const OptimizerSettings& settings, std::vector<ParameterSettings> each, bool decoupled)
      : settings_(settings), each_(settings.weight_decay, std::move(each)), decoupled_(decoupled) {}

  std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights,
                               const std::vector<at::Tensor>& gradients, double learning_rate,
                               std::vector<at::Tensor> into, const std::vector<at::Tensor>& copies) override {
    const at::NoGradGuard no_grad;
    updates_.resize(weights.size(), 0);
    if (first_moment_.empty()) {
      first_moment_ = like(weights, /*zeros=*/true);
      second_moment_ = like(weights, /*zeros=*/true);
    }
    own(first_moment_);
    own(second_moment_);
    for (int64_t& updates : updates_) ++updates;
    if (on_device(weights)) {
      std::vector<StepKind> kinds;
      for (size_t i = 0; i < updates_.size(); ++i) kinds.push_back({updates_[i], each_[i]});
      return step_all_on_device(
          weights, gradients, std::move(into), copies, first_moment_, second_moment_, kinds,
          not_finite_on_device_,
          [&](const std::vector<StepTensor>& tensors, const StepKind& kind, const StepFinds& finds) {
            adam_step_on_device(tensors, factors<double>(kind.updates, learning_rate, kind.settings),
                                decay_of(kind.settings), finds);
          });
    }
    return step_all(weights, gradients, std::move(into), copies, first_moment_, second_moment_, not_finite_,
                    [&](size_t i, const auto& arrays, int64_t begin, int64_t end, Stores stores) {
                      using T = std::remove_pointer_t<decltype(arrays.next)>;
                      return adam_step(factors<T>(updates_[i], learning_rate, each_[i]), decay_of(each_[i]),
                                       arrays, begin, end, stores);
                    });
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
  Decay decay_of(const ParameterSettings& settings) const {
    if (settings.weight_decay == 0) return Decay::kNone;
    return decoupled_ ? Decay::kWeight : Decay::kGradient;
  }

  // Computed as doubles, then rounded to T, as LibTorch does with its scalars.
  template <typename T>
  AdamFactors<T> factors(int64_t update, double learning_rate, const ParameterSettings& settings) const {
    const auto t = static_cast<double>(update);
    const double rate = learning_rate * settings.learning_rate_scale;
    AdamFactors<T> factors;
    factors.weight_decay =
        static_cast<T>(decoupled_ ? 1 - rate * settings.weight_decay : settings.weight_decay);
    factors.first = static_cast<T>(1 - settings_.beta1);
    factors.keep_second = static_cast<T>(settings_.beta2);
    factors.second = static_cast<T>(1 - settings_.beta2);
    factors.root_second = static_cast<T>(std::sqrt(1 - std::pow(settings_.beta2, t)));
    factors.epsilon = static_cast<T>(settings_.epsilon);
    factors.rate = static_cast<T>(rate / (1 - std::pow(settings_.beta1, t)));
    return factors;
  }

  OptimizerSettings settings_;
  SettingsOfWeights each_;
  bool decoupled_;
  std::vector<int64_t> updates_;
  std::vector<at::Tensor> first_moment_;
  std::vector<at::Tensor> second_moment_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerSettings& settings,
                                             const std::vector<std::string>& names) {
  std::vector<ParameterSettings> each = parameter_settings(settings, names);
  switch (update_rule_facts(settings.name).kind) {
    case UpdateRuleKind::kSgd:
      break;
    case UpdateRuleKind::kAdam:
      return std::make_unique<Adam>(settings, std::move(each), false);
    case UpdateRuleKind::kAdamW:
      return std::make_unique<Adam>(settings, std::move(each), true);
  }
  return std::make_unique<Sgd>(settings, std::move(each));
}

}  // namespace pipewright
