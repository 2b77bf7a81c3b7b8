#include "optimizer/cost/stage_times.h"

#include <algorithm>
#include <utility>

#include "graph/data_workers.h"
#include "optimizer/cost/formulas.h"
#include "optimizer/cost/stage_memory.h"

namespace pipewright {

double message_seconds(double bytes, const CostInputs& inputs) {
  return message_seconds(bytes, inputs.latency_seconds, inputs.bandwidth_bytes_per_second);
}

double exchanged_bytes(const StageLoad& load, const CostInputs& inputs) {
  return inputs.exchange_factor * static_cast<double>(load.trainable_bytes);
}

double priced_exchange_factor(const StageLoad& load, int64_t replicas, const CostInputs& inputs,
                              bool on_one_host) {
  const double sent = 2 * crossing_part(1, replicas) * static_cast<double>(load.trainable_bytes);
  const std::vector<TopologyLevel>& levels = inputs.exchange_levels;
  const bool inner = on_one_host && levels.size() > 1;
  const double priced = inner ? exchange_factor({levels[0]}, sent) : exchange_factor(levels, sent);
  return std::max(inputs.exchange_factor, priced);
}

double priced_exchange_bytes(const StageLoad& load, int64_t replicas, const CostInputs& inputs,
                             bool on_one_host) {
  return priced_exchange_factor(load, replicas, inputs, on_one_host) *
         static_cast<double>(load.trainable_bytes);
}

namespace {

/// The part that such bytes have of what takes so long for all of them.
double part_of_update(double trainable_bytes, double seconds, const CostInputs& inputs) {
  return trainable_bytes * (seconds / inputs.update.bytes);
}

}  // namespace

double step_seconds(double trainable_bytes, const CostInputs& inputs) {
  return part_of_update(trainable_bytes, inputs.update.parts.step_in_place_seconds, inputs);
}

double step_seconds(const StageLoad& load, const CostInputs& inputs) {
  return step_seconds(static_cast<double>(load.trainable_bytes), inputs);
}

namespace {

/// Minibatches of one update, of all replicas.
int64_t minibatches_of_update(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  return minibatches_of_update(load.split ? 1 : replicas, load.later_devices, inputs);
}

/// Whether minibatches in flight read weights that an update replaces.
bool keeps_old_weights(const StageLoad& load, const CostInputs& inputs) {
  if (inputs.one_at_a_time || facts_of(inputs.weights).in_place) return false;
  switch (facts_of(inputs.weights).lag) {
    case WeightLag::kOwnStage:
      return !load.last;  // where one minibatch is in flight
    case WeightLag::kFirstStage:
      return !load.last || !(load.first || load.after_frozen);  // a stage trained alone has one in flight
    case WeightLag::kInterval:
      return true;
    case WeightLag::kNone:
      break;
  }
  return false;
}

}  // namespace

double gather_seconds(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  // The first of a round is taken as it is, or copied; the others are added.
  const auto all = static_cast<double>(minibatches_of_update(load, replicas, inputs));
  const double own = std::max(1.0, load.split ? all : all / static_cast<double>(replicas));
  const ProfiledUpdate& parts = inputs.update.parts;
  const double first = replicas > 1 ? parts.gradient_copy_seconds : 0;
  return part_of_update(static_cast<double>(load.trainable_bytes),
                        first + (own - 1) * parts.gradient_add_seconds, inputs) /
         own;
}

double prediction_seconds(const StageLoad& load, const CostInputs& inputs) {
  constexpr double kPassesOfAdding = 3;
  if (!facts_of(inputs.weights).predicts || load.last) return 0;  // where one minibatch is in flight
  const double passes = 2 + static_cast<double>(inputs.optimizer_slots);
  return part_of_update(static_cast<double>(load.trainable_bytes),
                        passes / kPassesOfAdding * inputs.update.parts.gradient_add_seconds, inputs);
}

double further_step_seconds(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  const UpdateCosts& update = inputs.update;
  double seconds = 0;
  if (keeps_old_weights(load, inputs))
    seconds += std::max(0.0, update.step_seconds - update.parts.step_in_place_seconds);
  if (minibatches_of_update(load, replicas, inputs) > 1) seconds += update.parts.gradient_divide_seconds;
  return part_of_update(static_cast<double>(load.trainable_bytes), seconds, inputs);
}

double tied_seconds(const StageLoad& load, const CostInputs& inputs) {
  return load.tied_sent_bytes > 0 ? message_seconds(static_cast<double>(load.tied_sent_bytes), inputs) : 0;
}

double all_reduce_seconds(double bytes, int64_t replicas, const CostInputs& inputs) {
  if (replicas == 1 || bytes == 0) return 0;
  return all_reduce_latency_seconds(inputs.latency_seconds) +
         all_reduce_link_seconds(bytes, crossing_part(1, replicas), inputs.bandwidth_bytes_per_second);
}

StageTimes stage_times(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  StageTimes times;
  times.forward_seconds = load.forward_seconds + prediction_seconds(load, inputs);
  const double gather = gather_seconds(load, replicas, inputs);
  times.backward_seconds = load.backward_seconds + gather;
  times.backward_weight_seconds = load.backward_weight_seconds + gather;
  times.recompute_seconds = load.recompute_seconds();
  times.reduce_seconds = all_reduce_seconds(priced_exchange_bytes(load, replicas, inputs), replicas, inputs);
  times.step_seconds = step_seconds(load, inputs) + further_step_seconds(load, replicas, inputs);
  times.tied_seconds = tied_seconds(load, inputs);
  add_messages(load, inputs, &times);
  return times;
}

void add_messages(const StageLoad& load, const CostInputs& inputs, StageTimes* times) {
  if (!load.last && !load.out_stays)
    times->send_activation_seconds = message_seconds(static_cast<double>(load.out_bytes), inputs);
  if (!load.first && !load.after_frozen && !load.in_stays)
    times->send_gradient_seconds = message_seconds(static_cast<double>(load.in_bytes), inputs);
}

void add_message_ends(const StageLoad& load, int in_level, int out_level, const CostInputs& inputs,
                      StageTimes* times) {
  if (inputs.one_at_a_time) return;
  const auto end = [&](int64_t bytes, int level) {
    const bool leveled = !inputs.levels.empty();
    const TopologyLevel* link = leveled ? &inputs.levels[static_cast<size_t>(level)] : nullptr;
    return message_end_seconds(static_cast<double>(bytes),
                               link ? link->core_seconds_per_message : inputs.core_seconds_per_message,
                               link ? link->core_seconds_per_byte : inputs.core_seconds_per_byte);
  };
  const double in = load.first || load.in_stays ? 0 : end(load.in_bytes, in_level);
  const double out = load.last || load.out_stays ? 0 : end(load.out_bytes, out_level);
  change_computing(times, [&](auto& own) {
    own.forward_seconds += in + out;
    if (inputs.forward_only || load.frozen) return;
    own.backward_seconds += out + (load.after_frozen ? 0 : in);
  });
}

int64_t input_threads(int64_t host_ranks, const CostInputs& inputs) {
  if (!inputs.loads_beside) return inputs.input_threads;
  if (inputs.host_cores == 0) return std::max<int64_t>(1, inputs.data_workers);
  if (inputs.data_workers == 0)
    return default_data_workers(inputs.host_cores, host_ranks, inputs.compute_threads);
  return std::clamp<int64_t>(inputs.host_cores / host_ranks, 1, inputs.data_workers);
}

double input_seconds(const CostInputs& inputs) {
  return inputs.input_seconds / static_cast<double>(inputs.input_threads);
}

void add_loading(const StageLoad& load, int64_t replicas, const CostInputs& inputs, StageTimes* times) {
  if (!load.first || inputs.loads_beside) return;
  const double seconds = input_seconds(inputs) / (load.split ? static_cast<double>(replicas) : 1);
  change_computing(times, [&](auto& own) { own.forward_seconds += seconds; });
}

double loading_seconds(const StageLoad& first, int64_t replicas, const CostInputs& inputs) {
  const double beside = inputs.loads_beside ? 0 : first.compute_seconds();
  return (input_seconds(inputs) + beside) / static_cast<double>(replicas);
}

namespace {

StageTimes longer(StageTimes times, double passes, double step) {
  change_computing(&times, [&](auto& own) {
    for (double* seconds :
         {&own.forward_seconds, &own.backward_seconds, &own.backward_weight_seconds, &own.recompute_seconds})
      *seconds *= passes;
    own.step_seconds *= step;
  });
  return times;
}

}  // namespace

CrowdFactors crowd_factors(int64_t ranks, bool in_step, const CostInputs& inputs) {
  if (!inputs.crowd || ranks < 2) return {};
  const ProfiledCrowd& crowd = *inputs.crowd;
  if (inputs.one_at_a_time) return {crowd.by_turns_compute_factor, 1};
  // Measured alone and with so many; in between in proportion, and beyond no worse.
  const double part = std::min(1.0, static_cast<double>(ranks - 1) / static_cast<double>(crowd.ranks - 1));
  return {1 + part * ((in_step ? crowd.replicas_compute_factor : crowd.compute_factor) - 1),
          1 + part * ((in_step ? crowd.replicas_update_factor : crowd.update_factor) - 1)};
}

StageTimes crowded(StageTimes times, const CrowdFactors& factors) {
  return longer(std::move(times), factors.compute, factors.update);
}

double HostFactors::*host_factor_of(int64_t replicas, int64_t ranks, const CostInputs& inputs) {
  if (replicas > 1) return &HostFactors::replicas;
  if (ranks < 2) return &HostFactors::alone;
  if (inputs.one_at_a_time) return &HostFactors::by_turns;
  return facts_of(inputs.weights).drains() ? &HostFactors::draining : &HostFactors::together;
}

StageTimes calibrated(StageTimes times, int64_t replicas, int64_t ranks, const CostInputs& inputs) {
  const double factor = inputs.factors.*host_factor_of(replicas, ranks, inputs);
  return longer(std::move(times), factor, factor);
}

StagePrediction stage_prediction(const StageTimes& times, const StageMemory& memory) {
  StagePrediction prediction;
  prediction.compute_seconds = times.forward_seconds + times.recompute_seconds + times.backward_seconds;
  // Out go activations and the gradient of what came in; in come as many bytes: a gradient is as large as its
  // value.
  prediction.send_seconds = times.send_activation_seconds + times.send_gradient_seconds;
  prediction.receive_seconds = prediction.send_seconds;
  prediction.gradient_sync_seconds = times.reduce_seconds + times.tied_seconds;
  prediction.step_seconds = times.step_seconds;
  prediction.memory = memory;
  return prediction;
}

}  // namespace pipewright
