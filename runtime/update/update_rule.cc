#include "runtime/update/update_rule.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <tuple>

#include "graph/delay_corrections.h"
#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "models/run/weight_copies.h"
#include "runtime/update/adafactor_step.h"
#include "runtime/update/delayed_step.h"
#include "runtime/update/device_step.h"
#include "runtime/update/gradient_norm.h"
#include "runtime/update/muon_step.h"
#include "runtime/update/ownership.h"
#include "runtime/update/predicted_weights.h"
#include "runtime/update/step_kernels.h"

namespace pipewright {
namespace {

// Larger versions are written round the cache. Measured (benchmarks/update_step.cc): what ordinary stores
// read first still comes from the last-level cache for smaller ones, and then they win.
constexpr int64_t kStreamingBytes = int64_t{16} << 20;

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
         at::Tensor second, at::Tensor previous)
      : places_{std::move(next), std::move(first), std::move(second), std::move(previous)},
        old_(as_array(old, kDtype)),
        gradient_(as_array(gradient, kDtype)) {
    for (size_t i = 0; i < kPlaces; ++i) {
      if (places_[i].defined()) changed_[i] = as_array(places_[i], kDtype);
    }
  }

  /// Puts back what had to be converted.
  void finish() const {
    for (size_t i = 0; i < kPlaces; ++i) {
      if (places_[i].defined() && !changed_[i].is_same(places_[i])) places_[i].copy_(changed_[i]);
    }
  }

  StepArrays<T> get() const {
    return {data(old_), data(gradient_), data(changed_[0]), data(changed_[1]), data(changed_[2])};
  }
  T* previous() const { return data(changed_[3]); }

 private:
  static T* data(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr<T>() : nullptr; }

  static constexpr size_t kPlaces = 4;  // next, first, second, previous
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

  at::Tensor places_[kPlaces];
  at::Tensor old_;
  at::Tensor gradient_;
  at::Tensor changed_[kPlaces];
};

// A place for every next weight that has none.
void make_room(const std::vector<at::Tensor>& weights, std::vector<at::Tensor>& into) {
  const MemoryScope scope(MemoryPurpose::kVersions);
  into.resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    if (!into[i].defined())
      into[i] = at::empty(weights[i].sizes(), weights[i].options().requires_grad(false));
}

// What a rule keeps of each weight, by weight; or none.
struct StepSlots {
  std::vector<at::Tensor> first, second, previous;  // `previous`: of the correction of delays

  static at::Tensor of(const std::vector<at::Tensor>& slots, size_t i) {
    return slots.empty() ? at::Tensor() : slots[i];
  }
};

// Calls step_one(i, arrays, begin, end, stores, delayed) for slices of every weight, which tells whether the
// gradient is finite; returns the next weights as leaves. Weights for which step_whole(i, tensor) is true
// have been stepped by it.
template <typename StepOne, typename StepWhole>
std::vector<at::Tensor> step_all(const std::vector<at::Tensor>& weights,
                                 const std::vector<at::Tensor>& gradients, std::vector<at::Tensor> into,
                                 const std::vector<at::Tensor>& copies, const StepSlots& slots,
                                 const WholeDelayedStep& delayed, std::optional<size_t>& not_finite,
                                 const StepOne& step_one, const StepWhole& step_whole) {
  check_step(weights, gradients, into, copies);
  not_finite.reset();
  make_room(weights, into);
  int64_t bytes = 0;
  for (const at::Tensor& weight : weights) bytes += static_cast<int64_t>(weight.nbytes());
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor& next = into[i];
    const bool in_place = next.is_same(weights[i]);
    const Stores stores = bytes > kStreamingBytes && !in_place ? Stores::kStreaming : Stores::kOrdinary;
    const at::Tensor first = StepSlots::of(slots.first, i), second = StepSlots::of(slots.second, i);
    const at::Tensor previous = StepSlots::of(slots.previous, i);
    std::atomic<bool> finite = true;
    const auto run = [&](auto zero) {
      using T = decltype(zero);
      const Arrays<T> arrays(weights[i], gradients[i], next, first, second, previous);
      const DelayedStep<T> own{delayed.kind, arrays.previous(), static_cast<T>(delayed.strength)};
      at::parallel_for(0, weights[i].numel(), kElementsPerThread, [&](int64_t begin, int64_t end) {
        if (!step_one(i, arrays.get(), begin, end, stores, own)) finite = false;
      });
      arrays.finish();
    };
    const StepTensor whole{weights[i],  gradients[i],           next, first, second,
                           /*copy=*/{}, static_cast<int32_t>(i)};
    if (step_whole(i, whole)) {
      finite = all_finite(gradients[i]);
    } else {
      weights[i].scalar_type() == at::kDouble ? run(0.0) : run(0.0F);
    }
    if (!finite) not_finite = i;
    if (!next.requires_grad()) next.requires_grad_(true);
  }
  cast_to_copies(into, copies);
  return into;
}

