// What only a device shows: its update steps against LibTorch's fused ones, and how much of a training step
// it waits for the host, with and without recordings (--cuda-graphs). scripts/check_gpu runs it; with
// --device cpu it runs whatever the CPU can.
#include "models/device/device.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <functional>
#include <iostream>

#include "graph/error.h"
#include "models/device/cuda_plugin.h"
#include "models/load.h"
#include "models/run/autocast.h"
#include "models/run/device_passes.h"
#include "profiler/marks.h"
#include "runtime/stage/stage_replica.h"
#include "runtime/update/update_rule.h"

using namespace pipewright;

namespace {

using Tensors = std::vector<at::Tensor>;

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void wait_for(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

double seconds_of(Marks& marks, const std::function<void()>& work) {
  marks.clear();
  const size_t begin = marks.set();
  work();
  const size_t end = marks.set();
  marks.wait();
  return marks.between(begin, end).device_seconds;
}

/// A line that scripts/check_gpu reads.
void figure(const std::string& name, double value, const std::string& unit, const std::string& aim = "") {
  std::printf("figure: %s: %.5g%s%s%s\n", name.c_str(), value, unit.empty() ? "" : " ", unit.c_str(),
              aim.empty() ? "" : (" (aim " + aim + ")").c_str());
}

/// Ours out of place, between two sets of memory, against LibTorch's in place, in turn.
void time_steps(const std::string& title, const Model& model, at::Device device, int64_t rounds) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  Tensors ours, spare, theirs, gradients, first, second, steps;
  int64_t elements = 0;
  for (const Parameter& parameter : model.graph.parameters) {
    theirs.push_back(at::randn(parameter.type.shape, options));
    gradients.push_back(at::randn(parameter.type.shape, options));
    ours.push_back(theirs.back().clone());
    spare.push_back(at::empty_like(ours.back()));
    first.push_back(at::zeros_like(theirs.back()));
    second.push_back(at::zeros_like(theirs.back()));
    steps.push_back(at::ones({}, options));
    elements += theirs.back().numel();
  }
  for (const char* const name : {"sgd", "adamw"}) {
    OptimizerSettings settings;
    settings.name = name;
    settings.momentum = settings.name == "sgd" ? 0.9 : 0;
    settings.weight_decay = 0.01;
    const auto rule = make_update_rule(settings);
    const auto our_step = [&] {
      Tensors next = rule->step(ours, gradients, 1e-3, std::move(spare));
      spare = std::exchange(ours, std::move(next));
      for (at::Tensor& tensor : spare) tensor = tensor.detach();
    };
    const auto their_step = [&] {
      if (settings.name == "sgd") {
        at::_fused_sgd_(theirs, gradients, first, 0.01, 0.9, 1e-3, 0, false, false, false);
      } else {
        at::_fused_adamw_(theirs, gradients, first, second, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8, false,
                          false);
      }
    };
    Marks marks(device);
    for (int i = 0; i < 5; ++i) our_step(), their_step();
    std::vector<double> our_seconds, their_seconds, ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      our_seconds.push_back(seconds_of(marks, our_step));
      their_seconds.push_back(seconds_of(marks, their_step));
      ratios.push_back(our_seconds.back() / their_seconds.back());
    }
    const std::string step = title + ": step of " + name + ", ";
    figure(step + "ours out of place", 1e6 * quantile(our_seconds, 0.5), "us");
    figure(step + "LibTorch's fused in place", 1e6 * quantile(their_seconds, 0.5), "us");
    figure(step + "ratio", quantile(ratios, 0.5), "", "<= 1.05");
    std::printf("%s, %lld tensors, %lld parameters: quartiles of the ratio %.3f .. %.3f\n", name,
                static_cast<long long>(theirs.size()), static_cast<long long>(elements),
                quantile(ratios, 0.25), quantile(ratios, 0.75));
  }
}

/// One rank that trains the whole model.
class Training {
 public:
  Training(const Model& model, at::Device device, bool graphs) {
    const Plan plan = single_stage_plan(model.graph, 1);
    TrainingRules rules;
    rules.optimizer.name = "adamw";
    rules.optimizer.learning_rate = 1e-4;
    rules.device = device;
    rules.total_minibatches = kMost;
    rules.cuda_graphs = graphs ? "on" : "off";
    if (device.is_cuda())
      rules.make_graphs = [](at::Device on) { return cuda_plugin("device").make_graphs(on.index()); };
    stage_ = std::make_unique<StageReplica>(model, plan, 0, 0, rules);
    stage_->begin(std::make_shared<TurnSpan>(Span{0, kMost}, PipelineTurn{}), 0);
    for (const std::string& name : stage_->program().fields()) {
      const TensorType& type = model.graph.values.at(name);
      const auto options = at::TensorOptions().device(device);
      fields_.push_back(type.dtype == "int64" ? at::randint(2, type.shape, options.dtype(at::kLong))
                                              : at::randn(type.shape, options));
    }
  }

