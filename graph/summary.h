// What a run did. Written by rank 0 when the run ends, also when it ends early.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/plan.h"

namespace pipewright {

struct EvaluationSummary {
  double loss = 0;
  double top1 = 0;  ///< fraction of 1; NaN is written as null: the model has no scores
  int64_t samples = 0;
  // Optional keys, of data that asks questions: means over these. NaN: it asks none.
  double exact_match = std::numeric_limits<double>::quiet_NaN();  ///< 0..1
  double f1 = std::numeric_limits<double>::quiet_NaN();           ///< 0..1
  /// Fraction whose label is among the five largest scores. Optional key; NaN: no scores, or of five classes
  /// or fewer.
  double top5 = std::numeric_limits<double>::quiet_NaN();
};

/// Tensors of a rank by purpose, as counted by the allocator hook: of each purpose the most there was at a
/// time, so the sum may exceed the peak of the whole.
struct MeasuredMemory {
  int64_t weights_bytes = 0;      ///< one version of the parameters
  int64_t versions_bytes = 0;     ///< further weight versions
  int64_t gradients_bytes = 0;    ///< made by backwards: of weights, and on the way there
  int64_t optimizer_bytes = 0;    ///< slots: momentum, moments
  int64_t activations_bytes = 0;  ///< made by forwards: saved for the backward, and on the way there
  int64_t messages_bytes = 0;     ///< received, or on their way
  int64_t other_bytes = 0;        ///< data, buffers of the model, what else
};

/// What a rank's training took. Of the thread that computes; what LibTorch's other threads do beside it is
/// not seen.
struct MeasuredTimes {
  int64_t minibatches = 0;       ///< whose forwards this rank ran
  double trained_seconds = 0;    ///< wall time of training
  double busy_seconds = 0;       ///< inside forward, backward and update; waiting for samples included
  double load_wait_seconds = 0;  ///< waiting for samples
  double cpu_seconds = 0;        ///< of a core, within the busy time but the waiting
  double injected_seconds = 0;   ///< of the busy time: waits of --disturb. Optional key

  /// Of a core, while there was something to compute: 1 = nobody took it away. 1 where nothing was computed.
  double core_share() const;
};

/// What came of the values that a rank kept of frozen layers (--cache).
struct CacheSummary {
  int64_t fetched = 0;   ///< samples that were fetched and not computed
  int64_t deepened = 0;  ///< samples that were computed from values of fewer frozen layers
  int64_t computed = 0;  ///< samples that were computed from the beginning
  int64_t evicted = 0;   ///< samples for which there was no room any more
  int64_t damaged = 0;   ///< samples that were found with other bytes than were kept: computed again
  double fetch_seconds = 0;
  double compute_seconds = 0;
  int64_t memory_bytes = 0;  ///< of the rank's host, the most there was at a time; and so the next
  int64_t disk_bytes = 0;
  std::string refused;  ///< "", or why nothing was kept under the last plan

  static CacheSummary from_json(JsonReader reader);
  Json to_json() const;
};

struct RankSummary {
  int64_t rank = 0;
  int64_t stage = 0;
  int64_t replica = 0;
  std::string host;
  double busy_fraction = 0;  ///< time inside forward, backward, step over wall time of training
  double receive_wait_seconds = 0;
  double sync_wait_seconds = 0;
  int64_t peak_memory_bytes = 0;       ///< tensors, as counted by the allocator hook
  int64_t predicted_memory_bytes = 0;  ///< 0 = the plan does not say
  int64_t sent_bytes = 0;
  int64_t peak_in_flight = 0;
  int64_t peak_weight_versions = 0;
  int64_t updates = 0;
  /// Of pipelines side by side: how far its weights were from the mean of the replicas' where they drained,
  /// as a part of the mean's norm, at most. Optional key.
  double largest_spread = 0;
  /// Of its stages' last weights, one after the other: equal for replicas. Optional key; "": not said.
  std::string weights_digest{};
  std::string device{};  ///< optional key; "": not said. "cuda:0 (NVIDIA ...)"
  int64_t allocated_bytes =
      0;                       ///< optional key: the most that LibTorch's allocator of a device had given out
  int64_t reserved_bytes = 0;  ///< optional key: and the most that it had taken from the device
  /// Optional keys of the host's memory: the most that the process had, libraries included; and what its
  /// allocator kept for further tensors when the training ended. 0: not known.
  int64_t peak_resident_bytes = 0;
  int64_t cached_bytes = 0;
  MeasuredMemory memory{};                        ///< optional key
  std::optional<StageMemory> predicted_memory{};  ///< optional key; absent: the plan does not say
  std::optional<MeasuredTimes> times{};           ///< optional key
  std::optional<CacheSummary> cache{};            ///< optional key; absent: the rank kept nothing
  std::string cuda_graphs{};  ///< optional key; "": not asked for. "used", "not used: ", or both, and why
};

/// What a rank did in an epoch of training; what it waited for or did beside that is in none of these.
struct EpochTimes {
  double load_seconds = 0;     ///< waiting for samples, kept or read
  double forward_seconds = 0;  ///< without that
  double backward_seconds = 0;
  double update_seconds = 0;
  double reduce_seconds = 0;   ///< sums over replicas
  double receive_seconds = 0;  ///< waiting for messages
  double change_seconds = 0;   ///< state to its new ranks, stages made anew; not the drain, which is waiting
  double cache_seconds = 0;    ///< fetching kept values, most of it beside the rest

