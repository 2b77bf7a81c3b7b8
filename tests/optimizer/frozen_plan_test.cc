// Plans for models whose first layers are frozen.
#include "optimizer/plan/frozen_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "graph/error.h"
#include "graph/model_layers.h"
#include "optimizer/baselines/halving.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/updates.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/plan_shape.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

/// Layers that have numbers, and a head.
Profile layered_profile(std::mt19937& random, int nodes) {
  Profile profile = random_profile(random, nodes, true, 100);
  for (int v = 0; v < nodes; ++v) {
    ProfiledNode& node = profile.nodes[static_cast<size_t>(v)];
    node.layer = v + 1 == nodes ? "head" : "blocks." + std::to_string(v);
    node.parameters = {node.name + ".weight"};
    node.parameter_bytes = node.trainable_parameter_bytes = 1000 * (1 + v % 3);
    node.forward_seconds = std::max(node.forward_seconds, 1e-3);
    node.backward_input_seconds = std::max(node.backward_input_seconds, 1e-3);
  }
  return profile;
}

Topology links(int64_t ranks, double bytes_per_second = 1e8) {
  return flat_topology(ranks, bytes_per_second, 20e-6, 0);
}

TEST_CASE("a frozen profile: the prefix costs its forward alone, or nothing when it is cached") {
  std::mt19937 random(2120);
  for (int round = 0; round < 100; ++round) {
    const Profile measured = layered_profile(random, 3 + static_cast<int>(random() % 8));
    const std::vector<ModelLayer> all = model_layers(measured);
    const auto layers = static_cast<int64_t>(random() % (all.size() + 1));
    const bool cached = random() % 2 == 0;
    const Profile frozen = frozen_profile(measured, layers, cached);
    const size_t end = end_of_layers(all, layers, "test");
    CHECK(frozen.frozen.nodes == end);
    CHECK(measured_digest(frozen) == measured_digest(measured));
    for (size_t v = 0; v < measured.nodes.size(); ++v) {
      const ProfiledNode& node = frozen.nodes[v];
      const ProfiledNode& before = measured.nodes[v];
      CHECK(node.parameter_bytes == before.parameter_bytes);
      if (v >= end) {
        CHECK(node.backward_seconds() == before.backward_seconds());
        CHECK(node.trainable_parameter_bytes == before.trainable_parameter_bytes);
        continue;
      }
      CHECK(node.forward_seconds == (cached ? 0 : before.forward_seconds));
      CHECK(node.backward_seconds() == 0);
      CHECK(node.trainable_parameter_bytes == 0);
      CHECK(node.saved_bytes == 0);
    }
    CHECK(frozen.whole.step_seconds <= measured.whole.step_seconds);
  }
  std::mt19937 again(1);
  const Profile few = layered_profile(again, 4);
  CHECK_THROWS_AS(frozen_profile(few, 9, false), InputError);
}

TEST_CASE("a tied parameter that the prefix reads is trained nowhere") {
  std::mt19937 random(3);
  Profile measured = layered_profile(random, 5);
  for (const size_t v : {size_t{0}, size_t{4}}) {
    measured.nodes[v].parameters = {"tied"};
    measured.nodes[v].parameter_bytes = measured.nodes[v].trainable_parameter_bytes = 3000;
  }
  const Profile frozen = frozen_profile(measured, 1, false);
  CHECK(frozen.nodes[0].trainable_parameter_bytes == 0);
  CHECK(frozen.nodes[4].trainable_parameter_bytes == 0);
  CHECK(frozen.nodes[4].parameter_bytes == 3000);
}

