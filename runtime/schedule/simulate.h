// Discrete-event simulation of a schedule with times. Because a schedule leaves no choice open, an action
// begins when the one before it on its rank has ended and what it waits for is there; so the simulation is
// exact for its assumptions.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/topology.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

class Disturbances;

/// What one rank computes: of a minibatch, and in an update.
struct ReplicaTimes {
  double forward_seconds = 0;
  double backward_seconds = 0;         ///< both parts
  double backward_weight_seconds = 0;  ///< part of backward_seconds
  double recompute_seconds = 0;
  double step_seconds = 0;
  double minibatch_seconds() const { return forward_seconds + recompute_seconds + backward_seconds; }
  /// Of an action that computes.
  double seconds_of(ActionKind kind) const {
    switch (kind) {
      case ActionKind::kForward:
        return forward_seconds;
      case ActionKind::kBackward:
        return recompute_seconds + backward_seconds;
      case ActionKind::kBackwardInput:
        return recompute_seconds + backward_seconds - backward_weight_seconds;
      case ActionKind::kBackwardWeight:
        return backward_weight_seconds;
      default:
        return step_seconds;
    }
  }
  auto operator<=>(const ReplicaTimes&) const = default;
};

/// Seconds of one stage, for one minibatch on one rank. Of a stage that splits its minibatches: of the
/// replica that has most of one; others take as much less, but for their updates, as their part is less. Of a
/// frozen stage only forward and activations count, and nobody sends it gradients, whatever is said here.
struct StageTimes {
  double forward_seconds = 0;
  double backward_seconds = 0;  ///< both parts
  double reduce_seconds = 0;    ///< all-reduce of one round; blocks all replicas of the stage
  double step_seconds = 0;
  double send_activation_seconds = 0;  ///< to the next stage
  double send_gradient_seconds = 0;    ///< to the previous stage
  double backward_weight_seconds = 0;  ///< part of backward_seconds: BW; the rest is BI
  double recompute_seconds = 0;        ///< forward again, at the beginning of B or BI
  double tied_seconds =
      0;  ///< before an update, for what its rank exchanges with other stages' copies of tied parameters
  /// What each replica computes where they are not equally fast; what is said of it above is then of a rank
  /// with the pace that they have together, which nobody is. Empty: each takes what is said above.
  std::vector<ReplicaTimes> replicas = {};
  ReplicaTimes of(int64_t replica) const {
    if (!replicas.empty()) return replicas[static_cast<size_t>(replica)];
    return {forward_seconds, backward_seconds, backward_weight_seconds, recompute_seconds, step_seconds};
  }
  auto operator<=>(const StageTimes&) const = default;
};

/// Bytes that one stage gives to a network.
struct StageMessages {
  int64_t activation_bytes = 0;  ///< to the next stage, a minibatch
  int64_t gradient_bytes = 0;    ///< to the previous stage, a minibatch
  int64_t reduce_bytes = 0;      ///< gradients that a round reduces
};

struct SimulationOptions {
  /// Transfers run beside compute: a message occupies its sender's outgoing link of its kind (activations,
  /// gradients), one after the other, and nobody else. Blocking, its sender computes nothing until it has
  /// arrived, and its receiver for as long, from when it asks for the message, or the transfer begins.
  bool blocking_transfers = false;
  /// A send waits until less than so many messages of its rank, stage and kind have not been asked for. 0:
  /// never, but for the activations of a frozen stage, which have room for 2.
  int64_t send_queue = 0;
  /// Receives asked for beyond the one that was consumed last, for each rank, stage and kind.
  int64_t receive_ahead = 2;
  /// Not empty: messages take what the network gives them instead of StageTimes' seconds. Levels as in a
  /// topology (graph/topology.h): a member of a level has a link of its own to it, each way (level 0: a
  /// device; level 1: a server, for all its devices), or where the level is shared there is one link for all
  /// members. A message passes the links of both ends at all levels up to the one that joins them, after that
  /// level's latency. Links share their bandwidth fairly (max-min) between the messages under way. A reduce
  /// is the direct exchange that the runtime does: after two latencies, 2 / r of the bytes from each replica
  /// to each other one, all at once.
  std::vector<TopologyLevel> network = {};
  std::vector<StageMessages> messages = {};  ///< by stage, for the network
  std::vector<int64_t> devices = {};         ///< by rank, all different; empty: rank k is device k
  /// Where they are too few: forwards, backwards and updates have at most one core each, and while more of a
  /// machine's go on than it has cores, all equally much of them. Not counted where a stage splits its
  /// minibatches, nor for messages.
  SharedCores cores = {};
  /// So do sums over replicas, each rank's, that are not a network's. Otherwise they wait for links alone.
  bool sums_take_cores = true;
  /// Not null: forwards and backwards take longer, as it says. Borrowed. Counts in simulate() alone.
  const Disturbances* disturbances = nullptr;
};

/// A receive begins when its rank is ready for it and ends when the message is there; a send is what its link
/// does; a reduce begins when the last replica has come.
struct SimulatedAction {
  int64_t rank = 0;  ///< in the order of placements()
  Action action;
  double begin_seconds = 0;
  double end_seconds = 0;
  double samples_wait_seconds = 0;  ///< of it; of real runs (timeline_of_trace())
};

struct SimulatedRank {
  Placement placement;
  double busy_seconds = 0;  ///< F, B, BI, BW, U
  double receive_wait_seconds = 0;
  double send_wait_seconds = 0;  ///< blocking transfers, full queues
  double reduce_seconds = 0;     ///< of gradients, waiting for other replicas and copies included
  int64_t peak_in_flight = 0;    ///< over all stages of the rank
  int64_t number = 0;            ///< what it is called: PipelineShape::rank_numbers
};