  EpochTimes& operator+=(const EpochTimes& other);
};

/// An epoch as it was trained, under the plan that was in force at its end.
struct EpochSummary {
  int64_t epoch = 0;
  int64_t minibatches = 0;  ///< of it that this process's run trained
  std::string plan;         ///< its file in the run folder
  int64_t frozen_layers = 0;
  int64_t ranks = 1;
  int64_t update_samples = 0;  ///< of an update, at the stage with most: the global batch
  double learning_rate = 0;    ///< of its last update
  double seconds = 0;          ///< of training and changing, of the rank that took longest
  double samples_per_second = 0;
  EpochTimes times;                                 ///< mean over the ranks that took part
  int64_t fetched = 0, deepened = 0, computed = 0;  ///< as in CacheSummary, of all ranks
  int64_t cache_bytes = 0;  ///< of the host with most by its end, the most there was at a time

  static EpochSummary from_json(JsonReader& reader);
  Json to_json() const;
};

/// Of a generation with which the ranks have started anew: its reason begins so.
inline constexpr const char* kLossReason = "loss: ";

/// A plan in force, of a run whose plans change.
struct GenerationSummary {
  int64_t number = 0;           ///< changes of the plan before it, from the begin of the run on
  int64_t first_minibatch = 0;  ///< that it trained
  std::string plan;             ///< its file in the run folder
  std::string reason;         ///< "start", "resume", kLossReason and why, or the policy that made the change
  int64_t ranks = 1;          ///< that take part; further ones wait
  int64_t frozen_layers = 0;  ///< optional key
  double drain_seconds = 0;   ///< of the plan before, on rank 0: nothing was left to begin with
  double move_seconds = 0;    ///< weights, buffers and optimizer state to their new ranks
  double start_seconds = 0;   ///< until the stages were ready
  int64_t moved_bytes = 0;    ///< between all ranks
  // Optional keys; 0: not known.
  int64_t period_minibatches = 1;          ///< after which the pattern of its ranks' turns repeats
  double predicted_minibatch_seconds = 0;  ///< by its plan
  int64_t minibatches = 0;                 ///< that it has trained, until the next one or the end
  double minibatch_seconds = 0;            ///< steady state, median
  double last_minibatch_seconds = 0;       ///< likewise, of its last minibatches: what a change was to mend

  /// A policy made it: not where the run begins or goes on, after a loss with other ranks too, as nobody had
  /// the choice.
  bool is_change() const;
  static GenerationSummary from_json(JsonReader& reader);
  Json to_json() const;
};

/// The ranks have started anew, as one of them was lost. docs/recovery.md
struct RecoverySummary {
  int64_t attempt = 1;            ///< which start of the ranks, from 0
  int64_t next_minibatch = 0;     ///< where it went on
  int64_t again_minibatches = 0;  ///< that had been told of, and were trained a second time
  std::string reason;             ///< what became of the attempt before
  std::string from;               ///< "memory", "checkpoint", "start": how the state was kept
  int64_t ranks = 1;              ///< that went on
  double seconds = 0;  ///< from when the loss was noticed to the first minibatch that was done again or anew

  static RecoverySummary from_json(JsonReader& reader);
  Json to_json() const;
};

/// How pipelines side by side were held together.
struct SyncSummary {
  std::string rule;       ///< SPEC (graph/sync_rules.h)
  int64_t pipelines = 2;  ///< of the last plan
  /// Where groups come about by arrival: how many there were of 1, 2, ... members, at all stages. The
  /// process's own: not those of a run that it goes on from.
  std::vector<int64_t> group_sizes;
  int64_t columns =
      0;  ///< updates at which all waited for all, so that the groups connect all pipelines in time
  /// The most updates of a pipeline, in the mean over all, until the groups of a stage had connected all.
  double longest_window_updates = 0;

  static SyncSummary from_json(JsonReader reader);
  Json to_json() const;
};

struct Summary {
  static constexpr const char* kSchema = "pipewright.summary/2";

  std::string status;  ///< "done", "interrupted", "failed"
  int64_t world_size = 1;
  bool emulated = false;  ///< optional key: one process trained what the plan's ranks would
  std::string strategy;
  std::string schedule;
  std::string weights;
  int64_t minibatches = 0;
  int64_t samples = 0;
  /// Optional key: of `minibatches` those before it were trained before the process began, by the run that
  /// this one goes on from; its times are without them.
  int64_t first_minibatch = 0;
  int64_t cores =
      0;  ///< that rank 0's process may use: with fewer than ranks on a host, times are shared; 0 = unknown
  double wall_seconds = 0;
  double minibatch_seconds = 0;            ///< steady state, median
  double samples_per_second = 0;           ///< steady state
  double predicted_minibatch_seconds = 0;  ///< 0 = the plan does not say
  double minibatch_flops = 0;   ///< optional key: of the model, forward and backward; 0 = not counted
  double flops_per_second = 0;  ///< optional key: of them, steady state
  double train_loss = 0;        ///< mean over the last epoch's minibatches
  std::optional<EvaluationSummary> evaluation;  ///< the last one
  std::vector<GenerationSummary> generations;   ///< optional key; empty: the run's plan did not change
  std::vector<RecoverySummary> recoveries;      ///< optional key; empty: no rank was lost
  /// Optional key; of a run of several epochs or changes the last ones, kMostEpochs at most.
  std::vector<EpochSummary> epochs;
  static constexpr size_t kMostEpochs = 1000;
  std::optional<SyncSummary> sync;  ///< optional key; absent: replicas were held equal
  std::vector<RankSummary> ranks;

  /// That were trained in the times that it says.
  int64_t own_minibatches() const { return minibatches - first_minibatch; }
  /// Whether rank 0's host has more ranks than cores for them: such times say nothing about a plan.
  bool ranks_share_cores() const;
  /// Whether ranks have counted under several plans: their times then say nothing about the last one.
  bool counts_several_plans() const;

  static void upgrade(Json& json);
  static Summary from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;
};

}  // namespace pipewright
