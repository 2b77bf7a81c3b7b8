#include "optimizer/cost/stage_memory.h"

#include <cmath>

#include "graph/data_workers.h"
#include "graph/limits.h"
#include "runtime/schedule/versions.h"

namespace pipewright {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What copies in bfloat16 take of so many bytes of weights: as much of them as of all trainable ones.
int64_t copied_bytes(int64_t weights, const CostInputs& inputs) {
  return std::llround(static_cast<double>(weights) *
                      (inputs.update.parts.copied_bytes / inputs.update.bytes));
}

}  // namespace

void WorkspaceWalk::add(const NodeBytes& nodes, size_t node) {
  int64_t beyond = nodes.transient[node] - saved_later_;
  int64_t freed = nodes.freed[node];
  const auto here = static_cast<int>(node);
  for (const SentValue& value : sent_) {
    if (value.producer <= here && here <= value.last_reader) beyond -= value.bytes;
    if (value.freed_at == here) freed -= std::min(freed, value.saved_bytes);  // its send may still hold it
  }
  gradients_ -= nodes.gradients[node];  // of those before it: they come later
  alone_ = std::max(alone_, beyond);
  with_gradients_ = std::max(with_gradients_.value_or(beyond - gradients_), beyond - gradients_);
  saved_later_ += freed;
}

StageWorkspace WorkspaceWalk::workspace() const { return {alone_, with_gradients_.value_or(0)}; }

StageWorkspace stage_workspace(const NodeBytes& nodes, const std::vector<DataflowValue>& values,
                               const NodeSet& from, const NodeSet& to) {
  int64_t gradients = 0;
  for (size_t v = 0; v < nodes.gradients.size(); ++v)
    if (to.test(v) && !from.test(v)) gradients += nodes.gradients[v];
  WorkspaceWalk walk(gradients, sent_values(values, to));
  for (size_t v = nodes.transient.size(); v-- > 0;)
    if (to.test(v) && !from.test(v)) walk.add(nodes, v);
  return walk.workspace();
}

int64_t memory_limit_bytes(const Topology& topology) {
  int64_t limit = topology.memory_bytes;
  for (const TopologyDevice& device : topology.devices) limit = tighter_limit(limit, device.memory_bytes);
  return limit;
}

int64_t memory_limit_bytes(const Topology& topology, const Stage& stage) {
  int64_t limit = topology.memory_bytes;
  if (topology.devices.empty()) return limit;
  for (const int64_t rank : stage.ranks) limit = tighter_limit(limit, topology.devices.at(rank).memory_bytes);
  return limit;
}

int64_t memory_limit_bytes(const CostInputs& inputs, int64_t common_bytes,
                           const std::vector<int64_t>& ranks) {
  if (inputs.memories.empty()) return common_bytes;
  int64_t limit = 0;
  for (const int64_t rank : ranks) limit = tighter_limit(limit, inputs.memories[rank]);
  return limit;
}

int64_t in_flight_bound(int64_t later_devices, int64_t replicas) {
  return std::min(1 + divide_up(later_devices, replicas), kMostInFlight);
}

