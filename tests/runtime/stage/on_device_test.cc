// Training on a device that is not the CPU: a stand-in with the CPU's numbers
// (tests/support/fake_device.h).
#include "tests/runtime/stage/on_device.h"

#include <cmath>
#include <limits>

#include "models/load.h"
#include "runtime/data/dataset.h"
#include "runtime/stage/deferred.h"
#include "runtime/update/device_step.h"
#include "runtime/update/gradient_norm.h"
#include "runtime/worker/stage_loaders.h"
#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/pictures.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_recording.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Contains;

TEST_CASE("on a device every schedule and rule trains as on the CPU") {
  at::set_num_threads(1);
  const int64_t late = GENERATE(0, 3, 1000);
  reset_fake_device(late);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    RandomJobs jobs(1000 * static_cast<uint64_t>(late) + seed);
    CAPTURE(late, seed);
    RandomJob job = jobs.next(6);
    // Else Adam makes much of the last bit of a gradient that is nearly 0.
    job.rules.optimizer.epsilon = 1e-2;
    compare_on_device(job, fake_device(), 1e-4, static_cast<Way>(seed % 3));
  }
  reset_fake_device();
}

TEST_CASE("on a device the weights after 50 steps are the CPU's under every schedule") {
  at::set_num_threads(1);
  const auto all = weights_apart(fake_device(), "float32", 50);
  CHECK(all.size() == 8);
  for (const WeightsApart& one : all) {
    INFO(one.what);
    CHECK(one.apart < 1e-4);
  }
}

TEST_CASE(
    "on a device the host waits for nothing while it trains, whatever the guard and the clipping look at") {
  at::set_num_threads(1);
  const Model model = load_model("mlp:layers=4,width=8,image=4,classes=5", 4);
  const auto& [schedule, weights] =
      GENERATE(table<std::string, std::string>({{"1f1b", "stash"}, {"1f1b-flush", "flush"}}));
  const Plan plan = with_schedule(plan_of(model, {2, 1}, {2, 1}), schedule, weights, 2);
  TrainingRules rules = momentum_rules();
  rules.device = fake_device();
  rules.gradient_clipping_norm = 0.5;
  const auto waits = [&](int64_t count) {
    rules.total_minibatches = count;
    reset_fake_device(/*late=*/5);
    const auto minibatches = random_minibatches(model.graph, count, 5);
    const auto run = run_pipeline(model, plan, rules, {{0, count}}, minibatches, make_world("local", 3));
    for (const double loss : run.losses) CHECK(std::isfinite(loss));
    const FakeDeviceCounts counts = fake_device_counts();
    CHECK(counts.uploads >= count);
    CHECK(counts.downloads >= count);
    return counts.waits + counts.blocking_uploads;
  };
  // What it waits for belongs to the run's begin: the first weights.
  CHECK(waits(40) == waits(8));
  reset_fake_device();
}

TEST_CASE("losses of a device come late, in order, and all of them") {
  reset_fake_device(/*late=*/7);
  std::vector<double> taken;
  Deferred deferred;
  const auto take = [&](const at::Tensor& loss) { taken.push_back(loss.item<double>()); };
  deferred.push(at::scalar_tensor(-1.0), take);
  CHECK(taken == std::vector<double>{-1});  // the CPU's are there
  for (int i = 0; i < 4; ++i) deferred.push(at::scalar_tensor(1.0 * i).to(fake_device()), take);
  CHECK(taken.size() == 1);
  for (int polls = 0; polls < 7; ++polls) deferred.poll();
  CHECK(taken == std::vector<double>{-1, 0});
  deferred.flush();
  CHECK(taken == std::vector<double>{-1, 0, 1, 2, 3});
  CHECK(deferred.empty());

  SECTION("the host never runs more than so many ahead") {
    const size_t before = taken.size();
    for (size_t i = 0; i < Deferred::kMost + 5; ++i) deferred.push(at::zeros({}).to(fake_device()), take);
    CHECK(taken.size() == before + 5);
    deferred.flush();
  }
  SECTION("what taking one throws comes out, and the others stay") {
    deferred.push(at::zeros({}).to(fake_device()), [](const at::Tensor&) { throw NumericalError("broken"); });
    deferred.push(at::ones({}).to(fake_device()), take);
    CHECK(error_of<NumericalError>([&] { deferred.flush(); }) == "broken");
    deferred.flush();
    CHECK(taken.back() == 1);
  }
  reset_fake_device();
}

