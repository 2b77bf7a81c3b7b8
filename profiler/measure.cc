#include "profiler/measure.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <chrono>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "models/device/device.h"
#include "profiler/bench.h"
#include "profiler/machine.h"
#include "profiler/settling.h"
#include "profiler/statistics.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class ThreadCount {
 public:
  explicit ThreadCount(int64_t threads) : before_(at::get_num_threads()) {
    at::set_num_threads(static_cast<int>(threads));  // OpenMP's and MKL's
  }
  ~ThreadCount() { at::set_num_threads(before_); }

 private:
  int before_;
};

/// Times of one node, an entry per repeat.
struct Samples {
  std::vector<double> forward, backward, input_part;
  std::vector<double> forward_launch, backward_launch;  // the host's
};

/// The three ways to look at a training pass take turns, so that a slow moment of the machine does not hit
/// one of them alone.
struct Round {
  NodesPass nodes;
  WholePass whole;
  std::vector<Stretch> input_parts;
};

ProfiledNode profiled_node(const Graph& graph, size_t position, const Bench& bench, const Samples& samples,
                           int64_t saved_bytes, bool on_host) {
  const Node& node = graph.nodes[position];
  const Segment& single = bench.single(position);
  ProfiledNode profiled;
  profiled.name = node.name;
  profiled.layer = node.layer;
  profiled.inputs = single.inputs();
  // What every stage computes itself crosses no cut.
  const bool stays =
      std::find(graph.everywhere.begin(), graph.everywhere.end(), node.name) != graph.everywhere.end();
  for (const auto& name : node.outputs)
    profiled.outputs.push_back({name, stays ? 0 : graph.computed_type(name).bytes()});
  profiled.parameters = single.parameters();
  profiled.saved_bytes = saved_bytes;

  bool trains = false;
  for (const auto& parameter : graph.parameters) {
    if (std::find(profiled.parameters.begin(), profiled.parameters.end(), parameter.name) ==
        profiled.parameters.end())
      continue;
    profiled.parameter_bytes += parameter.type.bytes();
    if (!bench.is_trainable(parameter.name)) continue;
    profiled.trainable_parameter_bytes += parameter.type.bytes();
    trains = true;
  }
  for (const auto& buffer : graph.buffers)
    if (std::find(single.buffers().begin(), single.buffers().end(), buffer.name) != single.buffers().end())
      profiled.buffer_bytes += buffer.type.bytes();
  const bool feeds_back = std::any_of(profiled.inputs.begin(), profiled.inputs.end(),
                                      [&](const std::string& name) { return bench.has_gradient(name); });

  profiled.forward_seconds = median(samples.forward);
  const double backward = median(samples.backward);
  if (!trains)
    profiled.backward_input_seconds = backward;
  else if (feeds_back)
    profiled.backward_input_seconds = std::min(backward, median(samples.input_part));
  profiled.backward_weight_seconds = backward - profiled.backward_input_seconds;
  std::vector<double> sums = samples.forward;
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += samples.backward[i];
  profiled.spread = relative_spread(sums);
  if (!on_host) {
    profiled.forward_launch_seconds = median(samples.forward_launch);
    profiled.backward_launch_seconds = median(samples.backward_launch);
  }
  return profiled;
}

/// What LibTorch makes of products of float32 on a device.
std::string float32_setting(at::Float32Op op) {
  const std::string name =
      at::precision2str(at::globalContext().float32Precision(at::Float32Backend::CUDA, op));
  return name == "none" ? "ieee" : name;  // nothing set: the format's own
}

}  // namespace

