// Times a weight update that keeps the old version against LibTorch's in-place multi-tensor step of the same
// rule, in turn in one run.
//
// Ours is what a rank does: the version before the latest is still held by a minibatch in flight, and the one
// before that has just died, so that its memory takes the new one. LibTorch changes one set of weights.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "graph/delay_corrections.h"
#include "runtime/stage/weight_versions.h"
#include "runtime/update/update_rule.h"

using namespace pipewright;

namespace {

using Tensors = std::vector<at::Tensor>;

struct Rule {
  const char* name;
  OptimizerSettings settings;
};

Tensors randoms(int64_t count, int64_t elements) {
  Tensors tensors;
  for (int64_t i = 0; i < count; ++i) tensors.push_back(at::randn({elements}));
  return tensors;
}

/// LibTorch's passes over memory, in place; torch.optim with foreach=True makes the same calls.
class InPlace {
 public:
  InPlace(const OptimizerSettings& settings, int64_t count, int64_t elements)
      : settings_(settings), weights_(randoms(count, elements)) {
    for (const at::Tensor& weight : weights_) {
      first_.push_back(at::zeros_like(weight));
      second_.push_back(at::zeros_like(weight));
      previous_.push_back(at::zeros_like(weight));
    }
  }

  void step(const Tensors& gradients) {
    if (settings_.delay_correction == "none") return step_plainly(gradients);
    const Tensors old = at::_foreach_add(weights_, 0);
    if (settings_.delay_correction == "dc") {
      const Tensors curvature = at::_foreach_mul(at::_foreach_mul(gradients, kCompensation), gradients);
      step_plainly(at::_foreach_addcmul(gradients, curvature, previous_));
      previous_ = at::_foreach_sub(weights_, old);
    } else {
      step_plainly(gradients);
      const Tensors change = at::_foreach_sub(weights_, old);
      at::_foreach_add_(weights_, at::_foreach_sub(change, previous_));
      previous_ = change;
    }
  }

 private:
  void step_plainly(const Tensors& gradients) {
    const double rate = settings_.learning_rate;
    ++updates_;
    if (settings_.name == "sgd") {
      Tensors direction = gradients;
      if (settings_.weight_decay != 0) {
        direction = at::_foreach_add(direction, weights_, settings_.weight_decay);
      }
      if (settings_.momentum != 0) {
        at::_foreach_mul_(first_, settings_.momentum);
        at::_foreach_add_(first_, direction, 1);
        direction = settings_.nesterov ? at::_foreach_add(direction, first_, settings_.momentum) : first_;
      }
      at::_foreach_add_(weights_, direction, -rate);
      return;
    }
    Tensors direction = gradients;
    if (settings_.name != "adam" && settings_.weight_decay != 0) {
      at::_foreach_mul_(weights_, 1 - rate * settings_.weight_decay);
    } else if (settings_.weight_decay != 0) {
      direction = at::_foreach_add(direction, weights_, settings_.weight_decay);
    }
    if (settings_.name == "lion") {
      direction = at::_foreach_mul(first_, settings_.beta1);
      at::_foreach_add_(direction, gradients, 1 - settings_.beta1);
      at::_foreach_sign_(direction);
      at::_foreach_add_(weights_, direction, -rate);
      at::_foreach_mul_(first_, settings_.beta2);
      at::_foreach_add_(first_, gradients, 1 - settings_.beta2);
      return;
    }
    at::_foreach_lerp_(first_, direction, 1 - settings_.beta1);
    at::_foreach_mul_(second_, settings_.beta2);
    at::_foreach_addcmul_(second_, direction, direction, 1 - settings_.beta2);
    Tensors denominator = at::_foreach_sqrt(second_);
    at::_foreach_div_(denominator, std::sqrt(1 - std::pow(settings_.beta2, updates_)));
    at::_foreach_add_(denominator, settings_.epsilon);
    double rate_of_first = rate / (1 - std::pow(settings_.beta1, updates_));
    if (settings_.name == "nadam") {
      const auto mu = [&](double t) { return settings_.beta1 * (1 - 0.5 * std::pow(0.96, t * 0.004)); };
      mu_product_ *= mu(updates_);
      at::_foreach_addcdiv_(weights_, direction, denominator, -rate * (1 - mu(updates_)) / (1 - mu_product_));
      rate_of_first = rate * mu(updates_ + 1) / (1 - mu_product_ * mu(updates_ + 1));
    }
    at::_foreach_addcdiv_(weights_, first_, denominator, -rate_of_first);
  }