TEST_CASE("on a device the guard finds what is not finite later and says the same") {
  at::set_num_threads(1);
  const Model model = load_model("mlp:layers=4,width=8,image=4,classes=5", 4);
  const Plan plan = plan_of(model, {1, 1}, {2, 1});
  auto minibatches = random_minibatches(model.graph, 12, 5);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 12;
  rules.device = fake_device();
  const auto error = [&] {
    reset_fake_device(/*late=*/4);
    return error_of<NumericalError>([&] {
      run_pipeline(model, plan, rules, {{0, 12}}, minibatches, make_world("local", 2));
    });
  };
  CHECK(error() == "<no exception>");
  minibatches[3]["images"][0][0] = std::numeric_limits<double>::quiet_NaN();
  // Either rank may be the first to see it.
  CHECK_THAT(error(), Contains("minibatch 3") && Contains(" on stage "));
  rules.nan_guard = false;
  CHECK(error() == "<no exception>");
  reset_fake_device();
}

TEST_CASE("without kernels of its own a device's steps are the CPU's up to rounding") {
  at::manual_seed(3);
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor");
  settings.momentum = settings.name == "sgd" ? GENERATE(0.0, 0.9) : settings.name == "muon" ? 0.95 : 0;
  settings.nesterov = settings.momentum > 0 && GENERATE(false, true);
  settings.weight_decay = GENERATE(0.0, 0.01);
  settings.learning_rate = 0.1;
  const auto dtype = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  // Of weights of 16 bits the difference of two is rounding as much as it is change.
  if (dtype != at::kBFloat16) settings.delay_correction = GENERATE("none", "error-feedback", "dc");
  CAPTURE(settings.name, settings.momentum, settings.nesterov, settings.weight_decay, dtype,
          settings.delay_correction);
  const std::vector<std::vector<int64_t>> shapes = {{5, 7}, {3}, {0}, {2, 3, 4}};
  std::vector<at::Tensor> host, there;
  for (const auto& shape : shapes) {
    host.push_back(at::randn(shape).to(dtype));
    there.push_back(host.back().to(fake_device()));
  }
  const auto on_host = make_update_rule(settings);
  const auto on_device = make_update_rule(settings);
  // Weights that were joined have made different numbers of updates.
  for (int step = 0; step < 6; ++step) {
    std::vector<at::Tensor> gradients, their_gradients;
    for (const auto& shape : shapes) {
      gradients.push_back(at::randn(shape).to(dtype));
      their_gradients.push_back(gradients.back().to(fake_device()));
    }
    const int64_t delay = step % 4 == 0 ? 0 : 1;
    host = on_host->step(host, gradients, 0.1, {}, {}, delay);
    // Into fresh tensors, into the weights themselves, into others.
    std::vector<at::Tensor> into;
    for (const at::Tensor& weight : there)
      into.push_back(step % 3 == 0 ? at::Tensor() : step % 3 == 1 ? weight : at::empty_like(weight).detach());
    there = on_device->step(there, their_gradients, 0.1, into, {}, delay);
    CHECK(on_device->not_finite_on_device().item<int64_t>() == 0);
  }
  const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 2e-2;
  for (size_t i = 0; i < host.size(); ++i) {
    CHECK(there[i].requires_grad());
    if (host[i].numel() > 0) CHECK(distance(there[i], host[i]) < tolerance);
  }
  const UpdateState here = on_host->state(), theirs = on_device->state();
  CHECK(here.updates == theirs.updates);
  for (size_t slot = 0; slot < here.slots.size(); ++slot) {
    for (size_t i = 0; i < host.size(); ++i) {
      const at::Tensor& there_slot = theirs.slots[slot].second[i];
      const at::Tensor& here_slot = here.slots[slot].second[i];
      REQUIRE(there_slot.sizes() == here_slot.sizes());
      if (here_slot.numel() > 0) CHECK(distance(there_slot, here_slot) < tolerance);
    }
  }

  std::vector<at::Tensor> broken;
  for (const auto& shape : shapes)
    broken.push_back(at::zeros(shape, at::TensorOptions(dtype).device(fake_device())));
  broken[1][2] = std::numeric_limits<double>::infinity();
  on_device->step(there, broken, 0.1);
  CHECK(on_device->not_finite_on_device().item<int64_t>() == 2);
}

TEST_CASE("a stage on a device gives its state to the host and takes it from there") {
  at::set_num_threads(1);
  const Model model = load_model("convnet:classes=5", 4);
  const Plan plan = plan_of(model, {1}, {1});
  TrainingRules rules = momentum_rules();
  rules.device = fake_device(1);
  const auto minibatches = random_minibatches(model.graph, 6, 5);
  StageState middle;
  const auto train = [&](Span span, bool goes_on) {
    RankExtras extras;
    extras.prepare = [&](Worker& worker, WorkerHooks&) {
      CHECK(worker.stage().weights()[0].device() == fake_device(1));
      if (goes_on) worker.stage().restore(std::move(middle));
    };
    extras.finish = [&](Worker& worker) { middle = worker.stage().state_before(span.end()); };
    return run_pipeline(model, plan, rules, {span}, minibatches, {}, {}, extras);
  };
  const PipelineRun whole = train({0, 6}, false);
  train({0, 3}, false);
  for (const auto* tensors : {&middle.weights, &middle.buffers, &middle.optimizer.slots.at(0).second})
    for (const at::Tensor& tensor : *tensors) CHECK(tensor.is_cpu());
  const PipelineRun rest = train({3, 3}, true);
  for (const auto& [name, weights] : whole.weights)
    CHECK(weights[0].cpu().equal(rest.weights.at(name)[0].cpu()));
  for (size_t k = 3; k < 6; ++k) CHECK(rest.losses[k] == whole.losses[k]);
}

