#include "runtime/stage/recorded_stage.h"

#include <ATen/Context.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <utility>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "models/run/operators.h"

namespace pipewright {
namespace {

// The same memory, held by nobody: recordings keep autograd's graph, and would keep weights alive, and so out
// of a step's reach, for ever. New leaves also begin their part of autograd on the stream of the recording.
at::Tensor borrow(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (!tensor.defined()) return tensor;
  if (tensor.numel() == 0) return tensor.detach().clone().requires_grad_(tensor.requires_grad());
  return at::from_blob(
             tensor.data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {}, tensor.options(),
             tensor.device())
      .requires_grad_(tensor.requires_grad());
}

std::vector<at::Tensor> borrow(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> borrowed;
  for (const at::Tensor& tensor : tensors) borrowed.push_back(borrow(tensor));
  return borrowed;
}

std::vector<at::Tensor> memory_like(const std::vector<at::Tensor>& tensors, at::Device device) {
  const MemoryScope scope(MemoryPurpose::kMessages);
  std::vector<at::Tensor> memory;
  for (const at::Tensor& tensor : tensors)
    memory.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device)));
  return memory;
}

void copy_in(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  PW_CHECK_EQ(from.size(), to.size());
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    PW_CHECK(from[i].sizes() == to[i].sizes(), "a recording has fixed shapes");
    to[i].copy_(from[i].detach(), /*non_blocking=*/true);
  }
}

// The next replay writes over what a recording made.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope(MemoryPurpose::kMessages);
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

}  // namespace

struct RecordedStage::Position {
  struct Backward {
    std::unique_ptr<DeviceGraph> graph;
    std::vector<at::Tensor> received;  ///< the message upstream; not of the second part of one in two
  };

  std::shared_ptr<DeviceGraphs> graphs;
  // Fixed memory that is copied to before a replay.
  std::vector<at::Tensor> received;
  std::vector<at::Tensor> fields;
  std::vector<at::Tensor> sent_gradients;
  at::Tensor loss_gradient;  ///< of the last stage
  double loss_weight = 1;    ///< that is in it
  std::unique_ptr<DeviceGraph> forward;
  // What a recording makes for others: borrowed, and copied before the next one runs.
  std::vector<at::Tensor> sent;
  at::Tensor loss;
  std::array<Backward, 2> backwards;  ///< one that adds to the round's gradients; one that begins them
  Backward first_part;                ///< of a backward in two parts; `backwards` are the second then
  bool busy = false;                  ///< a minibatch is between forward and backward
};

struct RecordedStage::Place {
  std::vector<const void*> addresses;  ///< of weights, their copies and buffers
  std::vector<std::unique_ptr<Position>> positions;
};

std::string recording_obstacle(const Graph& graph, const std::vector<size_t>& nodes) {
  for (const size_t i : nodes) {
    const Node& node = graph.nodes[i];
    const c10::OperatorHandle op = find_operator(node);
    if (!op.hasTag(at::Tag::dynamic_output_shape) && !op.hasTag(at::Tag::data_dependent_output)) continue;
    // Indices do, unless they are masks: those must be counted.
    const auto& read = node.reads();
    const bool masks = std::any_of(read.begin(), read.end(), [&](const std::string& name) {
      const auto value = graph.values.find(name);
      return value != graph.values.end() && (value->second.dtype == "bool" || value->second.dtype == "uint8");
    });
    if (node.op == "aten::index" && !masks) continue;
    return label_of(node) + " makes the host wait: it asks the device for numbers";
  }
  return "";
}

RecordedStage::RecordedStage(const StageProgram& program, MakeDeviceGraphs make_graphs,
                             RecordedStageSettings settings)
    : program_(program), make_graphs_(std::move(make_graphs)), settings_(std::move(settings)) {
  at::Generator own = at::globalContext().defaultGenerator(settings_.device);
  const std::lock_guard<std::mutex> lock(own.mutex());  // other ranks of the process may be drawing with it
  for (size_t i = 0; i < program.segment().random_nodes().size(); ++i) streams_.push_back(own.clone());
}

RecordedStage::~RecordedStage() = default;

void RecordedStage::notice(const std::vector<at::Tensor>& sent_gradients) {
  if (warm_ || !like_gradients_.empty()) return;
  like_gradients_ = memory_like(sent_gradients, at::kMeta);
}

void RecordedStage::warmed_up() { warm_ = true; }

void RecordedStage::take_gradients() {
  if (gradients_) return;
  gradients_ = settings_.gradients();
  PW_CHECK_EQ(gradients_->size(), program_.trainable().size());
  if (gradients_->empty()) return;
  // What only recordings use: a device may load code when it first runs, and not while it records.
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> one = {at::ones({1}, gradients_->front().options())};
  at::_foreach_copy_(one, {one[0].clone()});
  at::_foreach_add_(one, one);
}

