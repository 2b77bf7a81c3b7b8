// What only a GPU can show; skipped, and said so, where there is none. scripts/check_gpu runs all tests
// tagged [cuda].
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/layer_norm.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "models/device/cuda_plugin.h"
#include "models/device/device.h"
#include "models/initialise.h"
#include "models/load.h"
#include "models/run/layer_norm.h"
#include "runtime/update/device_step.h"
#include "tests/runtime/data/every_byte.h"
#include "tests/runtime/stage/recorded_run.h"
#include "tests/support/gpu.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Contains;

namespace {

// Nor do the graphs have any that replicas with parts of minibatches run.
void without_dropout(Model& model) {
  const auto leave_out = [](Graph& graph) {
    for (Node& node : graph.nodes)
      for (auto& [name, argument] : node.arguments)
        if (name == "p" && node.op == "aten::dropout") argument = 0.0;
  };
  leave_out(model.graph);
  if (!model.graph_for) return;
  model.graph_for = [leave_out, graph_for = model.graph_for](int64_t samples) {
    Graph graph = graph_for(samples);
    leave_out(graph);
    return graph;
  };
}

// The seeds that a test draws jobs by: PIPEWRIGHT_CUDA_JOBS=500, or 250-500, so that several processes share
// them.
struct Seeds {
  uint64_t begin = 0, end = 0;

  explicit Seeds(uint64_t usual) : end(usual) {
    const char* const set = std::getenv("PIPEWRIGHT_CUDA_JOBS");
    if (set == nullptr) return;
    const std::string text = set;
    const size_t dash = text.find('-');
    if (dash != std::string::npos) begin = std::stoull(text);
    end = std::stoull(dash == std::string::npos ? text : text.substr(dash + 1));
  }
};

}  // namespace

TEST_CASE("cuda: every schedule and rule trains as on the CPU", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::set_num_threads(1);
  at::globalContext().setAllowTF32CuBLAS(false);
  uint64_t to_the_end = 0;
  const Seeds seeds(48);
  for (uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
    RandomJobs jobs(seed);
    RandomJob job = jobs.next(6);
    // Masks are other ones on a GPU, and Adam makes much of the last bit of a gradient that is nearly 0.
    without_dropout(job.model);
    job.rules.optimizer.epsilon = 1e-2;
    CAPTURE(seed);
    if (compare_on_device(job, *device, 2e-3)) ++to_the_end;
  }
  CHECK(to_the_end * 10 >= (seeds.end - seeds.begin) * 9);  // of the others rounding makes something else
}

TEST_CASE("cuda: the weights after 50 steps are the CPU's under every schedule", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::set_num_threads(1);
  at::globalContext().setAllowTF32CuBLAS(false);
  struct Precision {
    std::string name;
    double tolerance;  // relative to the larger of 1 and the weight
  };
  for (const Precision& precision : {Precision{"float32", 1e-4}, Precision{"bfloat16", 2e-2}}) {
    for (const WeightsApart& one : weights_apart(*device, precision.name, 50)) {
      // scripts/check_gpu takes these lines into its report.
      std::printf("figure: weights after 50 steps, %s, apart from the CPU's: %.1e (aim <= %.0e)\n",
                  one.what.c_str(), one.apart, precision.tolerance);
      INFO(one.what);
      CHECK(one.apart < precision.tolerance);
    }
  }
}

TEST_CASE("cuda: recordings give the bits of training without", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::set_num_threads(1);
  const MakeDeviceGraphs graphs = [](at::Device on) { return cuda_plugin("test").make_graphs(on.index()); };
  int64_t recorded = 0;
  const Seeds seeds(48);
  for (uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
    RandomJob job = RandomJobs(seed).next(6);
    if (job.plan.weights != "flush" && job.plan.weights != "2bw") continue;
    const bool cast_once = seed % 2 == 0;
    if (cast_once) cast_weights_once(job, *device);
    CAPTURE(seed, cast_once, job.plan.shape_text(), job.plan.schedule, job.plan.weights);
    const RecordedRun without = train_recorded(job, *device, {}), with = train_recorded(job, *device, graphs);
    check_equal(without.run, with.run);
    if (cast_once) {
      RandomJob at_every_read = job;
      at_every_read.model.graph.device_passes.clear();
      check_equal(train_recorded(at_every_read, *device, graphs).run, with.run);
    }
    for (const std::string& text : with.texts) CHECK_THAT(text, !Contains("recording failed"));
    recorded += with.forwards;
  }
  CHECK(recorded > static_cast<int64_t>(seeds.end - seeds.begin));
}