TEST_CASE("models of the zoo run on a device: whatever a node makes is made there") {
  at::set_num_threads(1);
  const std::string spec = GENERATE("convnet:classes=5", "resnet18:classes=5,image=32",
                                    "gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=20",
                                    "vit_b_16:classes=5,image=32,layers=2,width=16,heads=2",
                                    "bert:layers=2,width=16,heads=2,tokens=8,positions=8,vocabulary=20");
  CAPTURE(spec);
  const Model model = load_model(spec, 2);
  Plan plan = with_schedule(plan_of(model, {1, 1}, {1, 1}), "1f1b-flush", "flush");
  tie(plan, model.graph);
  TrainingRules rules;
  rules.seed = 3;
  rules.total_minibatches = 3;
  const auto minibatches = random_minibatches(model.graph, 3, 5);
  const auto losses = [&](at::Device device) {
    rules.device = device;
    return run_pipeline(model, plan, rules, {{0, 3}}, minibatches, make_world("local", 2)).losses;
  };
  const auto here = losses(at::kCPU), there = losses(fake_device());
  for (size_t k = 0; k < here.size(); ++k) CHECK(there[k] == Approx(here[k]).epsilon(1e-4));
}

TEST_CASE("fields are uploaded ahead of the steps that read them, the same samples in the same order") {
  at::set_num_threads(1);
  const Model model = load_model("mlp:layers=4,width=8,image=4,classes=5", 4);
  const TemporaryFolder folder;
  write_pictures(folder.path());
  const bool bytes = GENERATE(false, true);  // normalised on the device
  const auto data = open_dataset(bytes ? "image-folder:image=4,channels=1,root=" + folder.path().string()
                                       : "synthetic-images:classes=5,image=4,channels=1,samples=64",
                                 "train");
  constexpr int64_t kMinibatches = 12;
  const std::vector<int64_t> replicas = GENERATE(std::vector<int64_t>{1}, std::vector<int64_t>{1, 1},
                                                 std::vector<int64_t>{2, 1}, std::vector<int64_t>{1, 2});
  const bool splits = replicas.back() == 2 && GENERATE(false, true);
  Plan plan = plan_of(model, replicas, std::vector<int64_t>(replicas.size(), 2));
  if (splits) plan.stages.back().split = {1, 1};
  const bool recorded = !splits && GENERATE(false, true);
  if (recorded) plan = with_schedule(plan, "1f1b-flush", "flush", 2);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = kMinibatches;
  const auto train = [&](at::Device device) {
    rules.device = device;
    rules.cuda_graphs = recorded && !device.is_cpu() ? "on" : "off";
    rules.make_graphs = rules.cuda_graphs == "on" ? make_fake_graphs : MakeDeviceGraphs();
    std::deque<StageLoaders> loaders;
    std::mutex mutex;
    RankExtras extras;
    extras.prepare = [&](Worker& worker, WorkerHooks& hooks) {
      const auto request = [&](int64_t k) {
        LoadRequest request{{}, {3, k}};
        for (int64_t i = 4 * k; i < 4 * k + 4; ++i) request.indices.push_back(i % data->size());
        return request;
      };
      const std::lock_guard lock(mutex);
      StageLoaders& own = loaders.emplace_back(*data, worker, worker.open({0, kMinibatches}), request,
                                               Loading{{.count = 2}, /*ahead=*/4, {}, {}});
      hooks.fields = [&own](int64_t stage, int64_t k) { return own.next(stage, k); };
    };
    return run_pipeline(model, plan, rules, {{0, kMinibatches}},
                        random_minibatches(model.graph, kMinibatches, 5),
                        make_world("local", plan.world_size), {}, extras);
  };
  reset_fake_device(/*late=*/3);
  reset_fake_recordings();
  const PipelineRun here = train(at::kCPU), there = train(fake_device());
  CHECK((fake_recording_counts().replayed > 0) == recorded);
  for (size_t k = 0; k < here.losses.size(); ++k)
    CHECK(there.losses[k] == Approx(here.losses[k]).epsilon(1e-4));
  CHECK(fake_device_counts().uploads >= kMinibatches);
  reset_fake_device();
}
