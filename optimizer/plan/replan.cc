#include "optimizer/plan/replan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/document.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/evaluator.h"
#include "optimizer/plan/found_plan.h"
#include "optimizer/plan/known_plans.h"
#include "optimizer/plan/lower_bound.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/plan_sequence.h"
#include "optimizer/plan/renamed_ranks.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/solve.h"

namespace pipewright {
namespace {

constexpr double kEqual = 1.1;     // ranks that differ by less are equally slow
constexpr int64_t kFewCuts = 512;  // with more than that, those along one order of the nodes
// Plans that are as fast, of which the one that moves least is taken, and of those that may be the likeliest,
// which are priced while less than so many minibatches of stages are simulated.
constexpr size_t kMostAlike = 8, kMayBeAlike = 24;
constexpr int64_t kMostAlikeSimulated = 5000;
// Steps (counted_work.h) of all that is made once, for a node.
constexpr double kNodeSteps = 1000;

bool equally_slow(const Slowdowns& slowdowns) {
  const auto [least, most] = std::minmax_element(slowdowns.ranks.begin(), slowdowns.ranks.end());
  return slowdowns.nodes.empty() && *most < kEqual * *least;
}

bool same_stages(const Plan& a, const Plan& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const Stage& x, const Stage& y) {
                      return x.nodes == y.nodes && x.ranks == y.ranks && x.shares == y.shares &&
                             x.in_flight == y.in_flight && x.recompute == y.recompute &&
                             x.recompute_ratio == y.recompute_ratio && x.split == y.split;
                    });
}

struct PricedPlan {
  Plan plan;
  double seconds = 0;
};

/// The cuts of the plan in force, and between them those along the profile's order.
States states_along(const Plan& in_force, const Dataflow& flow) {
  std::unordered_map<std::string, size_t> number;
  for (size_t v = 0; v < flow.profile.nodes.size(); ++v) number[flow.profile.nodes[v].name] = v;
  std::vector<NodeSet> cuts;
  NodeSet done(flow.profile.nodes.size());
  for (const Stage& stage : in_force.stages) {
    for (const std::string& node : stage.nodes) {
      done.set(number.at(node));
      cuts.push_back(done);
    }
  }
  return states_of(flow, std::move(cuts));
}

int64_t moved_bytes(const std::vector<PlanMove>& moves) {
  int64_t bytes = 0;
  for (const PlanMove& move : moves) bytes += move.bytes;
  return bytes;
}

/// What solve() finds from the first of `known`, which is in force, and the others: the fastest, and some
/// that are as fast.
std::vector<PricedPlan> solved(const Profile& profile, const Problem& devices, const PlanRequest& request,
                               const std::vector<Plan>& known) {
  const Plan& in_force = known.front();
  const Dataflow flow(profile, request.class_profiles, ties_of(request));
  std::optional<States> all = all_states(flow, devices.memory_bytes > 0, kFewCuts);
  const States states = all ? *std::move(all) : states_along(in_force, flow);
  Problem problem = devices;
  problem.states = &states;
  const SolvedChains solved =
      solve(problem, request, solutions_of(known, problem, profile), work_bound_seconds(problem));
  if (solved.chains.empty()) return {};
  const auto plan_with = [&](const Chain& chain, const std::vector<int64_t>& depths) {
    Plan plan = plan_of({chain.stages}, states, profile);
    plan.strategy = request.strategy;
    run_by(rules_of(request), &plan);
    for (size_t s = 0; s < depths.size(); ++s) plan.stages[s].in_flight = depths[s];
    return renamed_for_fewest_moves(in_force, std::move(plan), profile, problem.inputs);
  };
  const auto moved = [&](const Plan& plan) {
    return moved_bytes(profiled_moves(profile, request.optimizer_slots, in_force, plan));
  };
  std::vector<PricedPlan> plans;
  const double most = kEquallyFast * solved.chains.front().seconds;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const SolvedChain& each : solved.chains) {
    if (each.seconds > most || plans.size() == kMostAlike) break;
    plans.push_back({plan_with(each.chain, each.depths), each.seconds});
    least = std::min(least, moved(plans.back().plan));
  }
  std::multimap<int64_t, const Chain*> moving_less;
  for (size_t i = 0; i < std::min(kMayBeAlike, solved.alike.size()); ++i) {
    const int64_t bytes = moved(plan_with(solved.alike[i], {}));
    if (bytes < least) moving_less.emplace(bytes, &solved.alike[i]);
  }
  Evaluator evaluator(problem, request);
  for (const auto& [bytes, chain] : moving_less) {
    if (evaluator.spent() >= kMostAlikeSimulated) break;
    const std::optional<ChainPrice> priced = evaluator.price(*chain, 0, most, kMostAlikeSimulated);
    if (!priced || priced->seconds > most) continue;
    plans.push_back({plan_with(*chain, priced->depths), priced->seconds});
    break;
  }
  return plans;
}

