// Clipping by global norm against the serial reference, and the guard that stops at numbers that are not
// finite.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "models/registry.h"
#include "runtime/transport/local.h"
#include "tests/runtime/pipelines.h"

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

}  // namespace
}  // namespace pipewright::testing
