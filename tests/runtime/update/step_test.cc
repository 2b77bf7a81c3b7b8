// Fused update steps against LibTorch's in-place multi-tensor operators, whatever the way they are
// stored; steps in place; memory.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "models/memory/memory_meter.h"
#include "runtime/stage/weight_versions.h"
#include "runtime/update/step_kernels.h"
#include "runtime/update/update_rule.h"

using namespace pipewright;

namespace {

using Tensors = std::vector<at::Tensor>;

Tensors randoms(const std::vector<int64_t>& sizes, uint64_t seed, at::ScalarType type = at::kFloat) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Tensors tensors;
  for (const int64_t size : sizes) tensors.push_back(at::randn({size}, generator, at::TensorOptions(type)));
  return tensors;
}

// Rounds once where LibTorch's kernels for this CPU do; elsewhere they round products on their own.
bool processor_fuses() {
  const at::Tensor x = at::full({64}, 1 + 0x1p-12);
  return x.add(x, 1 + 0x1p-12)[0].item<float>() == std::fma(1 + 0x1p-12F, 1 + 0x1p-12F, 1 + 0x1p-12F) &&
         at::get_cpu_capability() != "DEFAULT";
}

void check_same(const at::Tensor& ours, const at::Tensor& theirs) {
  if (processor_fuses()) {
    CHECK(ours.equal(theirs));
  } else {
    CHECK(at::allclose(ours, theirs, 1e-5, 1e-6));
  }
}

struct Libtorch {
  OptimizerSettings settings;
  Tensors weights, first, second;
  int64_t updates = 0;
  double mu_product = 1;

  void step(Tensors gradients, double rate) {
    ++updates;
    if (first.empty()) {
      for (const auto& weight : weights) first.push_back(at::zeros_like(weight));
      for (const auto& weight : weights) second.push_back(at::zeros_like(weight));
    }
    const double decay = settings.weight_decay;
    if ((settings.name == "sgd" || settings.name == "adam") && decay != 0)
      gradients = at::_foreach_add(gradients, weights, decay);
    if (settings.name == "sgd") {
      if (settings.momentum != 0) {
        at::_foreach_mul_(first, settings.momentum);
        at::_foreach_add_(first, gradients, 1);
        gradients = settings.nesterov ? at::_foreach_add(gradients, first, settings.momentum) : first;
      }
      at::_foreach_add_(weights, gradients, -rate);
      return;
    }
    if (settings.name != "adam" && decay != 0) at::_foreach_mul_(weights, 1 - rate * decay);
    if (settings.name == "lion") {
      Tensors direction = at::_foreach_mul(first, settings.beta1);
      at::_foreach_add_(direction, gradients, 1 - settings.beta1);
      at::_foreach_mul_(first, settings.beta2);
      at::_foreach_add_(first, gradients, 1 - settings.beta2);
      at::_foreach_add_(weights, at::_foreach_sign(direction), -rate);
      return;
    }
    at::_foreach_lerp_(first, gradients, 1 - settings.beta1);
    at::_foreach_mul_(second, settings.beta2);
    at::_foreach_addcmul_(second, gradients, gradients, 1 - settings.beta2);
    const auto t = static_cast<double>(updates);
    Tensors denominator = at::_foreach_sqrt(second);
    at::_foreach_div_(denominator, std::sqrt(1 - std::pow(settings.beta2, t)));
    at::_foreach_add_(denominator, settings.epsilon);
    double rate_of_first = rate / (1 - std::pow(settings.beta1, t));
    if (settings.name == "nadam") {
      const auto mu = [&](double t) { return settings.beta1 * (1 - 0.5 * std::pow(0.96, t * 0.004)); };
      mu_product *= mu(t);
      at::_foreach_addcdiv_(weights, gradients, denominator, -rate * (1 - mu(t)) / (1 - mu_product));
      rate_of_first = rate * mu(t + 1) / (1 - mu_product * mu(t + 1));
    }
    at::_foreach_addcdiv_(weights, first, denominator, -rate_of_first);
  }
};

}  // namespace