bool on_device(const std::vector<at::Tensor>& weights) { return !weights.empty() && !weights[0].is_cpu(); }

// Weights of one kind are stepped by one call on a device.
struct StepKind {
  int64_t update = 0;  // which of a weight, or what else tells steps apart
  ParameterSettings settings;
  bool operator<(const StepKind& other) const {
    const auto key = [](const StepKind& kind) {
      return std::tuple(kind.update, kind.settings.learning_rate_scale, kind.settings.weight_decay);
    };
    return key(*this) < key(other);
  }
};

// The same on a device: step_some(tensors, kind, finds) for all other weights of one dtype and one kind, by
// `kinds`. `not_finite`: as UpdateRule::not_finite_on_device().
template <typename StepSome, typename StepWhole>
std::vector<at::Tensor> step_all_on_device(const std::vector<at::Tensor>& weights,
                                           const std::vector<at::Tensor>& gradients,
                                           std::vector<at::Tensor> into,
                                           const std::vector<at::Tensor>& copies, const StepSlots& slots,
                                           const WholeDelayedStep& delayed,
                                           const std::vector<StepKind>& kinds, at::Tensor& not_finite,
                                           const StepSome& step_some, const StepWhole& step_whole) {
  check_step(weights, gradients, into, copies);
  make_room(weights, into);
  not_finite = at::zeros({1}, at::TensorOptions(at::kInt).device(weights[0].device()));
  std::map<std::pair<at::ScalarType, StepKind>, std::vector<StepTensor>> groups;
  std::map<at::ScalarType, std::vector<StepTensor>> wholes;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].numel() == 0) continue;
    const at::ScalarType dtype = weights[i].scalar_type();
    StepTensor tensor{weights[i],
                      as_array(gradients[i], dtype),
                      into[i],
                      StepSlots::of(slots.first, i),
                      StepSlots::of(slots.second, i),
                      StepSlots::of(copies, i),
                      static_cast<int32_t>(i)};
    if (step_whole(i, tensor)) {
      wholes[dtype].push_back(std::move(tensor));
      continue;
    }
    delayed.begin(tensor, StepSlots::of(slots.previous, i));
    groups[{dtype, kinds[i]}].push_back(std::move(tensor));
  }
  for (const auto& [dtype, tensors] : wholes) find_not_finite(tensors, StepFinds{not_finite, {}});
  for (const auto& [kind, tensors] : groups) {
    step_some(tensors, kind.second, StepFinds{not_finite, {}});
    for (const StepTensor& tensor : tensors)
      delayed.end(tensor, StepSlots::of(slots.previous, static_cast<size_t>(tensor.index)));
  }
  if (delayed.kind == DelayStep::kFeedBack) cast_to_copies(into, copies);
  for (at::Tensor& next : into)
    if (!next.requires_grad()) next.requires_grad_(true);
  return into;
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

// Of rules that step all weights element by element.
struct NoWholes {
  static void step_whole(const StepTensor&, const StepKind&, double) {}
};

