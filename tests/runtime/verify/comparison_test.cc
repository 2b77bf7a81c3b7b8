// The comparisons of `verify`, and the plan of one device that they need.
#include "runtime/verify/comparison.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "models/initialise.h"
#include "models/zoo/registry.h"
#include "runtime/serial/reference.h"
#include "runtime/verify/up_to_rounding.h"
#include "tests/runtime/pipelines.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

const std::vector<StageTensor> kPlaces = {{"a", 0, true}, {"running", 0, false}, {"b", 1, true}};

TrainedModel model_of(double shift) {
  TrainedModel model;
  model.losses = {2.5, 2.25, 2.0};
  model.tensors["a"] = at::ones({2, 3});
  model.tensors["running"] = at::zeros({2});
  model.tensors["b"] = at::full({4}, 1 + shift);
  return model;
}

std::map<std::string, at::Tensor> start() {
  return {{"a", at::zeros({2, 3})}, {"running", at::zeros({2})}, {"b", at::zeros({4})}};
}

TrainedModel trained(const Model& model, const Plan& plan, const TrainingRules& rules, int64_t minibatches) {
  const auto fields = random_minibatches(model.graph, minibatches, 10);
  const ReferenceResult result = train_serially(model, plan, rules, {{0, minibatches}},
                                                [&](int64_t k) { return fields[static_cast<size_t>(k)]; });
  return {result.losses, result.weights};
}

std::vector<StageTensor> parameters_of(const Model& model) {
  std::vector<StageTensor> places;
  for (const Parameter& parameter : model.graph.parameters)
    places.push_back({parameter.name, 0, parameter.trainable});
  return places;
}

}  // namespace

TEST_CASE("equal models are equal, NaN is NaN, but zero has a sign") {
  CHECK(compare_exactly(model_of(0), model_of(0), kPlaces).equal());
  TrainedModel nan = model_of(0);
  nan.losses[1] = std::nan("");
  CHECK(compare_exactly(nan, nan, kPlaces).equal());
  CHECK(compare_exactly(nan, model_of(0), kPlaces).first_loss->position == 1);
  TrainedModel negative = model_of(0);
  negative.tensors["running"][1] = -0.0;
  const auto comparison = compare_exactly(negative, model_of(0), kPlaces);
  REQUIRE(comparison.first_element);
  CHECK(comparison.first_element->place.name == "running");
  CHECK(std::signbit(comparison.first_element->got));
}

TEST_CASE("what differs first is named: loss, tensor, stage, element, both values") {
  TrainedModel other = model_of(0);
  other.losses[2] = 2.125;
  other.tensors["a"][1][2] = 7;
  other.tensors["b"][0] = 8;
  const auto comparison = compare_exactly(other, model_of(0), kPlaces);
  CHECK_FALSE(comparison.equal());
  CHECK(comparison.different.size() == 2);
  REQUIRE(comparison.first_loss);
  CHECK(comparison.first_loss->position == 2);
  CHECK(comparison.first_loss->got == 2.125);
  CHECK(comparison.first_loss->expected == 2.0);
  REQUIRE(comparison.first_element);
  CHECK(comparison.first_element->place.name == "a");
  CHECK(comparison.first_element->index == std::vector<int64_t>{1, 2});
  CHECK(comparison.first_element->got == 7);
  CHECK(comparison.first_element->expected == 1);
}

TEST_CASE("a distance is measured by how far training has moved the parameter") {
  const auto comparison = compare_relatively(model_of(0.25), model_of(0), start(), kPlaces);
  REQUIRE(comparison.parameters.size() == 2);  // a buffer is no parameter
  CHECK(comparison.parameters[0].difference == 0);
  CHECK(comparison.parameters[1].difference == Approx(0.25));
  CHECK(comparison.largest()->place.name == "b");
  CHECK(comparison.model == Approx(std::sqrt(4 * 0.0625) / std::sqrt(10.0)));
  CHECK(comparison.loss == 0);
}