  OptimizerSettings settings_;
  Tensors weights_, first_, second_, previous_;
  double updates_ = 0;
  double mu_product_ = 1;
};

class Versioned {
 public:
  Versioned(const OptimizerSettings& settings, int64_t count, int64_t elements)
      : rule_(make_update_rule(settings)),
        rate_(settings.learning_rate),
        versions_(randoms(count, elements)) {
    for (int64_t i = 0; i < count; ++i) all_.push_back(static_cast<size_t>(i));
  }

  void step(const Tensors& gradients) {
    auto before = versions_.latest();
    held_ = before;  // the version that it held dies here
    WeightVersions::Room room = versions_.room(all_);
    versions_.publish(
        rule_->step(before->weights, gradients, rate_, std::move(room.weights), {}, /*delay=*/1));
  }

 private:
  std::unique_ptr<UpdateRule> rule_;
  double rate_;
  WeightVersions versions_;
  std::vector<size_t> all_;
  std::shared_ptr<const WeightVersion> held_;
};

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

int main(int argc, char** argv) try {
  namespace options = boost::program_options;
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t rounds = 0;
  int threads = 0;
  options::options_description description("update_step: our step against LibTorch's in place");
  description.add_options()("help", "this text")("tensors", options::value(&tensors)->default_value(8),
                                                 "weights of the stage")(
      "elements", options::value(&elements)->default_value(1 << 20), "of each, float32")(
      "rounds", options::value(&rounds)->default_value(101), "steps of each kind")(
      "threads", options::value(&threads)->default_value(1), "compute threads");
  options::variables_map given;
  options::store(options::parse_command_line(argc, argv, description), given);
  options::notify(given);
  if (given.count("help") > 0) {
    std::cout << description;
    return 0;
  }
  if (tensors < 1 || elements < 1 || rounds < 1 || threads < 1) throw options::error("counts start at 1");
  at::set_num_threads(threads);
  const at::NoGradGuard no_grad;

  OptimizerSettings sgd;
  OptimizerSettings momentum = sgd;
  momentum.momentum = 0.9;
  OptimizerSettings decayed = momentum;
  decayed.weight_decay = 1e-4;
  OptimizerSettings nesterov = decayed;
  nesterov.nesterov = true;
  OptimizerSettings adam;
  adam.name = "adam";
  OptimizerSettings adamw;
  adamw.name = "adamw";
  adamw.weight_decay = 0.01;
  OptimizerSettings nadam = adamw;
  nadam.name = "nadam";
  OptimizerSettings lion = adamw;
  lion.name = "lion";
  OptimizerSettings momentum_dc = momentum, adamw_fed_back = adamw;
  momentum_dc.delay_correction = "dc";
  adamw_fed_back.delay_correction = "error-feedback";
  const Rule rules[] = {{"sgd", sgd},
                        {"sgd, momentum", momentum},
                        {"sgd, momentum, decay", decayed},
                        {"sgd, Nesterov, decay", nesterov},
                        {"adam", adam},
                        {"adamw", adamw},
                        {"nadam, decay", nadam},
                        {"lion, decay", lion},
                        {"sgd, momentum, dc", momentum_dc},
                        {"adamw, error-feedback", adamw_fed_back}};

  std::printf("%lld x %lld float32, %d thread(s), %lld steps of each kind in turn\n",
              static_cast<long long>(tensors), static_cast<long long>(elements), threads,
              static_cast<long long>(rounds));
  std::printf("%-22s %14s %16s %10s  %s\n", "rule", "in place, ms", "new version, ms", "ratio",
              "quartiles of the ratio");
  const Tensors gradients = randoms(tensors, elements);
  for (const Rule& rule : rules) {
    InPlace in_place(rule.settings, tensors, elements);
    Versioned versioned(rule.settings, tensors, elements);
    for (int i = 0; i < 3; ++i) {
      in_place.step(gradients);
      versioned.step(gradients);
    }
    std::vector<double> theirs, ours, ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      theirs.push_back(milliseconds([&] { in_place.step(gradients); }));
      ours.push_back(milliseconds([&] { versioned.step(gradients); }));
      ratios.push_back(ours.back() / theirs.back());
    }
    std::printf("%-22s %14.3f %16.3f %10.2f  %.2f .. %.2f\n", rule.name, quantile(theirs, 0.5),
                quantile(ours, 0.5), quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "update_step: %s\n", error.what());
  return 2;
}