TEST_CASE("planned with frozen layers: never worse than the plan for the whole model, priced as frozen") {
  std::mt19937 random(2121);
  int frozen_stages = 0;
  for (int round = 0; round < 160; ++round) {
    const Profile measured = layered_profile(random, 4 + static_cast<int>(random() % 6));
    const auto layers = static_cast<int64_t>(1 + random() % model_layers(measured).size());
    const Topology topology = links(static_cast<int64_t>(1 + random() % 4), random() % 2 == 0 ? 1e6 : 1e8);
    PlanRequest request;
    const int kind = static_cast<int>(random() % 4);
    if (kind == 1) request.schedule = "1f1b-flush";
    if (kind == 2) request.schedule = "zb-h1";
    if (kind == 3) request.weights = "2bw";
    if (kind > 0) request.microbatches = 8;
    const Profile frozen = frozen_profile(measured, layers, false);
    CAPTURE(round, layers, request.schedule, request.weights, topology.device_count());
    const Plan whole = make_plan(measured, topology, request);
    const Plan repriced = with_frozen_stages(whole, frozen);
    const Prediction as_frozen = evaluate_plan(repriced, frozen, topology, request);
    CHECK(as_frozen.minibatch_seconds <= whole.predicted->minibatch_seconds * 1.02);
    const Plan plan = make_plan(frozen, topology, request);
    CHECK_NOTHROW(plan.validate("plan"));
    CHECK(plan.frozen_layers == layers);
    CHECK(plan.profile_digest == whole.profile_digest);
    CHECK(plan.predicted->minibatch_seconds <= as_frozen.minibatch_seconds * 1.011);
    frozen_stages += plan.frozen_stages() > 0 ? 1 : 0;
    // Evaluated again from its nodes alone.
    CHECK(evaluate_plan(with_frozen_stages(plan, frozen), frozen, topology, request).minibatch_seconds ==
          Approx(plan.predicted->minibatch_seconds));
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      if (!plan.stages[s].frozen) continue;
      CHECK(plan.stages[s].in_flight == 1);
      const StageMemory& memory = plan.predicted->stages[s].memory;
      CHECK(memory.versions_bytes + memory.gradients_bytes + memory.optimizer_bytes == 0);
      CHECK(plan.predicted->stages[s].gradient_sync_seconds + plan.predicted->stages[s].step_seconds == 0);
    }
    // With a cache nothing is slower.
    const Profile cached = frozen_profile(measured, layers, true);
    const Plan with_cache = make_plan(cached, topology, request);
    for (size_t s = 1; s < with_cache.stages.size(); ++s) CHECK(!with_cache.stages[s].frozen);
  }
  CHECK(frozen_stages > 10);
}

TEST_CASE("interleaved with frozen layers: evaluated it has the price it was planned with") {
  std::mt19937 random(2125);
  int whole_stages = 0;
  for (int round = 0; round < 60; ++round) {
    const Profile measured = layered_profile(random, 6 + static_cast<int>(random() % 6));
    const auto layers = static_cast<int64_t>(1 + random() % model_layers(measured).size());
    const Profile frozen = frozen_profile(measured, layers, random() % 2 == 0);
    const Topology topology = links(static_cast<int64_t>(2 + random() % 2), random() % 2 == 0 ? 1e6 : 1e8);
    PlanRequest request;
    request.schedule = "interleaved";
    CAPTURE(round, layers, topology.device_count());
    std::optional<Plan> plan;
    try {
      plan = make_plan(frozen, topology, request);
    } catch (const InfeasibleError&) {  // too few cuts
      continue;
    }
    CHECK(plan->frozen_stages() == 0);
    CHECK(evaluate_plan(*plan, frozen, topology, request).minibatch_seconds ==
          plan->predicted->minibatch_seconds);
    whole_stages += with_frozen_stages(*plan, frozen).stages[0].nodes.size() <= frozen.frozen.nodes ? 1 : 0;
  }
  CHECK(whole_stages > 5);
}

TEST_CASE("vertical behind frozen stages: versions as many as ranks hold, and all within the memory") {
  std::mt19937 random(2124);
  int behind = 0, limited = 0, alone = 0;
  for (int round = 0; round < 120; ++round) {
    Profile measured = layered_profile(random, 4 + static_cast<int>(random() % 6));
    measured.whole.step_seconds = 4e-3;
    measured.whole.update = ProfiledUpdate{1e-3, 0, 0, 0};
    const auto layers = static_cast<int64_t>(1 + random() % model_layers(measured).size());
    const Profile frozen = frozen_profile(measured, layers, false);
    Topology topology = links(static_cast<int64_t>(2 + random() % 4));
    PlanRequest request;
    request.weights = "vertical";
    request.strategy = "straight";
    std::optional<Plan> plan = make_plan(frozen, topology, request);
    if (round % 2 == 0) {
      for (const StagePrediction& stage : plan->predicted->stages)
        topology.memory_bytes = std::max(topology.memory_bytes, stage.memory.total_bytes() * 9 / 10);
      try {
        plan = make_plan(frozen, topology, request);
      } catch (const InfeasibleError&) {
        continue;
      }
      ++limited;
    }
    const PipelineShape shape = shape_of(*plan);
    const ScheduleCheck run = check_schedule(plan->schedule, shape, rehearsal_span(shape));
    const Prediction prediction = evaluate_plan(*plan, frozen, topology, request);
    const PlanCost cost = cost_of_plan(*plan, frozen, topology, request);
    CAPTURE(round, layers, plan->frozen_stages(), plan->shape_text());
    CHECK(memory_deficits(*plan, prediction, prediction, topology).empty());
    int64_t most_updates = 0;
    for (size_t s = 0; s < plan->stages.size(); ++s) {
      const int64_t weights = cost.loads[s].trainable_bytes, further = run.ranks[s].peak_versions - 1;
      CHECK(prediction.stages[s].memory.versions_bytes == (weights > 0 ? further * weights : 0));
      most_updates = std::max(most_updates, weights > 0 ? further : 0);
    }
    CHECK(updates_of(*plan).staleness == most_updates);
    const int64_t first = plan->frozen_stages();
    if (first > 0 && plan->stages[static_cast<size_t>(first)].in_flight > 1) ++behind;
    // A stage that alone is trained has one minibatch in flight, and updates in place.
    if (first == 0 || first + 1 < static_cast<int64_t>(plan->stages.size())) continue;
    CHECK(cost.times.back().step_seconds == Approx(step_seconds(cost.loads.back(), cost.inputs)));
    ++alone;
  }
  CHECK(behind > 10);
  CHECK(limited > 10);
  CHECK(alone > 10);
}