/// The first of `known` is in force.
std::vector<PricedPlan> plans_anew(const Profile& profile, const Topology& topology,
                                   const PlanRequest& request, const std::vector<Plan>& known) {
  const PlanRequest full = with_run_rules(request, topology.device_count());
  Problem problem = requested_problem(profile, topology, full);
  search_by_rules(full, &problem);
  if (runs_overlapping(problem, full)) return solved(profile, problem, full, known);
  try {
    Plan plan = renamed_for_fewest_moves(known.front(), make_plan(profile, topology, request), profile,
                                         problem.inputs);
    const double seconds = plan.predicted->minibatch_seconds;
    return {{std::move(plan), seconds}};
  } catch (const InfeasibleError&) {
    return {};  // the one in force goes on
  }
}

void slow_down(ProfiledNode* node, double times) {
  node->forward_seconds *= times;
  node->backward_input_seconds *= times;
  node->backward_weight_seconds *= times;
  for (std::optional<double>* seconds : {&node->forward_launch_seconds, &node->backward_launch_seconds,
                                         &node->forward_gap_seconds, &node->backward_gap_seconds})
    if (*seconds) **seconds *= times;
}

/// Makes ranks so slow. Those on which some work is slower than other become classes of devices of their own,
/// each with the profile that it would have.
ClassProfiles slow_down(Topology* topology, const Slowdowns& slowdowns, const Profile& profile) {
  topology->devices.resize(slowdowns.ranks.size());
  for (size_t rank = 0; rank < slowdowns.ranks.size(); ++rank) {
    TopologyDevice& device = topology->devices[rank];
    if (device.host.empty()) device.host = "host";
    device.relative_speed /= slowdowns.ranks[rank];
  }
  ClassProfiles classes;
  for (const auto& [rank, times] : slowdowns.nodes) {
    PW_CHECK(times.size() == profile.nodes.size(),
             "slowdowns of " << times.size() << " nodes, the profile has " << profile.nodes.size());
    TopologyDevice& device = topology->devices.at(static_cast<size_t>(rank));
    device.device_class = "slow rank " + std::to_string(rank);
    Profile measured = profile;
    for (size_t v = 0; v < times.size(); ++v)
      slow_down(&measured.nodes[v], times[v] / slowdowns.ranks[static_cast<size_t>(rank)]);
    classes.emplace(device.device_class, std::move(measured));
  }
  return classes;
}