TEST_CASE("cuda: a recorded GPT starts with one launch what were hundreds", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::set_num_threads(1);
  RandomJob job;
  job.model = load_model("gpt:layers=2,width=64,heads=2,tokens=32,vocabulary=64,dropout=0.1", 4);
  job.plan = with_schedule(plan_of(job.model, {1}, {1}), "1f1b", "stash");
  job.rules = momentum_rules();
  job.rules.optimizer.learning_rate = 1e-3;
  job.spans = {{0, 20}};
  const RecordedRun without = train_recorded(job, *device, {});
  const RecordedRun with =
      train_recorded(job, *device, [](at::Device on) { return cuda_plugin("test").make_graphs(on.index()); });
  CHECK(with.texts == std::vector<std::string>{"used"});
  CHECK(with.forwards == 19);
  CHECK(with.positions == 1);
  std::printf("figure: kernels and copies in a recorded forward and backward of a GPT of 2 layers: %lld\n",
              static_cast<long long>(with.size));
  CHECK(with.size > 100);
  // Gradients of the embedding are added in any order.
  for (size_t k = 0; k < 20; ++k) CHECK(with.run.losses[k] == Approx(without.run.losses[k]).epsilon(1e-4));
}

TEST_CASE("cuda: what cannot be recorded is run, and what comes after it", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  const c10::DeviceGuard on_device(*device);
  const auto graphs = cuda_plugin("test").make_graphs(device->index());
  at::Tensor x = at::ones({4}, at::TensorOptions().device(*device));
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS(graphs->record([&] { static_cast<void>(x.sum().item<float>()); }, {}));
  const auto twice = graphs->record([&] { x.mul_(2); }, {});
  CHECK(x.sum().item<float>() == 4);
  for (int i = 0; i < 3; ++i) twice->replay();
  CHECK(x.sum().item<float>() == 32);
  CHECK(twice->size() == 1);
  CHECK(at::rand({1000}, x.options()).mean().item<double>() == Approx(0.5).margin(0.1));  // draws as before
}

TEST_CASE("cuda: bytes of images are normalised on a GPU to the CPU's bits", "[cuda]") {
  if (const auto device = gpu()) check_every_byte(*device);
}

TEST_CASE("cuda: the first weights on a GPU are the CPU's, bit for bit", "[cuda]") {
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

TEST_CASE("cuda: the fused cross entropy is LibTorch's up to rounding, and so is a linear in aligned rows",
          "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  at::globalContext().setAllowTF32CuBLAS(false);
  const bool half = GENERATE(false, true);
  const auto reduction = GENERATE(at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum);
  const int64_t classes = GENERATE(as<int64_t>(), 3, 1029, 16387, 50257);
  CAPTURE(half, reduction, classes);
  at::manual_seed(1);
  const at::TensorOptions there = at::TensorOptions(at::kFloat).device(*device);
  const at::Tensor x = at::randn({3, 11, 64}, there).requires_grad_();
  const at::Tensor weight = (at::randn({classes, 64}, there) * 0.3).requires_grad_();
  const at::Tensor labels = at::randint(classes, {33}, there.dtype(at::kLong));
  labels[4] = -100;
  at::autocast::set_autocast_enabled(at::kCUDA, half);
  const auto run = [&](bool passes) {
    const auto call = [&](const char* name, auto signature, const auto&... arguments) {
      return c10::Dispatcher::singleton()
          .findSchemaOrThrow(name, "")
          .template typed<std::remove_pointer_t<decltype(signature)>>()
          .call(arguments...);
    };
    using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
    using Loss = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t,
                            int64_t, double);
    const std::optional<at::Tensor> none;
    const at::Tensor scores =
        passes ? call("pipewright::linear_aligned", static_cast<Linear*>(nullptr), x, weight, none)
               : at::linear(x, weight);
    const at::Tensor rows = scores.reshape({-1, classes});
    const at::Tensor loss = passes ? call("pipewright::cross_entropy_fused", static_cast<Loss*>(nullptr),
                                          rows, labels, none, int64_t{reduction}, int64_t{-100}, 0.0)
                                   : at::cross_entropy_loss(rows, labels, {}, reduction);
    std::vector<at::Tensor> made = torch::autograd::grad({loss.sum()}, {x, weight});
    made.push_back(loss);
    return made;
  };
  const auto with = run(true), without = run(false);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  for (size_t i = 0; i < with.size(); ++i) {
    CAPTURE(i);
    CHECK(with[i].scalar_type() == at::kFloat);
    const double norm = without[i].norm().item<double>();
    CHECK((with[i] - without[i]).norm().item<double>() <= (half ? 2e-2 : 1e-4) * norm);
  }
}