TEST_CASE("rounding in a parameter that does not move is no difference, what is not finite is the largest") {
  TrainedModel still = model_of(0);
  still.tensors["b"] = at::full({4}, 1e-9);
  TrainedModel rounded = model_of(0);
  rounded.tensors["b"] = at::full({4}, 3e-9);
  CHECK(compare_relatively(rounded, still, start(), kPlaces).parameters[1].difference < 1e-5);
  rounded.tensors["b"][2] = std::nan("");
  CHECK(compare_relatively(rounded, still, start(), kPlaces).largest()->difference ==
        std::numeric_limits<double>::infinity());
}

TEST_CASE("verify: a run that has learnt nothing or the wrong thing is refused, however far rounding goes") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=4,width=16,image=4,channels=1", 4);
  const auto places = parameters_of(model);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 13;
  const Plan plan = with_schedule(plan_of(model, {1}, {3}), "gpipe", "flush", 3);
  Plan wrong = with_schedule(plan_of(model, {1}, {12}), "gpipe", "flush", 12);
  TrainingRules still = rules;
  still.optimizer.learning_rate = 0;
  const TrainedModel right = trained(model, plan, rules, 13);
  const TrainedModel untrained = trained(model, plan, still, 13);
  const auto verdict = [&](const TrainedModel& written, double rounding) {
    UpToRounding compared;
    compared.found = compare_relatively(written, right, untrained.tensors, places);
    compared.rounding = compared.found;
    for (auto& parameter : compared.rounding.parameters) parameter.difference = rounding;
    compared.rounding.model = rounding;
    return compared;
  };
  // Up to what rounding is something compared with; there nothing passes that was not trained as it should.
  for (double rounding = 1e-9; rounding <= kMostAllowed / 2; rounding *= 1.5) {
    CAPTURE(rounding);
    CHECK(verdict(right, rounding).compared() == places.size());
    CHECK(verdict(right, rounding).holds());
    CHECK_FALSE(verdict(untrained, rounding).holds());
    CHECK_FALSE(verdict(trained(model, wrong, rules, 13), rounding).holds());
  }
  CHECK_FALSE(verdict(untrained, 0.1).holds());
  // Beyond it the comparison says that it says nothing.
  for (const double rounding : {0.13, 1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    CHECK(verdict(right, rounding).compared() == 0);
  const auto far = verdict(untrained, 1e-9).beyond();
  CHECK(far.size() == places.size());
  // A tolerance that somebody asks for is theirs.
  UpToRounding lenient = verdict(untrained, 1e-6);
  lenient.tolerance = 2;
  CHECK(lenient.holds());
}

TEST_CASE("plans that compute what one device computes: the same weights up to rounding, others have none") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=4,width=16,image=4,channels=1", 4);
  const auto places = parameters_of(model);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 13;
  std::map<std::string, at::Tensor> start;
  for (const StageTensor& place : places)
    start[place.name] = initial_parameter(model, place.name, rules.seed);
  Plan uneven = plan_of(model, {2}, {1});
  uneven.stages[0].shares = {2, 1};
  Plan alone = plan_of(model, {2, 2}, {3, 1});
  alone.schedule = "model-parallel";
  for (const Plan& plan : {plan_of(model, {3}, {1}), uneven, alone, plan_of(model, {1, 1}, {1, 1}),
                           with_schedule(plan_of(model, {2, 1}, {3, 3}), "1f1b-flush", "flush", 3)}) {
    CAPTURE(plan.shape_text(), plan.schedule);
    const Plan single = one_device_plan(model, plan, rules);
    REQUIRE(single.schedule == "gpipe");
    const auto comparison =
        compare_relatively(trained(model, plan, rules, 13), trained(model, single, rules, 13), start, places);
    CHECK(comparison.largest()->difference < 1e-5);
    CHECK(comparison.loss < 1e-5);
    // Another number of minibatches for an update is another training.
    Plan wrong = single;
    wrong.microbatches += 1;
    wrong.stages[0].in_flight += 1;
    CHECK(compare_relatively(trained(model, plan, rules, 13), trained(model, wrong, rules, 13), start, places)
              .model > 1e-2);
  }
  CHECK(one_device_plan(model, plan_of(model, {1, 1}, {2, 1}), rules).schedule.empty());
  CHECK(one_device_plan(model, plan_of(model, {2, 1}, {1, 1}), rules).schedule.empty());
  CHECK(one_device_plan(model, with_schedule(plan_of(model, {1, 1}, {2, 1}), "1f1b", "2bw", 2), rules)
            .schedule.empty());
  TrainingRules clipped = rules;
  clipped.gradient_clipping_norm = 1;  // each stage its own norm
  CHECK(one_device_plan(model, plan_of(model, {1, 1}, {1, 1}), clipped).schedule.empty());
  CHECK(one_device_plan(model, plan_of(model, {3}, {1}), clipped).schedule == "gpipe");
}