TEST_CASE("a step gives the bits of LibTorch's multi-tensor step, in place or not, streamed or not") {
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam", "adamw", "nadam", "lion");
  settings.weight_decay = GENERATE(0.0, 0.02);
  if (settings.name == "sgd") {
    settings.momentum = GENERATE(0.0, 0.9);
    settings.nesterov = settings.momentum > 0 && GENERATE(false, true);
  }
  const auto type = GENERATE(at::kFloat, at::kDouble);
  const bool in_place = GENERATE(false, true);
  // The last one makes the version large enough for streaming stores.
  std::vector<int64_t> sizes = {0, 1, 3, 17, 255, 256, 257, 1003, 40'961};
  if (settings.weight_decay == 0 && type == at::kFloat) sizes.push_back((1 << 22) + 5);

  Libtorch libtorch{settings, randoms(sizes, 1, type), {}, {}};
  Tensors weights = randoms(sizes, 1, type);
  const auto rule = make_update_rule(settings);
  for (uint64_t step = 0; step < 3; ++step) {
    const Tensors gradients = randoms(sizes, 10 + step, type);
    libtorch.step(gradients, 0.05);
    Tensors next = rule->step(weights, gradients, 0.05, in_place ? weights : Tensors());
    for (size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(settings.name, settings.weight_decay, settings.momentum, settings.nesterov, c10::toString(type),
              in_place, step, sizes[i]);
      if (settings.name == "sgd" || settings.name == "lion") {
        check_same(next[i], libtorch.weights[i]);
      } else {
        // LibTorch's root (MKL's) is off by one unit in the last place now and then; ours never is.
        const double tolerance = type == at::kFloat ? 1e-6 : 1e-14;
        CHECK(at::allclose(next[i], libtorch.weights[i], tolerance, tolerance));
      }
      CHECK(next[i].is_same(weights[i]) == in_place);
      CHECK(next[i].requires_grad());
    }
    // With Adam's decay the moments follow the weights; otherwise they see no root.
    const bool exact = settings.name != "adam" || settings.weight_decay == 0;
    const auto slots = rule->state().slots;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        CAPTURE(settings.name, settings.weight_decay, c10::toString(type), in_place, step, slot, sizes[i]);
        if (exact) check_same(slots[slot].second[i], (slot == 0 ? libtorch.first : libtorch.second)[i]);
      }
    }
    weights = std::move(next);
  }
}

TEST_CASE("streamed and ordinary stores, and slices at odd places, write the same bits") {
  const int64_t size = 5000;
  const Tensors input = randoms({size, size, size, size}, 7);
  const auto run = [&](Stores stores, int64_t offset, int64_t split) {
    Tensors t;
    for (const auto& tensor : input) t.push_back(tensor.clone());
    at::Tensor room = at::zeros({size + 64});
    float* const next = room.data_ptr<float>() + offset;
    const StepArrays<float> arrays{t[0].data_ptr<float>(), t[1].data_ptr<float>(), next,
                                   t[2].data_ptr<float>(), t[3].abs_().data_ptr<float>()};
    const AdamFactors<float> factors{0.1F, 0.1F, 0.999F, 0.001F, 0.5F, 1e-8F, 0.01F, 0.02F};
    adam_step(factors, Decay::kGradient, arrays, 0, split, stores);
    adam_step(factors, Decay::kGradient, arrays, split, size, stores);
    CHECK(room.narrow(0, 0, offset).eq(0).all().item<bool>());
    CHECK(room.narrow(0, offset + size, 64 - offset).eq(0).all().item<bool>());
    return at::stack({room.narrow(0, offset, size), t[2], t[3]});
  };
  const at::Tensor expected = run(Stores::kOrdinary, 0, size);
  for (const int64_t offset : {0, 1, 5, 16, 63}) {
    for (const int64_t split : {0, 1, 300, 2048, 4999}) {
      CHECK(run(Stores::kStreaming, offset, split).equal(expected));
      CHECK(run(Stores::kOrdinary, offset, split).equal(expected));
    }
  }
}

TEST_CASE("weights of 16 bits are stepped as floats, gradients with other strides are read right") {
  OptimizerSettings settings;
  settings.momentum = 0.9;
  const auto rule = make_update_rule(settings);
  const at::Tensor weight = at::randn({5, 7}).to(at::kBFloat16);
  const at::Tensor gradient = at::randn({7, 5}).t();
  const Tensors next = rule->step({weight}, {gradient.to(at::kBFloat16)}, 0.5);
  CHECK(next[0].scalar_type() == at::kBFloat16);
  const at::Tensor exact = weight.to(at::kFloat) - 0.5 * gradient.to(at::kBFloat16).to(at::kFloat);
  CHECK(next[0].equal(exact.to(at::kBFloat16)));
}

