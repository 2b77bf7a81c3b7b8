// What only a GPU can show; skipped, and said so, where there is none. scripts/check_gpu runs all tests
// tagged [cuda].
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <filesystem>

#include "models/initialise.h"
#include "models/load.h"
#include "runtime/device_step.h"
#include "tests/runtime/on_device.h"
#include "tests/support/gpu.h"

using namespace pipewright;
using namespace pipewright::testing;

TEST_CASE("cuda: every schedule and rule trains as on the processor", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::set_num_threads(1);
  at::globalContext().setAllowTF32CuBLAS(false);
  for (uint64_t seed = 0; seed < 24; ++seed) {
    RandomJobs jobs(seed);
    RandomJob job = jobs.next(6);
    // Masks are other ones on a GPU, and Adam makes much of the last bit of a gradient that is nearly 0.
    for (Node& node : job.model.graph.nodes)
      for (auto& [name, argument] : node.arguments)
        if (name == "p" && node.op == "aten::dropout") argument = 0.0;
    job.rules.optimizer.epsilon = 1e-2;
    CAPTURE(seed);
    compare_on_device(job, *device, 2e-3);
  }
}

TEST_CASE("cuda: the weights after 50 steps are the processor's", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::set_num_threads(1);
  at::globalContext().setAllowTF32CuBLAS(false);
  const Model model = load_model("mlp:layers=4,width=32,image=4,classes=5", 16);
  const Plan plan = plan_of(model, {1, 1}, {2, 1});
  TrainingRules rules = momentum_rules();
  rules.optimizer.learning_rate = 0.01;
  rules.total_minibatches = 50;
  const auto minibatches = random_minibatches(model.graph, 50, 5);
  const auto train = [&](at::Device where) {
    rules.device = where;
    return run_pipeline(model, plan, rules, {{0, 50}}, minibatches,
                        where.is_cpu() ? make_world("local", 2) : make_device_world(where, 2));
  };
  const PipelineRun here = train(at::kCPU), there = train(*device);
  for (const auto& [name, weights] : here.weights)
    CHECK(distance(there.weights.at(name)[0], weights[0]) < 1e-4);
}

TEST_CASE("cuda: the first weights on a GPU are the processor's, bit for bit", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  const Model model = load_model("convnet:classes=5", 4);
  TrainingRules rules;
  rules.seed = 3;
  rules.device = *device;
  const StageReplica stage(model, plan_of(model, {1}, {1}), 0, 0, rules);
  for (size_t i = 0; i < stage.weights().size(); ++i) {
    CHECK(stage.weights()[i].device() == *device);
    CHECK(stage.weights()[i].cpu().equal(initial_parameter(model, stage.program().parameters()[i], 3)));
  }
}

TEST_CASE("cuda: the steps are LibTorch's fused ones up to rounding", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  const auto options = at::TensorOptions(at::kFloat).device(*device);
  std::vector<at::Tensor> theirs = {at::randn({300, 70}, options), at::randn({5}, options)};
  std::vector<at::Tensor> ours;
  for (const at::Tensor& weight : theirs) ours.push_back(weight.clone());
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adamw");
  settings.momentum = settings.name == "sgd" ? 0.9 : 0;
  settings.weight_decay = 0.01;
  std::vector<at::Tensor> first, second, steps;
  for (const at::Tensor& weight : theirs) {
    first.push_back(at::zeros_like(weight));
    second.push_back(at::zeros_like(weight));
    steps.push_back(at::zeros({}, options));
  }
  const auto rule = make_update_rule(settings);
  for (int64_t step = 1; step <= 5; ++step) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& weight : theirs) gradients.push_back(at::randn_like(weight));
    ours = rule->step(ours, gradients, 0.1);
    const at::NoGradGuard no_grad;
    if (settings.name == "sgd") {
      at::_fused_sgd_(theirs, gradients, first, 0.01, 0.9, 0.1, 0, false, false, step == 1);
    } else {
      for (at::Tensor& count : steps) count.fill_(static_cast<double>(step));
      at::_fused_adamw_(theirs, gradients, first, second, {}, steps, 0.1, 0.9, 0.999, 0.01, 1e-8, false,
                        false);
    }
  }
  for (size_t i = 0; i < ours.size(); ++i) CHECK(distance(ours[i], theirs[i]) < 1e-5);
}
