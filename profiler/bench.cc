#include "profiler/bench.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "graph/error.h"
#include "graph/run.h"
#include "models/initialise.h"
#include "models/run/weight_copies.h"
#include "profiler/backward.h"
#include "profiler/backward_clock.h"

namespace pipewright {
namespace {

namespace autograd = torch::autograd;

constexpr double kLearningRate = 1e-3;

std::vector<size_t> nodes_of(const Part& part) {
  std::vector<size_t> positions;
  for (size_t i = part.begin; i < part.end; ++i) positions.push_back(i);
  return positions;
}

bool trains(const Parameter& parameter) {
  return parameter.trainable && dtype_is_floating(parameter.type.dtype);
}

}  // namespace

Bench::Bench(const Model& model, const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device)
    : Bench(model, whole_part(model.graph), {}, inputs, seed, device) {}

Bench::Bench(const Model& model, const Part& part, const CrossingValues& arriving,
             const std::vector<at::Tensor>& inputs, uint64_t seed, at::Device device)
    : graph_(model.graph),
      part_(part),
      device_(device),
      whole_(graph_, nodes_of(part), part.leaving, device),
      seed_(seed),
      marks_(device) {
  if (std::none_of(graph_.parameters.begin(), graph_.parameters.end(), trains))
    throw InputError("model '" + graph_.name +
                     "' has no trainable parameters: there is nothing to train or profile");
  take_inputs(inputs, arriving);
  make_weights(model);
  for (size_t i = part_.begin; i < part_.end; ++i) {
    singles_.emplace_back(graph_, std::vector<size_t>{i}, graph_.nodes[i].outputs, device);
    for (const auto& name : singles_.back().inputs()) last_reader_[name] = size() - 1;
  }
}

void Bench::take_inputs(const std::vector<at::Tensor>& inputs, const CrossingValues& arriving) {
  PW_CHECK_EQ(inputs.size(), graph_.inputs.size());
  std::map<const CrossingMemory*, size_t> position;
  for (const std::string& name : whole_.inputs()) {
    const auto input = std::find(graph_.inputs.begin(), graph_.inputs.end(), name);
    if (input != graph_.inputs.end()) {
      values_[name] = inputs[static_cast<size_t>(input - graph_.inputs.begin())].to(device_);
      continue;
    }
    const CrossingValue& value = arriving.at(name);
    const auto [place, is_new] = position.emplace(value.memory.get(), arriving_.size());
    // What no node has made is there before and after every pass.
    if (is_new)
      arriving_.push_back(
          {value.memory, value.memory->bytes.to(device_), {}, value.memory->saved || !value.memory->maker});
    arriving_[place->second].values.emplace(name, value);
    if (value.owner != name) view_of_.emplace(name, value.owner);
  }
}

void Bench::make_weights(const Model& model) {
  // Of a tied parameter the first part that reads it makes the update.
  std::set<std::string> read_before;
  for (size_t i = 0; i < part_.begin; ++i)
    for (const std::string& name : graph_.nodes[i].reads()) read_before.insert(name);
  const std::set<std::string> read(whole_.parameters().begin(), whole_.parameters().end());
  for (const auto& parameter : graph_.parameters) {
    if (!read.count(parameter.name)) continue;
    at::Tensor tensor = initial_parameter(model, parameter.name, seed_).to(device_);
    if (trains(parameter)) {
      tensor.requires_grad_();
      leaves_.push_back(tensor);
      leaf_names_.push_back(parameter.name);
      leaf_is_updated_.push_back(!read_before.count(parameter.name));
      trainable_.insert(parameter.name);
    }
    parameters_[parameter.name] = tensor;
  }
  for (const auto& name : whole_.buffers()) buffers_[name] = initial_buffer(model, name).to(device_);
  for (const size_t i : whole_.copied()) {
    const at::Tensor& weight = parameters_.at(whole_.parameters()[i]);
    const at::Tensor copy = copies_[whole_.parameters()[i]] = room_for_copy(weight);
    cast_to_copies({weight}, {copy});
  }
  whole_parameters_ = pick(parameters_, whole_.parameters());
  whole_buffers_ = pick(buffers_, whole_.buffers());
}

WholePass Bench::time_whole(bool record) {
  update_before_pass();
  Received received = receive();
  std::optional<KernelTrace> trace;
  if (record) trace.emplace(device_);
  marks_.clear();
  const size_t begin = marks_.set();
  std::vector<at::Tensor> leaving = forward(std::move(received.values), nullptr);
  const size_t forward_end = marks_.set();
  const at::Tensor root = root_of(leaving);
  leaving.clear();
  const size_t backward_begin = marks_.set();
  std::vector<at::Tensor> made = backward(root, targets(received));
  const size_t backward_end = marks_.set();
  if (!rule_) prepare_updates(made);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const size_t i : updated_) gradients.push_back(std::exchange(made[i], at::Tensor()).contiguous());
  const size_t update_begin = marks_.set();
  rule_->step(weights_, gradients, kLearningRate, next_weights_, next_copies_);
  const size_t step_end = marks_.set();
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].copy_(gradients[i]);
  const size_t copy_end = marks_.set();
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].add_(gradients[i]);
  const size_t add_end = marks_.set();
  for (at::Tensor& sum : sums_) sum.div_(2.0);
  const size_t divide_end = marks_.set();
  // Numbers stay in the range of a first step: what is measured are passes over memory.
  rule_->step(weights_, gradients, 0, weights_, weight_copies_);
  const size_t end = marks_.set();
  marks_.wait();
  if (trace) marks_.take(trace->end());
  WholePass pass;
  pass.forward = marks_.between(begin, forward_end);
  pass.backward = marks_.between(backward_begin, backward_end);
  pass.step = marks_.between(update_begin, step_end);
  pass.gradient_copy = marks_.between(step_end, copy_end);
  pass.gradient_add = marks_.between(copy_end, add_end);
  pass.gradient_divide = marks_.between(add_end, divide_end);
  pass.step_in_place = marks_.between(divide_end, end);
  return pass;
}