TEST_CASE("weights and their bfloat16 copies: written with every update, and in turn where versions are") {
  const std::vector<int64_t> sizes = {1000, 64, 2000};
  const at::NoGradGuard no_grad;
  for (const char* name : {"sgd", "adam"}) {
    OptimizerSettings settings;
    settings.name = name;
    const auto rule = make_update_rule(settings);
    WeightVersions versions(randoms(sizes, 1), 0, {0, 2});
    versions.keep_places();
    const auto check = [](const WeightVersion& version) {
      REQUIRE(version.copies.size() == 3);
      CHECK_FALSE(version.copies[1].defined());
      for (const size_t i : {size_t{0}, size_t{2}})
        CHECK(version.copies[i].equal(version.weights[i].to(at::kBFloat16)));
    };
    const auto step = [&] {
      auto room = versions.room({0, 1, 2});
      const Tensors before = versions.latest()->weights;
      auto next = rule->step(before, randoms(sizes, 2), 0.1, std::move(room.weights), room.copies);
      versions.publish(std::move(next), std::move(room.copies));
      check(*versions.latest());
    };
    check(*versions.latest());
    const void* const first = versions.latest()->copies[0].data_ptr();
    step();
    CHECK(versions.latest()->copies[0].data_ptr() == first);  // in place, as the weights
    std::set<std::pair<const void*, const void*>> places;
    for (int i = 0; i < 6; ++i) {
      const auto held = versions.latest();  // until the update is over
      step();
      check(*held);
      places.insert({versions.latest()->weights[0].data_ptr(), versions.latest()->copies[0].data_ptr()});
    }
    CHECK(places.size() == 2);
    // A copy that somebody reads still: autograd holds its memory.
    const at::Tensor reader = versions.latest()->copies[2].detach();
    const at::Tensor before = reader.clone();
    step();
    CHECK(reader.equal(before));
    versions.latest()->weights[0].fill_(3);
    versions.changed();
    check(*versions.latest());
    versions.replace(randoms(sizes, 3), 7);
    check(*versions.latest());
    versions.expect({{5, 1}}, {{5, randoms(sizes, 4)}});
    check(*versions.read(5));
  }
}

TEST_CASE(
    "a version takes its parameters' bytes, nobody's memory is written in place, a dead version's is used "
    "again") {
  const std::vector<int64_t> sizes = {10'000, 64, 2'000};
  const int64_t bytes = 4 * (10'000 + 64 + 2'000);
  MemoryMeter meter;
  const MemoryMeter::Attached attached(meter);
  const at::NoGradGuard no_grad;
  WeightVersions versions(randoms(sizes, 1));
  const Tensors gradients = randoms(sizes, 2);
  const auto rule = make_update_rule(OptimizerSettings());
  const std::vector<size_t> all = {0, 1, 2};
  const auto step = [&] {
    auto room = versions.room(all);
    const Tensors before = versions.latest()->weights;
    versions.publish(rule->step(before, gradients, 0.1, std::move(room.weights), room.copies), room.copies);
  };
  REQUIRE(meter.live_bytes() == 2 * bytes);

  // Nobody else holds the latest: in place.
  const void* const memory = versions.latest()->weights[0].data_ptr();
  step();
  CHECK(versions.latest()->weights[0].data_ptr() == memory);
  CHECK(meter.peak_bytes() == 2 * bytes);

  // A minibatch in flight holds it: its values stay.
  auto held = versions.latest();
  const at::Tensor copy = held->weights[0].clone();
  step();
  CHECK(meter.live_bytes() == 3 * bytes + 40'000);
  CHECK(held->weights[0].equal(copy));
  CHECK_FALSE(versions.latest()->weights[0].equal(copy));

  // It ends; what comes next is written where it was.
  const void* const dead = held->weights[0].data_ptr();
  held = versions.latest();
  step();
  CHECK(versions.latest()->weights[0].data_ptr() == dead);
  CHECK(meter.live_bytes() == 3 * bytes + 40'000);
  CHECK(versions.live() == 2);

  // A tensor of the latest version that somebody holds without the version: also left alone.
  held.reset();
  const at::Tensor kept = versions.latest()->weights[1];
  const at::Tensor before = kept.clone();
  step();
  CHECK(kept.equal(before));
}