/// The best there is for these times and devices.
Replanned best_next(const Profile& profile, const Topology& topology, ClassProfiles classes,
                    const Plan& in_force, const SlowLinks& links, const std::vector<Plan>& known,
                    double budget_seconds, int64_t most_minibatches_per_update) {
  PlanRequest quiet_links = request_like(in_force);
  quiet_links.use_all_devices = true;  // a rank without a stage would have to be the last
  quiet_links.class_profiles = std::move(classes);
  quiet_links.most_minibatches_per_update = most_minibatches_per_update;
  PlanRequest request = quiet_links;
  request.slow_links = links;

  std::vector<Plan> there = {in_force};
  for (const Plan& plan : known)
    if (plan.schedule == in_force.schedule && plan.weights == in_force.weights &&
        plan.world_size == in_force.world_size && !same_stages(plan, in_force))
      there.push_back(plan);
  std::vector<PricedPlan> plans;
  for (const Plan& plan : there)
    plans.push_back({plan, evaluate_plan(plan, profile, topology, request).minibatch_seconds});
  Replanned again;
  again.links = links;
  again.now_seconds = plans.front().seconds;
  const auto fastest = [&] {
    return std::min_element(plans.begin(), plans.end(),
                            [](const PricedPlan& a, const PricedPlan& b) { return a.seconds < b.seconds; })
        ->seconds;
  };
  const double steps =
      budget_seconds * CountedWork::kStepsPerSecond - kNodeSteps * static_cast<double>(profile.nodes.size());
  if (steps > 0) {
    request.effort = std::min(1.0, steps / kFullEffortSteps);
    request.most_seconds = kEquallyFast * fastest();
    for (PricedPlan& plan : plans_anew(profile, topology, request, there)) plans.push_back(std::move(plan));
  }
  const double least = fastest();
  std::optional<std::pair<int64_t, double>> best;  // bytes, seconds
  std::vector<PlanMove> moves;
  for (auto& [plan, seconds] : plans) {
    if (seconds > kEquallyFast * least) continue;
    std::vector<PlanMove> own = profiled_moves(profile, request.optimizer_slots, in_force, plan);
    const std::pair its(moved_bytes(own), seconds);
    if (best && *best <= its) continue;
    best = its;
    again.next_seconds = seconds;
    again.plan = std::move(plan);
    moves = std::move(own);
  }
  again.move_seconds = move_seconds(moves, requested_cost_inputs(profile, topology, quiet_links));
  again.plan.predicted = evaluate_plan(again.plan, profile, topology, quiet_links);
  if (!same_stages(again.plan, in_force)) {
    again.plan.profile_digest = measured_digest(profile);
    again.plan.topology_digest = document_digest(topology);
  }
  return again;
}

}  // namespace

Replanned plan_again(const Profile& profile, const Topology& topology, const Plan& in_force,
                     const Slowdowns& slowdowns, const SlowLinks& links, const std::vector<Plan>& known,
                     double budget_seconds, int64_t most_minibatches_per_update) {
  Topology slowed = topology;
  ClassProfiles classes;
  if (!equally_slow(slowdowns)) classes = slow_down(&slowed, slowdowns, profile);
  Replanned again = best_next(profile, slowed, std::move(classes), in_force, links, known, budget_seconds,
                              most_minibatches_per_update);
  again.slowdowns = slowdowns;
  return again;
}

Replanned plan_as_if_nodes_were_slow(const Profile& profile, const Topology& topology, const Plan& in_force,
                                     const Slowdowns& slowdowns, const SlowLinks& links,
                                     const std::vector<Plan>& known, double budget_seconds,
                                     int64_t most_minibatches_per_update) {
  Profile slowed = profile;
  std::map<std::string, double> slowdown_of;
  for (const Stage& stage : in_force.stages) {
    double pace = 0;
    for (const int64_t rank : stage.ranks) pace += 1 / slowdowns.ranks[static_cast<size_t>(rank)];
    for (const std::string& node : stage.nodes)
      slowdown_of[node] = static_cast<double>(stage.ranks.size()) / pace;
  }
  if (!equally_slow({slowdowns.ranks}))
    for (ProfiledNode& node : slowed.nodes) slow_down(&node, slowdown_of.at(node.name));
  Replanned again =
      best_next(slowed, topology, {}, in_force, {}, known, budget_seconds, most_minibatches_per_update);
  again.slowdowns = slowdowns;
  again.links = links;
  return again;
}

int64_t message_bytes(const Plan& plan, const Profile& profile, int64_t from, int64_t to) {
  const std::vector<StageLoad> loads = loads_of_plan(plan, Dataflow(profile, {}));
  const auto has = [&](size_t stage, int64_t rank) {
    const std::vector<int64_t>& ranks = plan.stages[stage].ranks;
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    if (has(s, from) && has(s + 1, to)) return loads[s].out_bytes;
    if (has(s + 1, from) && has(s, to)) return loads[s + 1].in_bytes;
  }
  return 0;
}

}  // namespace pipewright