// Where a weight goes on to, from what its rule keeps.
struct Ahead {
  const at::Tensor& weight;
  at::Tensor first, second;
  at::Tensor into;
};

// Of rules that do not say.
struct NoPrediction {
  static void predict(const Ahead&, const StepKind&, double) {
    PW_CHECK(false, "a rule that predicts nothing");
  }
};

// What a rule is made of: `kind_of(t)` tells apart how its update t of a weight, from 1, is computed; `step`
// is that for a slice of a weight, `step_on_device` for weights of one kind, `step_whole` for a weight that
// steps_whole() of graph/update_rules.h.
class SgdArithmetic : public NoWholes {
 public:
  explicit SgdArithmetic(const OptimizerSettings& settings) : settings_(settings) {}

  int64_t kind_of(int64_t update) const { return static_cast<int64_t>(momentum_of(update)); }

  template <typename T>
  bool step(const StepKind& kind, double learning_rate, const StepArrays<T>& arrays, int64_t begin,
            int64_t end, Stores stores, const DelayedStep<T>& delayed) const {
    return sgd_step(factors<T>(kind, learning_rate), static_cast<Momentum>(kind.update),
                    kind.settings.weight_decay != 0, arrays, begin, end, stores, delayed);
  }
  static void predict(const Ahead& ahead, const StepKind&, double way) {
    predict_by_velocity(ahead.weight, ahead.first, way, ahead.into);
  }
  void step_on_device(const std::vector<StepTensor>& tensors, const StepKind& kind, double learning_rate,
                      const StepFinds& finds) const {
    sgd_step_on_device(tensors, factors<double>(kind, learning_rate), static_cast<Momentum>(kind.update),
                       kind.settings.weight_decay != 0, finds);
  }

 private:
  Momentum momentum_of(int64_t update) const {
    if (settings_.momentum == 0) return Momentum::kNone;
    if (settings_.nesterov) return update == 1 ? Momentum::kNesterovFirst : Momentum::kNesterov;
    return update == 1 ? Momentum::kFirst : Momentum::kClassic;
  }

  template <typename T>
  SgdFactors<T> factors(const StepKind& kind, double learning_rate) const {
    return {static_cast<T>(learning_rate * kind.settings.learning_rate_scale),
            static_cast<T>(settings_.momentum), static_cast<T>(kind.settings.weight_decay)};
  }

  OptimizerSettings settings_;
};

// NAdam's first moment of update t, from 1, decays by mu(t): from about beta1 / 2 towards beta1.
class NAdamMomenta {
 public:
  explicit NAdamMomenta(double beta1) : beta1_(beta1) {
    products_.push_back(1);
    while (products_.back() > kNothing)
      products_.push_back(products_.back() * mu(static_cast<int64_t>(products_.size())));
  }
  double mu(int64_t t) const {
    constexpr double kMomentumDecay = 0.004;  // torch.optim.NAdam's
    return beta1_ * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * kMomentumDecay));
  }
  /// mu(1) mu(2) ... mu(t): for whatever beta1 less than 2^-60 behind a hundred updates.
  double product(int64_t t) const {
    return products_[std::min(static_cast<size_t>(t), products_.size() - 1)];
  }

 private:
  static constexpr double kNothing = 0x1p-60;  // 1 less it is 1
  double beta1_;
  std::vector<double> products_;
};

enum class AdamKind { kAdam, kAdamW, kNAdam };

class AdamArithmetic : public NoWholes {
 public:
  AdamArithmetic(const OptimizerSettings& settings, AdamKind kind)
      : kind_(kind), momenta_(settings.beta1), settings_(settings) {}

  int64_t kind_of(int64_t update) const { return update; }

