// What a stage costs per minibatch and what a cut carries. The search and `evaluate_plan` bring the sums,
// from different routes, and ask here; stage_times.h and stage_memory.h have what a stage's work takes and
// what it keeps. Those three are the only home of the product's formulas; docs/cost-model.md has them with
// symbols and sources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/pipeline_rules.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/cost/dataflow.h"
#include "optimizer/cost/slow_links.h"
#include "runtime/schedule/turns.h"

namespace pipewright {

/// The most that the nodes of a stage hold for a while, beyond what it keeps. stage_workspace() makes it.
struct StageWorkspace {
  /// Of values, their gradients and operators' own buffers, while no node saves anything in their place.
  int64_t alone_bytes = 0;
  /// The same at the moment at which most is there when gradients come as the backward goes: less the
  /// gradients of parameters that are not there yet. At most alone_bytes; may be negative.
  int64_t with_gradients_bytes = 0;
};

/// Sums over the nodes of one stage, for one minibatch on one device.
struct StageLoad {
  double forward_seconds = 0;
  double backward_seconds = 0;
  double backward_weight_seconds = 0;  ///< of these, for gradients of weights
  double behind_seconds = 0;           ///< of these and all later nodes; only searches under a limit fill it
  double least_seconds = 0;          ///< forward and backward, each node on the device that is fastest at it
  std::vector<PassSeconds> classes;  ///< on devices of the k-th class, at [k - 1]
  int64_t parameter_bytes = 0;       ///< a tied parameter counts once
  int64_t trainable_bytes = 0;       ///< of these, what a gradient exists for
  int64_t buffer_bytes = 0;
  int64_t saved_bytes = 0;  ///< kept for backward, per minibatch in flight
  int64_t held_bytes = 0;   ///< of the values sent on, what no node saves: kept till the backward too
  StageWorkspace workspace = {};
  /// Gradients of the values that nodes with parameters make: what a backward in two parts keeps for the
  /// second.
  int64_t waiting_gradient_bytes = 0;
  int64_t in_bytes = 0;   ///< values that cross the cut before the stage, relayed ones included
  int64_t out_bytes = 0;  ///< the same after the stage
  // Copies of tied parameters (optimizer/cost/tied.h). Searches count one other stage for each parameter.
  int64_t tied_sent_bytes = 0;          ///< of gradients, by one rank before an update
  int64_t tied_held_bytes = 0;          ///< then: what came from the other stages, and the sums
  std::vector<int64_t> tied_with = {};  ///< the other stages; of plans only
  int64_t later_devices = 0;            ///< of all later stages; of chains of stages only
  bool first = true;                    ///< no stage before this one
  bool last = true;
  bool recompute = false;  ///< drops what its forward saved and runs it again before the backward
  // Of a stage that recomputes its last part alone (`recompute_ratio`): what the first part takes and keeps.
  double once_forward_seconds = 0;  ///< of forward_seconds
  int64_t once_saved_bytes = 0;     ///< of saved_bytes
  int64_t once_held_bytes = 0;      ///< of what the last part reads of the first, what no node saves
  bool captured = false;            ///< its passes are started as captured graphs
  bool split = false;   ///< its replicas share each minibatch: all but least_seconds is of the largest part
  bool frozen = false;  ///< nothing in it or before it is trained: no gradient comes to it
  bool after_frozen = false;  ///< nothing before it is trained: it sends no gradient
  bool in_stays = false;      ///< the stage before it is on the same rank: nothing comes in over a link
  bool out_stays = false;     ///< the same of the stage behind it

