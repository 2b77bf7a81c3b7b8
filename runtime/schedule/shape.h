// The shape of a pipeline: all that a schedule needs to know of a plan.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/pipeline_rules.h"

namespace pipewright {

/// Stage s runs on the ranks of group s mod groups(). Behind the middle of a V-shaped pipeline of 2p stages
/// it runs on those of stage 2p - 1 - s. Each stage is its own group, unless ranks run several stages. Ranks
/// are numbered group by group, replica by replica.
struct PipelineShape {
  std::vector<int64_t> replicas;   ///< per stage, >= 1
  std::vector<int64_t> in_flight;  ///< per stage, >= 1: depth of each replica, an upper bound
  /// Per stage: one positive share for each replica; empty (the whole, or a stage's): all 1.
  std::vector<std::vector<int64_t>> shares = {};
  /// Per stage: one positive weight for each replica where they share every minibatch in this proportion
  /// (`split` of a plan); empty (the whole, or a stage's): they take minibatches in turns.
  std::vector<std::vector<int64_t>> split = {};
  WeightRule weights = WeightRule::kStash;
  int64_t microbatches = 1;     ///< kFlush and kTwoVersions: minibatches of an update interval
  int64_t accumulation = 1;     ///< cycles of a stage that make one update, but for the two
  int64_t stages_per_rank = 1;  ///< divides the number of stages
  bool v_shaped = false;        ///< stages_per_rank is 2: values go to the last rank and come back
  /// For each tied parameter the stages that hold a copy, ascending: kFlush and kTwoVersions only.
  std::vector<std::vector<int64_t>> tied = {};
  /// What the ranks are called, in the order of placements(); empty: 0, 1, ...
  std::vector<int64_t> rank_numbers = {};
  /// So many stages from the front hold nothing that is trained: their backwards and updates do nothing, and
  /// no gradient comes to them.
  int64_t frozen_stages = 0;
  /// Of schedule "custom": Plan::order.
  std::vector<std::string> order = {};

  int64_t number_of(int64_t rank) const {
    return rank_numbers.empty() ? rank : rank_numbers[static_cast<size_t>(rank)];
  }
  int64_t stages() const { return static_cast<int64_t>(replicas.size()); }
  int64_t groups() const { return stages() / stages_per_rank; }
  int64_t group_of(int64_t stage) const {
    return v_shaped ? (stage < groups() ? stage : stages() - 1 - stage) : stage % groups();
  }
  /// Of the stages of a group the one behind `stage`; stages() or more: there is none.
  int64_t next_of_group(int64_t stage) const {
    return !v_shaped ? stage + groups() : stage < groups() ? stages() - 1 - stage : stages();
  }
  /// Whether what goes from a stage to the next, and its gradient, goes from rank to rank. In the middle of a
  /// V it stays where it is.
  bool crosses_ranks(int64_t stage) const { return group_of(stage) != group_of(stage + 1); }
  int64_t ranks() const;
  bool splits(int64_t stage) const { return !split.empty() && split[static_cast<size_t>(stage)].size() > 1; }
  bool any_splits() const;
  bool trains(int64_t stage) const { return stage >= frozen_stages; }
  /// Whether the stage gets a gradient from the one behind it, or sends one to the one before it.
  bool receives_gradient(int64_t stage) const { return trains(stage) && stage + 1 < stages(); }
  bool sends_gradient(int64_t stage) const { return stage > 0 && trains(stage - 1); }
  auto operator<=>(const PipelineShape&) const = default;
};

/// PlanError unless there is a stage, every stage has at least one replica, a depth of at least one and a
/// positive share or split weight (not both) for each replica; stages that share ranks split nothing, have
/// equal replicas and shares, and neighbours share none but in the middle of a V, which has two stages on
/// each rank; with kVertical, the sums of the shares are equal at all stages that are trained; tied
/// parameters go with the rule, and stages that are trained; fewer stages are frozen than there are.
void check_shape(const PipelineShape& shape);

/// Minibatches [first, first + count): trained without a drain in between.
struct Span {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const Span&) const = default;
};

/// Where a rank stands: replica `replica` of the stages stage, stage + apart, ... (`stages` of them).
struct Placement {
  int64_t stage = 0;
  int64_t replica = 0;
  int64_t stages = 1;
  int64_t apart = 0;
};
/// By rank.
std::vector<Placement> placements(const PipelineShape& shape);
/// "rank 3  stage 1 replica 0", "rank 0  stages 0,2 replica 0"
std::string rank_label(int64_t rank, const Placement& placement);
/// The rank of replica 0 of each stage.
std::vector<int64_t> first_ranks(const PipelineShape& shape);

}  // namespace pipewright
