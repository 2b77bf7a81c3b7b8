#include "profiler/measure.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/json.h"
#include "models/device/device.h"
#include "profiler/bench.h"
#include "profiler/machine.h"
#include "profiler/repeats.h"
#include "profiler/settling.h"
#include "profiler/statistics.h"
#include "profiler/thread_count.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Times of one node, an entry per repeat.
struct Samples {
  std::vector<double> forward, backward, input_part;
  std::vector<double> forward_launch, backward_launch;  // the host's
};

/// Of the weights' updates, an entry per repeat.
struct UpdateSamples {
  std::vector<double> step, step_in_place, add, copy, divide;

  void add_pass(const WholePass& pass) {
    step.push_back(pass.step.device_seconds);
    step_in_place.push_back(pass.step_in_place.device_seconds);
    add.push_back(pass.gradient_add.device_seconds);
    copy.push_back(pass.gradient_copy.device_seconds);
    divide.push_back(pass.gradient_divide.device_seconds);
  }
};

/// The three ways to look at a training pass take turns, so that a slow moment of the machine does not hit
/// one of them alone.
struct Round {
  NodesPass nodes;
  WholePass whole;
  std::vector<Stretch> input_parts;
};

ProfiledNode profiled_node(const Graph& graph, size_t position, const Bench& bench, const Samples& samples,
                           int64_t saved_bytes, int64_t workspace_bytes, bool on_host) {
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
  profiled.workspace_bytes = workspace_bytes;

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

/// Rounds that warm up, then rounds that count.
class Measurement {
 public:
  /// Borrows both.
  Measurement(Bench& bench, const MeasureOptions& options)
      : bench_(bench),
        options_(options),
        warmup_(options.warmup),
        repeats_(options.repeats > 0 ? options.repeats : static_cast<int64_t>(RepeatRule().least)),
        nodes_(bench.size()) {}

  void run() {
    warm_up();
    const auto begin = Clock::now();
    do {
      take(measure_round());
      if (options_.repeats == 0) estimate_repeats(seconds_since(begin));
    } while (options_.repeats > 0 ? rounds_ < warmup_ + repeats_
                                  : repeating(sums_, seconds_since(begin)) == Repeating::kGoesOn);
    repeats_ = rounds_ - warmup_;
  }

  int64_t warmup() const { return warmup_; }
  int64_t repeats() const { return repeats_; }
  Settling settled() const { return settled_; }
  /// Of the sum of all nodes, forward and backward.
  std::optional<double> known_within() const { return median_known_within(sums_); }
  const Samples& node(size_t i) const { return nodes_[i]; }
  const Samples& whole() const { return whole_; }
  const UpdateSamples& updates() const { return updates_; }

 private:
  void warm_up() {
    std::vector<double> seconds;
    const auto is_cold = [&] {
      if (rounds_ < options_.warmup) return true;
      if (!options_.device.is_cpu()) settled_ = settling(seconds, seconds_since(start_));
      return settled_ == Settling::kGoesOn;
    };
    while (is_cold()) {
      const WholePass whole = measure_round().whole;
      seconds.push_back(whole.forward.device_seconds + whole.backward.device_seconds);
    }
    warmup_ = rounds_;
  }

  Round measure_round() {
    Round round;
    round.whole = bench_.time_whole();
    report(1);
    round.nodes = bench_.time_nodes();
    report(2);
    round.input_parts = bench_.time_input_parts();
    report(3);
    ++rounds_;
    return round;
  }

  // For the progress: as many as the time allows, if all of it is needed.
  void estimate_repeats(double elapsed) {
    const RepeatRule rule;
    const double most = static_cast<double>(sums_.size()) * rule.most_seconds / elapsed;
    repeats_ = static_cast<int64_t>(
        std::clamp(most, static_cast<double>(rule.least), static_cast<double>(rule.most)));
  }

  // Parts of a round, of three, that are done.
  void report(int part) const {
    if (!options_.progress) return;
    const double done = (static_cast<double>(rounds_) + part / 3.0) /
                        static_cast<double>(std::max(warmup_, rounds_) + repeats_);
    options_.progress(done, seconds_since(start_) / done * (1 - done));
  }

  void take(const Round& round) {
    double sum = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].forward.push_back(round.nodes.forward[i].device_seconds);
      nodes_[i].backward.push_back(round.nodes.backward[i].device_seconds);
      nodes_[i].input_part.push_back(round.input_parts[i].device_seconds);
      nodes_[i].forward_launch.push_back(round.nodes.forward[i].host_seconds);
      nodes_[i].backward_launch.push_back(round.nodes.backward[i].host_seconds);
      sum += round.nodes.forward[i].device_seconds + round.nodes.backward[i].device_seconds;
    }
    sums_.push_back(sum);
    whole_.forward.push_back(round.whole.forward.device_seconds);
    whole_.backward.push_back(round.whole.backward.device_seconds);
    whole_.forward_launch.push_back(round.whole.forward.host_seconds);
    whole_.backward_launch.push_back(round.whole.backward.host_seconds);
    updates_.add_pass(round.whole);
  }

  Bench& bench_;
  const MeasureOptions& options_;
  const Clock::time_point start_ = Clock::now();
  int64_t warmup_, repeats_;  // warmup_: at least, until the device has settled
  int64_t rounds_ = 0;
  Settling settled_ = Settling::kSettled;
  std::vector<Samples> nodes_;
  std::vector<double> sums_;  // over the nodes, a repeat each
  Samples whole_;
  UpdateSamples updates_;
};

