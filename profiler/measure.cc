#include "profiler/measure.h"

#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "graph/document.h"
#include "graph/error.h"
#include "models/initialise.h"
#include "models/interpreter.h"
#include "models/memory_meter.h"
#include "profiler/backward_clock.h"
#include "profiler/machine.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
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

std::vector<size_t> all_nodes(const Graph& graph) {
  std::vector<size_t> positions(graph.nodes.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = i;
  return positions;
}

/// The model's tensors, and the three kinds of passes over it.
class Bench {
 public:
  Bench(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed)
      : graph_(model.graph), whole_(graph_, all_nodes(graph_), {graph_.outputs.at(0)}), seed_(seed) {
    PW_CHECK_EQ(inputs.size(), graph_.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) values_[graph_.inputs[i]] = inputs[i];
    for (const auto& parameter : graph_.parameters) {
      at::Tensor tensor = initial_parameter(model, parameter.name, seed);
      if (parameter.trainable && tensor.is_floating_point()) {
        tensor.requires_grad_();
        leaves_.push_back(tensor);
        momenta_.push_back(at::zeros_like(tensor));
        trainable_.insert(parameter.name);
      }
      parameters_[parameter.name] = tensor;
    }
    for (const auto& buffer : graph_.buffers) buffers_[buffer.name] = initial_buffer(model, buffer.name);
    if (leaves_.empty())
      throw InputError("model '" + graph_.name +
                       "' has no trainable parameters: there is nothing to train or profile");
    whole_parameters_ = pick(parameters_, whole_.parameters());
    whole_buffers_ = pick(buffers_, whole_.buffers());
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      singles_.emplace_back(graph_, std::vector<size_t>{i}, graph_.nodes[i].outputs);
      for (const auto& name : singles_.back().inputs()) last_reader_[name] = i;
    }
  }

  size_t size() const { return graph_.nodes.size(); }
  bool is_trainable(const std::string& parameter) const { return trainable_.count(parameter) > 0; }
  const Segment& single(size_t node) const { return singles_[node]; }
  /// Does the gradient flow into this value? Known after find_gradient_flow().
  bool has_gradient(const std::string& value) const { return has_gradient_.count(value) > 0; }

  /// The model in one piece, as training runs it: nothing is watched but the three times.
  ProfiledWhole time_whole() {
    ProfiledWhole times;
    const auto start = Clock::now();
    const at::Tensor loss = forward(nullptr);
    const auto forward_end = Clock::now();
    const std::vector<at::Tensor> gradients = backward(loss, leaves_);
    const auto backward_end = Clock::now();
    step(gradients);
    times.forward_seconds = seconds_between(start, forward_end);
    times.backward_seconds = seconds_between(forward_end, backward_end);
    times.step_seconds = seconds_between(backward_end, Clock::now());
    return times;
  }

  /// The same pass with each node timed where it stands.
  void time_nodes(std::vector<double>& forward_seconds, std::vector<double>& backward_seconds) {
    forward_seconds.assign(size(), 0);
    std::vector<SequenceRange> ranges(size());
    NodeObserver observer;
    Clock::time_point last;
    observer.before = [&](size_t i) { ranges[i].begin = at::sequence_number::peek(); };
    observer.after = [&](size_t i) {
      ranges[i].end = at::sequence_number::peek();
      const auto now = Clock::now();
      forward_seconds[i] = seconds_between(last, now);
      last = now;
    };
    last = Clock::now();
    const at::Tensor loss = forward(&observer);
    const BackwardClock clock(std::move(ranges));
    backward(loss, leaves_);
    backward_seconds = clock.seconds();
  }

  /// Time of the input part of each node's backward: a pass in which no parameter wants a gradient. What
  /// would have no gradient then, but has one in training, is cut off and made a leaf of its own.
  std::vector<double> time_input_parts() {
    std::vector<SequenceRange> ranges(size());
    std::vector<at::Tensor> inner_leaves;
    const at::Tensor loss = walk(
        [](const at::Tensor& parameter) { return parameter.detach(); },
        [&](size_t i, bool before) {
          (before ? ranges[i].begin : ranges[i].end) = at::sequence_number::peek();
        },
        [&](const std::string& name, at::Tensor value) {
          if (!has_gradient(name) || value.requires_grad()) return value;
          inner_leaves.push_back(value.detach().requires_grad_());
          return inner_leaves.back().clone();  // a leaf must not be changed in place, as the next node may do
        });
    const BackwardClock clock(std::move(ranges));
    if (!inner_leaves.empty()) backward(loss, inner_leaves);
    return clock.seconds();
  }

  void find_gradient_flow() {
    walk([](const at::Tensor& parameter) { return parameter; }, [](size_t, bool) {},
         [&](const std::string& name, at::Tensor value) {
           if (value.defined() && value.requires_grad()) has_gradient_.insert(name);
           return value;
         });
  }

  /// Bytes made by each node that are still there when only the backward pass is to come.
  std::vector<int64_t> saved_bytes() {
    MemoryMeter meter;
    const MemoryMeter::Attached attached(meter);
    NodeObserver observer;
    observer.before = [&](size_t i) { meter.set_tag(static_cast<int64_t>(i)); };
    observer.after = [&](size_t) { meter.set_tag(-1); };
    meter.set_tag(-1);
    // The function holds what backward needs; the loss itself is not among it.
    const auto function = forward(&observer).grad_fn();
    std::vector<int64_t> bytes(size(), 0);
    for (const auto& [tag, live] : meter.live_bytes_by_tag())
      if (tag >= 0) bytes[static_cast<size_t>(tag)] = live;
    return bytes;
  }

 private:
  using Tensors = std::map<std::string, at::Tensor>;

  static std::vector<at::Tensor> pick(const Tensors& tensors, const std::vector<std::string>& names) {
    std::vector<at::Tensor> picked;
    for (const auto& name : names) picked.push_back(tensors.at(name));
    return picked;
  }

  RandomKey key() const { return {seed_, 0}; }

  at::Tensor forward(const NodeObserver* observer) const {
    return whole_.forward(pick(values_, whole_.inputs()), whole_parameters_, whole_buffers_, key(),
                          observer)[0];
  }

  static std::vector<at::Tensor> backward(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
    try {
      return torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      throw RunError("the backward failed: " + message.substr(0, message.find('\n')),
                     "Likely cause: the model changes in place what its backward needs; PyTorch cannot train "
                     "it either.");
    }
  }

  /// SGD with momentum, out of place for the weights, as the runtime keeps versions. The new weights are
  /// thrown away.
  void step(const std::vector<at::Tensor>& gradients) {
    const at::NoGradGuard guard;
    std::vector<at::Tensor> weights, momenta, defined;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      weights.push_back(leaves_[i]);
      momenta.push_back(momenta_[i]);
      defined.push_back(gradients[i]);
    }
    at::_foreach_mul_(momenta, 0.9);
    at::_foreach_add_(momenta, defined);
    at::_foreach_add(weights, momenta, -1e-3);
  }

  /// Node by node. `parameter` and `value` may replace what a node reads and what it made.
  template <typename ParameterOf, typename Around, typename ValueOf>
  at::Tensor walk(const ParameterOf& parameter_of, const Around& around, const ValueOf& value_of) const {
    Tensors values = values_;
    for (size_t i = 0; i < singles_.size(); ++i) {
      const Segment& node = singles_[i];
      std::vector<at::Tensor> inputs = pick(values, node.inputs());
      for (const auto& name : node.inputs())
        if (last_reader_.at(name) == i) values.erase(name);
      std::vector<at::Tensor> parameters = pick(parameters_, node.parameters());
      for (at::Tensor& parameter : parameters) parameter = parameter_of(parameter);
      around(i, true);
      std::vector<at::Tensor> made =
          node.forward(std::move(inputs), parameters, pick(buffers_, node.buffers()), key());
      around(i, false);
      for (size_t o = 0; o < made.size(); ++o) {
        const std::string& name = node.outputs()[o];
        at::Tensor value = value_of(name, std::move(made[o]));
        if (last_reader_.count(name) || name == graph_.outputs[0]) values[name] = std::move(value);
      }
    }
    return values.at(graph_.outputs[0]);
  }

  const Graph& graph_;
  Segment whole_;
  uint64_t seed_;
  std::vector<Segment> singles_;
  std::map<std::string, size_t> last_reader_;
  Tensors values_;  // the minibatch
  Tensors parameters_, buffers_;
  std::vector<at::Tensor> whole_parameters_, whole_buffers_;
  std::vector<at::Tensor> leaves_, momenta_;
  std::set<std::string> trainable_, has_gradient_;
};

