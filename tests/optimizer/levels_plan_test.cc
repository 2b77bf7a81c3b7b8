// Plans on levels of links: what make_plan promises there.
#include <catch2/catch.hpp>
#include <set>

#include "graph/document.h"
#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::pick;

Topology servers(int64_t devices, int64_t count, double inside, double between) {
  Topology topology = flat_topology(devices, inside, 0, 0);
  topology.levels.push_back({count, between, 0, false});
  return topology;
}

TEST_CASE("Random plans on levels keep every promise") {
  std::mt19937 random(31);
  for (int c = 0; c < 200; ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 1, 6)), true, 0);
    Topology topology =
        servers(pick(random, 1, 3), pick(random, 1, 3), 1e7, pick(random, 0, 1) == 0 ? 1e6 : 1e5);
    if (pick(random, 0, 2) == 0) topology.levels[pick(random, 0, 1)].shared = true;
    const bool differ = pick(random, 0, 3) == 0;
    for (int64_t d = 0; differ && d < topology.device_count(); ++d) {
      topology.devices.push_back({"host", d % 2 == 0 ? 1.0 : 0.5, 0});
    }
    PlanRequest request;
    const char* names[] = {"best", "best", "dp", "straight", "model-parallel"};
    request.strategy = names[pick(random, 0, 4)];
    Plan plan;
    INFO(request.strategy << " on " << topology.to_json().dump());
    try {
      plan = make_plan(profile, topology, request);
    } catch (const InfeasibleError&) {
      CHECK((request.strategy == "straight" || request.strategy == "model-parallel"));
      continue;
    }
    INFO("case " << c << ", " << request.strategy << ": " << document_text(plan));
    plan.validate("plan");
    const Prediction again = evaluate_plan(plan, profile, topology, request);
    CHECK(plan.predicted->minibatch_seconds == Approx(again.minibatch_seconds).epsilon(1e-9).margin(1e-15));
    CHECK(plan.predicted->bottleneck == again.bottleneck);
    CHECK(plan.predicted->lower_bound_seconds <= plan.predicted->minibatch_seconds);
    CHECK_FALSE(plan.predicted->bottleneck.empty());

    if (request.strategy != "best") continue;
    PlanNotes notes;
    make_plan(profile, topology, request, &notes);
    CHECK(notes.exact);
    Topology faster = topology;
    for (TopologyLevel& level : faster.levels) level.bandwidth_bytes_per_second *= 2;
    PlanNotes more;
    make_plan(profile, faster, request, &more);
    CHECK(more.period_seconds <= notes.period_seconds * (1 + 1e-9));
    if (differ) continue;
    Topology larger = topology;
    larger.levels[1].count += 1;
    if (topology.levels[1].count > 1) {
      make_plan(profile, larger, request, &more);
      CHECK(more.period_seconds <= notes.period_seconds * (1 + 1e-9));
    }
  }
}

TEST_CASE("Plans that drain, keep two versions or obey constraints keep their promises on levels too") {
  std::mt19937 random(32);
  int drained = 0;
  int constrained = 0;
  for (int c = 0; c < 150; ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 1, 6)), true, 0);
    Topology topology = servers(pick(random, 1, 3), pick(random, 1, 3), 1e7, 1e6);
    if (pick(random, 0, 3) == 0) topology.levels[pick(random, 0, 1)].shared = true;
    const bool differ = pick(random, 0, 2) == 0;
    for (int64_t d = 0; differ && d < topology.device_count(); ++d)
      topology.devices.push_back({"host", d % 2 == 0 ? 1.0 : 0.5, 0});
    PlanRequest request;
    const char* schedules[] = {"1f1b", "gpipe", "1f1b-flush", "zb-h1", "interleaved"};
    request.schedule = schedules[pick(random, 0, 4)];
    if (request.schedule == "1f1b") request.weights = pick(random, 0, 1) == 0 ? "2bw" : "stash";
    if (request.schedule != "interleaved" && pick(random, 0, 1) == 0) {
      request.constraints.most_stages = pick(random, 1, 3);
      if (pick(random, 0, 1) == 0) request.constraints.replicas[0] = pick(random, 1, 2);
    }
    INFO("case " << c << ", " << request.schedule << " on " << topology.to_json().dump());
    Plan plan;
    try {
      plan = make_plan(profile, topology, request);
    } catch (const InfeasibleError&) {
      CHECK((request.constraints.any() || request.schedule == "interleaved"));
      continue;
    }
    drained += plan.weights == "flush";
    constrained += request.constraints.any();
    plan.validate("plan");
    const Prediction again = evaluate_plan(plan, profile, topology, request);
    CHECK(plan.predicted->minibatch_seconds == Approx(again.minibatch_seconds).epsilon(1e-9).margin(1e-15));
    CHECK(plan.predicted->lower_bound_seconds <= plan.predicted->minibatch_seconds * (1 + 1e-9));
    if (request.constraints.most_stages > 0)
      CHECK(static_cast<int64_t>(plan.stages.size()) <= request.constraints.most_stages);
    if (!request.constraints.replicas.empty())
      CHECK(static_cast<int64_t>(plan.stages[0].ranks.size()) == request.constraints.replicas.at(0));
  }
  CHECK(drained > 50);
  CHECK(constrained > 20);
}

