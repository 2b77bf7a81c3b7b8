// Clipping by global norm against the serial reference, and the guard that stops at numbers that are not
// finite.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "graph/error.h"
#include "models/safetensors/safetensors.h"
#include "models/zoo/registry.h"
#include "runtime/train/data_fault.h"
#include "runtime/transport/local.h"
#include "tests/runtime/pipelines.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

TrainingRules clipped_rules() {
  TrainingRules rules = momentum_rules();
  rules.gradient_clipping_norm = 0.05;
  return rules;
}

TEST_CASE("clipping: over the model with flush, by stage else, the reference's bits") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=4,width=16,image=4,channels=1", 4);
  const auto check = [&](const Plan& plan) {
    compare(
        model, plan, clipped_rules(), {{0, 11}},
        plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>() : make_local_world(plan.world_size));
  };
  check(with_schedule(plan_of(model, {1, 1, 1}, {4, 4, 4}), "gpipe", "flush", 4));
  check(with_schedule(plan_of(model, {2, 1}, {3, 3}), "1f1b-flush", "flush", 3));
  check(interleaved_plan(model, 4, 2, 1, 4));
  check(plan_of(model, {1, 2}, {3, 1}));
  check(with_schedule(plan_of(model, {1, 1}, {2, 2}), "1f1b", "2bw", 3));
  check(plan_of(model, {1}, {1}));
}

TEST_CASE("clipping with flush: any cut makes the updates of one device") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=4,width=16,image=4,channels=1", 4);
  const auto minibatches = random_minibatches(model.graph, 8, 5);
  const auto fields = [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; };
  const Plan cut = with_schedule(plan_of(model, {1, 1, 1}, {4, 4, 4}), "gpipe", "flush", 4);
  const auto pieces = train_serially(model, cut, clipped_rules(), {{0, 8}}, fields);
  const auto whole =
      train_serially(model, one_device_plan(model, cut, clipped_rules()), clipped_rules(), {{0, 8}}, fields);
  const auto unclipped = train_serially(model, cut, momentum_rules(), {{0, 8}}, fields);
  for (const auto& [name, weight] : pieces.weights) {
    CHECK(weight.allclose(whole.weights.at(name), 1e-5, 1e-6));
  }
  CHECK(pieces.losses.back() != unclipped.losses.back());
}

std::string failure_of(const Model& model, TrainingRules rules) {
  rules.total_minibatches = 6;
  const auto minibatches = random_minibatches(model.graph, 6, 5);
  try {
    run_pipeline(model, plan_of(model, {1}, {1}), rules, {{0, 6}}, minibatches, {});
  } catch (const NumericalError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("the guard names minibatch, stage and node, without it training goes on") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=4,width=16,image=4,channels=1", 4);
  TrainingRules rules = momentum_rules();
  rules.optimizer.learning_rate = 1e30;
  const std::string message = failure_of(model, rules);
  CAPTURE(message);
  CHECK(message.find("minibatch") != std::string::npos);
  CHECK(message.find("on stage 0") != std::string::npos);
  CHECK(message.find("node '") != std::string::npos);
  rules.gradient_clipping_norm = 1;
  CHECK_FALSE(failure_of(model, rules).empty());
  rules.nan_guard = false;
  CHECK(failure_of(model, rules).empty());
}

TEST_CASE("the data is blamed for what it breaks, and for nothing else: whichever sample, field and number") {
  const Model model = build_model("mlp:layers=1,width=8,image=4,channels=1", 4);
  const TemporaryFolder folder;
  const auto request = [](int64_t k) { return LoadRequest{{4 * k + 3, 4 * k, 4 * k + 1, 4 * k + 2}, {}}; };
  const auto fault = [&](const at::Tensor& images, const at::Tensor& labels, int64_t first, int64_t last) {
    const auto file = folder.path() / "own.safetensors";
    write_safetensors(file, {{"images", images}, {"labels", labels}}, {});
    const auto data = open_dataset("tensors:file=" + file.string(), "train");
    return data_fault(NotFiniteError("broken", "", first, last), model.graph, *data, request);
  };
  std::mt19937_64 random(11);
  for (int i = 0; i < 60; ++i) {
    at::Tensor images = at::randn({20, 1, 4, 4});
    const at::Tensor labels = at::randint(10, {20}, at::kLong);
    CHECK(fault(images, labels, 0, 4).empty());
    const auto sample = static_cast<int64_t>(random() % 20);
    const int64_t k = sample / 4;
    const std::vector<std::pair<double, std::string>> numbers = {
        {std::nan(""), "nan"}, {HUGE_VAL, "inf"}, {-HUGE_VAL, "-inf"}};
    const auto& [number, text] = numbers[random() % 3];
    images[sample][0][static_cast<int64_t>(random() % 4)][static_cast<int64_t>(random() % 4)] = number;
    CHECK(fault(images, labels, 0, 4) == "field 'images' of sample " + std::to_string(sample) +
                                             " of the data, number " + std::to_string((sample + 1) % 4) +
                                             " of minibatch " + std::to_string(k) + ", holds " + text);
    // Of other minibatches nothing is said.
    CHECK(fault(images, labels, (k + 1) % 5, (k + 1) % 5).empty());
  }
  at::Tensor labels = at::zeros({20}, at::kLong);
  labels.narrow(0, 8, 4).fill_(-100);
  CHECK(fault(at::zeros({20, 1, 4, 4}), labels, 0, 1).empty());
  CHECK(fault(at::zeros({20, 1, 4, 4}), labels, 1, 2) ==
        "all labels of minibatch 2 are -100, which ask nothing: its loss is the mean of none");
  CHECK_THROWS_AS(throw_with_cause(NotFiniteError("broken", "a cure", 0, 0), ""), NotFiniteError);
}

}  // namespace
}  // namespace pipewright::testing