  double recompute_seconds() const { return recompute ? forward_seconds - once_forward_seconds : 0; }
  /// Of the forward, by time; the same on devices of every class.
  double recomputed_fraction() const {
    if (!recompute) return 0;
    return forward_seconds > 0 ? recompute_seconds() / forward_seconds : 1;
  }
  double compute_seconds() const { return forward_seconds + recompute_seconds() + backward_seconds; }
  /// On a device of the class; 0: none.
  PassSeconds pass_seconds(int device_class) const {
    if (device_class == 0) return {forward_seconds, backward_seconds};
    return classes[static_cast<size_t>(device_class) - 1];
  }
};

/// Makes of the times that a stage's nodes compute what its passes take where a device's host launches
/// kernels one by one: launched_seconds() of graph/profile.h. A stage that is captured keeps its times.
/// Prices have it; searches, which take the times of stages as sums over nodes, leave it out.
/// With device classes all times grow by `class_factors` (Dataflow).
void set_launched(const PassSeconds& launch, const PassSeconds& gaps,
                  const std::vector<double>& class_factors, StageLoad* load);

/// What a profile says of an update (ProfiledWhole), and of how many trainable bytes.
struct UpdateCosts {
  double bytes = 1;
  double step_seconds = 0;  ///< the old weights left as they are
  ProfiledUpdate parts = {};
};

/// What is the same for all stages of one problem.
struct CostInputs {
  double bandwidth_bytes_per_second = 0;  ///< of each device, in each direction; of level 0
  double latency_seconds = 0;
  // What ends of messages take of a rank's core on the links of level 0; prices have them, and those of
  // further levels.
  double core_seconds_per_message = 0;
  double core_seconds_per_byte = 0;
  /// Of messages from one rank to another, on every level: their senders are free of so many.
  int64_t buffered_bytes = 0;
  double exchange_factor = 1;  ///< of a byte's time in a sum over replicas, Topology::exchange_factor()
  /// Of two members or more; prices have what sums of several sizes take there, where that is longer.
  std::vector<TopologyLevel> exchange_levels = {};
  /// Of the slowest class that is there. Searches have the step in place, prices all (stage_times.h).
  UpdateCosts update = {};
  /// What ranks of one host take from each other: those of an innermost group. Prices have it, for as many as
  /// the plan has there; searches leave it out. Nothing where hosts are not as the profile's was.
  std::optional<ProfiledCrowd> crowd = {};
  int64_t host_ranks = 1;        ///< devices of an innermost group
  HostFactors factors = {};      ///< Topology::factors; prices have them
  SharedCores cores = {};        ///< Topology::cores; prices have them
  bool sums_take_cores = false;  ///< a sum over replicas is work for the cores of one host
  /// NCCL makes sums over replicas, in rings through the hosts; otherwise ranks exchange directly. Prices
  /// have it.
  bool sums_in_rings = false;
  /// A minibatch of input, made by one thread beside the first stage: on a host (`loads_beside` false) it
  /// takes so much of the cores that compute, beside a device it goes on meanwhile. Prices have it.
  double input_seconds = 0;
  bool loads_beside = false;
  int64_t input_threads = 1;  ///< of a rank, which share it; PlanCost has them for a plan on devices
  // Of devices: what makes input for a rank, if the plan says how many there are (graph/data_workers.h).
  int64_t data_workers = 0;  ///< of the run; 0: one for each core that is left
  int64_t host_cores = 0;    ///< 0: not known
  int64_t compute_threads = 1;
  int64_t optimizer_slots = 1;
  // Of a device's memory: what libraries keep there for each stream that computes, a minibatch of input, and
  // the same as it travels there.
  int64_t library_bytes = 0;
  int64_t input_bytes = 0;
  int64_t uploaded_bytes = 0;
  // How the plan is to run (docs/semantics.md).
  WeightRule weights = WeightRule::kStash;
  /// Minibatches from one update of all stages to the next (flush, 2bw); 0: a round of the stage.
  int64_t minibatches_per_update = 0;
  /// Of a stage whose replicas' shares are chosen; 0: any.
  int64_t most_minibatches_of_round = 0;
  int64_t pipeline_depth = 0;   ///< vertical only: depth of the first trained stage
  bool split_backward = false;  ///< what is saved is kept until the second part of the backward, later on
  bool forward_only = false;    ///< a plan for inference: no backward, no exchange, no update
  bool one_at_a_time = false;   ///< minibatches, so that nobody reads old weights
  /// Where devices are not all alike on one level of links of their own: levels of two members or more, from
  /// the inside out, and by device its speed and memory (0 = no limit). All empty otherwise.
  std::vector<TopologyLevel> levels;
  std::vector<double> speeds;
  std::vector<int> classes;  ///< by device, classes_of_devices(); speeds are then there too
  /// By device, where speeds are: no node takes less there than its least seconds divided by this.
  std::vector<double> paces;
  std::vector<int64_t> memories;
  SlowLinks slow_links =
      {};  ///< prices and floors have them; with levels, even if it is one of equal devices