TEST_CASE("A plan for inference on servers says its latency, or the least period there is") {
  std::mt19937 random(5);
  Profile profile = testing::random_profile(random, 6, true, 100);
  for (ProfiledNode& node : profile.nodes) node.forward_seconds = 1e-3;
  PlanRequest request;
  request.inference_period_seconds = 2e-3;
  const Plan plan = make_plan(profile, servers(3, 2, 1e9, 1e8), request);
  CHECK_THAT(plan.predicted->bottleneck, Catch::Contains("latency"));
  CHECK(plan.predicted->minibatch_seconds <= 2e-3 * (1 + 1e-9));
  request.inference_period_seconds = 1e-4;
  CHECK_THAT(
      testing::error_of<InfeasibleError>([&] { make_plan(profile, servers(3, 2, 1e9, 1e8), request); }),
      Catch::Contains("takes a minibatch every"));
}

TEST_CASE("Twenty plans from one problem on two levels are one plan") {
  std::mt19937 random(5);
  const Profile profile = testing::random_profile(random, 8, true, 0);
  std::set<std::string> texts;
  for (int run = 0; run < 20; ++run)
    texts.insert(document_text(make_plan(profile, servers(4, 2, 1e7, 1e6), PlanRequest())));
  CHECK(texts.size() == 1);
}

TEST_CASE("A slow device gets fewer minibatches") {
  Profile profile;
  profile.model = "one";
  profile.minibatch_samples = 1;
  ProfiledNode node;
  node.name = "n";
  node.forward_seconds = 3;
  node.outputs = {{"n.out", 8}};
  profile.nodes = {node};
  Topology topology = flat_topology(2, 1e9, 0, 0);
  topology.devices = {{"slow", 1, 0}, {"fast", 3, 0}};
  const Plan plan = make_plan(profile, topology, PlanRequest());
  REQUIRE(plan.stages.size() == 1);
  CHECK(plan.stages[0].shares == std::vector<int64_t>{1, 3});
  CHECK(plan.predicted->minibatch_seconds == Approx(0.75));  // four in three seconds
  CHECK(plan.predicted->lower_bound_seconds == Approx(0.75));
}

TEST_CASE("Each stage stands on the class of devices that is fast at it") {
  Profile profile;
  profile.model = "two";
  profile.minibatch_samples = 1;
  ProfiledNode a;
  a.name = "a";
  a.forward_seconds = 1;
  a.outputs = {{"a.out", 8}};
  ProfiledNode b = a;
  b.name = "b";
  b.forward_seconds = 9;
  b.inputs = {"a.out"};
  b.outputs = {{"b.out", 8}};
  profile.nodes = {a, b};
  PlanRequest request;
  Profile& other = request.class_profiles["other"];
  other = profile;
  std::swap(other.nodes[0].forward_seconds, other.nodes[1].forward_seconds);
  Topology topology = flat_topology(2, 1e12, 0, 0);
  topology.devices = {{"first", 1, 0}, {"second", 1, 0, "other"}};
  for (const int64_t expected : {0, 1}) {
    const Plan plan = make_plan(profile, topology, request);
    REQUIRE(plan.stages.size() == 2);
    CHECK(plan.stages[0].ranks == std::vector<int64_t>{expected});
    CHECK(plan.predicted->minibatch_seconds == Approx(1));
    CHECK(plan.predicted->lower_bound_seconds == Approx(1));
    CHECK(evaluate_plan(plan, profile, topology, request).minibatch_seconds == Approx(1));
    std::swap(topology.devices[0], topology.devices[1]);
  }
  other.nodes.pop_back();
  CHECK_THAT(testing::error_of<InputError>([&] { make_plan(profile, topology, request); }),
             Catch::Contains("lacks node \"b\""));
  request.class_profiles.clear();
  CHECK_THAT(testing::error_of<InputError>([&] { make_plan(profile, topology, request); }),
             Catch::Contains("is of class \"other\""));
}

TEST_CASE("A class that takes twice as long everywhere is a relative speed of a half") {
  std::mt19937 random(7);
  for (int c = 0; c < 60; ++c) {
    Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 1, 5)), c % 2 == 0, 50);
    profile.whole.step_seconds = 0;  // a relative speed is of the nodes alone
    Topology slow = servers(2, 2, 1e7, 1e6);
    for (int d = 0; d < 4; ++d) slow.devices.push_back({"host", d < 2 ? 1 : 0.5, 0});
    Topology classed = slow;
    PlanRequest request;
    request.class_profiles["half"] = profile;
    for (ProfiledNode& node : request.class_profiles["half"].nodes) {
      node.forward_seconds *= 2;
      node.backward_input_seconds *= 2;
      node.backward_weight_seconds *= 2;
    }
    for (int d = 2; d < 4; ++d) classed.devices[d] = {"host", 1, 0, "half"};
    PlanNotes of_speed;
    PlanNotes of_class;
    make_plan(profile, slow, {}, &of_speed);
    make_plan(profile, classed, request, &of_class);
    CHECK(of_class.period_seconds == Approx(of_speed.period_seconds).epsilon(1e-9).margin(1e-15));
  }
}

}  // namespace
}  // namespace pipewright
