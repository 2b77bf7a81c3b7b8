#include "profiler/bench.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "graph/error.h"
#include "graph/run.h"
#include "models/initialise.h"
#include "models/memory/memory_meter.h"
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

/// Gradients at `targets`, undefined where none comes to. Without a root to none.
std::vector<at::Tensor> backward(const at::Tensor& root, const autograd::edge_list& targets) {
  if (!root.defined() || targets.empty()) return std::vector<at::Tensor>(targets.size());
  const auto first_line = [](const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    return "the backward failed: " + message.substr(0, message.find('\n'));
  };
  try {
    TORCH_CHECK(root.requires_grad(), "the loss depends on nothing that has a gradient");
    return autograd::Engine::get_default_engine().execute({autograd::impl::gradient_edge(root)},
                                                          {at::ones_like(root)}, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, targets);
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
  autograd::grad({nothing.neg()}, {nothing}, {at::empty_like(nothing)});
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
      leaf_is_updated_.push_back(!read_before.count(parameter.name));
      trainable_.insert(parameter.name);
    }
    parameters_[parameter.name] = tensor;
  }
  for (const auto& name : whole_.buffers()) buffers_[name] = initial_buffer(model, name).to(device_);
  whole_parameters_ = pick(parameters_, whole_.parameters());
  whole_buffers_ = pick(buffers_, whole_.buffers());
}

WholePass Bench::time_whole() {
  update_before_pass();
  Received received = receive();
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
  pass.backward = marks_.between(backward_begin, backward_end);
  pass.step = marks_.between(update_begin, step_end);
  pass.gradient_copy = marks_.between(step_end, copy_end);
  pass.gradient_add = marks_.between(copy_end, add_end);
  pass.gradient_divide = marks_.between(add_end, divide_end);
  pass.step_in_place = marks_.between(divide_end, end);
  return pass;
}

void Bench::train() {
  update_before_pass();
  Received received = receive();
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  const std::vector<at::Tensor> gradients = backward(root, targets(received));
  if (!rule_) prepare_updates(gradients);
}

Bench::InFlight Bench::set_out() {
  Received received = receive();
  InFlight in_flight;
  in_flight.root = root_of(forward(std::move(received.values), nullptr));
  in_flight.targets = targets(received);
  in_flight.held = std::move(received.held);
  return in_flight;
}

Stretch Bench::time_in_pipeline(InFlight& in_flight) {
  if (!in_flight.root.defined()) in_flight = set_out();
  update_before_pass();
  marks_.clear();
  const size_t begin = marks_.set();
  InFlight next = set_out();
  std::vector<at::Tensor> gradients = backward(in_flight.root, in_flight.targets);
  in_flight = {};
  const size_t end = marks_.set();
  if (!rule_) prepare_updates(gradients);
  in_flight = std::move(next);
  marks_.wait();
  return marks_.between(begin, end);
}

Stretch Bench::time_by_turns(const std::function<void()>& others) {
  update_before_pass();
  Received received = receive();
  marks_.clear();
  others();
  const size_t forward_begin = marks_.set();
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  const size_t forward_end = marks_.set();
  others();
  const size_t backward_begin = marks_.set();
  const std::vector<at::Tensor> gradients = backward(root, targets(received));
  const size_t backward_end = marks_.set();
  if (!rule_) prepare_updates(gradients);
  marks_.wait();
  Stretch both = marks_.between(forward_begin, forward_end);
  both += marks_.between(backward_begin, backward_end);
  return both;
}

ReplicaPass Bench::time_replica(const std::function<void()>& meet,
                                const std::function<void(const std::vector<at::Tensor>& gradients)>& sum) {
  Received received = receive();
  marks_.clear();
  const size_t begin = marks_.set();
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  std::vector<at::Tensor> gradients = backward(root, targets(received));
  if (!rule_) prepare_updates(gradients);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].copy_(gradients[updated_[i]]);
    gradients[updated_[i]].reset();
  }
  marks_.set();
  marks_.wait();
  meet();
  const size_t compute_end = marks_.set();
  marks_.wait();
  sum(sums_);
  const size_t update_begin = marks_.set();
  for (at::Tensor& gradient : sums_) gradient.div_(2.0);
  rule_->step(weights_, sums_, 0, weights_);
  const size_t end = marks_.set();
  marks_.wait();
  return {marks_.between(begin, compute_end), marks_.between(update_begin, end)};
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
  Received received = receive();
  marks_.clear();
  marks_.set();
  const at::Tensor root = root_of(forward(std::move(received.values), &observer));
  const BackwardClock clock(std::move(ranges), marks_);
  backward(root, targets(received));
  marks_.wait();
  NodesPass pass;
  for (size_t i = 0; i < size(); ++i) pass.forward.push_back(marks_.between(i, i + 1));
  pass.backward = clock.stretches();
  return pass;
}

std::vector<Stretch> Bench::time_input_parts() {
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
  marks_.clear();
  const BackwardClock clock(std::move(ranges), marks_);
  backward(root, received.edges);
  marks_.set();  // there is one in any case, also where no gradient flows between nodes
  marks_.wait();
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
        std::move(inputs), pick(parameters_, single.parameters()), pick(buffers_, single.buffers()), key());
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