NodesPass Bench::time_nodes(bool record) {
  std::vector<SequenceRange> ranges(size());
  NodeObserver observer;
  observer.before = [&](size_t i) { ranges[i].begin = at::sequence_number::peek(); };
  observer.after = [&](size_t i) {
    ranges[i].end = at::sequence_number::peek();
    marks_.set();
  };
  update_before_pass();
  Received received = receive();
  std::optional<KernelTrace> trace;
  if (record) trace.emplace(device_);
  marks_.clear();
  marks_.set();
  const at::Tensor root = root_of(forward(std::move(received.values), &observer));
  const BackwardClock clock(std::move(ranges), marks_);
  backward(root, targets(received));
  marks_.wait();
  if (trace) marks_.take(trace->end());
  NodesPass pass;
  for (size_t i = 0; i < size(); ++i) pass.forward.push_back(marks_.between(i, i + 1));
  pass.backward = clock.stretches();
  return pass;
}

std::optional<Bench::TracedPass> Bench::trace() {
  if (!KernelTrace::is_possible(device_)) return std::nullopt;
  TracedPass pass;
  {
    // Nothing but the pass: marks lie between kernels, too.
    KernelTrace record(device_);
    pass_once(receive());
    pass.gap_seconds = kernel_gap_seconds(record.end());
  }
  pass.whole = time_whole(true);
  pass.nodes = time_nodes(true);
  pass.input_parts = time_input_parts(true);
  const bool any = std::any_of(pass.nodes.forward.begin(), pass.nodes.forward.end(),
                               [](const Stretch& stretch) { return stretch.kernels > 0; });
  return any ? std::optional(std::move(pass)) : std::nullopt;
}

std::vector<Stretch> Bench::time_input_parts(bool record) {
  update_before_pass();
  std::vector<SequenceRange> ranges(size());
  Received received = receive();
  std::vector<at::Tensor> inner_leaves;
  std::vector<at::Tensor> leaving = walk(
      std::move(received.values), [](const at::Tensor& parameter) { return parameter.detach(); },
      [&](size_t i, bool before) {
        (before ? ranges[i].begin : ranges[i].end) = at::sequence_number::peek();
      },
      [&](const std::string& name, at::Tensor value) {
        if (!has_gradient(name) || value.requires_grad()) return value;
        inner_leaves.push_back(value.detach().requires_grad_());
        return inner_leaves.back().clone();  // a leaf must not be changed in place, as the next node may do
      });
  for (const at::Tensor& leaf : inner_leaves) received.edges.push_back(autograd::impl::gradient_edge(leaf));
  const at::Tensor root = received.edges.empty() ? at::Tensor() : root_of(leaving);
  leaving.clear();
  std::optional<KernelTrace> trace;
  if (record) trace.emplace(device_);
  marks_.clear();
  const BackwardClock clock(std::move(ranges), marks_);
  backward(root, received.edges);
  marks_.set();  // there is one in any case, also where no gradient flows between nodes
  marks_.wait();
  if (trace) marks_.take(trace->end());
  return clock.stretches();
}