TEST_CASE("planned with frozen layers: never worse than PipeTransformer's rule") {
  std::mt19937 random(2123);
  for (int round = 0; round < 80; ++round) {
    const Profile measured = layered_profile(random, 4 + static_cast<int>(random() % 8));
    const auto layers = static_cast<int64_t>(random() % (1 + model_layers(measured).size()));
    const Topology topology = links(int64_t{1} << random() % 3, random() % 2 == 0 ? 1e6 : 1e8);
    const Profile frozen = frozen_profile(measured, layers, layers > 0 && random() % 2 == 0);
    PlanRequest request;
    const Plan halved = halving_plan(frozen, topology, request);
    CHECK_NOTHROW(halved.validate("halved"));
    CHECK(halved.world_size <= topology.device_count());
    request.schedule = halved.schedule;
    request.microbatches = halved.microbatches;
    CAPTURE(round, layers, halved.shape_text(), topology.device_count());
    const Plan plan = make_plan(frozen, topology, request);
    CHECK(plan.predicted->minibatch_seconds <= halved.predicted->minibatch_seconds * 1.011);
  }
}

TEST_CASE("plan_frozen: a plan on any number of ranks, changed only where that is faster") {
  std::mt19937 random(2122);
  int changed = 0;
  for (int round = 0; round < 60; ++round) {
    const Profile measured = layered_profile(random, 4 + static_cast<int>(random() % 5));
    const auto layers = static_cast<int64_t>(1 + random() % model_layers(measured).size());
    const Topology topology = links(static_cast<int64_t>(1 + random() % 4));
    PlanRequest request;
    if (round % 3 == 1) request.schedule = "1f1b-flush", request.microbatches = 8;
    const Plan in_force = make_plan(measured, topology, request);
    for (const GlobalBatch global_batch : {GlobalBatch::kGrow, GlobalBatch::kKeep}) {
      CAPTURE(round, layers, in_force.shape_text());
      const FrozenPlan solution =
          plan_frozen(measured, topology, in_force, layers, round % 2 == 0, global_batch);
      CHECK_NOTHROW(solution.plan.validate("plan"));
      CHECK(solution.plan.frozen_layers == layers);
      CHECK(solution.plan.schedule == in_force.schedule);
      CHECK(solution.plan.weights == in_force.weights);
      CHECK(solution.next_seconds <= solution.now_seconds);
      CHECK(solution.next_seconds == solution.plan.predicted->minibatch_seconds);
      CHECK(solution.plan.world_size <= topology.device_count());
      if (global_batch == GlobalBatch::kKeep) CHECK(solution.update_growth <= 1);
      if (!solution.changes) CHECK(solution.plan.shape_text() == in_force.shape_text());
      changed += solution.changes ? 1 : 0;
    }
  }
  CHECK(changed > 0);
}

TEST_CASE("frozen layers shorten a pipeline, and freed ranks become replicas") {
  // Eight equal layers; gradients are dear, so the whole model is best as a pipeline.
  Profile profile;
  profile.model = "equal";
  profile.device = "none";
  profile.minibatch_samples = 8;
  for (int v = 0; v < 9; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.layer = v == 8 ? "head" : "blocks." + std::to_string(v);
    node.inputs = {v == 0 ? "images" : "n" + std::to_string(v - 1) + ".out"};
    node.outputs = {{node.name + ".out", 1000}};
    node.forward_seconds = 4e-3;
    node.backward_input_seconds = node.backward_weight_seconds = 4e-3;
    node.parameter_bytes = node.trainable_parameter_bytes = 2000000;
    node.parameters = {node.name + ".weight"};
    profile.nodes.push_back(node);
  }
  const Topology topology = links(4);
  const Plan whole = make_plan(profile, topology, {});
  const FrozenPlan frozen = plan_frozen(profile, topology, whole, 7, true, GlobalBatch::kGrow);
  CHECK(frozen.next_seconds < frozen.now_seconds);
  CHECK(frozen.changes);
  CHECK(frozen.plan.stages.size() < whole.stages.size());
}

}  // namespace
}  // namespace pipewright::testing