SavedPass Bench::saved() {
  constexpr int64_t kNobody = -1, kReceived = -2;
  MemoryMeter meter(device_.type());
  const MemoryMeter::Attached attached(meter);
  NodeObserver observer;
  observer.before = [&](size_t i) { meter.set_tag(static_cast<int64_t>(i)); };
  observer.after = [&](size_t) { meter.set_tag(kNobody); };
  meter.set_tag(kReceived);
  Received received = receive();
  meter.set_tag(kNobody);
  std::vector<at::Tensor> leaving = forward(std::move(received.values), &observer);

  SavedPass pass;
  // The functions hold what backward needs; the loss itself, and what leaves, is not among it.
  std::vector<std::shared_ptr<autograd::Node>> functions;
  std::map<const void*, std::shared_ptr<CrossingMemory>> arrived, made;  // by where they are
  for (size_t j = 0; j < arriving_.size(); ++j) arrived[received.places[j]] = arriving_[j].memory;
  for (size_t v = 0; v < leaving.size(); ++v) {
    const std::string& name = part_.leaving[v];
    const at::Tensor value = std::exchange(leaving[v], at::Tensor());
    if (part_.with_gradient.count(name)) functions.push_back(value.grad_fn());
    const std::set<const autograd::Node*> behind = functions_behind(value);
    for (size_t e = 0; e < received.edges.size(); ++e)
      if (behind.count(received.edges[e].function.get()))
        pass.gradient_reaches[name].insert(received.names[e]);
    if (name == graph_.outputs[0]) continue;
    const void* const place = value.storage().data();
    const auto block = meter.block_at(place);
    const bool passes = block && block->tag == kReceived;
    std::shared_ptr<CrossingMemory>& memory = passes ? arrived.at(place) : made[place];
    if (!memory) {
      memory = std::make_shared<CrossingMemory>();
      memory->bytes = bytes_around(value).to(at::kCPU, at::kByte, false, /*copy=*/true);
      if (block && block->tag >= 0) {
        memory->maker = part_.begin + static_cast<size_t>(block->tag);
        memory->allocated_bytes = block->bytes;
      }
    }
    pass.leaving.emplace(name, crossing_value(value, memory, owner(name)));
  }
  received.held.clear();

  // Nothing is allocated from here on: a block that is there has not changed hands.
  const auto live = [&](const void* place, int64_t tag) {
    const auto block = meter.block_at(place);
    return block && block->tag == tag;
  };
  for (size_t j = 0; j < arriving_.size(); ++j)
    if (live(received.places[j], kReceived)) pass.kept.push_back(arriving_[j].memory);
  for (const auto& [place, memory] : made)
    if (memory->maker) memory->saved = live(place, static_cast<int64_t>(*memory->maker - part_.begin));
  pass.bytes.assign(size(), 0);
  for (const auto& [tag, bytes] : meter.live_bytes_by_tag())
    if (tag >= 0) pass.bytes[static_cast<size_t>(tag)] = bytes;
  return pass;
}

NodePeaks Bench::peaks() {
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
  Received received = receive();
  const at::Tensor root = root_of(forward(std::move(received.values), &observer));
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
    backward(root, targets(received));
    wait_for_engine(device_);
  }

  // As profiles count them: neither the minibatch nor what every stage computes itself.
  std::map<std::string, int64_t> value_bytes;
  for (const Node& node : graph_.nodes) {
    const bool stays = std::count(graph_.everywhere.begin(), graph_.everywhere.end(), node.name) > 0;
    for (const std::string& name : node.outputs)
      value_bytes[name] = stays ? 0 : graph_.computed_type(name).bytes();
  }
  for (size_t i = 0; i < size(); ++i) {
    int64_t read = 0, made = 0, gradients = 0;
    for (const std::string& name : singles_[i].inputs())
      if (value_bytes.count(name)) read += value_bytes.at(name);
    for (const std::string& name : graph_.nodes[part_.begin + i].outputs) made += value_bytes.at(name);
    for (const at::Tensor& parameter : pick(parameters_, singles_[i].parameters()))
      if (parameter.requires_grad()) gradients += static_cast<int64_t>(parameter.nbytes());
    forward_bytes[i] -= made;
    backward_bytes[i] -= read + gradients;
  }
  return {std::move(forward_bytes), std::move(backward_bytes)};
}

int64_t Bench::peak_bytes() {
  pass_once(receive());  // values that leave have their gradients from now on
  Received received = receive();
  const Tensors held = received.values;  // in the meter's sight nothing of it comes and goes
  MemoryMeter meter(device_.type());
  const MemoryMeter::Attached attached(meter);
  pass_once(std::move(received));
  return meter.peak_bytes();
}

std::optional<int64_t> Bench::allocated_bytes() {
  if (!allocator_bytes(device_)) return std::nullopt;
  pass_once(receive());  // libraries keep workspaces from their first call on, one a thread
  reset_allocator_peaks(device_);
  const std::optional<AllocatorBytes> before = allocator_bytes(device_);
  pass_once(receive());
  return allocator_bytes(device_)->peak_allocated - before->allocated;
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
  return whole_.forward(std::move(inputs), whole_parameters_, whole_buffers_, key(), observer);
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
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!gradients[i].defined() || !leaf_is_updated_[i]) continue;
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
        node.forward(std::move(inputs), parameters, pick(buffers_, node.buffers()), key());
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
