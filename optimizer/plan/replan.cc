#include "optimizer/plan/replan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "graph/document.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/plan_sequence.h"
#include "optimizer/plan/renamed_ranks.h"

namespace pipewright {
namespace {

// Ranks that differ by less are equally slow.
constexpr double kEqual = 1.1;

using Order = std::vector<int64_t>;  // of ranks

/// As the plan's stages come upon them, then those without a stage.
Order order_of(const Plan& plan, int64_t ranks) {
  Order order;
  std::vector<bool> met(static_cast<size_t>(ranks));
  const auto meet = [&](int64_t rank) {
    if (!met[static_cast<size_t>(rank)]) order.push_back(rank);
    met[static_cast<size_t>(rank)] = true;
  };
  for (const Stage& stage : plan.stages)
    for (const int64_t rank : stage.ranks) meet(rank);
  for (int64_t rank = 0; rank < ranks; ++rank) meet(rank);
  return order;
}

/// The best plan whose stages stand on the devices in this order.
Plan plan_in_order(const Profile& profile, const Topology& topology, PlanRequest request,
                   const Order& order) {
  Topology ordered = topology;
  for (size_t i = 0; i < topology.devices.size(); ++i)
    ordered.devices[i] = topology.devices[static_cast<size_t>(order[i])];
  request.devices_in_order = true;
  Plan plan = make_plan(profile, ordered, request);
  plan.topology_digest = document_digest(topology);
  for (Stage& stage : plan.stages)
    for (int64_t& rank : stage.ranks) rank = order[static_cast<size_t>(rank)];
  return plan;
}

std::vector<Plan> plans_in_orders(const Profile& profile, const Topology& topology,
                                  const PlanRequest& request, const Plan& in_force) {
  // Where links differ a device cannot take another's place; where devices are alike, any can.
  if (topology.levels.size() > 1 || topology.devices.empty()) return {make_plan(profile, topology, request)};
  const int64_t ranks = topology.device_count();
  Order given(static_cast<size_t>(ranks));
  std::iota(given.begin(), given.end(), int64_t{0});
  const Order now = order_of(in_force, ranks);
  std::set<Order> orders;
  for (Order order : {given, now}) {
    orders.insert(order);
    std::reverse(order.begin(), order.end());
    orders.insert(std::move(order));
  }
  std::vector<Plan> plans;
  for (const Order& order : orders) plans.push_back(plan_in_order(profile, topology, request, order));
  return plans;
}

bool equally_slow(const std::vector<double>& slowdowns) {
  const auto [least, most] = std::minmax_element(slowdowns.begin(), slowdowns.end());
  return *most < kEqual * *least;
}

bool same_stages(const Plan& a, const Plan& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const Stage& x, const Stage& y) {
                      return x.nodes == y.nodes && x.ranks == y.ranks && x.shares == y.shares &&
                             x.in_flight == y.in_flight && x.recompute == y.recompute &&
                             x.recompute_ratio == y.recompute_ratio && x.split == y.split;
                    });
}

/// Several orders of devices often lead to one plan, which is then priced, swapped and deepened once.
void drop_repeated(std::vector<Plan>* plans) {
  std::vector<Plan> once;
  for (Plan& plan : *plans)
    if (std::none_of(once.begin(), once.end(), [&](const Plan& other) { return same_stages(plan, other); }))
      once.push_back(std::move(plan));
  *plans = std::move(once);
}

/// Plans to choose from, beside the one in force; each takes what its prediction and the slow links say.
std::vector<Plan> candidates(const Profile& profile, const Topology& topology, const PlanRequest& request,
                             const Plan& in_force, const SlowLinks& links) {
  std::vector<Plan> plans = plans_in_orders(profile, topology, request, in_force);
  if (!links.empty()) {
    // As if all links were as slow: thinner cuts, fewer stages.
    double slowest = 1;
    for (const SlowLink& link : links) slowest = std::max(slowest, link.slowdown);
    Topology slow = topology;
    for (TopologyLevel& level : slow.levels) {
      level.bandwidth_bytes_per_second /= slowest;
      level.latency_seconds *= slowest;
    }
    for (Plan& plan : plans_in_orders(profile, slow, request, in_force)) {
      plan.topology_digest = document_digest(topology);
      plan.predicted = evaluate_plan(plan, profile, topology, request);
      plans.push_back(std::move(plan));
    }
  }
  for (Plan& plan : plans)
    plan = renamed_for_fewest_moves(in_force, std::move(plan), profile, topology, request.optimizer_slots);
  plans.insert(plans.begin(), in_force);
  drop_repeated(&plans);
  if (links.empty()) return plans;
  for (const bool deepens : {false, true}) {
    for (size_t i = 0, count = plans.size(); i < count; ++i)
      plans.push_back(deepens ? deepened_for_slow_links(plans[i], profile, topology, request, links)
                              : clear_of_slow_links(plans[i], profile, topology, request, links));
    drop_repeated(&plans);
  }
  return plans;
}

