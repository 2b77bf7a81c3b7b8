#include "profiler/bench.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/run.h"
#include "models/initialise.h"
#include "models/memory/memory_meter.h"
#include "profiler/backward_clock.h"

namespace pipewright {
namespace {

constexpr double kLearningRate = 1e-3;

std::vector<size_t> all_nodes(const Graph& graph) {
  std::vector<size_t> positions(graph.nodes.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = i;
  return positions;
}

std::vector<at::Tensor> backward(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  const auto first_line = [](const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    return "the backward failed: " + message.substr(0, message.find('\n'));
  };
  try {
    return torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  } catch (const c10::OutOfMemoryError& error) {
    throw RunError(first_line(error), "Next: a smaller --batch-size, or a device with more memory.");
  } catch (const c10::Error& error) {
    throw RunError(first_line(error),
                   "Likely cause: the model changes in place what its backward needs; PyTorch cannot train "
                   "it either.");
  }
}

// The engine's thread for the device holds a backward's last tensors for a moment after it has handed out the
// gradients. When it runs another one, which has no memory of its own, it has let go of them.
void wait_for_engine(at::Device device) {
  const at::Tensor nothing = at::empty({0}, at::TensorOptions().device(device)).requires_grad_();
  torch::autograd::grad({nothing.neg()}, {nothing}, {at::empty_like(nothing)});
}

}  // namespace

Bench::Bench(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device)
    : graph_(model.graph),
      device_(device),
      whole_(graph_, all_nodes(graph_), {graph_.outputs.at(0)}, device),
      seed_(seed),
      marks_(device) {
  PW_CHECK_EQ(inputs.size(), graph_.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) values_[graph_.inputs[i]] = inputs[i].to(device);
  for (const auto& parameter : graph_.parameters) {
    at::Tensor tensor = initial_parameter(model, parameter.name, seed).to(device);
    if (parameter.trainable && tensor.is_floating_point()) {
      tensor.requires_grad_();
      leaves_.push_back(tensor);
      trainable_.insert(parameter.name);
    }
    parameters_[parameter.name] = tensor;
  }
  for (const auto& buffer : graph_.buffers)
    buffers_[buffer.name] = initial_buffer(model, buffer.name).to(device);
  if (leaves_.empty())
    throw InputError("model '" + graph_.name +
                     "' has no trainable parameters: there is nothing to train or profile");
  whole_parameters_ = pick(parameters_, whole_.parameters());
  whole_buffers_ = pick(buffers_, whole_.buffers());
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    singles_.emplace_back(graph_, std::vector<size_t>{i}, graph_.nodes[i].outputs, device);
    for (const auto& name : singles_.back().inputs()) last_reader_[name] = i;
  }
}

WholePass Bench::time_whole() {
  update_before_pass();
  marks_.clear();
  const size_t begin = marks_.set();
  const at::Tensor loss = forward(nullptr);
  const size_t forward_end = marks_.set();
  const std::vector<at::Tensor> made = backward(loss, leaves_);
  const size_t backward_end = marks_.set();
  if (!rule_) prepare_updates(made);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const size_t i : updated_) gradients.push_back(made[i].contiguous());
  const size_t update_begin = marks_.set();
  rule_->step(weights_, gradients, kLearningRate, next_weights_);
  const size_t step_end = marks_.set();
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].copy_(gradients[i]);
  const size_t copy_end = marks_.set();
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].add_(gradients[i]);
  const size_t add_end = marks_.set();
  for (at::Tensor& sum : sums_) sum.div_(2.0);
  const size_t divide_end = marks_.set();
  // Numbers stay in the range of a first step: what is measured are passes over memory.
  rule_->step(weights_, gradients, 0, weights_);
  const size_t end = marks_.set();
  marks_.wait();
  WholePass pass;
  pass.forward = marks_.between(begin, forward_end);
  pass.backward = marks_.between(forward_end, backward_end);
  pass.step = marks_.between(update_begin, step_end);
  pass.gradient_copy = marks_.between(step_end, copy_end);
  pass.gradient_add = marks_.between(copy_end, add_end);
  pass.gradient_divide = marks_.between(add_end, divide_end);
  pass.step_in_place = marks_.between(divide_end, end);
  return pass;
}

void Bench::train() {
  update_before_pass();
  const std::vector<at::Tensor> gradients = backward(forward(nullptr), leaves_);
  if (!rule_) prepare_updates(gradients);
}

NodesPass Bench::time_nodes() {
  std::vector<SequenceRange> ranges(size());
  NodeObserver observer;
  observer.before = [&](size_t i) { ranges[i].begin = at::sequence_number::peek(); };
  observer.after = [&](size_t i) {
    ranges[i].end = at::sequence_number::peek();
    marks_.set();
  };
  update_before_pass();
  marks_.clear();
  marks_.set();
  const at::Tensor loss = forward(&observer);
  const BackwardClock clock(std::move(ranges), marks_);
  backward(loss, leaves_);
  marks_.wait();
  NodesPass pass;
  for (size_t i = 0; i < size(); ++i) pass.forward.push_back(marks_.between(i, i + 1));
  pass.backward = clock.stretches();
  return pass;
}