  /// Each device has a link of its own to all others.
  bool own_links() const { return levels.empty() || (levels.size() == 1 && !levels[0].shared); }
  /// As on one level of equal devices, of level 0's bandwidth.
  void forget_devices();
  bool placed() const { return !levels.empty() || devices_differ(); }
  bool devices_differ() const { return !speeds.empty() || !memories.empty() || !slow_links.empty(); }
  /// Whether no price tells the two devices apart, but for where they are.
  bool same_kind(int64_t a, int64_t b) const;
};

/// Minibatches from one update of a stage to its next. `turn`: one of each replica, or its share. Where a
/// minibatch crosses one update at most, the depth decides (StageTurns::round_length()): then it is the round
/// of a stage that runs as far ahead as there are devices behind it. Plans are not made deeper than that
/// (choose_depths()), or updates of more and more minibatches would pass for a faster pipeline.
int64_t minibatches_of_update(int64_t turn, int64_t later_devices, const CostInputs& inputs);

/// Fills in StageLoad::later_devices.
void set_later_devices(const std::vector<int64_t>& replicas, std::vector<StageLoad>* loads);

/// Period of a stage: seconds per minibatch at which all its replicas together pass minibatches on, split by
/// cause. Work of the device (compute, reduction, update) and traffic of its link run beside each other; each
/// kind is a sum.
struct StagePeriod {
  double compute_seconds = 0;
  double gradient_sync_seconds = 0;
  double step_seconds = 0;
  double link_seconds = 0;
  double device_seconds() const { return compute_seconds + gradient_sync_seconds + step_seconds; }
  double total_seconds() const { return std::max(device_seconds(), link_seconds); }
  /// The largest cause within the larger side: "compute", "gradient sync", "weight update" or "transfer".
  const char* binding() const;
};

/// What a stage spends on one minibatch, for any number of replicas. Exchange and step come once for a
/// minibatch of each replica, or less often where the stage runs ahead and no minibatch may cross two
/// updates.
struct StageTerms {
  double compute_seconds = 0;
  double exchange_seconds = 0;          ///< of gradients; m replicas take (m - 1) / m of it
  double exchange_latency_seconds = 0;  ///< from two replicas on
  double step_seconds = 0;
  /// Where an update covers a given number of minibatches, exchange (from two replicas on) and step are
  /// these, for one minibatch, and not those above.
  double interval_exchange_seconds = 0;
  double interval_step_seconds = 0;
  double interval_tied_seconds = 0;  ///< exchange with other stages' copies, for one minibatch; any replicas
  /// On a rank's link: of the values before the stage, and of those after it.
  double link_in_seconds = 0;
  double link_out_seconds = 0;
  bool link_takes_both = true;  ///< one after the other; otherwise the longer counts
  bool split = false;      ///< replicas share each minibatch: a round has one, of which these are the parts
  int64_t runs_ahead = 0;  ///< minibatches, which must not cross two updates; 0: any number may

  double link_seconds() const {
    return link_takes_both ? link_in_seconds + link_out_seconds : std::max(link_in_seconds, link_out_seconds);
  }
  /// From 2 replicas on it never grows with them; it is at least compute / replicas.
  StagePeriod period(int64_t replicas) const {
    const auto m = static_cast<double>(replicas);
    const double minibatches = split ? 1 : m;  // of a turn of the replicas
    const auto update = static_cast<double>(round_that_bounds_crossing(split ? 1 : replicas, runs_ahead));
    StagePeriod period;
    period.compute_seconds = compute_seconds / minibatches;
    if (replicas > 1) {
      period.gradient_sync_seconds =
          (exchange_latency_seconds + exchange_seconds * ((m - 1) / m)) / update + interval_exchange_seconds;
    }
    period.gradient_sync_seconds += interval_tied_seconds;
    period.step_seconds = step_seconds / update + interval_step_seconds;
    period.link_seconds = link_seconds() / minibatches;
    return period;
  }
};

/// Compute, exchange and step are sums over the nodes of the stage; the link depends on what it takes in and
/// sends on. Nothing falls when seconds or bytes of the load grow: bounds rely on it.
StageTerms stage_terms(const StageLoad& load, const CostInputs& inputs);
StagePeriod stage_period(const StageLoad& load, int64_t replicas, const CostInputs& inputs);

/// Bytes at a cut: each value made before it and read after it, once.
int64_t live_bytes(const Dataflow& flow, const NodeSet& done);

/// Of these, what the makers do not save for their own backward.
int64_t unsaved_live_bytes(const Dataflow& flow, const NodeSet& done);

/// Whether at least as many ranks were measured at a time as ever compute at a time on an innermost group of
/// the topology: a host with more devices is another machine.
bool is_measured_on_such_hosts(const ProfiledCrowd& crowd, const Topology& topology);

/// InputError for a topology that the model does not describe, and as classes_of_devices() and Dataflow say.
CostInputs cost_inputs(const Profile& profile, const Topology& topology, int64_t optimizer_slots,
                       const ClassProfiles& classes = {});

/// What a minibatch of the load takes on a device: forward, backward, and forward again where it recomputes;
/// the forward alone where there is no more.
double compute_seconds_on(const StageLoad& load, const CostInputs& inputs, int64_t device);

}  // namespace pipewright