void Bench::find_gradient_flow() {
  Received received = receive();
  for (const std::string& name : received.names) has_gradient_.insert(name);
  walk(
      std::move(received.values), [](const at::Tensor& parameter) { return parameter; }, [](size_t, bool) {},
      [&](const std::string& name, at::Tensor value) {
        if (value.defined() && value.requires_grad()) has_gradient_.insert(name);
        return value;
      });
}

std::string Bench::owner(const std::string& value) const {
  const auto found = view_of_.find(value);
  return found == view_of_.end() ? value : found->second;
}

std::vector<std::vector<std::string>> Bench::keeps() {
  using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;
  const auto memory_of = [](const at::Tensor& tensor) {
    return Memory(tensor.storage().getWeakStorageImpl());
  };
  std::vector<std::vector<std::string>> kept(size());
  Tensors there = receive().values;
  for (const auto& [name, value] : values_) there.emplace(name, value);
  for (size_t i = 0; i < size(); ++i) {
    const Segment& single = singles_[i];
    std::vector<at::Tensor> inputs;
    std::map<std::string, Memory> memories;  // by value, of the copies that this node has
    for (const std::string& name : single.inputs()) {
      at::Tensor copy = there.at(name).detach();
      if (has_gradient(name)) copy = copy.clone().requires_grad_();
      inputs.push_back(copy.clone());  // a leaf must not be changed in place
      memories.emplace(name, memory_of(inputs.back()));
    }
    std::vector<at::Tensor> outputs = single.forward(
        std::move(inputs), pick(parameters_, single.parameters()), pick(buffers_, single.buffers()), key(),
        /*observer=*/nullptr, copies_for(single));
    inputs.clear();
    const std::vector<std::string>& names = graph_.nodes[part_.begin + i].outputs;
    std::vector<std::shared_ptr<autograd::Node>> functions;
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!outputs[o].defined()) continue;
      const Memory memory = memory_of(outputs[o]);
      for (const auto& [name, other] : memories)
        if (other == memory && name != names[o]) view_of_.emplace(names[o], owner(name));
      memories.emplace(names[o], memory);
      if (outputs[o].requires_grad()) functions.push_back(outputs[o].grad_fn());
      there[names[o]] = outputs[o].detach().clone();
    }
    outputs.clear();
    for (const auto& [name, memory] : memories)
      if (!memory.expired()) kept[i].push_back(owner(name));
    std::sort(kept[i].begin(), kept[i].end());
    kept[i].erase(std::unique(kept[i].begin(), kept[i].end()), kept[i].end());
    for (const std::string& name : single.inputs())
      if (last_reader_.at(name) == i) there.erase(name);
  }
  return kept;
}

void Bench::pass_once(Received received) {
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  backward(root, targets(received));
  wait_for_engine(device_);
}

std::vector<at::Tensor> Bench::pick(const Tensors& tensors, const std::vector<std::string>& names) {
  std::vector<at::Tensor> picked;
  for (const auto& name : names) picked.push_back(tensors.at(name));
  return picked;
}

int64_t Bench::copied_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& copy : weight_copies_)
    if (copy.defined()) bytes += static_cast<int64_t>(copy.nbytes());
  return bytes;
}

std::vector<at::Tensor> Bench::copies_for(const Segment& node) const {
  if (node.copied().empty()) return {};
  std::vector<at::Tensor> copies(node.parameters().size());
  for (const size_t i : node.copied()) copies[i] = copies_.at(node.parameters()[i]);
  return copies;
}

Bench::Received Bench::receive() const {
  Received received;
  for (const Arriving& arriving : arriving_) {
    const at::Tensor bytes = arriving.bytes.clone();
    received.places.push_back(bytes.storage().data());
    for (const auto& [name, crossing] : arriving.values) {
      const at::Tensor value = value_in(bytes, crossing);
      if (crossing.requires_grad) {
        received.names.push_back(name);
        received.edges.push_back(arrive(value));
      }
      received.values[name] = value;
    }
    if (arriving.stays) received.held.push_back(bytes);
  }
  return received;
}