  void step() {
    stage_->deferred().poll();
    const auto forwarded = stage_->forward(next_, {}, fields_);
    stage_->check_forward(next_, forwarded, {}, fields_);
    stage_->backward(next_, {});
    stage_->average(next_);
    stage_->update(next_++);
  }
  bool recorded() const { return stage_->recordings() && stage_->recordings()->recorded_forwards() > 0; }
  std::string obstacle() const { return stage_->recording_obstacle(); }
  ~Training() { stage_->deferred().flush(); }

 private:
  static constexpr int64_t kMost = 1 << 20;
  std::unique_ptr<StageReplica> stage_;
  Tensors fields_;
  int64_t next_ = 0;
};

/// Seconds in which the device computed or copied anything, over `count` calls: from the driver's record of
/// kernels. Nothing if it keeps none.
std::optional<double> busy_seconds(const std::function<void()>& work, int64_t count, at::Device device) {
  using namespace torch::autograd::profiler;
  const ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities = {
      torch::profiler::impl::ActivityType::CUDA};
  wait_for(device);
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  for (int64_t i = 0; i < count; ++i) work();
  wait_for(device);
  const auto result = disableProfiler();
  std::vector<std::pair<uint64_t, uint64_t>> spans;  // nanoseconds
  for (const KinetoEvent& event : result->events())
    if (event.deviceType() == at::kCUDA) spans.emplace_back(event.startNs(), event.endNs());
  if (spans.empty()) return std::nullopt;
  std::sort(spans.begin(), spans.end());
  uint64_t busy = 0, end = 0;
  for (const auto& [from, to] : spans) {
    const uint64_t begin = std::max(from, end);
    if (to > begin) busy += to - begin;
    end = std::max(end, to);
  }
  return 1e-9 * static_cast<double>(busy);
}

void time_training(const std::string& title, const Model& model, at::Device device, int64_t rounds) {
  for (const bool graphs : {false, true}) {
    Training training(model, device, graphs);
    const auto run = [&] { training.step(); };
    for (int i = 0; i < 5; ++i) run();
    if (graphs && !training.obstacle().empty()) {
      std::printf("without graphs: %s\n", training.obstacle().c_str());
      if (!training.recorded()) continue;
    }
    wait_for(device);
    // Many steps at a time: then the host runs ahead as far as it can.
    constexpr int64_t kSteps = 10;
    std::vector<double> seconds;
    Marks marks(device);
    for (int64_t round = 0; round < rounds; ++round) {
      seconds.push_back(seconds_of(marks,
                                   [&] {
                                     for (int64_t i = 0; i < kSteps; ++i) run();
                                   }) /
                        kSteps);
    }
    const double median = quantile(seconds, 0.5);
    const double busy = device.is_cpu() ? 0 : busy_seconds(run, kSteps, device).value_or(0);
    const std::string step = title + ": training step " + (graphs ? "with graphs" : "without graphs");
    figure(step, 1e3 * median, "ms");
    std::printf("quartiles %.3f .. %.3f ms\n", 1e3 * quantile(seconds, 0.25), 1e3 * quantile(seconds, 0.75));
    if (busy > 0) {
      const double waited = std::max(0.0, 1 - busy / kSteps / median);
      figure(step + ", the device is busy", 1e3 * busy / kSteps, "ms");
      figure(step + ", the device waits for the host", 100 * waited, "%", "<= 2");
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  namespace options = boost::program_options;
  std::string name, spec, title, precision, passes;
  int64_t batch = 0, rounds = 0;
  options::options_description description("device: steps and gaps of a device");
  description.add_options()("help", "this text")("device", options::value(&name)->default_value("cuda:0"),
                                                 "cpu, cuda, cuda:K")(
      "model", options::value(&spec)->default_value("gpt:layers=8,width=512,heads=8,tokens=256"), "SPEC")(
      "name", options::value(&title), "of the model in the figures; without: SPEC")(
      "batch-size", options::value(&batch)->default_value(4), "samples of a minibatch")(
      "precision", options::value(&precision)->default_value("bfloat16"), "of the training step")(
      "device-passes", options::value(&passes)->default_value("auto"), "as the runtime's")(
      "rounds", options::value(&rounds)->default_value(31), "measurements of each kind");
  options::variables_map given;
  options::store(options::parse_command_line(argc, argv, description), given);
  options::notify(given);
  if (given.count("help") > 0) {
    std::cout << description;
    return 0;
  }
  if (batch < 1 || rounds < 1) throw options::error("counts start at 1");
  if (title.empty()) title = spec;
  const at::Device device = open_device(name, "--device");
  const c10::DeviceGuard on_device(device);
  at::set_num_threads(1);
  std::printf("device: %s\n", device_text(device).c_str());
  Model model = load_model(spec, batch);
  {
    const at::NoGradGuard no_grad;
    time_steps(title, model, device, rounds);
  }
  model.graph = with_device_passes(with_precision(model, precision, device), passes, precision, device);
  time_training(title, model, device, rounds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "device: %s\n", error.what());
  return 2;
}
