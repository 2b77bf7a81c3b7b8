#include "optimizer/cost/cost_model.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/rows.h"
#include "optimizer/cost/formulas.h"

namespace pipewright {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- pipewright: the default
// ----------------------------------------------------------------------------------------

// A replica needs compute + all-reduce + update for one minibatch of a round; the round has `replicas` of
// them. Beside that its link carries, in each direction, the activations of one boundary and the gradients of
// the other.
StageTerms pipewright_terms(const StageLoad& load, const CostInputs& inputs) {
  StageTerms terms;
  terms.compute_seconds = load.compute_seconds();
  if (load.trainable_bytes > 0) {
    terms.exchange_seconds =
        all_reduce_link_seconds(exchanged_bytes(load, inputs), 1, inputs.bandwidth_bytes_per_second);
    terms.exchange_latency_seconds = all_reduce_latency_seconds(inputs.latency_seconds);
  }
  terms.step_seconds = step_seconds(load, inputs);
  if (inputs.minibatches_per_update > 0) {
    // One update for so many minibatches of all replicas. The exchange grows a little with the replicas,
    // which a period must not: it is taken for that of any number, at most twice too much.
    const auto interval = static_cast<double>(inputs.minibatches_per_update);
    terms.interval_exchange_seconds = (terms.exchange_seconds + terms.exchange_latency_seconds) / interval;
    terms.interval_step_seconds = terms.step_seconds / interval;
    terms.interval_tied_seconds = tied_seconds(load, inputs) / interval;
    terms.exchange_seconds = terms.exchange_latency_seconds = terms.step_seconds = 0;
  }
  if (!load.first)
    terms.link_in_seconds = message_seconds(static_cast<double>(load.charged_in_bytes), inputs);
  if (!load.last)
    terms.link_out_seconds = message_seconds(static_cast<double>(load.charged_out_bytes), inputs);
  terms.link_takes_both = !load.frozen;  // in comes what the other direction does not carry back
  return terms;
}

bool costs_nothing(const Dataflow& flow, int v) {
  const ProfiledNode& node = flow.profile.nodes[v];
  double slowest = node.compute_seconds();
  for (const std::vector<PassSeconds>& nodes : flow.class_seconds)
    slowest = std::max(slowest, nodes[v].forward_seconds + nodes[v].backward_seconds);
  return slowest == 0 && node.parameter_bytes == 0 && node.buffer_bytes == 0 && node.parameters.empty();
}

// A node that costs nothing and reads nothing but inputs of the graph (or other such nodes) never does better
// in an earlier stage than in that of its reader: there it is not sent, and no more is kept than would have
// come in. With several readers the value may have to be sent on from there; so only one reader is surely
// safe.
NodeSet free_sources(const Dataflow& flow) {
  NodeSet free(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = flow.profile.nodes[v];
    if (!costs_nothing(flow, v) || flow.successors[v].size() != 1) continue;
    const int reader = flow.successors[v][0];
    if (costs_nothing(flow, reader) && flow.successors[reader].empty()) continue;  // see free_sinks
    int64_t made = 0;
    for (const ProfiledValue& output : node.outputs) made += output.bytes;
    int64_t kept = node.saved_bytes;  // with all that would come along
    const NodeSet& along = flow.ancestors[v];
    for (size_t p = along.find_first(); p != NodeSet::npos; p = along.find_next(p)) {
      kept += flow.profile.nodes[p].saved_bytes;
    }
    if (kept <= made && along.is_subset_of(free)) free.set(v);
  }
  return free;
}

// The mirror image: a node that costs nothing and that nobody reads is best off where what it reads is made.
NodeSet free_sinks(const Dataflow& flow, bool memory_limited) {
  NodeSet free(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = flow.profile.nodes[v];
    const bool reads = !flow.predecessors[v].empty();
    if (!costs_nothing(flow, v) || !flow.successors[v].empty() || !reads) continue;
    if (!memory_limited || node.saved_bytes == 0) free.set(v);
  }
  return free;
}

// ---- pipedream: what its optimizer computes, with activation traffic costed
// ------------------------------------------

double pipedream_out_seconds(const StageLoad& load, const CostInputs& inputs) {
  return link_seconds(static_cast<double>(load.charged_out_bytes), inputs.bandwidth_bytes_per_second,
                      Duplex::kHalf);
}

StageTerms pipedream_terms(const StageLoad& load, const CostInputs& inputs) {
  const double bandwidth = inputs.bandwidth_bytes_per_second;
  StageTerms terms;
  terms.compute_seconds = load.compute_seconds();
  terms.exchange_seconds =
      all_reduce_link_seconds(static_cast<double>(load.parameter_bytes), 1, bandwidth, Duplex::kHalf);
  // The first stage never pays its outgoing cut with its own replicas: only later stages look at a cut, as
  // their X_in.
  terms.link_takes_both = false;
  if (!load.first) {
    terms.link_in_seconds =
        link_seconds(static_cast<double>(load.charged_in_bytes), bandwidth, Duplex::kHalf);
    if (!load.last) terms.link_out_seconds = pipedream_out_seconds(load, inputs);
  }
  return terms;
}

// In one server: the first stage pays for its cut too.
StageTerms shared_nic_terms(const StageLoad& load, const CostInputs& inputs) {
  StageTerms terms = pipedream_terms(load, inputs);
  if (!load.last) terms.link_out_seconds = pipedream_out_seconds(load, inputs);
  return terms;
}

// "__getitem__" nodes that nobody reads do not exist for it.
NodeSet pipedream_dropped(const Dataflow& flow, bool /*memory_limited*/) {
  NodeSet dropped(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    if (flow.successors[v].empty() && flow.profile.nodes[v].layer.rfind("__getitem__", 0) == 0)
      dropped.set(v);
  }
  return dropped;
}

// A state of the original is an antichain, enlarged by every ancestor p of an element x that still has a
// reader other than x and x's ancestors. Each x is looked at alone: where the antichain is wide, a fork that
// all branches have read already counts again. Kept as it is, so that its published numbers come out.
int64_t pipedream_cut_bytes(const Dataflow& flow, const NodeSet& done) {
  if (done.none() || done.all()) return 0;
  const NodeSet dropped = pipedream_dropped(flow, false);
  NodeSet state(flow.size());
  for (size_t x = done.find_first(); x != NodeSet::npos; x = done.find_next(x)) {
    if (dropped.test(x)) continue;
    const auto& after = flow.successors[x];
    if (std::any_of(after.begin(), after.end(), [&](int r) { return done.test(r) && !dropped.test(r); }))
      continue;
    state.set(x);
    const NodeSet& known = flow.ancestors[x];
    for (size_t p = known.find_first(); p != NodeSet::npos; p = known.find_next(p)) {
      for (const int reader : flow.successors[p]) {
        if (!dropped.test(reader) && !known.test(reader) && reader != static_cast<int>(x)) state.set(p);
      }
    }
  }
  int64_t bytes = 0;
  for (size_t x = state.find_first(); x != NodeSet::npos; x = state.find_next(x)) {
    for (const ProfiledValue& output : flow.profile.nodes[x].outputs) bytes += output.bytes;
  }
  return bytes;
}

// It walks from the first source; what does not hang on that one joins with its first reader.
NodeSet pipedream_late(const Dataflow& flow) {
  NodeSet late(flow.size());
  for (int v = 1; v < flow.size(); ++v) late.set(v, !flow.ancestors[v].test(0));
  return late;
}

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

const char* StagePeriod::binding() const {
  if (link_seconds > device_seconds()) return "transfer";
  if (compute_seconds >= gradient_sync_seconds && compute_seconds >= step_seconds) return "compute";
  return gradient_sync_seconds >= step_seconds ? "gradient sync" : "weight update";
}

const std::vector<CostModel>& cost_models() {
  static const std::vector<CostModel> models = {
      {"pipewright", "what this runtime does: transfers beside compute, gradient sync and update exposed",
       pipewright_terms, live_bytes, free_sources, free_sinks, true, LevelRule::kDuplex},
      {"pipedream", "the formula of PipeDream's published optimizer, for comparison with its numbers",
       pipedream_terms, pipedream_cut_bytes, pipedream_late, pipedream_dropped, false, LevelRule::kRecursion},
      {"pipedream-shared-nic",
       "the same for stages on any devices in order, with the link that the devices of a server share",
       shared_nic_terms, pipedream_cut_bytes, pipedream_late, pipedream_dropped, false,
       LevelRule::kSharedNic},
  };
  return models;
}

const std::vector<PublishedQuestion>& published_questions() {
  static const std::vector<PublishedQuestion> rows = {
      {PublishedKind::kMaxLoad, "max-load", "least load of the busiest device (Tarnawski et al., 2020)"},
      {PublishedKind::kPiper, "piper", "parallel stages and recomputation (Tarnawski et al., 2021)"},
      {PublishedKind::kDynPipe, "dynpipe", "transfers that do not run beside computing (Yuan et al., 2025)"},
  };
  return rows;
}

const CostModel& cost_model_named(const std::string& name) {
  if (const CostModel* model = find_row(cost_models(), name)) return *model;
  if (find_row(published_questions(), name) != nullptr)
    throw InputError("--objective: '" + name + "' is a question that only `plan` answers");
  std::vector<std::string> known = names_of(cost_models());
  for (const PublishedQuestion& question : published_questions()) known.emplace_back(question.name);
  throw InputError("--objective: '" + name + "' is not a cost model" + suggestion(name, known));
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
    bytes += std::max<int64_t>(0, value.bytes - flow.saved_bytes[value.producer]);
  }
  return bytes;
}

