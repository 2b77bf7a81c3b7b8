#include "runtime/schedule/shape.h"

#include <numeric>

#include "graph/error.h"

namespace pipewright {
namespace {

std::vector<int64_t> shares_of(const PipelineShape& shape, int64_t stage) {
  if (shape.shares.empty() || shape.shares[stage].empty())
    return std::vector<int64_t>(shape.replicas[stage], 1);
  return shape.shares[stage];
}

void check_stage(const PipelineShape& shape, int64_t stage) {
  const std::string where = "pipeline, stage " + std::to_string(stage) + ": ";
  const int64_t replicas = shape.replicas[stage];
  if (replicas < 1) throw PlanError(where + std::to_string(replicas) + " replicas, expected at least 1");
  if (shape.in_flight[stage] < 1)
    throw PlanError(where + "in-flight depth " + std::to_string(shape.in_flight[stage]) +
                    ", expected at least 1");
  if (!shape.split.empty() && !shape.split[stage].empty()) {
    const std::vector<int64_t>& split = shape.split[stage];
    if (static_cast<int64_t>(split.size()) != replicas)
      throw PlanError(where + std::to_string(split.size()) + " split weights for " +
                      std::to_string(replicas) + " replicas, expected one each");
    for (const int64_t weight : split)
      if (weight < 1)
        throw PlanError(where + "a split weight of " + std::to_string(weight) + ", expected at least 1");
    if (!shape.shares.empty() && !shape.shares[stage].empty())
      throw PlanError(where + "shares beside split weights, expected one of them");
    if (shape.stages_per_rank > 1)
      throw PlanError(
          where + "split weights, but its ranks have " + std::to_string(shape.stages_per_rank) + " stages",
          "leave out its `split`");
  }
  if (shape.shares.empty() || shape.shares[stage].empty()) return;
  const std::vector<int64_t>& shares = shape.shares[stage];
  if (static_cast<int64_t>(shares.size()) != replicas)
    throw PlanError(where + std::to_string(shares.size()) + " shares for " + std::to_string(replicas) +
                    " replicas, expected one each");
  for (const int64_t share : shares)
    if (share < 1) throw PlanError(where + "a share of " + std::to_string(share) + ", expected at least 1");
}

void check_groups(const PipelineShape& shape) {
  const int64_t several = shape.stages_per_rank, stages = shape.stages();
  if (several < 1 || stages % several != 0)
    throw PlanError("pipeline: " + std::to_string(stages) + " stages, " + std::to_string(several) +
                    " on each rank, expected a divisor of the number of stages");
  if (several == 1) return;
  if (shape.groups() == 1)
    throw PlanError("pipeline: all " + std::to_string(stages) + " stages on the same ranks",
                    "merge them into one stage");
  if (shape.v_shaped && several != 2)
    throw PlanError("pipeline: V-shaped with " + std::to_string(several) +
                    " stages on each rank, expected 2");
  for (int64_t stage = shape.groups(); stage < stages; ++stage) {
    const int64_t first = shape.group_of(stage);
    if (shape.replicas[stage] != shape.replicas[first] || shares_of(shape, stage) != shares_of(shape, first))
      throw PlanError("pipeline, stage " + std::to_string(stage) + ": other replicas or shares than stage " +
                      std::to_string(first) + ", which has the same ranks");
  }
}

}  // namespace

bool PipelineShape::any_splits() const {
  for (int64_t stage = 0; stage < stages(); ++stage)
    if (splits(stage)) return true;
  return false;
}

int64_t PipelineShape::ranks() const {
  return std::accumulate(replicas.begin(), replicas.begin() + groups(), int64_t{0});
}

void check_shape(const PipelineShape& shape) {
  if (shape.replicas.empty()) throw PlanError("pipeline: no stages, expected at least 1");
  if (shape.in_flight.size() != shape.replicas.size())
    throw PlanError("pipeline: " + std::to_string(shape.in_flight.size()) + " in-flight depths for " +
                    std::to_string(shape.replicas.size()) + " stages, expected one each");
  if (!shape.shares.empty() && shape.shares.size() != shape.replicas.size())
    throw PlanError("pipeline: shares of " + std::to_string(shape.shares.size()) + " stages for " +
                    std::to_string(shape.replicas.size()) + " stages, expected all");
  if (!shape.split.empty() && shape.split.size() != shape.replicas.size())
    throw PlanError("pipeline: split weights of " + std::to_string(shape.split.size()) + " stages for " +
                    std::to_string(shape.replicas.size()) + " stages, expected all");
  for (int64_t stage = 0; stage < shape.stages(); ++stage) check_stage(shape, stage);
  if (shape.microbatches < 1)
    throw PlanError("pipeline: " + std::to_string(shape.microbatches) +
                    " microbatches an update, expected at least 1");
  if (shape.accumulation < 1)
    throw PlanError("pipeline: gradients of " + std::to_string(shape.accumulation) +
                    " rounds accumulated, expected at least 1");
  check_groups(shape);
  if (shape.frozen_stages < 0 || shape.frozen_stages >= shape.stages())
    throw PlanError("pipeline: " + std::to_string(shape.frozen_stages) + " frozen stages of " +
                    std::to_string(shape.stages()) + ", expected at least one that is trained");
  const WeightRuleFacts& rule = facts_of(shape.weights);
  for (const std::vector<int64_t>& stages : shape.tied) {
    if (!rule.one_update_for_all)
      throw PlanError("pipeline: stages " + std::to_string(stages.front()) + " and " +
                          std::to_string(stages.back()) +
                          " hold copies of a tied parameter, and with weights '" + rule.name +
                          "' they update at different times",
                      "plan with weights 'flush' or '2bw'");
    for (const int64_t stage : stages)
      if (stage < 0 || stage >= shape.stages())
        throw PlanError("pipeline: a tied parameter of stage " + std::to_string(stage) + ", expected 0.." +
                        std::to_string(shape.stages() - 1));
  }
  if (!rule.needs_equal_turns()) return;
  const auto cycle = [&](int64_t stage) {
    if (shape.splits(stage)) return int64_t{1};
    const std::vector<int64_t> shares = shares_of(shape, stage);
    return std::accumulate(shares.begin(), shares.end(), int64_t{0});
  };
  const int64_t first = shape.frozen_stages;
  for (int64_t stage = first + 1; stage < shape.stages(); ++stage)
    if (cycle(stage) != cycle(first))
      throw PlanError("pipeline, stage " + std::to_string(stage) + ": updates after every " +
                          std::to_string(cycle(stage)) + " minibatches, stage " + std::to_string(first) +
                          " after every " + std::to_string(cycle(first)) + "; weights '" + rule.name +
                          "' need the same at all stages",
                      "plan with equal replicas, or with weights 'stash' or '2bw'");
}

std::vector<Placement> placements(const PipelineShape& shape) {
  std::vector<Placement> all;
  const int64_t several = shape.stages_per_rank;
  for (int64_t group = 0; group < shape.groups(); ++group)
    for (int64_t replica = 0; replica < shape.replicas[group]; ++replica)
      all.push_back({group, replica, several, several > 1 ? shape.next_of_group(group) - group : 0});
  return all;
}

std::string rank_label(int64_t rank, const Placement& placement) {
  std::string stages = std::to_string(placement.stage);
  for (int64_t i = 1; i < placement.stages; ++i)
    stages += "," + std::to_string(placement.stage + i * placement.apart);
  return "rank " + std::to_string(rank) + (placement.stages > 1 ? "  stages " : "  stage ") + stages +
         " replica " + std::to_string(placement.replica);
}

std::vector<int64_t> first_ranks(const PipelineShape& shape) {
  std::vector<int64_t> first(shape.stages());
  int64_t rank = 0;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    first[stage] = stage < shape.groups() ? rank : first[shape.group_of(stage)];
    if (stage < shape.groups()) rank += shape.replicas[stage];
  }
  return first;
}

}  // namespace pipewright