/// The best there is for these times and devices.
Replanned best_next(const Profile& profile, const Topology& topology, const Plan& in_force,
                    const SlowLinks& links) {
  Replanned again;
  PlanRequest request;
  request.schedule = in_force.schedule;
  request.weights = in_force.weights;
  if (weight_rule_facts(in_force.weights).one_update_for_all) request.microbatches = in_force.microbatches;
  request.use_all_devices = true;  // a rank without a stage would have to be the last

  Plan stays = in_force;
  stays.predicted = evaluate_plan(in_force, profile, topology, request);
  std::vector<std::pair<Plan, double>> plans;  // each with its seconds
  for (Plan& plan : candidates(profile, topology, request, stays, links)) {
    const double seconds = links.empty() ? plan.predicted->minibatch_seconds
                                         : seconds_with_slow_links(plan, profile, topology, request, links);
    plans.emplace_back(std::move(plan), seconds);
  }
  again.now_seconds = plans.front().second;
  double fastest = again.now_seconds;
  for (const auto& [plan, seconds] : plans) fastest = std::min(fastest, seconds);
  std::optional<std::pair<int64_t, double>> best;  // bytes, seconds
  for (auto& [plan, seconds] : plans) {
    if (seconds > kEquallyFast * fastest) continue;
    const auto moves = profiled_moves(profile, request.optimizer_slots, in_force, plan);
    int64_t bytes = 0;
    for (const PlanMove& move : moves) bytes += move.bytes;
    if (best && *best <= std::pair(bytes, seconds)) continue;
    best = {bytes, seconds};
    again.move_seconds = move_seconds(moves, inputs_of_plan(plan, profile, topology, request));
    again.next_seconds = seconds;
    again.plan = std::move(plan);
  }
  again.links = links;
  return again;
}

}  // namespace

Replanned plan_again(const Profile& profile, const Topology& topology, const Plan& in_force,
                     const std::vector<double>& slowdowns, const SlowLinks& links) {
  Topology slowed = topology;
  if (!equally_slow(slowdowns)) {
    slowed.devices.resize(slowdowns.size());
    for (size_t rank = 0; rank < slowdowns.size(); ++rank) {
      TopologyDevice& device = slowed.devices[rank];
      if (device.host.empty()) device.host = "host";
      device.relative_speed /= slowdowns[rank];
    }
  }
  Replanned again = best_next(profile, slowed, in_force, links);
  again.slowdowns = slowdowns;
  return again;
}

Replanned plan_as_if_nodes_were_slow(const Profile& profile, const Topology& topology, const Plan& in_force,
                                     const std::vector<double>& slowdowns, const SlowLinks& links) {
  Profile slowed = profile;
  std::map<std::string, double> slowdown_of;
  for (const Stage& stage : in_force.stages) {
    double pace = 0;
    for (const int64_t rank : stage.ranks) pace += 1 / slowdowns[static_cast<size_t>(rank)];
    for (const std::string& node : stage.nodes)
      slowdown_of[node] = static_cast<double>(stage.ranks.size()) / pace;
  }
  if (!equally_slow(slowdowns)) {
    for (ProfiledNode& node : slowed.nodes) {
      const double slowdown = slowdown_of.at(node.name);
      node.forward_seconds *= slowdown;
      node.backward_input_seconds *= slowdown;
      node.backward_weight_seconds *= slowdown;
    }
  }
  Replanned again = best_next(slowed, topology, in_force, {});
  again.slowdowns = slowdowns;
  again.links = links;
  return again;
}

}  // namespace pipewright
