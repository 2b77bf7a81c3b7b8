// Who runs what. Holds no measurements; what the optimizer expected is in `predicted`. May be written by
// hand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/json.h"

namespace pipewright {

/// Bytes on one rank of a stage, by purpose.
struct StageMemory {
  int64_t weights_bytes = 0;   ///< one version of parameters, and buffers
  int64_t versions_bytes = 0;  ///< further weight versions kept for minibatches in flight
  int64_t gradients_bytes = 0;
  int64_t optimizer_bytes = 0;    ///< slots: momentum, moments
  int64_t activations_bytes = 0;  ///< saved for backward, all minibatches in flight, stage inputs included
  int64_t messages_bytes = 0;     ///< boundary tensors being sent or received
  int64_t workspace_bytes =
      0;  ///< largest transient of one node's forward or backward, beyond what is freed by then
  int64_t total_bytes() const {
    return weights_bytes + versions_bytes + gradients_bytes + optimizer_bytes + activations_bytes +
           messages_bytes + workspace_bytes;
  }
  StageMemory& operator+=(const StageMemory& other);
};

StageMemory stage_memory_from_json(JsonReader reader);
Json stage_memory_to_json(const StageMemory& memory);

/// Seconds per minibatch on one replica, except where said.
struct StagePrediction {
  double compute_seconds = 0;  ///< forward + backward of one minibatch on one rank
  double send_seconds = 0;     ///< boundary traffic of one minibatch, both directions, leaving this rank
  double receive_seconds = 0;  ///< the same, arriving
  double gradient_sync_seconds = 0;  ///< one all-reduce (per round)
  double step_seconds = 0;           ///< one weight update (per round)
  StageMemory memory;
};

struct Prediction {
  double minibatch_seconds = 0;          ///< steady state: one minibatch leaves the pipeline every so often
  std::string bottleneck;                ///< "stage 1: compute"
  std::string transfers = "overlapped";  ///< assumed: beside compute, or "blocking" both ends
  double lower_bound_seconds = 0;        ///< no plan of the searched family is faster
  double samples_per_second = 0;         ///< 0 when the profile does not know its minibatch size
  int64_t shared_cores = 0;              ///< that ranks of a machine take turns on; 0: each has its own
  std::vector<StagePrediction> stages;
};

struct Stage {
  std::vector<std::string> layers;  ///< for people; not checked
  std::vector<std::string> nodes;   ///< in graph order; each node of the graph is in exactly one stage
  std::vector<int64_t> ranks;       ///< replica q runs on ranks[q]
  int64_t in_flight = 1;            ///< depth: most minibatches of one rank between forward and backward
  /// Optional: replica q takes shares[q] of every sum(shares) consecutive minibatches. Empty: 1 each.
  std::vector<int64_t> shares;
  /// Optional: all replicas take part in every minibatch, replica q with samples in proportion to split[q]
  /// (graph/sample_ranges.h). Empty: they take whole minibatches in turns.
  std::vector<int64_t> split;
  bool splits() const { return split.size() > 1; }
  bool recompute = false;  ///< activations are dropped after the forward and made again before the backward
  /// With `recompute`, in (0, 1]: of this part of its nodes, the last ones (graph/recomputed_part.h).
  double recompute_ratio = 1;
  bool frozen = false;  ///< nothing of it is trained: no gradient enters or leaves it
};

/// A parameter that nodes of several stages read. Each of them keeps a copy; the gradients of an update are
/// summed over the stages in this order, so that all copies make the same update.
struct TiedParameter {
  std::string name;
  std::vector<int64_t> stages;  ///< ascending, two or more
};

struct Plan {
  static constexpr const char* kSchema = "pipewright.plan/1";

  std::string model;
  std::string graph_digest;     ///< "" = not known (optional key): then only names are compared
  std::string profile_digest;   ///< optional key
  std::string topology_digest;  ///< optional key
  std::string device_passes;  ///< optional key: Profile::device_passes(); a run with "auto" has them on a GPU
  std::string strategy;       ///< of strategies(), graph/strategies.h
  std::string schedule = "1f1b";
  std::string weights = "stash";
  /// With weights "flush" and "2bw": minibatches from one update to the next, the same at every stage. What
  /// travels is a whole minibatch of `batch_size` samples.
  int64_t microbatches = 1;
  /// Schedule "custom" only: what the rank of each stage with ranks of its own does between two updates, as
  /// runtime/schedule/schedule.h writes actions: "F0 F1 B0 B1", with the stage where a rank has several:
  /// "0F0 3F0 3B0 0B0".
  std::vector<std::string> order;
  int64_t world_size = 0;
  /// How many of the model's layers, from the front, it takes as frozen: they run forward only. Stages that
  /// hold nothing else may be `frozen`. 0: all that can be trained is.
  int64_t frozen_layers = 0;
  std::vector<Stage> stages;
  std::vector<TiedParameter> tied_parameters;
  std::optional<Prediction> predicted;

  static Plan from_json(JsonReader& reader);
  Json to_json() const;
  /// Ranks are 0..world_size-1, each in one stage (schedules with several stages on a rank: the first p
  /// stages hold each rank once, stage s has the ranks of stage s mod p, with V-shaped schedules those of
  /// stage 2p - 1 - s; of "custom" any of these); no node twice; no stage without ranks; frozen stages
  /// stand before all others, and the last one is trained. Names of schedules are checked where schedules are
  /// (check_schedule_and_weights), so is `order`.
  void validate(const std::string& where) const;

  std::string shape_text() const;  ///< replicas of the stages: "3-1", "1-1-1"
  /// Ranks have two stages each, the first and the last on one: stages s and 2p - 1 - s.
  bool v_shaped() const;
  /// Backwards come in two parts: gradients of a stage's inputs first, those of its weights later. Of
  /// "custom" they do if a backward in its order does.
  bool splits_backward() const;
  int64_t frozen_stages() const;  ///< how many are frozen, the first ones
  /// Depth of the first stage that is trained, by which weights `vertical` go at every stage; 0: there is
  /// none.
  int64_t first_trained_depth() const;
};

/// PlanError unless the schedule is one that trains and the version rule goes with it, and
/// `tied_parameters` with the rule; the message says which do.
void check_schedule_and_weights(const Plan& plan);

/// One stage that holds the whole graph, on `replicas` ranks: one device, or data parallel.
Plan single_stage_plan(const Graph& graph, int64_t replicas);

/// PlanError unless the plan covers exactly the nodes of `graph` and no value flows from a later stage to an
/// earlier one, `tied_parameters` are exactly those read by several stages, no set of graph.together is
/// separated, and stages with `split` can have it (check_split_stages of graph/sample_ranges.h). If the plan
/// has a graph_digest, it is that of the graph (graph/graph_identity.h), whatever its model is called. The
/// message names the node, the new layer or the two minibatch sizes.
void check_plan_for_graph(const Plan& plan, const Graph& graph);

}  // namespace pipewright