  template <typename T>
  bool step(const StepKind& kind, double learning_rate, const StepArrays<T>& arrays, int64_t begin,
            int64_t end, Stores stores, const DelayedStep<T>& delayed) const {
    return adam_step(factors<T>(kind, learning_rate), decay_of(kind.settings), arrays, begin, end, stores,
                     delayed);
  }
  void predict(const Ahead& ahead, const StepKind& kind, double way) const {
    const auto f = factors<double>(kind, way);
    predict_by_moments(ahead.weight, ahead.first, ahead.second, f, ahead.into);
  }
  void step_on_device(const std::vector<StepTensor>& tensors, const StepKind& kind, double learning_rate,
                      const StepFinds& finds) const {
    adam_step_on_device(tensors, factors<double>(kind, learning_rate), decay_of(kind.settings), finds);
  }

 private:
  Decay decay_of(const ParameterSettings& settings) const {
    if (settings.weight_decay == 0) return Decay::kNone;
    return kind_ == AdamKind::kAdam ? Decay::kGradient : Decay::kWeight;
  }

  // Computed as doubles, then rounded to T, as LibTorch does with its scalars.
  template <typename T>
  AdamFactors<T> factors(const StepKind& kind, double learning_rate) const {
    const auto t = static_cast<double>(kind.update);
    const double rate = learning_rate * kind.settings.learning_rate_scale;
    const double decay = kind.settings.weight_decay;
    AdamFactors<T> factors;
    factors.weight_decay = static_cast<T>(kind_ == AdamKind::kAdam ? decay : 1 - rate * decay);
    factors.first = static_cast<T>(1 - settings_.beta1);
    factors.keep_second = static_cast<T>(settings_.beta2);
    factors.second = static_cast<T>(1 - settings_.beta2);
    factors.root_second = static_cast<T>(std::sqrt(1 - std::pow(settings_.beta2, t)));
    factors.epsilon = static_cast<T>(settings_.epsilon);
    if (kind_ == AdamKind::kNAdam) {
      const double mu = momenta_.mu(kind.update), next = momenta_.mu(kind.update + 1);
      const double product = momenta_.product(kind.update);
      factors.ahead = static_cast<T>(rate * (1 - mu) / (1 - product));
      factors.rate = static_cast<T>(rate * next / (1 - product * next));
    } else {
      factors.rate = static_cast<T>(rate / (1 - std::pow(settings_.beta1, t)));
    }
    return factors;
  }

  AdamKind kind_;
  NAdamMomenta momenta_;

 protected:
  OptimizerSettings settings_;
};

class LionArithmetic : public NoWholes, public NoPrediction {
 public:
  explicit LionArithmetic(const OptimizerSettings& settings) : settings_(settings) {}

  int64_t kind_of(int64_t) const { return 0; }

  template <typename T>
  bool step(const StepKind& kind, double learning_rate, const StepArrays<T>& arrays, int64_t begin,
            int64_t end, Stores stores, const DelayedStep<T>& delayed) const {
    return lion_step(factors<T>(kind, learning_rate), arrays, begin, end, stores, delayed);
  }
  void step_on_device(const std::vector<StepTensor>& tensors, const StepKind& kind, double learning_rate,
                      const StepFinds& finds) const {
    lion_step_on_device(tensors, factors<double>(kind, learning_rate), finds);
  }

 private:
  template <typename T>
  LionFactors<T> factors(const StepKind& kind, double learning_rate) const {
    const double rate = learning_rate * kind.settings.learning_rate_scale;
    return {static_cast<T>(1 - rate * kind.settings.weight_decay),
            static_cast<T>(settings_.beta1),
            static_cast<T>(1 - settings_.beta1),
            static_cast<T>(settings_.beta2),
            static_cast<T>(1 - settings_.beta2),
            static_cast<T>(rate)};
  }

  OptimizerSettings settings_;
};

// AdamW, but for matrices.
class MuonArithmetic : public AdamArithmetic {
 public:
  explicit MuonArithmetic(const OptimizerSettings& settings) : AdamArithmetic(settings, AdamKind::kAdamW) {}

