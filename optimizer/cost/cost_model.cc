#include "optimizer/cost/cost_model.h"

#include <algorithm>

#include "graph/run.h"
#include "graph/update_rules.h"
#include "optimizer/cost/formulas.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"

namespace pipewright {
namespace {

/// The largest part of a node's seconds in a class that its least seconds are; empty: those of the profile.
double pace_of(const Dataflow& flow, const std::vector<PassSeconds>& nodes) {
  double pace = 0;
  for (int v = 0; v < flow.size(); ++v) {
    const double seconds = nodes.empty() ? flow.profile.nodes[v].compute_seconds()
                                         : nodes[v].forward_seconds + nodes[v].backward_seconds;
    if (seconds > 0) pace = std::max(pace, flow.least_seconds[v] / seconds);
  }
  return pace > 0 ? pace : 1;
}

}  // namespace

int64_t minibatches_of_update(int64_t turn, int64_t later_devices, const CostInputs& inputs) {
  if (inputs.minibatches_per_update > 0) return inputs.minibatches_per_update;
  return facts_of(inputs.weights).bounds_crossing ? round_that_bounds_crossing(turn, later_devices) : turn;
}

void set_later_devices(const std::vector<int64_t>& replicas, std::vector<StageLoad>* loads) {
  int64_t later = 0;
  for (size_t s = loads->size(); s-- > 0; later += replicas[s]) (*loads)[s].later_devices = later;
}

// A replica needs compute + all-reduce + update for one minibatch of a round; the round has `replicas` of
// them. Beside that its link carries, in each direction, the activations of one boundary and the gradients of
// the other.
StageTerms stage_terms(const StageLoad& load, const CostInputs& inputs) {
  StageTerms terms;
  terms.compute_seconds = load.compute_seconds();
  if (load.trainable_bytes > 0) {
    terms.exchange_seconds =
        all_reduce_link_seconds(exchanged_bytes(load, inputs), 1, inputs.bandwidth_bytes_per_second);
    terms.exchange_latency_seconds = all_reduce_latency_seconds(inputs.latency_seconds);
  }
  terms.step_seconds = step_seconds(load, inputs);
  if (facts_of(inputs.weights).bounds_crossing) terms.runs_ahead = load.later_devices;
  if (inputs.minibatches_per_update > 0) {
    // One update for so many minibatches of all replicas. The exchange grows a little with the replicas,
    // which a period must not: it is taken for that of any number, at most twice too much.
    const auto interval = static_cast<double>(inputs.minibatches_per_update);
    terms.interval_exchange_seconds = (terms.exchange_seconds + terms.exchange_latency_seconds) / interval;
    terms.interval_step_seconds = terms.step_seconds / interval;
    terms.interval_tied_seconds = tied_seconds(load, inputs) / interval;
    terms.exchange_seconds = terms.exchange_latency_seconds = terms.step_seconds = 0;
  }
  if (!load.first && !load.in_stays)
    terms.link_in_seconds = message_seconds(static_cast<double>(load.in_bytes), inputs);
  if (!load.last && !load.out_stays)
    terms.link_out_seconds = message_seconds(static_cast<double>(load.out_bytes), inputs);
  terms.link_takes_both = !load.frozen;  // in comes what the other direction does not carry back
  return terms;
}

StagePeriod stage_period(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  StageTerms terms = stage_terms(load, inputs);
  terms.split = load.split;
  return terms.period(replicas);
}

const char* StagePeriod::binding() const {
  if (link_seconds > device_seconds()) return "transfer";
  if (compute_seconds >= gradient_sync_seconds && compute_seconds >= step_seconds) return "compute";
  return gradient_sync_seconds >= step_seconds ? "gradient sync" : "weight update";
}

int64_t live_bytes(const Dataflow& flow, const NodeSet& done) {
  int64_t bytes = 0;
  for (const DataflowValue& value : flow.values) {
    if (!done.test(value.producer)) continue;
    const auto waits = [&](int reader) { return !done.test(reader); };
    if (std::any_of(value.readers.begin(), value.readers.end(), waits)) bytes += value.bytes;
  }
  return bytes;
}

int64_t unsaved_live_bytes(const Dataflow& flow, const NodeSet& done) {
  int64_t bytes = 0;
  for (const DataflowValue& value : flow.values) {
    if (!done.test(value.producer) || value.readers.empty()) continue;
    if (std::all_of(value.readers.begin(), value.readers.end(), [&](int r) { return done.test(r); }))
      continue;
    bytes += value.bytes - value.saved_bytes;
  }
  return bytes;
}

bool is_measured_on_such_hosts(const ProfiledCrowd& crowd, const Topology& topology) {
  const int64_t devices = topology.levels.at(0).count;
  const bool share = topology.cores.devices > 0 && topology.cores.cores > 0;
  return crowd.ranks >= (share ? std::min(devices, topology.cores.cores) : devices);
}

namespace {

// Tensors that the rule keeps whose update the profile has.
int64_t measured_slots(const Profile& profile) {
  OptimizerSettings rule;
  rule.momentum = 0.9;
  for (const auto& [key, value] : profile.provenance)
    if (key == "optimizer") rule.name = value;
  return static_cast<int64_t>(slot_names(rule).size());
}

}  // namespace

CostInputs cost_inputs(const Profile& profile, const Topology& topology, int64_t optimizer_slots,
                       const ClassProfiles& classes) {
  CostInputs inputs;
  for (const TopologyLevel& level : topology.levels) {
    if (level.count > 1) inputs.levels.push_back(level);  // nothing passes the others
  }
  if (inputs.levels.empty()) inputs.levels.push_back(topology.levels.at(0));
  inputs.bandwidth_bytes_per_second = inputs.levels[0].bandwidth_bytes_per_second;
  inputs.latency_seconds = inputs.levels[0].latency_seconds;
  inputs.core_seconds_per_message = inputs.levels[0].core_seconds_per_message;
  inputs.core_seconds_per_byte = inputs.levels[0].core_seconds_per_byte;
  inputs.buffered_bytes = inputs.levels[0].buffered_bytes;
  for (const TopologyLevel& level : inputs.levels)
    inputs.buffered_bytes = std::min(inputs.buffered_bytes, level.buffered_bytes);
  inputs.classes = classes_of_devices(topology, classes);
  bool alike = inputs.classes.empty();
  for (const TopologyDevice& device : topology.devices) {
    const TopologyDevice& first = topology.devices[0];
    alike = alike && device.relative_speed == 1 && device.memory_bytes == first.memory_bytes;
  }
  if (!alike) {
    for (const TopologyDevice& device : topology.devices) {
      inputs.speeds.push_back(device.relative_speed);
      inputs.memories.push_back(tighter_limit(device.memory_bytes, topology.memory_bytes));
    }
  } else if (inputs.levels.size() == 1 && !inputs.levels[0].shared) {
    inputs.levels.clear();
  }
  inputs.optimizer_slots = optimizer_slots;
  inputs.exchange_factor = topology.exchange_factor();
  for (const TopologyLevel& level : topology.levels)
    if (level.count > 1) inputs.exchange_levels.push_back(level);
  const Dataflow flow(profile, classes);
  int64_t trainable = 0;
  for (int v = 0; v < flow.size(); ++v) {
    trainable += flow.trainable_bytes[v];
  }
  if (trainable > 0) inputs.update.bytes = static_cast<double>(trainable);
  const auto take_update = [&](const ProfiledWhole& whole) {
    if (trainable == 0) return;
    ProfiledUpdate parts = whole.update.value_or(ProfiledUpdate{whole.step_seconds});
    // On a device a step takes what its memory takes: weight, gradient and new weight, and of each slot the
    // old and the new numbers.
    const auto passes_of = [](int64_t slots) { return static_cast<double>(3 + 2 * slots); };
    const double measured = passes_of(measured_slots(profile));
    const double step = profile.device.starts_with("cuda") ? passes_of(optimizer_slots) / measured : 1;
    parts.step_in_place_seconds *= step;
    inputs.update.step_seconds = std::max(inputs.update.step_seconds, step * whole.step_seconds);
    for (const ProfiledUpdateRow& row : profiled_update_rows())
      inputs.update.parts.*row.value = std::max(inputs.update.parts.*row.value, parts.*row.value);
  };
  take_update(profile.whole);
  inputs.library_bytes = profile.whole.library_bytes.value_or(0);
  inputs.input_bytes = profile.whole.input_bytes.value_or(0);
  inputs.uploaded_bytes = profile.whole.uploaded_bytes.value_or(inputs.input_bytes);
  if (profile.whole.crowd && is_measured_on_such_hosts(*profile.whole.crowd, topology))
    inputs.crowd = profile.whole.crowd;
  inputs.host_ranks = topology.levels.at(0).count;
  inputs.factors = topology.factors;
  inputs.cores = topology.cores;
  inputs.sums_take_cores = topology.is_one_host();
  inputs.loads_beside = profile.device != "cpu";
  inputs.sums_in_rings = profile.device.starts_with("cuda");
  // What other programs' profiles say of their loaders is nothing about ours.
  if (profile.device != kUnknownDevice) inputs.input_seconds = profile.input_seconds;
  inputs.compute_threads = profile.threads;
  if (!inputs.loads_beside) inputs.input_threads = profile.threads;
  inputs.host_cores =
      topology.cores.devices > 0 ? topology.cores.cores : profile.whole.host_cores.value_or(0);
  // An update takes what it takes in the slowest class that is there.
  std::vector<double> ratios = {pace_of(flow, {})};
  for (const auto& [name, measured] : classes) {
    const auto number = static_cast<int>(ratios.size());
    ratios.push_back(pace_of(flow, flow.class_seconds[ratios.size() - 1]));
    if (std::count(inputs.classes.begin(), inputs.classes.end(), number) > 0) take_update(measured.whole);
  }
  for (size_t d = 0; d < inputs.speeds.size(); ++d)
    inputs.paces.push_back(inputs.speeds[d] * ratios[inputs.classes.empty() ? 0 : inputs.classes[d]]);
  return inputs;
}

void set_launched(const PassSeconds& launch, const PassSeconds& gaps,
                  const std::vector<double>& class_factors, StageLoad* load) {
  if (load->captured) return;
  const PassSeconds computing = {load->forward_seconds, load->backward_seconds};
  PassSeconds launched = launched_seconds(computing, gaps, launch);
  if (!load->classes.empty()) {
    launched = computing;
    launched.scale(class_factors.at(0));
    for (size_t c = 0; c < load->classes.size(); ++c) load->classes[c].scale(class_factors.at(c + 1));
  }
  const auto ratio = [](double seconds, double of) { return of > 0 ? seconds / of : 1; };
  load->once_forward_seconds =
      std::min(load->once_forward_seconds * ratio(launched.forward_seconds, computing.forward_seconds),
               launched.forward_seconds);
  load->backward_weight_seconds =
      std::min(load->backward_weight_seconds * ratio(launched.backward_seconds, computing.backward_seconds),
               launched.backward_seconds);
  load->forward_seconds = launched.forward_seconds;
  load->backward_seconds = launched.backward_seconds;
}

void CostInputs::forget_devices() {
  levels.clear();
  speeds.clear();
  classes.clear();
  paces.clear();
  memories.clear();
  slow_links.clear();
}

bool CostInputs::same_kind(int64_t a, int64_t b) const {
  const auto same = [&](const auto& values) {
    return values.empty() || values[static_cast<size_t>(a)] == values[static_cast<size_t>(b)];
  };
  const auto ends = [&](const SlowLink& link) {
    return a == link.from || a == link.to || b == link.from || b == link.to;
  };
  return a == b || (same(speeds) && same(classes) && same(memories) &&
                    std::none_of(slow_links.begin(), slow_links.end(), ends));
}

double compute_seconds_on(const StageLoad& load, const CostInputs& inputs, int64_t device) {
  const auto d = static_cast<size_t>(device);
  const PassSeconds pass = load.pass_seconds(inputs.classes.empty() ? 0 : inputs.classes[d]);
  const double again = load.recomputed_fraction() * pass.forward_seconds;
  const double seconds =
      inputs.forward_only ? pass.forward_seconds : pass.forward_seconds + again + pass.backward_seconds;
  return inputs.speeds.empty() ? seconds : seconds / inputs.speeds[d];
}

}  // namespace pipewright