/// Others that train the same model until the object ends, each in a thread with weights of its own.
class Others {
 public:
  /// Borrows all of it. They have made a pass each when it returns.
  Others(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options,
         int64_t count)
      : ready_(static_cast<ptrdiff_t>(count) + 1) {
    const auto train = [this, &model, &inputs, &options] {
      bool begun = false;
      try {
        const ThreadCount own(options.threads);  // OpenMP counts by thread
        const at::AutoGradMode grad_mode(true);
        Bench bench(model, inputs, options.seed, options.device);
        bench.train();
        begun = true;
        ready_.arrive_and_wait();
        while (!ended_) bench.train();
      } catch (const std::exception&) {  // no memory for another one
        failed_ = true;
        if (!begun) ready_.arrive_and_drop();
      }
    };
    for (int64_t i = 0; i < count; ++i) threads_.emplace_back(train);
    ready_.arrive_and_wait();
  }
  ~Others() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  /// One of them no longer trains.
  bool failed() const { return failed_; }

 private:
  std::barrier<> ready_;
  std::atomic<bool> ended_ = false, failed_ = false;
  std::vector<std::thread> threads_;
};

/// Passes take turns, alone and beside others: what the machine does meanwhile hits both. Nothing where there
/// was no memory for the others.
std::optional<ProfiledCrowd> crowd(const Model& model, const std::vector<at::Tensor>& inputs, Bench& bench,
                                   const MeasureOptions& options, int64_t repeats, int64_t count) {
  constexpr int64_t kTurns = 3;
  const int64_t passes = std::clamp<int64_t>(repeats / kTurns, 2, 6);
  std::vector<double> compute[2], update[2];
  const auto take = [&](bool beside) {
    for (int64_t i = 0; i < passes; ++i) {
      const WholePass pass = bench.time_whole();
      compute[beside].push_back(pass.forward.device_seconds + pass.backward.device_seconds);
      update[beside].push_back(pass.step_in_place.device_seconds);
    }
  };
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    take(false);
    const Others others(model, inputs, options, count);
    take(true);
    if (others.failed()) return std::nullopt;
  }
  const auto factor = [](std::vector<double>* seconds) {
    return std::max(1.0, median(seconds[1]) / median(seconds[0]));
  };
  return ProfiledCrowd{count + 1, factor(compute), factor(update)};
}

/// In half of the memory that is free: weights, gradients, momentum and two further sets, and what is saved.
int64_t others_that_fit(const Profile& profile) {
  double bytes = 1;
  for (const ProfiledNode& node : profile.nodes)
    bytes += static_cast<double>(5 * node.parameter_bytes + node.saved_bytes);
  const double free_bytes =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return static_cast<int64_t>(free_bytes / 2 / bytes);
}

std::vector<std::pair<std::string, std::string>> provenance_of(const MeasureOptions& options,
                                                               const Measurement& measured) {
  std::vector<std::pair<std::string, std::string>> provenance = {
      {"pipewright", PIPEWRIGHT_VERSION},
      {"libtorch", libtorch_version()},
      {"processor", processor_name()},
      {"warmup", std::to_string(measured.warmup())},
      {"repeats", std::to_string(measured.repeats())},
      {"seed", std::to_string(options.seed)},
      {"date", utc_date()}};
  if (options.device.is_cpu()) return provenance;
  if (options.device.is_cuda()) provenance.emplace_back("cuda", join(cuda_versions(), ", "));
  provenance.emplace_back("clocks", measured.settled() == Settling::kSettled ? "settled" : kNotSettled);
  provenance.emplace_back("float32_matmul", float32_setting(at::Float32Op::MATMUL));
  provenance.emplace_back("float32_convolution", float32_setting(at::Float32Op::CONV));
  return provenance;
}

}  // namespace

double nodes_over_whole(const Profile& profile) {
  const double whole = profile.whole.forward_seconds + profile.whole.backward_seconds;
  return whole > 0 ? profile.compute_seconds() / whole : 1;
}

Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options) {
  PW_CHECK(options.threads > 0 && options.warmup >= 0 && options.repeats >= 0,
           "measure options out of range");
  const bool on_host = options.device.is_cpu();
  const ThreadCount threads(options.threads);
  const c10::DeviceGuard on_device(options.device);
  const at::AutoGradMode grad_mode(true);
  Bench bench(model, inputs, options.seed, options.device);
  bench.find_gradient_flow();
  const std::vector<int64_t> saved = bench.saved_bytes();
  const std::vector<int64_t> workspace = bench.workspace_bytes(saved);
  const std::optional<int64_t> allocated = bench.allocated_bytes();
  Measurement measured(bench, options);
  measured.run();

  Profile profile;
  profile.model = model.graph.name;
  profile.graph_digest = document_digest(model.graph);
  profile.minibatch_samples = options.batch_size;
  profile.device = device_text(options.device);
  profile.threads = options.threads;
  profile.provenance = provenance_of(options, measured);
  for (size_t i = 0; i < bench.size(); ++i)
    profile.nodes.push_back(
        profiled_node(model.graph, i, bench, measured.node(i), saved[i], workspace[i], on_host));
  profile.together = model.graph.together;
  const Samples& whole = measured.whole();
  const UpdateSamples& updates = measured.updates();
  profile.whole = {median(whole.forward), median(whole.backward), median(updates.step)};
  profile.whole.update = {median(updates.step_in_place), median(updates.add), median(updates.copy),
                          median(updates.divide)};
  if (!on_host) {
    profile.whole.forward_launch_seconds = median(whole.forward_launch);
    profile.whole.backward_launch_seconds = median(whole.backward_launch);
  }
  profile.whole.allocated_bytes = allocated;
  profile.whole.known_within = measured.known_within();
  if (const int64_t others = std::min(options.beside, others_that_fit(profile)); others > 0)
    profile.whole.crowd = crowd(model, inputs, bench, options, measured.repeats(), others);
  return profile;
}

}  // namespace pipewright