TEST_CASE("cuda: the two-stage layer norm is LibTorch's up to rounding, and always the same", "[cuda]") {
  const auto device = gpu();
  if (!device) return;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 draw(seed);
    at::manual_seed(seed);
    const auto below = [&](uint64_t limit) { return static_cast<int64_t>(draw() % limit); };
    int64_t rows = 1 + below(below(2) == 0 ? 100 : 20'000);
    int64_t columns = below(2) == 0 ? 4 * (1 + below(500)) : 1 + below(2000);
    if (seed == 0) std::tie(rows, columns) = std::make_tuple(8192, 768);
    if (seed == 1) std::tie(rows, columns) = std::make_tuple(12'608, 768);
    const bool autocast = below(2) == 0, half = autocast && below(2) == 0;
    CAPTURE(seed, rows, columns, autocast, half);
    const at::TensorOptions there = at::TensorOptions(at::kFloat).device(*device);
    const auto drawn = [&](at::ScalarType dtype) {  // begins anywhere
      const int64_t before = below(2) * below(5);
      const at::Tensor all = at::randn({before + rows * columns}, there.dtype(dtype));
      return all.narrow(0, before, rows * columns).view({1, rows, columns}).detach();
    };
    const at::Tensor x = drawn(half ? at::kBFloat16 : at::kFloat).requires_grad_();
    const at::Tensor weight = at::randn({columns}, there).requires_grad_();
    const at::Tensor bias = at::randn({columns}, there).requires_grad_();
    const at::Tensor factor = drawn(at::kFloat);
    const auto run = [&](bool passes) {
      at::autocast::set_autocast_enabled(at::kCUDA, autocast);
      const at::Tensor output = passes ? layer_norm_two_stage(x, {columns}, weight, bias, 1e-5, true)
                                       : at::layer_norm(x, {columns}, weight, bias);
      at::autocast::set_autocast_enabled(at::kCUDA, false);
      std::vector<at::Tensor> made = {output};
      for (const at::Tensor& gradient : torch::autograd::grad({output}, {x, weight, bias}, {factor}))
        made.push_back(gradient);
      return made;
    };
    const auto with = run(true), again = run(true), without = run(false);
    CHECK(with[0].scalar_type() == at::kFloat);
    if (cuda_plugin("cuda").has_kernels()) CHECK(with[0].grad_fn()->name() != without[0].grad_fn()->name());
    for (size_t i = 0; i < with.size(); ++i) {
      CAPTURE(i);
      CHECK(with[i].scalar_type() == without[i].scalar_type());
      CHECK(with[i].equal(again[i]));
      if (i < 2) CHECK(with[i].equal(without[i]));  // the output and the gradient of the input
      CHECK((with[i] - without[i]).norm().item<double>() <= 2e-5 * (1e-3 + without[i].norm().item<double>()));
    }
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