std::vector<at::Tensor> Bench::forward(Tensors arriving, const NodeObserver* observer) const {
  std::vector<at::Tensor> inputs;
  for (const auto& name : whole_.inputs()) {
    const auto value = arriving.find(name);
    inputs.push_back(value == arriving.end() ? values_.at(name) : std::move(value->second));
  }
  return whole_.forward(std::move(inputs), whole_parameters_, whole_buffers_, key(), observer,
                        copies_for(whole_));
}

at::Tensor Bench::root_of(const std::vector<at::Tensor>& leaving) {
  std::vector<at::Tensor> departing, gradients;
  for (size_t v = 0; v < leaving.size(); ++v) {
    const std::string& name = part_.leaving[v];
    if (name == graph_.outputs[0]) return leaving[v];
    if (!part_.with_gradient.count(name) || !leaving[v].requires_grad()) continue;
    at::Tensor& gradient = gradients_[name];
    if (!gradient.defined()) {
      const std::lock_guard<std::recursive_mutex> drawing(generator_mutex());
      gradient = at::randn_like(leaving[v].detach());
    }
    departing.push_back(leaving[v]);
    gradients.push_back(gradient.clone());
  }
  return departing.empty() ? at::Tensor() : depart(departing, std::move(gradients));
}

Bench::Edges Bench::targets(const Received& received) const {
  Edges edges;
  for (const at::Tensor& leaf : leaves_) edges.push_back(autograd::impl::gradient_edge(leaf));
  edges.insert(edges.end(), received.edges.begin(), received.edges.end());
  return edges;
}

void Bench::prepare_updates(const std::vector<at::Tensor>& gradients) {
  std::vector<std::string> names;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!gradients[i].defined() || !leaf_is_updated_[i]) continue;
    updated_.push_back(i);
    weights_.push_back(leaves_[i]);
    names.push_back(leaf_names_[i]);
    next_weights_.push_back(at::empty_like(leaves_[i].detach()));
    const auto copy = copies_.find(leaf_names_[i]);
    weight_copies_.push_back(copy == copies_.end() ? at::Tensor() : copy->second);
    next_copies_.push_back(copy == copies_.end() ? at::Tensor() : at::empty_like(copy->second));
    sums_.push_back(at::zeros_like(leaves_[i].detach()));
  }
  settings_.momentum = 0.9;
  rule_ = make_update_rule(settings_, names);
}

void Bench::update_before_pass() {
  if (!rule_) return;
  const at::NoGradGuard no_grad;
  rule_->step(weights_, sums_, 0, weights_, weight_copies_);
}

/// Node by node. `parameter_of` and `value_of` may replace what a node reads and what it made. Returns what
/// leaves.
template <typename ParameterOf, typename Around, typename ValueOf>
std::vector<at::Tensor> Bench::walk(Tensors arriving, const ParameterOf& parameter_of, const Around& around,
                                    const ValueOf& value_of) const {
  Tensors values = values_, leaving;
  values.merge(arriving);
  for (size_t i = 0; i < singles_.size(); ++i) {
    const Segment& node = singles_[i];
    std::vector<at::Tensor> inputs = pick(values, node.inputs());
    for (const auto& name : node.inputs())
      if (last_reader_.at(name) == i) values.erase(name);
    std::vector<at::Tensor> parameters = pick(parameters_, node.parameters());
    for (at::Tensor& parameter : parameters) parameter = parameter_of(parameter);
    around(i, true);
    std::vector<at::Tensor> made =
        node.forward(std::move(inputs), parameters, pick(buffers_, node.buffers()), key(),
                     /*observer=*/nullptr, copies_for(node));
    around(i, false);
    for (size_t o = 0; o < made.size(); ++o) {
      const std::string& name = node.outputs()[o];
      at::Tensor value = value_of(name, std::move(made[o]));
      if (std::count(part_.leaving.begin(), part_.leaving.end(), name)) leaving[name] = value;
      if (last_reader_.count(name)) values[name] = std::move(value);
    }
  }
  return pick(leaving, part_.leaving);
}

}  // namespace pipewright
