#include "optimizer/plan/plan_sequence.h"

#include <algorithm>

#include "graph/error.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/evaluate.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

// Longer stretches have a middle at the plan's pace.
constexpr int64_t kMostSimulated = 512;

Holders holders_of(const Plan& plan) {
  Holders holders;
  for (const Stage& stage : plan.stages)
    for (const std::string& node : stage.nodes) holders[node] = stage.ranks;
  return holders;
}

double span_seconds(const Plan& plan, const PlanCost& cost, int64_t minibatches) {
  const int64_t simulated = std::min(minibatches, kMostSimulated);
  const Simulation run = simulate(plan.schedule, shape_of(plan), cost.times, Span{0, simulated}, cost.shared);
  return run.total_seconds + static_cast<double>(minibatches - simulated) * plan.predicted->minibatch_seconds;
}

}  // namespace

std::map<std::string, int64_t> state_bytes(const Profile& profile, int64_t optimizer_slots) {
  std::map<std::string, int64_t> bytes;
  for (const ProfiledNode& node : profile.nodes) {
    bytes[node.name] =
        node.parameter_bytes + optimizer_slots * node.trainable_parameter_bytes + node.buffer_bytes;
  }
  return bytes;
}

std::vector<PlanMove> profiled_moves(const Profile& profile, int64_t optimizer_slots, const Plan& last,
                                     const Plan& next) {
  const std::map<std::string, int64_t> bytes = state_bytes(profile, optimizer_slots);
  auto moves = plan_moves(holders_of(last), holders_of(next), [&](const std::string& node) {
    return HeldThing{bytes.at(node), true};
  });
  std::erase_if(moves, [](const PlanMove& move) { return move.bytes == 0; });
  return moves;
}

double move_seconds(const std::vector<PlanMove>& moves, const CostInputs& inputs) {
  const LevelCosts levels(inputs);
  return busiest_seconds(moves, [&](const PlanMove& move) {
    return inputs.levels.empty()
               ? message_seconds(static_cast<double>(move.bytes), inputs)
               : levels.message_seconds(move.bytes, levels.level_between(move.from, move.to));
  });
}

std::vector<PricedGeneration> price_generations(const std::vector<Plan>& plans,
                                                const std::vector<std::string>& names,
                                                const std::vector<int64_t>& firsts, int64_t minibatches,
                                                const Profile& profile, const Topology& topology,
                                                const PlanRequest& request) {
  PW_CHECK(plans.size() == firsts.size() && plans.size() == names.size() && !plans.empty(), plans.size());
  std::vector<PricedGeneration> priced;
  for (size_t i = 0; i < plans.size() && firsts[i] < minibatches; ++i) {
    PricedGeneration now;
    now.first_minibatch = firsts[i];
    const int64_t end = i + 1 < plans.size() ? std::min(firsts[i + 1], minibatches) : minibatches;
    now.minibatches = end - firsts[i];
    now.plan = plans[i];
    try {
      check_plan_runs(now.plan);
      now.plan.predicted = evaluate_plan(now.plan, profile, topology, request);
      const PlanCost cost = cost_of_plan(now.plan, profile, topology, request);
      now.seconds = span_seconds(now.plan, cost, now.minibatches);
      now.fill_seconds = std::max(
          0.0, now.seconds - static_cast<double>(now.minibatches) * now.plan.predicted->minibatch_seconds);
      if (i > 0) {
        const auto moves = profiled_moves(profile, request.optimizer_slots, plans[i - 1], now.plan);
        for (const PlanMove& move : moves) now.moved_bytes += move.bytes;
        now.move_seconds = move_seconds(moves, cost.inputs);
      }
    } catch (const PlanError& error) {
      throw PlanError(names[i] + ": " + error.what(), error.remedy());
    }
    priced.push_back(std::move(now));
  }
  return priced;
}

}  // namespace pipewright