struct Simulation {
  double total_seconds = 0;
  /// Time per minibatch while the pipeline is full. A minibatch is complete at the end of its backward at
  /// the first stage that is trained (of its forward at the last stage, in a schedule without backward).
  /// Taken are the completions from the middle of the span up to where stage 0 has no more forwards to run;
  /// the value is the mean time between two of them that lie h apart, divided by h, where h is half their
  /// number rounded down to a multiple of the period: the least common multiple of the cycles and rounds of
  /// all stages. (Where there is no such multiple, half their number; where there are not two completions,
  /// total_seconds divided by the minibatches; 0 for an empty span.)
  double steady_minibatch_seconds = 0;
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedAction> actions;  ///< in order of begin time, then rank
};

/// Errors as in check_schedule_shape(); PlanError for a negative span. CheckError if there is not one
/// StageTimes a stage, all finite and not negative, if the network has fewer devices than there are ranks or
/// no messages of each stage, or if the schedule deadlocks (a queue may be too short for it).
Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, Span span, const SimulationOptions& options = {});
/// The first `minibatches` of a run.
Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, int64_t minibatches);
/// Simulation::steady_minibatch_seconds alone, in a fraction of the time.
double steady_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                const std::vector<StageTimes>& times, Span span,
                                const SimulationOptions& options = {});

/// Seconds per minibatch in the long run: what a plan is said to take. The exact cycle time where that is
/// known
/// (`1f1b` on links of its own); where every update drains the pipeline that of whole update intervals;
/// otherwise spans are doubled until the last half of one and the quarter before it agree within 0.2 %. That
/// ends at a few million actions: then what the longest span says. `simulated`, if given, grows by the
/// minibatches simulated times stages, by a quarter of that without a network: what the time spent grows
/// with. On a network, or with `flush`, it ends early well above `most_seconds`, with some number above that.
double settled_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                 const std::vector<StageTimes>& times, const SimulationOptions& options = {},
                                 int64_t* simulated = nullptr,
                                 double most_seconds = std::numeric_limits<double>::infinity());

/// No schedule is faster: the time per minibatch of the busiest rank (forward, recompute, backward, reduce,
/// step) or link; with blocking transfers, those of the rank are added.
double bottleneck_seconds(const PipelineShape& shape, const std::vector<StageTimes>& times,
                          bool blocking_transfers = false);

/// Depths that were chosen as if nothing were shared, to be looked up again: plans that differ in who has
/// which rank ask the same. For one schedule and one set of options but the network.
class KnownDepths {
 public:
  struct Chosen {
    std::vector<int64_t> depths;
    double seconds = 0;
    double most_seconds = 0;  ///< of the aim they were chosen for
    bool ended = false;       ///< the choice went to its end, and would be the same for any such aim
  };
  /// What choosing for at most `most_seconds` came to, if it is known. `shape`: its in_flight bounds each
  /// stage.
  const Chosen* find(const PipelineShape& shape, const std::vector<StageTimes>& times,
                     double most_seconds) const;
  void keep(const PipelineShape& shape, const std::vector<StageTimes>& times, Chosen chosen);

 private:
  std::map<std::pair<PipelineShape, std::vector<StageTimes>>, Chosen> chosen_;
};

/// How far choosing depths goes: a search among plans need not know the best of each.
struct DepthAim {
  double floor_seconds = 0;  ///< no depths take less: on a network a percent more is good enough
  /// More is of no use: spans are short, and the search ends where it is unlikely to come down to that (with
  /// weights stash; with others where it ended far above), with what it has by then.
  double most_seconds = std::numeric_limits<double>::infinity();
  /// Once so much has been simulated the search ends, with depths that may be larger than they need be.
  int64_t most_simulated = std::numeric_limits<int64_t>::max();
  double seconds = 0;     ///< then: settled_minibatch_seconds() of the depths returned, or nearly if more
  int64_t simulated = 0;  ///< then grows as that of settled_minibatch_seconds()
  KnownDepths* known = nullptr;  ///< borrowed; with a network, what is looked up and kept
};

/// Depths for a schedule, for any shape that goes with it but for its in_flight, which bounds each stage
/// (memory).
///
/// 1f1b and 1f1b-flush: small ones (found greedily from the last stage to the first, then each lowered while
/// that costs nothing) with which the simulated steady state is within 1 % of the fastest that can be
/// (bottleneck_seconds(), and where that is out of reach, the fastest that the search meets). On a network
/// they are first chosen by `times`, as if nothing were shared, then deepened as far as that gains
/// (deepening.h). With 2bw the first stage runs at most `microbatches` ahead, or check_schedule_shape() would
/// refuse the depths. They are usable as they are (usable_in_flight() leaves them unchanged). zb-h1: every
/// stage holds what the first stage of pipedream_in_flight() has in flight, as far as the bounds allow.
/// Others: what the schedule takes, whatever the bounds. The same for the same input. Errors as in
/// simulate(). `aim`, if given, is what to aim at, and is told what that came to.
std::vector<int64_t> choose_in_flight(const std::string& schedule, const PipelineShape& shape,
                                      const std::vector<StageTimes>& times,
                                      const SimulationOptions& options = {}, DepthAim* aim = nullptr);
/// For 1f1b with stash, all shares 1.
std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times, const std::vector<int64_t>& most);
/// Without bounds.
std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times);

}  // namespace pipewright