  void step_whole(const StepTensor& tensor, const StepKind& kind, double learning_rate) const {
    muon_step(tensor, {.rate = learning_rate * kind.settings.learning_rate_scale,
                       .weight_decay = kind.settings.weight_decay,
                       .momentum = settings_.momentum,
                       .nesterov = settings_.nesterov});
  }
};

// All weights as a whole.
class AdafactorArithmetic : public NoPrediction {
 public:
  explicit AdafactorArithmetic(const OptimizerSettings&) {}

  int64_t kind_of(int64_t update) const { return update; }

  template <typename T>
  bool step(const StepKind&, double, const StepArrays<T>&, int64_t, int64_t, Stores,
            const DelayedStep<T>&) const {
    PW_CHECK(false, "a rule that steps no elements");
    return false;
  }
  void step_on_device(const std::vector<StepTensor>&, const StepKind&, double, const StepFinds&) const {
    PW_CHECK(false, "a rule that steps no elements");
  }
  void step_whole(const StepTensor& tensor, const StepKind& kind, double learning_rate) const {
    adafactor_step(tensor, {.rate = learning_rate * kind.settings.learning_rate_scale,
                            .weight_decay = kind.settings.weight_decay,
                            .update = kind.update});
  }
};

template <typename Arithmetic>
class RuleOf : public UpdateRule {
 public:
  RuleOf(const OptimizerSettings& settings, std::vector<ParameterSettings> each, Arithmetic arithmetic)
      : settings_(settings),
        correction_(delay_correction_facts(settings.delay_correction)),
        names_(slot_names(settings)),
        each_(settings.weight_decay, std::move(each)),
        arithmetic_(std::move(arithmetic)) {}