int64_t workspace_bytes(const std::vector<int64_t>& transient, const std::vector<int64_t>& saved,
                        const NodeSet& from, const NodeSet& to) {
  int64_t most = 0;
  int64_t saved_later = 0;
  for (size_t v = transient.size(); v-- > 0;) {
    if (!to.test(v) || from.test(v)) continue;
    most = std::max(most, transient[v] - saved_later);
    saved_later += saved[v];
  }
  return most;
}

CostInputs cost_inputs(const Profile& profile, const Topology& topology, int64_t optimizer_slots,
                       const ClassProfiles& classes) {
  CostInputs inputs;
  for (const TopologyLevel& level : topology.levels) {
    if (level.count > 1) inputs.levels.push_back(level);  // nothing passes the others
  }
  if (inputs.levels.empty()) inputs.levels.push_back(topology.levels.at(0));
  inputs.bandwidth_bytes_per_second = inputs.levels[0].bandwidth_bytes_per_second;
  inputs.latency_seconds = inputs.levels[0].latency_seconds;
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
  const Dataflow flow(profile, classes);
  int64_t trainable = 0;
  for (int v = 0; v < flow.size(); ++v) {
    trainable += flow.trainable_bytes[v];
  }
  const auto take_update = [&](const ProfiledWhole& whole) {
    if (trainable == 0) return;
    const auto bytes = static_cast<double>(trainable);
    const auto take = [&](double* per_byte, double seconds) {
      *per_byte = std::max(*per_byte, seconds / bytes);
    };
    const ProfiledUpdate update = whole.update.value_or(ProfiledUpdate{whole.step_seconds});
    take(&inputs.step_seconds_per_byte, update.step_in_place_seconds);
    take(&inputs.new_version_seconds_per_byte, whole.step_seconds - update.step_in_place_seconds);
    take(&inputs.gradient_add_seconds_per_byte, update.gradient_add_seconds);
    take(&inputs.gradient_copy_seconds_per_byte, update.gradient_copy_seconds);
    take(&inputs.gradient_divide_seconds_per_byte, update.gradient_divide_seconds);
  };
  take_update(profile.whole);
  inputs.crowd = profile.whole.crowd;
  inputs.host_ranks = topology.levels.at(0).count;
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

double compute_seconds_on(const StageLoad& load, const CostInputs& inputs, int64_t device) {
  const auto d = static_cast<size_t>(device);
  const PassSeconds pass = load.pass_seconds(inputs.classes.empty() ? 0 : inputs.classes[d]);
  const double again = load.recomputed_fraction() * pass.forward_seconds;
  const double seconds =
      inputs.forward_only ? pass.forward_seconds : pass.forward_seconds + again + pass.backward_seconds;
  return inputs.speeds.empty() ? seconds : seconds / inputs.speeds[d];
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

int64_t further_versions(int64_t in_flight, const CostInputs& inputs) {
  switch (facts_of(inputs.weights).lag) {
    case WeightLag::kOwnStage:
      return in_flight - 1;
    case WeightLag::kFirstStage:
      return std::max(in_flight, inputs.pipeline_depth) - 1;
    case WeightLag::kInterval:
      return 1;
    case WeightLag::kNone:
      break;
  }
  return 0;
}

StageMemory stage_memory(const StageLoad& load, int64_t replicas, int64_t planned_in_flight,
                         const CostInputs& inputs) {
  const int64_t in_flight = load.frozen ? 1 : planned_in_flight;
  const int64_t weights = load.trainable_bytes;
  // Between forward and backward a stage that recomputes keeps what came in, its buffers as they were, what
  // its sends still hold, and all of the part that runs once; one minibatch at a time has the rest too,
  // unless its backward comes in parts.
  const bool drops = load.recompute && !inputs.split_backward;
  const int64_t of_first_part = load.once_saved_bytes + load.once_held_bytes;
  const int64_t kept =
      load.in_bytes + (load.recompute ? load.buffer_bytes + load.out_bytes + of_first_part : 0);
  const int64_t again = load.saved_bytes + load.held_bytes - (load.recompute ? load.once_saved_bytes : 0);
  const int64_t one_minibatch = again - load.held_bytes + kept;
  // What a backward makes comes beside what is there of its update already: the sum of the minibatches before
  // it, or the place from which replicas sum. The exchange itself holds less: by then a minibatch is gone. An
  // update needs no room: it is in place, or where a version has died. Copies of tied parameters hold what
  // the other stages sent, and the sum, when the backward has freed its activations.
  const bool gathers = replicas > 1 || inputs.minibatches_per_update > replicas;
  const int64_t beside =
      std::max(gathers ? weights : 0, std::max<int64_t>(0, load.tied_held_bytes - one_minibatch));
  StageMemory memory;
  memory.weights_bytes = load.parameter_bytes + load.buffer_bytes;
  memory.versions_bytes = further_versions(in_flight, inputs) * weights;
  memory.gradients_bytes = weights + beside;
  memory.optimizer_bytes = inputs.optimizer_slots * weights;
  memory.activations_bytes = in_flight * kept + (drops ? 1 : in_flight) * again;
  // Receives are posted two messages ahead. A send keeps its message until it is known to have been taken: as
  // many gradients as there are minibatches in flight and one more; of the activations two that are not among
  // those in flight. And the gradient that came in is held while it is used.
  memory.messages_bytes =
      2 * (load.in_bytes + load.out_bytes) + (in_flight + 1) * load.in_bytes + 3 * load.out_bytes;
  // No gradients: what is posted ahead, what is sent and not known to have been taken, and what is made.
  if (load.frozen) memory.messages_bytes = 2 * load.in_bytes + 3 * load.out_bytes;
  memory.workspace_bytes = load.workspace_bytes;
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

double message_seconds(double bytes, const CostInputs& inputs) {
  return message_seconds(bytes, inputs.latency_seconds, inputs.bandwidth_bytes_per_second);
}

bool computes_less_than_messages(const StageLoad& load, const CostInputs& inputs) {
  double messages = 0;
  if (!load.first) messages += message_seconds(static_cast<double>(load.in_bytes), inputs);
  if (!load.last) messages += message_seconds(static_cast<double>(load.out_bytes), inputs);
  return load.compute_seconds() < messages;
}

double exchanged_bytes(const StageLoad& load, const CostInputs& inputs) {
  return inputs.exchange_factor * static_cast<double>(load.trainable_bytes);
}

double step_seconds(const StageLoad& load, const CostInputs& inputs) {
  return static_cast<double>(load.trainable_bytes) * inputs.step_seconds_per_byte;
}

namespace {

/// Minibatches of one update, of all replicas.
int64_t minibatches_of_update(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  if (inputs.minibatches_per_update > 0) return inputs.minibatches_per_update;
  return load.split ? 1 : replicas;
}

/// Whether minibatches in flight read weights that an update replaces.
bool keeps_old_weights(const StageLoad& load, const CostInputs& inputs) {
  if (inputs.one_at_a_time) return false;
  switch (facts_of(inputs.weights).lag) {
    case WeightLag::kOwnStage:
      return !load.last;  // where one minibatch is in flight
    case WeightLag::kFirstStage:
      return !load.first || !load.last;
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
  const double first = replicas > 1 ? inputs.gradient_copy_seconds_per_byte : 0;
  return static_cast<double>(load.trainable_bytes) *
         (first + (own - 1) * inputs.gradient_add_seconds_per_byte) / own;
}

double further_step_seconds(const StageLoad& load, int64_t replicas, const CostInputs& inputs) {
  double per_byte = keeps_old_weights(load, inputs) ? inputs.new_version_seconds_per_byte : 0;
  if (minibatches_of_update(load, replicas, inputs) > 1) per_byte += inputs.gradient_divide_seconds_per_byte;
  return static_cast<double>(load.trainable_bytes) * per_byte;
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
  times.forward_seconds = load.forward_seconds;
  const double gather = gather_seconds(load, replicas, inputs);
  times.backward_seconds = load.backward_seconds + gather;
  times.backward_weight_seconds = load.backward_weight_seconds + gather;
  times.recompute_seconds = load.recompute_seconds();
  times.reduce_seconds = all_reduce_seconds(exchanged_bytes(load, inputs), replicas, inputs);
  times.step_seconds = step_seconds(load, inputs) + further_step_seconds(load, replicas, inputs);
  times.tied_seconds = tied_seconds(load, inputs);
  if (!load.last)
    times.send_activation_seconds = message_seconds(static_cast<double>(load.out_bytes), inputs);
  if (!load.first && !load.after_frozen)
    times.send_gradient_seconds = message_seconds(static_cast<double>(load.in_bytes), inputs);
  return times;
}

StageTimes crowded(StageTimes times, int64_t ranks, const CostInputs& inputs) {
  if (!inputs.crowd || ranks < 2) return times;
  // Measured alone and with so many; in between in proportion, and beyond no worse.
  const double part =
      std::min(1.0, static_cast<double>(ranks - 1) / static_cast<double>(inputs.crowd->ranks - 1));
  const double compute = 1 + part * (inputs.crowd->compute_factor - 1);
  for (double* seconds : {&times.forward_seconds, &times.backward_seconds, &times.backward_weight_seconds,
                          &times.recompute_seconds})
    *seconds *= compute;
  times.step_seconds *= 1 + part * (inputs.crowd->update_factor - 1);
  return times;
}

StagePrediction stage_prediction(const StageLoad& load, int64_t replicas, int64_t in_flight,
                                 const StageTimes& times, const CostInputs& inputs) {
  StagePrediction prediction;
  prediction.compute_seconds = times.forward_seconds + times.recompute_seconds + times.backward_seconds;
  // Out go activations and the gradient of what came in; in come as many bytes: a gradient is as large as its
  // value.
  prediction.send_seconds = times.send_activation_seconds + times.send_gradient_seconds;
  prediction.receive_seconds = prediction.send_seconds;
  prediction.gradient_sync_seconds = times.reduce_seconds + times.tied_seconds;
  prediction.step_seconds = times.step_seconds;
  prediction.memory = stage_memory(load, replicas, in_flight, inputs);
  return prediction;
}

double one_at_a_time_seconds(const std::vector<StageLoad>& loads, const CostInputs& inputs) {
  double seconds = 0;
  for (const StageLoad& load : loads) {
    seconds += load.compute_seconds();
    if (!load.last)
      seconds += (load.frozen ? 1 : 2) * message_seconds(static_cast<double>(load.out_bytes), inputs);
  }
  return seconds;
}

}  // namespace pipewright