StageMemory stage_memory(const StageLoad& load, int64_t replicas, int64_t planned_in_flight,
                         const CostInputs& inputs, int64_t untaken_gradients, const StageMoment* moment) {
  const int64_t depth = load.frozen ? 1 : planned_in_flight;
  // The second part of a backward waits for so many first parts at most; of the first stage for its own.
  const StageMoment most{.in_flight = depth,
                         .waiting = !inputs.split_backward || load.frozen ? 0
                                    : load.first                          ? 1
                                                                          : depth,
                         .left_values = load.out_stays ? depth : 0,
                         .left_gradients = load.in_stays ? depth : 0,
                         .runs = true};
  const StageMoment& now = moment ? *moment : most;
  const int64_t weights = load.trainable_bytes;
  // What stays on the rank is sent by nobody: the stage behind has it among what came in. Until then it is
  // what has been left.
  const int64_t sent_bytes = load.out_stays ? 0 : load.out_bytes;
  const int64_t held_bytes = load.out_stays ? 0 : load.held_bytes;
  // Between forward and backward a stage that recomputes keeps what came in, its buffers as they were, what
  // its sends still hold, and all of the part that runs once; one minibatch at a time has the rest too,
  // unless its backward comes in parts.
  const bool drops = load.recompute && !inputs.split_backward;
  const int64_t of_first_part = load.once_saved_bytes + load.once_held_bytes;
  const int64_t kept = load.in_bytes + (load.recompute ? load.buffer_bytes + sent_bytes + of_first_part : 0);
  const int64_t again = load.saved_bytes + held_bytes - (load.recompute ? load.once_saved_bytes : 0);
  const int64_t one_minibatch = again - held_bytes + kept;
  // What a backward makes comes beside what is there of its update already: the sum of the minibatches before
  // it, or the place from which replicas sum. The exchange itself holds less: by then a minibatch is gone. An
  // update needs no room: it is in place, or where a version has died. Copies of tied parameters hold what
  // the other stages sent, and the sum, when the backward has freed its activations.
  const bool several_turns = facts_of(inputs.weights).bounds_crossing && depth > 2;  // of an update
  const bool gathers = replicas > 1 || inputs.minibatches_per_update > replicas || several_turns;
  const bool makes = now.runs || now.waiting > 0 || replicas > 1;  // gradients, or has place for them
  const int64_t beside =
      std::max(gathers && makes ? weights : 0, std::max<int64_t>(0, load.tied_held_bytes - one_minibatch));
  StageMemory memory;
  memory.weights_bytes =
      load.parameter_bytes + copied_bytes(load.parameter_bytes, inputs) + load.buffer_bytes;
  memory.versions_bytes = further_versions(inputs.weights, depth, inputs.pipeline_depth) *
                          (weights + copied_bytes(weights, inputs));
  // Copies stay as a forward has read them, which are as many as predictions, and two without.
  if (facts_of(inputs.weights).in_place && depth > 1)
    memory.versions_bytes +=
        (facts_of(inputs.weights).predicts ? depth - 2 : 1) * copied_bytes(weights, inputs);
  memory.gradients_bytes = weights + beside;
  memory.optimizer_bytes = inputs.optimizer_slots * weights;
  memory.activations_bytes = now.in_flight * kept + (drops ? (now.runs ? 1 : 0) : now.in_flight) * again;
  memory.activations_bytes += now.left_values * (load.recompute ? load.out_bytes : load.held_bytes);
  // Receives are posted two messages ahead. A send keeps its message until it is known to have been taken,
  // but for what the link itself holds: one gradient more than there are minibatches in flight, or in flight
  // at the receiver; of the activations one that is not among those in flight at most. And there is the
  // activation that is being made, or the gradient that came in and is in use. Between two stages of a rank
  // there are only the gradients that the one has left for the other.
  const auto buffered = [&](int64_t bytes) { return std::min(bytes, inputs.buffered_bytes); };
  const int64_t sent_gradients = load.in_stays ? 0 : std::max(depth + 1, untaken_gradients) * load.in_bytes;
  const int64_t posted = 2 * ((load.in_stays ? 0 : load.in_bytes) + sent_bytes);
  const int64_t in_use = now.runs ? load.out_bytes : 0;
  const int64_t untaken = (depth - now.in_flight + 1) * sent_bytes;
  memory.messages_bytes = posted + sent_gradients - buffered(sent_gradients) + untaken + in_use +
                          now.left_gradients * load.in_bytes;
  // No gradients: what is posted ahead, what is sent and not known to have been taken, and what is made.
  if (load.frozen) memory.messages_bytes = 2 * load.in_bytes + 3 * load.out_bytes;
  const int64_t sent_ones = load.frozen ? 2 * load.out_bytes : untaken;
  const int64_t kept_for_sends = now.in_flight * (load.recompute ? sent_bytes : held_bytes);
  const int64_t taken = buffered(kept_for_sends + sent_ones);
  memory.activations_bytes -= std::min(taken, kept_for_sends);
  memory.messages_bytes -= std::max<int64_t>(0, taken - kept_for_sends);
  // Gradients come as the backward goes, but for those of weights that a later part of it makes, and of
  // copies of tied parameters, which are there when it ends. A second forward has results of the first beside
  // it.
  const bool as_it_goes = !inputs.split_backward && load.tied_held_bytes == 0 && !load.recompute;
  const int64_t workspace = !now.runs    ? 0
                            : as_it_goes ? load.workspace.with_gradients_bytes
                                         : load.workspace.alone_bytes;
  memory.workspace_bytes = std::max<int64_t>(0, workspace) + inputs.library_bytes;
  // What minibatches in flight have read, and those ahead as they are stored: what is read is made of them
  // when their forward begins (runtime/worker/stage_loaders.h).
  if (load.first) memory.messages_bytes += depth * inputs.input_bytes + kUploadsAhead * inputs.uploaded_bytes;
  if (load.captured) {
    // Gradients have fixed memory, and so has what each minibatch in flight receives and sends; graphs are
    // captured in a stream of their own (docs/gpu.md).
    memory.gradients_bytes += gathers ? 0 : weights;
    memory.workspace_bytes += inputs.library_bytes;
    memory.messages_bytes += depth * (load.in_bytes + load.out_bytes) + (load.first ? inputs.input_bytes : 0);
  }
  memory.gradients_bytes += std::min<int64_t>(0, workspace);
  memory.gradients_bytes += now.waiting * load.waiting_gradient_bytes;
  return memory;
}

int64_t in_flight_that_fits(const StageLoad& load, int64_t replicas, int64_t most, int64_t memory_bytes,
                            const CostInputs& inputs) {
  if (memory_bytes == 0) return most;
  const auto total = [&](int64_t depth) { return stage_memory(load, replicas, depth, inputs).total_bytes(); };
  if (total(1) > memory_bytes) return 0;
  int64_t fits = 1;  // memory does not shrink with depth
  int64_t too_deep = most + 1;
  while (too_deep - fits > 1) {
    const int64_t middle = fits + (too_deep - fits) / 2;
    (total(middle) <= memory_bytes ? fits : too_deep) = middle;
  }
  return fits;
}

}  // namespace pipewright