/// Times of one node, an entry per repeat.
struct Samples {
  std::vector<double> forward, backward, input_part;
};

ProfiledNode profiled_node(const Graph& graph, size_t position, const Bench& bench, const Samples& samples,
                           int64_t saved_bytes) {
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
  return profiled;
}

}  // namespace

double median(std::vector<double> values) {
  PW_CHECK(!values.empty(), "median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double relative_spread(const std::vector<double>& values) {
  const double centre = median(values);
  if (centre == 0) return 0;
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - centre));
  return median(std::move(deviations)) / centre;
}

double nodes_over_whole(const Profile& profile) {
  const double whole = profile.whole.forward_seconds + profile.whole.backward_seconds;
  return whole > 0 ? profile.compute_seconds() / whole : 1;
}

Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options) {
  constexpr double kAutoSeconds = 10;
  constexpr int64_t kAutoLeast = 3, kAutoMost = 50;
  PW_CHECK(options.threads > 0 && options.warmup >= 0 && options.repeats >= 0,
           "measure options out of range");

  const ThreadCount threads(options.threads);
  const at::AutoGradMode grad_mode(true);
  Bench bench(model, inputs, options.seed);
  bench.find_gradient_flow();
  const std::vector<int64_t> saved = bench.saved_bytes();

  std::vector<Samples> samples(bench.size());
  std::vector<double> whole_forward, whole_backward, whole_step;
  std::vector<double> forward, backward;
  int64_t repeats = options.repeats > 0 ? options.repeats : kAutoLeast;
  const auto start = Clock::now();
  for (int64_t pass = 0; pass < options.warmup + repeats; ++pass) {
    const auto pass_start = Clock::now();
    const auto report = [&](int part) {
      if (!options.progress) return;
      const double done =
          (static_cast<double>(pass) + part / 3.0) / static_cast<double>(options.warmup + repeats);
      options.progress(done, seconds_between(start, Clock::now()) / done * (1 - done));
    };
    // The three ways take turns, so that a slow moment of the machine does not hit one of them alone.
    bench.time_nodes(forward, backward);
    report(1);
    const ProfiledWhole whole = bench.time_whole();
    report(2);
    const std::vector<double> input_parts = bench.time_input_parts();
    const auto now = Clock::now();
    if (pass >= options.warmup) {
      for (size_t i = 0; i < samples.size(); ++i) {
        samples[i].forward.push_back(forward[i]);
        samples[i].backward.push_back(backward[i]);
        samples[i].input_part.push_back(input_parts[i]);
      }
      whole_forward.push_back(whole.forward_seconds);
      whole_backward.push_back(whole.backward_seconds);
      whole_step.push_back(whole.step_seconds);
      if (options.repeats == 0 && pass == options.warmup)
        repeats = std::clamp(static_cast<int64_t>(kAutoSeconds / seconds_between(pass_start, now)),
                             kAutoLeast, kAutoMost);
    }
    report(3);
  }

  Profile profile;
  profile.model = model.graph.name;
  profile.graph_digest = document_digest(model.graph);
  profile.minibatch_samples = options.batch_size;
  profile.device = "cpu";
  profile.threads = options.threads;
  profile.provenance = {{"pipewright", PIPEWRIGHT_VERSION},
                        {"libtorch", libtorch_version()},
                        {"processor", processor_name()},
                        {"warmup", std::to_string(options.warmup)},
                        {"repeats", std::to_string(repeats)},
                        {"seed", std::to_string(options.seed)},
                        {"date", utc_date()}};
  for (size_t i = 0; i < bench.size(); ++i)
    profile.nodes.push_back(profiled_node(model.graph, i, bench, samples[i], saved[i]));
  profile.together = model.graph.together;
  profile.whole = {median(whole_forward), median(whole_backward), median(whole_step)};
  return profile;
}

}  // namespace pipewright