void RecordedStage::begin_forward() {
  if (!settings_.if_host_bound || host_bound_) return;
  if (!forward_begin_) forward_begin_.emplace(settings_.device.type());
  forward_begin_->record(c10::impl::getDeviceGuardImpl(settings_.device.type())->getStream(settings_.device));
}

void RecordedStage::end_forward() {
  if (!settings_.if_host_bound || host_bound_) return;
  streak_ = ++watched_ > kStreak && forward_begin_->query() ? streak_ + 1 : 0;
  host_bound_ = streak_ == kStreak;
}

std::string RecordedStage::obstacle() const {
  const bool keeps_up = settings_.if_host_bound && !host_bound_;
  return obstacle_.empty() && keeps_up ? "the device does not wait for the host" : obstacle_;
}

RecordedStage::Place* RecordedStage::place_of(const WeightVersion& version,
                                              const std::vector<at::Tensor>& buffers) {
  std::vector<const void*> addresses;
  for (const auto* tensors : {&version.weights, &version.copies, &buffers})
    for (const at::Tensor& tensor : *tensors)
      addresses.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [&](const auto& known) { return known->addresses == addresses; });
  if (place != places_.end()) return place->get();
  if (places_.size() == settings_.places) {
    if (obstacle_.empty())
      obstacle_ = "the weights have moved to another place than the " + std::to_string(settings_.places) +
                  " they had";
    return nullptr;
  }
  places_.push_back(std::make_unique<Place>(Place{std::move(addresses), {}}));
  return places_.back().get();
}

void RecordedStage::seed(int64_t minibatch) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const std::lock_guard<std::mutex> lock(streams_[i].mutex());
    streams_[i].set_current_seed(program_.segment().seed_of(i, {settings_.seed, minibatch}));
  }
}

Pass RecordedStage::record_forward(Position& position, const WeightVersion& version,
                                   const std::vector<at::Tensor>& buffers) {
  const auto weights = std::make_shared<const WeightVersion>(
      WeightVersion{version.number, borrow(version.weights), borrow(version.copies)});
  const std::vector<at::Tensor> places = borrow(buffers);
  Pass pass;
  position.forward = position.graphs->record(
      [&] {
        pass = program_.forward(position.received, position.fields, weights, places,
                                {settings_.seed, /*minibatch=*/0, &streams_});
      },
      streams_);
  position.sent = borrow(std::exchange(pass.sent, {}));
  if (pass.loss.defined()) {
    position.loss = borrow(pass.loss);
    pass.loss_gradient = position.loss_gradient = at::ones_like(position.loss);
  }
  return pass;
}

// The pass holds the activations until the last backward is recorded, which lets go of them on its way, as
// one of the program does: a replay of the forward makes them anew before each backward.
void RecordedStage::record_backwards(Position& position, Pass pass) {
  if (settings_.split_backward) {
    std::vector<at::Tensor> received;
    position.first_part.graph = position.graphs->record(
        [&] { received = program_.backward_input(pass, position.sent_gradients); }, streams_);
    position.first_part.received = borrow(received);
  }
  for (const bool first : {true, false}) {
    if (!first && !settings_.several_a_round) continue;
    const bool last = !first || !settings_.several_a_round;
    StageGradients made;
    Position::Backward& backward = position.backwards[first];
    backward.graph = position.graphs->record(
        [&] {
          Pass own = last ? std::exchange(pass, {}) : pass;
          if (settings_.split_backward)
            made.weights = program_.backward_weight(std::move(own), {}, /*keep_graph=*/!last);
          else
            made = program_.backward(std::move(own), position.sent_gradients, {}, /*keep_graph=*/!last);
          if (made.weights.empty()) return;
          const at::NoGradGuard no_grad;
          first ? at::_foreach_copy_(*gradients_, made.weights)
                : at::_foreach_add_(*gradients_, made.weights);
        },
        streams_);
    backward.received = borrow(made.received);
  }
}

RecordedStage::Position& RecordedStage::free_position(Place& place, const std::vector<at::Tensor>& received,
                                                      const std::vector<at::Tensor>& fields) {
  PW_CHECK(!settings_.one_in_flight || in_flight_.empty(), "two minibatches in flight");
  for (const auto& position : place.positions)
    if (!position->busy) return *position;
  auto position = std::make_unique<Position>();
  for (const auto& other : places_) {
    if (!settings_.one_in_flight || other->positions.empty()) continue;
    position->graphs = other->positions[0]->graphs;
    break;
  }
  if (!position->graphs) position->graphs = make_graphs_(settings_.device);
  position->received = memory_like(received, settings_.device);
  position->sent_gradients = memory_like(like_gradients_, settings_.device);
  for (const at::Tensor& field : fields)
    position->fields.push_back(at::empty_like(field, at::MemoryFormat::Contiguous));
  place.positions.push_back(std::move(position));
  return *place.positions.back();
}

