// price() where ranks are not equally fast, against the lists of the ranks played action by action.
#include "optimizer/price/price.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "graph/error.h"
#include "optimizer/cost/levels.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "tests/optimizer/played.h"
#include "tests/optimizer/random_depths.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/long.h"

namespace pipewright::testing {
namespace {

/// Of another device: each node by itself faster or slower.
Profile class_profile(std::mt19937& random, Profile profile) {
  for (ProfiledNode& node : profile.nodes) {
    node.forward_seconds *= 0.25 * static_cast<double>(pick(random, 1, 8));
    node.backward_input_seconds *= 0.25 * static_cast<double>(pick(random, 1, 8));
    node.backward_weight_seconds *= 0.25 * static_cast<double>(pick(random, 1, 8));
  }
  return profile;
}

Topology with_unequal_devices(std::mt19937& random, bool classes) {
  const double rates[] = {1e5, 1e6, 1e7, 1e9};
  Topology topology =
      flat_topology(pick(random, 2, 6), rates[pick(random, 0, 3)], pick(random, 0, 1) == 0 ? 2e-4 : 0, 0);
  for (int64_t d = 0; d < topology.device_count(); ++d) {
    const double speeds[] = {1, 1, 0.5, 0.3, 2};
    TopologyDevice device{.host = "host", .relative_speed = speeds[pick(random, 0, 4)]};
    if (classes && pick(random, 0, 1) == 0) device.device_class = "other";
    topology.devices.push_back(device);
  }
  return topology;
}

void share_at_random(std::mt19937& random, Plan* plan) {
  for (Stage& stage : plan->stages) {
    if (stage.ranks.size() == 1 || pick(random, 0, 2) == 0) continue;
    for (size_t q = 0; q < stage.ranks.size(); ++q) stage.shares.push_back(pick(random, 1, 3));
  }
}

/// Seconds per minibatch of a long run, without its beginning and its end; nothing where it takes too long to
/// come round.
std::optional<double> long_run_seconds(PlayedPlan* played, const PipelineShape& shape) {
  const std::optional<int64_t> period = pipeline_period(shape, 200);
  if (!period) return std::nullopt;
  if (facts_of(shape.weights).drains()) {
    const int64_t once = 3 * *period;
    return (played->seconds(2 * once) - played->seconds(once)) / static_cast<double>(once);
  }
  const int64_t begin = (200 / *period + 1) * *period, apart = (600 / *period + 1) * *period;
  std::vector<double> completed;
  played->seconds(begin + 2 * apart + 200, &completed);
  return (completed[static_cast<size_t>(begin + 2 * apart)] - completed[static_cast<size_t>(begin)]) /
         static_cast<double>(2 * apart);
}

}  // namespace

TEST_CASE("A price on unequal devices is what the ranks' lists take, each rank at its own pace") {
  const char* seed = std::getenv("PIPEWRIGHT_PLANNER_SEED");
  std::mt19937 random(seed != nullptr ? std::atoi(seed) : 47);
  std::map<std::string, int64_t> compared;
  int64_t waiting = 0;
  for (int64_t c = 0; c < (is_long() ? 20000 : 600); ++c) {
    const std::pair<const char*, const char*> rules[] = {
        {"1f1b", "stash"}, {"1f1b", "2bw"}, {"gpipe", "flush"}, {"zb-h1", "flush"}, {"1f1b-flush", "flush"}};
    PlanRequest request;
    std::tie(request.schedule, request.weights) = rules[c % 5];
    const bool classes = c % 3 == 0 && request.schedule != "zb-h1";
    Profile profile = random_profile(random, static_cast<int>(pick(random, 2, 8)), true, 50);
    for (ProfiledNode& node : profile.nodes)
      if (!node.parameters.empty()) node.parameters = {node.name + ".weight"};  // none tied
    const Topology topology = with_unequal_devices(random, classes);
    if (classes) request.class_profiles["other"] = class_profile(random, profile);
    request = with_run_rules(request, topology.device_count());
    Plan plan = random_chain(random, profile, topology.device_count(), true);
    share_at_random(random, &plan);
    run_by(rules_of(request), &plan);
    const Dataflow flow(profile, request.class_profiles);
    PlanCost cost(plan, loads_of_plan(plan, flow), requested_cost_inputs(profile, topology, request));
    if (!choose_depths(0, true, &plan, &cost)) continue;
    if (request.weights == "stash" && c % 2 == 0) deepen_at_random(random, &plan);
    const PipelineShape shape = shape_of(plan);
    CAPTURE(c, plan.schedule, plan.weights, plan.shape_text(), classes, topology.to_json().dump());
    PlayedPlan played(plan, profile, topology, request.class_profiles);
    for (const int64_t minibatches : {int64_t{1}, int64_t{17}, 4 * plan.microbatches + 3})
      CHECK(simulate(plan.schedule, shape, cost.times, {0, minibatches}, cost.shared).total_seconds ==
            Approx(played.seconds(minibatches)).epsilon(1e-9).margin(1e-12));
    const std::optional<double> seconds = long_run_seconds(&played, shape);
    if (!seconds) continue;
    double busiest = 0, link = 0;
    for (const StagePeriod& period : busy_periods(plan, cost)) {
      busiest = std::max(busiest, period.device_seconds());
      link = std::max(link, period.link_seconds);
    }
    if (facts_of(shape.weights).drains()) link = 0;  // prices have no more than the schedule then
    const double price = evaluate_plan(plan, profile, topology, request).minibatch_seconds;
    CHECK(price == Approx(std::max(*seconds, link)).epsilon(3e-3).margin(1e-12));
    CHECK(busiest <= *seconds * (1 + 1e-6) + 1e-12);
    ++compared[plan.schedule + " " + plan.weights];
    if (price > 1.05 * std::max(busiest, link)) ++waiting;
  }
  CHECK(compared.size() == 5);
  for (const auto& [rule, plans] : compared) {
    CAPTURE(rule);
    CHECK(plans > 50);
  }
  CHECK(waiting > 50);
}

}  // namespace pipewright::testing