std::vector<Stretch> Bench::time_input_parts() {
  update_before_pass();
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
  marks_.clear();
  const BackwardClock clock(std::move(ranges), marks_);
  if (!inner_leaves.empty()) backward(loss, inner_leaves);
  marks_.set();  // there is one in any case, also where no gradient flows between nodes
  marks_.wait();
  return clock.stretches();
}

void Bench::find_gradient_flow() {
  walk([](const at::Tensor& parameter) { return parameter; }, [](size_t, bool) {},
       [&](const std::string& name, at::Tensor value) {
         if (value.defined() && value.requires_grad()) has_gradient_.insert(name);
         return value;
       });
}

std::vector<int64_t> Bench::saved_bytes() {
  MemoryMeter meter(device_.type());
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

std::vector<int64_t> Bench::workspace_bytes(const std::vector<int64_t>& saved) {
  MemoryMeter meter(device_.type());
  const MemoryMeter::Attached attached(meter);
  // Most bytes above those that were there when the node began.
  std::vector<int64_t> forward_bytes(size(), 0), backward_bytes(size(), 0);
  int64_t before = 0;
  std::vector<SequenceRange> ranges(size());
  NodeObserver observer;
  observer.before = [&](size_t i) {
    ranges[i].begin = at::sequence_number::peek();
    before = meter.live_bytes();
    meter.reset_peak();
  };
  observer.after = [&](size_t i) {
    ranges[i].end = at::sequence_number::peek();
    forward_bytes[i] = meter.peak_bytes() - before;
  };
  const at::Tensor loss = forward(&observer);
  int64_t before_function = 0;
  std::optional<size_t> last;
  const auto started = [&] {
    before_function = meter.live_bytes();
    meter.reset_peak();
  };
  const auto ended = [&](std::optional<size_t> node) {
    // Functions of one node after another are one piece, in which its inner gradients come and go.
    if (node != last) before = before_function;
    if (node) backward_bytes[*node] = std::max(backward_bytes[*node], meter.peak_bytes() - before);
    last = node;
  };
  {
    const BackwardWatch watch(ranges, started, ended);
    backward(loss, leaves_);
    wait_for_engine(device_);
  }

  // As profiles count them: neither the minibatch nor what every stage computes itself.
  std::map<std::string, int64_t> value_bytes;
  for (const Node& node : graph_.nodes) {
    const bool stays = std::count(graph_.everywhere.begin(), graph_.everywhere.end(), node.name) > 0;
    for (const std::string& name : node.outputs)
      value_bytes[name] = stays ? 0 : graph_.computed_type(name).bytes();
  }
  std::vector<int64_t> bytes(size(), 0);
  for (size_t i = 0; i < size(); ++i) {
    int64_t read = 0, made = 0, gradients = 0;
    for (const std::string& name : singles_[i].inputs())
      if (value_bytes.count(name)) read += value_bytes.at(name);
    for (const std::string& name : graph_.nodes[i].outputs) made += value_bytes.at(name);
    for (const at::Tensor& parameter : pick(parameters_, singles_[i].parameters()))
      if (parameter.requires_grad()) gradients += static_cast<int64_t>(parameter.nbytes());
    bytes[i] =
        std::max({int64_t{0}, forward_bytes[i] - made - saved[i], backward_bytes[i] - read - gradients});
  }
  return bytes;
}

std::optional<int64_t> Bench::allocated_bytes() {
  if (!allocator_bytes(device_)) return std::nullopt;
  backward(forward(nullptr), leaves_);  // libraries keep workspaces from their first call on, one a thread
  wait_for_engine(device_);
  reset_allocator_peaks(device_);
  const std::optional<AllocatorBytes> before = allocator_bytes(device_);
  backward(forward(nullptr), leaves_);
  return allocator_bytes(device_)->peak_allocated - before->allocated;
}

std::vector<at::Tensor> Bench::pick(const Tensors& tensors, const std::vector<std::string>& names) {
  std::vector<at::Tensor> picked;
  for (const auto& name : names) picked.push_back(tensors.at(name));
  return picked;
}

at::Tensor Bench::forward(const NodeObserver* observer) const {
  return whole_.forward(pick(values_, whole_.inputs()), whole_parameters_, whole_buffers_, key(),
                        observer)[0];
}

void Bench::prepare_updates(const std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    updated_.push_back(i);
    weights_.push_back(leaves_[i]);
    next_weights_.push_back(at::empty_like(leaves_[i].detach()));
    sums_.push_back(at::zeros_like(leaves_[i].detach()));
  }
  OptimizerSettings settings;
  settings.momentum = 0.9;
  rule_ = make_update_rule(settings);
}

void Bench::update_before_pass() {
  if (!rule_) return;
  const at::NoGradGuard no_grad;
  rule_->step(weights_, sums_, 0, weights_);
}

/// Node by node. `parameter_of` and `value_of` may replace what a node reads and what it made.
template <typename ParameterOf, typename Around, typename ValueOf>
at::Tensor Bench::walk(const ParameterOf& parameter_of, const Around& around, const ValueOf& value_of) const {
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

}  // namespace pipewright