bool RecordedStage::record(Position& position, const WeightVersion& version,
                           const std::vector<at::Tensor>& buffers) {
  const auto fail = [&](const std::string& why) {
    failed_ = true;
    obstacle_ = "recording failed: " + why.substr(0, why.find('\n'));
  };
  try {
    take_gradients();
    record_backwards(position, record_forward(position, version, buffers));
  } catch (const RunError& error) {
    fail(error.what());
  } catch (const c10::Error& error) {  // out of autograd
    fail(error.what_without_backtrace());
  }
  return !failed_;
}

std::optional<RecordedStage::Outputs> RecordedStage::forward(
    int64_t k, const std::vector<at::Tensor>& received, const std::vector<at::Tensor>& fields,
    const WeightVersion& version, const std::vector<at::Tensor>& buffers, double loss_weight) {
  if (!warm_ || failed_ || loss_weight == 0 || (settings_.if_host_bound && !host_bound_)) return std::nullopt;
  // Other ranks of the process may share the default generator, which takes part in every recording.
  const std::lock_guard<std::recursive_mutex> lock(generator_mutex());
  Place* const place = place_of(version, buffers);
  if (!place) return std::nullopt;
  Position& position = free_position(*place, received, fields);
  copy_in(received, position.received);
  copy_in(fields, position.fields);
  if (!position.forward && !record(position, version, buffers)) {
    place->positions.pop_back();  // it was new
    return std::nullopt;
  }
  if (position.loss_gradient.defined() && std::exchange(position.loss_weight, loss_weight) != loss_weight)
    position.loss_gradient.fill_(loss_weight);
  seed(k);
  position.forward->replay();
  position.busy = true;
  PW_CHECK(in_flight_.emplace(k, &position).second, "minibatch " << k << " is in flight already");
  ++recorded_forwards_;
  Outputs outputs{copies_of(position.sent), {}};
  if (position.loss.defined()) outputs.loss = position.loss.clone();
  return outputs;
}

RecordedStage::Position& RecordedStage::position_of(int64_t k) {
  const auto entry = in_flight_.find(k);
  PW_CHECK(entry != in_flight_.end(), "backward of minibatch " << k << " without its recorded forward");
  return *entry->second;
}

void RecordedStage::prepare_backward(int64_t k, const std::vector<at::Tensor>& sent_gradients) {
  copy_in(sent_gradients, position_of(k).sent_gradients);
  seed(k);  // what is recomputed draws again
}

void RecordedStage::end_backward(int64_t k, bool first) {
  PW_CHECK(first || settings_.several_a_round, "a round of one minibatch has two");
  Position& position = position_of(k);
  position.backwards[first].graph->replay();
  position.busy = false;
  in_flight_.erase(k);
}

std::vector<at::Tensor> RecordedStage::backward(int64_t k, const std::vector<at::Tensor>& sent_gradients,
                                                bool first) {
  const std::lock_guard<std::recursive_mutex> lock(generator_mutex());
  const Position& position = position_of(k);
  prepare_backward(k, sent_gradients);
  end_backward(k, first);
  return copies_of(position.backwards[first].received);
}

std::vector<at::Tensor> RecordedStage::backward_input(int64_t k,
                                                      const std::vector<at::Tensor>& sent_gradients) {
  PW_CHECK(settings_.split_backward, "the backward of this stage comes in one piece");
  const std::lock_guard<std::recursive_mutex> lock(generator_mutex());
  prepare_backward(k, sent_gradients);
  const Position::Backward& part = position_of(k).first_part;
  part.graph->replay();
  return copies_of(part.received);
}

void RecordedStage::backward_weight(int64_t k, bool first) {
  const std::lock_guard<std::recursive_mutex> lock(generator_mutex());
  end_backward(k, first);
}

int64_t RecordedStage::positions() const {
  int64_t count = 0;
  for (const auto& place : places_) count += static_cast<int64_t>(place->positions.size());
  return count;
}

int64_t RecordedStage::size() const {
  int64_t size = 0;
  for (const auto& place : places_) {
    for (const auto& position : place->positions) {
      size += position->forward->size();
      size += position->first_part.graph ? position->first_part.graph->size() : 0;
      for (const auto& backward : position->backwards) size += backward.graph ? backward.graph->size() : 0;
    }
  }
  return size;
}

std::vector<at::Tensor> RecordedStage::fixed_memory() const {
  std::vector<at::Tensor> memory = gradients_.value_or(std::vector<at::Tensor>());
  for (const auto& place : places_) {
    for (const auto& position : place->positions) {
      for (const auto* tensors : {&position->received, &position->fields, &position->sent_gradients})
        memory.insert(memory.end(), tensors->begin(), tensors->end());
      if (position->loss_gradient.defined()) memory.push_back(position->loss_gradient);
    }
  }
  return memory;
}

}  // namespace pipewright