  std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights,
                               const std::vector<at::Tensor>& gradients, double learning_rate,
                               std::vector<at::Tensor> into, const std::vector<at::Tensor>& copies,
                               int64_t delay) override {
    const at::NoGradGuard no_grad;
    updates_.resize(weights.size(), 0);
    while (slots_.size() < names_.size()) slots_.push_back(first_slot(slots_.size(), weights));
    for (std::vector<at::Tensor>& slot : slots_) own(slot);
    std::vector<StepKind> kinds;
    for (size_t i = 0; i < updates_.size(); ++i)
      kinds.push_back({arithmetic_.kind_of(++updates_[i]), each_[i]});
    const size_t own = own_slots();
    const auto slot = [&](size_t i) { return i < own ? slots_[i] : std::vector<at::Tensor>(); };
    const StepSlots slots{slot(0), slot(1), own < slots_.size() ? slots_[own] : std::vector<at::Tensor>()};
    const WholeDelayedStep delayed{delay_step(delay), kCompensation};
    const auto step_whole = [&](size_t i, const StepTensor& tensor) {
      if (!steps_whole(settings_, each_[i], static_cast<size_t>(weights[i].dim()))) return false;
      StepTensor corrected = tensor;
      delayed.begin(corrected, StepSlots::of(slots.previous, i));
      arithmetic_.step_whole(corrected, kinds[i], learning_rate);
      delayed.end(corrected, StepSlots::of(slots.previous, i));
      return true;
    };
    if (on_device(weights)) {
      return step_all_on_device(
          weights, gradients, std::move(into), copies, slots, delayed, kinds, not_finite_on_device_,
          [&](const std::vector<StepTensor>& tensors, const StepKind& kind, const StepFinds& finds) {
            arithmetic_.step_on_device(tensors, kind, learning_rate, finds);
          },
          step_whole);
    }
    return step_all(
        weights, gradients, std::move(into), copies, slots, delayed, not_finite_,
        [&](size_t i, const auto& arrays, int64_t begin, int64_t end, Stores stores,
            const auto& own_delayed) {
          return arithmetic_.step(kinds[i], learning_rate, arrays, begin, end, stores, own_delayed);
        },
        step_whole);
  }

  void predict(const std::vector<at::Tensor>& weights, double learning_rate, int64_t updates,
               const std::vector<at::Tensor>& into) const override {
    const at::NoGradGuard no_grad;
    const auto slot = [&](size_t slot, size_t i) {
      return slot < own_slots() && slot < slots_.size() ? slots_[slot][i] : at::Tensor();
    };
    for (size_t i = 0; i < weights.size(); ++i) {
      if (updates_.empty() || updates_[i] == 0) {
        into[i].copy_(weights[i]);
        continue;
      }
      StepKind kind{arithmetic_.kind_of(updates_[i]), each_[i]};
      const double way = learning_rate * kind.settings.learning_rate_scale * static_cast<double>(updates);
      kind.settings.learning_rate_scale = 1;  // it is in the way
      arithmetic_.predict({weights[i], slot(0, i), slot(1, i), into[i]}, kind, way);
    }
  }

  UpdateState state() const override {
    if (updates_.empty()) return {};
    UpdateState state{updates_, {}};
    for (size_t i = 0; i < slots_.size(); ++i) state.slots.emplace_back(names_[i], slots_[i]);
    return state;
  }

  void restore(UpdateState state) override {
    updates_ = std::move(state.updates);
    slots_.clear();
    for (auto& [name, tensors] : state.slots) slots_.push_back(std::move(tensors));
  }

 private:
  // The correction of delays has the last slot, if any.
  size_t own_slots() const { return names_.size() - (correction_.slot ? 1 : 0); }

  DelayStep delay_step(int64_t delay) const {
    if (!correction_.slot) return DelayStep::kNone;
    PW_CHECK(delay <= 1, "a correction for a delay of one update, at " << delay);
    if (delay == 0) return DelayStep::kRemember;
    return correction_.kind == DelayCorrectionKind::kErrorFeedback ? DelayStep::kFeedBack
                                                                   : DelayStep::kCompensate;
  }

  std::vector<at::Tensor> first_slot(size_t slot, const std::vector<at::Tensor>& weights) const {
    const MemoryScope scope(MemoryPurpose::kOptimizer);
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < weights.size(); ++i) {
      tensors.push_back(at::zeros(slot_shape(settings_, slot, each_[i], weights[i].sizes().vec()),
                                  weights[i].options().requires_grad(false)));
    }
    return tensors;
  }

  OptimizerSettings settings_;
  const DelayCorrectionFacts& correction_;
  std::vector<std::string> names_;  // of the slots
  SettingsOfWeights each_;
  Arithmetic arithmetic_;
  std::vector<int64_t> updates_;
  std::vector<std::vector<at::Tensor>> slots_;
};

template <typename Arithmetic, typename... More>
std::unique_ptr<UpdateRule> make_rule(const OptimizerSettings& settings, std::vector<ParameterSettings> each,
                                      More... more) {
  return std::make_unique<RuleOf<Arithmetic>>(settings, std::move(each), Arithmetic(settings, more...));
}

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerSettings& settings,
                                             const std::vector<std::string>& names) {
  std::vector<ParameterSettings> each = parameter_settings(settings, names);
  switch (update_rule_facts(settings.name).kind) {
    case UpdateRuleKind::kSgd:
      break;
    case UpdateRuleKind::kAdam:
      return make_rule<AdamArithmetic>(settings, std::move(each), AdamKind::kAdam);
    case UpdateRuleKind::kAdamW:
      return make_rule<AdamArithmetic>(settings, std::move(each), AdamKind::kAdamW);
    case UpdateRuleKind::kNAdam:
      return make_rule<AdamArithmetic>(settings, std::move(each), AdamKind::kNAdam);
    case UpdateRuleKind::kLion:
      return make_rule<LionArithmetic>(settings, std::move(each));
    case UpdateRuleKind::kMuon:
      return make_rule<MuonArithmetic>(settings, std::move(each));
    case UpdateRuleKind::kAdafactor:
      return make_rule<AdafactorArithmetic>(settings, std::move(each));
  }
  return make_rule<SgdArithmetic>(settings, std::move(each));
}

}  // namespace pipewright