double nodes_over_whole(const Profile& profile) {
  const double whole = profile.whole.forward_seconds + profile.whole.backward_seconds;
  return whole > 0 ? profile.compute_seconds() / whole : 1;
}

Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options) {
  constexpr double kAutoSeconds = 10;
  constexpr int64_t kAutoLeast = 3, kAutoMost = 50;
  PW_CHECK(options.threads > 0 && options.warmup >= 0 && options.repeats >= 0,
           "measure options out of range");

  const bool on_host = options.device.is_cpu();
  const ThreadCount threads(options.threads);
  const c10::DeviceGuard on_device(options.device);
  const at::AutoGradMode grad_mode(true);
  Bench bench(model, inputs, options.seed, options.device);
  bench.find_gradient_flow();
  const std::vector<int64_t> saved = bench.saved_bytes();
  const std::optional<int64_t> allocated = bench.allocated_bytes();

  int64_t repeats = options.repeats > 0 ? options.repeats : kAutoLeast;
  int64_t warmup = options.warmup;
  int64_t rounds = 0;
  const auto start = Clock::now();
  const auto report = [&](int part) {
    if (!options.progress) return;
    const double done =
        (static_cast<double>(rounds) + part / 3.0) / static_cast<double>(std::max(warmup, rounds) + repeats);
    options.progress(done, seconds_since(start) / done * (1 - done));
  };
  const auto measure_round = [&] {
    Round round;
    round.nodes = bench.time_nodes();
    report(1);
    round.whole = bench.time_whole();
    report(2);
    round.input_parts = bench.time_input_parts();
    report(3);
    ++rounds;
    return round;
  };

  Settling settled = Settling::kSettled;
  std::vector<double> warm_seconds;
  const auto is_cold = [&] {
    if (rounds < options.warmup) return true;
    if (!on_host) settled = settling(warm_seconds, seconds_since(start));
    return settled == Settling::kGoesOn;
  };
  while (is_cold()) {
    const WholePass whole = measure_round().whole;
    warm_seconds.push_back(whole.forward.device_seconds + whole.backward.device_seconds);
  }
  warmup = rounds;

  std::vector<Samples> samples(bench.size());
  Samples whole_samples;
  std::vector<double> step;
  while (rounds < warmup + repeats) {
    const auto round_start = Clock::now();
    const Round round = measure_round();
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i].forward.push_back(round.nodes.forward[i].device_seconds);
      samples[i].backward.push_back(round.nodes.backward[i].device_seconds);
      samples[i].input_part.push_back(round.input_parts[i].device_seconds);
      samples[i].forward_launch.push_back(round.nodes.forward[i].host_seconds);
      samples[i].backward_launch.push_back(round.nodes.backward[i].host_seconds);
    }
    whole_samples.forward.push_back(round.whole.forward.device_seconds);
    whole_samples.backward.push_back(round.whole.backward.device_seconds);
    whole_samples.forward_launch.push_back(round.whole.forward.host_seconds);
    whole_samples.backward_launch.push_back(round.whole.backward.host_seconds);
    step.push_back(round.whole.step.device_seconds);
    if (options.repeats == 0 && rounds == warmup + 1)
      repeats =
          std::clamp(static_cast<int64_t>(kAutoSeconds / seconds_since(round_start)), kAutoLeast, kAutoMost);
  }

  Profile profile;
  profile.model = model.graph.name;
  profile.graph_digest = document_digest(model.graph);
  profile.minibatch_samples = options.batch_size;
  profile.device = device_text(options.device);
  profile.threads = options.threads;
  auto& provenance = profile.provenance;
  provenance = {{"pipewright", PIPEWRIGHT_VERSION},
                {"libtorch", libtorch_version()},
                {"processor", processor_name()},
                {"warmup", std::to_string(warmup)},
                {"repeats", std::to_string(repeats)},
                {"seed", std::to_string(options.seed)},
                {"date", utc_date()}};
  if (!on_host) {
    if (options.device.is_cuda()) provenance.emplace_back("cuda", join(cuda_versions(), ", "));
    provenance.emplace_back("clocks", settled == Settling::kSettled ? "settled" : kNotSettled);
    provenance.emplace_back("float32_matmul", float32_setting(at::Float32Op::MATMUL));
    provenance.emplace_back("float32_convolution", float32_setting(at::Float32Op::CONV));
  }
  for (size_t i = 0; i < bench.size(); ++i)
    profile.nodes.push_back(profiled_node(model.graph, i, bench, samples[i], saved[i], on_host));
  profile.together = model.graph.together;
  profile.whole = {median(whole_samples.forward), median(whole_samples.backward), median(step)};
  if (!on_host) {
    profile.whole.forward_launch_seconds = median(whole_samples.forward_launch);
    profile.whole.backward_launch_seconds = median(whole_samples.backward_launch);
  }
  profile.whole.allocated_bytes = allocated;
  return profile;
}

}  // namespace pipewright
