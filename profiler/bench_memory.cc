// What a pass keeps, and the most that it holds at a time.
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "models/memory/memory_meter.h"
#include "profiler/backward.h"
#include "profiler/backward_clock.h"
#include "profiler/bench.h"

namespace pipewright {
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
  std::vector<std::shared_ptr<torch::autograd::Node>> functions;
  std::map<const void*, std::shared_ptr<CrossingMemory>> arrived, made;  // by where they are
  for (size_t j = 0; j < arriving_.size(); ++j) arrived[received.places[j]] = arriving_[j].memory;
  for (size_t v = 0; v < leaving.size(); ++v) {
    const std::string& name = part_.leaving[v];
    const at::Tensor value = std::exchange(leaving[v], at::Tensor());
    if (part_.with_gradient.count(name)) functions.push_back(value.grad_fn());
    const std::set<const torch::autograd::Node*> behind = functions_behind(value);
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

std::optional<Bench::Allocated> Bench::allocated() {
  if (!allocator_bytes(device_)) return std::nullopt;
  pass_once(receive());  // libraries keep workspaces from their first call on, one a thread
  reset_allocator_peaks(device_);
  const std::optional<AllocatorBytes> before = allocator_bytes(device_);
  int64_t own = 0;
  const auto count = [&](const at::Tensor& tensor) {
    constexpr int64_t kBlock = 512;  // of LibTorch's allocator for CUDA
    own += (static_cast<int64_t>(tensor.nbytes()) + kBlock - 1) / kBlock * kBlock;
  };
  for (const Tensors* tensors : {&parameters_, &copies_, &buffers_, &values_, &gradients_})
    for (const auto& [name, tensor] : *tensors) count(tensor);
  for (const Arriving& arriving : arriving_) count(arriving.bytes);
  pass_once(receive());
  return Allocated{allocator_bytes(device_)->peak_allocated - before->allocated,
                   std::max<int64_t>(0, before->allocated - own)};
}

}  // namespace pipewright