TEST_CASE("the serial reference goes on from a state as if it had never stopped, the state stays as it is") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  for (const std::string name : {"sgd", "adam"}) {
    TrainingRules rules = momentum_rules();
    rules.optimizer.name = name;
    rules.total_minibatches = 12;
    const Plan plan = plan_of(model, {1}, {1});
    const auto minibatches = random_minibatches(model.graph, 12, 10);
    const auto fields = [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; };
    const ReferenceResult whole = train_serially(model, plan, rules, {{0, 7}, {7, 5}}, fields);

    Worker worker(model, plan, 0, nullptr, rules);
    WorkerHooks hooks;
    hooks.fields = [&](int64_t, int64_t k) {
      std::vector<at::Tensor> tensors;
      for (const auto& field : worker.stage().program().fields())
        tensors.push_back(minibatches[static_cast<size_t>(k)].at(field));
      return tensors;
    };
    worker.train({0, 7}, hooks);
    const StageState state = worker.stage().state_before(7);
    for (int time = 0; time < 2; ++time) {
      const ReferenceResult rest =
          train_serially(model, plan, rules, {{7, 5}}, fields, [&](size_t) { return std::optional(state); });
      CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 7, whole.losses.end()));
      for (const auto& [parameter, weight] : whole.weights) {
        INFO(parameter);
        CHECK(rest.weights.at(parameter).equal(weight));
      }
      for (const auto& [buffer, tensor] : whole.buffers[0][0]) {
        INFO(buffer);
        CHECK(rest.buffers[0][0].at(buffer).equal(tensor));
      }
    }
  }
}

TEST_CASE(
    "losses: the first that lies farther off than rounding takes them is named, later ones may lie farther") {
  const std::vector<double> run = {2.0, 1.5, 1.0};
  const auto compared = [&](const std::vector<double>& other, double rounding = 0) {
    return compare_losses(run, other, run, {2.0, 1.5 + rounding, 1.0}, 4, 1e-5);
  };
  CHECK(compared(run).equal);
  CHECK(compared({2.0, 1.5}).compared == 2);
  const auto near = compared({2.0, 1.5, 1.00001});
  CHECK_FALSE(near.equal);
  CHECK_FALSE(near.first);
  const auto wrong = compared({2.0, 1.49, 1.1});
  REQUIRE(wrong.first);
  CHECK(wrong.first->minibatch == 5);
  CHECK(wrong.first->got == 1.5);
  CHECK(wrong.first->expected == 1.49);
  CHECK_FALSE(compared({2.0, 1.49, 1.001}, 1e-2).first);
  CHECK(compared({2.0, 1.5, std::nan("")}).first->minibatch == 6);
  CHECK(compared({2.1, 1.5, 1.0}, 1e-2).first->minibatch == 4);  // rounding has done nothing yet
  // However far rounding goes: a wrong loss is not right for that, and where it goes too far nothing is said.
  CHECK(compared({2.0, 1.45, 1.0}, 1e-2).first->minibatch == 5);
  const auto chaos = compared({2.0, 1.0, 3.0}, 5e-2);
  CHECK_FALSE(chaos.first);
  CHECK(chaos.compared == 1);
  CHECK(chaos.left_out == 2);
}
