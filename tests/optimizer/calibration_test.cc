// Calibration against runs that are made up: what was put into them comes out again.
#include "optimizer/plan/calibration.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/error.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright::testing {
namespace {

PlanRequest asked(const std::string& strategy, const std::string& schedule = "",
                  const std::string& weights = "") {
  PlanRequest request;
  request.strategy = strategy;
  if (!schedule.empty()) request.schedule = schedule;
  if (!weights.empty()) request.weights = weights;
  if (weights == "flush") request.microbatches = 4;
  return request;
}

// A chain that computes far longer than its messages take.
Profile heavy_profile(std::mt19937& random, const std::string& name) {
  Profile profile = random_profile(random, 6, true, 100);
  profile.model = name;
  for (ProfiledNode& node : profile.nodes) {
    node.forward_seconds = 1e-3 * static_cast<double>(pick(random, 3, 9));
    node.backward_input_seconds = node.backward_weight_seconds = node.forward_seconds;
    node.parameter_bytes = node.trainable_parameter_bytes = 1000;
    node.parameters = {node.name + ".weight"};
  }
  return profile;
}

Topology two_devices(double bandwidth_bytes_per_second = 1e9) {
  return flat_topology(2, bandwidth_bytes_per_second, 0, 0);
}

std::vector<MeasuredRun> runs_of(const std::vector<Profile>& profiles, const HostFactors& truth) {
  std::vector<MeasuredRun> runs;
  for (const Profile& profile : profiles) {
    for (const PlanRequest& request :
         {asked("dp"), asked("straight"), asked("model-parallel", "model-parallel"),
          asked("straight", "1f1b-flush", "flush")}) {
      MeasuredRun run;
      run.name = profile.model;
      run.plan = make_plan(profile, two_devices(), request);
      run.profile = profile;
      runs.push_back(run);
    }
    runs.push_back({profile.model, make_plan(profile, flat_topology(1, 1e9, 0, 0), asked("dp")), 0, profile});
  }
  Topology real = two_devices();
  real.factors = truth;
  for (MeasuredRun& run : runs)
    run.minibatch_seconds = evaluate_plan(run.plan, run.profile, real, {}).minibatch_seconds;
  return runs;
}

}  // namespace

TEST_CASE("calibrate: the factors that runs were made with, whatever the models") {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const auto factor = [&] { return 1 + 0.01 * static_cast<double>(pick(random, 0, 60)); };
    const HostFactors truth = {factor(), factor(), factor(), factor(), factor(), 1};
    std::vector<Profile> profiles;
    for (const char* name : {"a", "b", "c"}) profiles.push_back(heavy_profile(random, name));
    const std::vector<MeasuredRun> runs = runs_of(profiles, truth);
    const Calibration found = calibrate(runs, two_devices());
    CAPTURE(round);
    CHECK(found.factors.alone == Approx(truth.alone).epsilon(0.002));
    CHECK(found.factors.together == Approx(truth.together).epsilon(0.002));
    CHECK(found.factors.draining == Approx(truth.draining).epsilon(0.002));
    CHECK(found.factors.by_turns == Approx(truth.by_turns).epsilon(0.002));
    CHECK(found.factors.replicas == Approx(truth.replicas).epsilon(0.002));
    CHECK(found.factors.runs == 15);
    CHECK(found.left_out_error < 0.003);
    CHECK(found.plain_error >= found.left_out_error - 0.003);
    // A topology that was calibrated before gives the same.
    Topology before = two_devices();
    before.factors = {2, 2, 2, 2, 2, 7};
    CHECK(calibrate(runs, before).factors == found.factors);
  }
}

TEST_CASE("calibrate: a run never confirms itself, medians ignore one that is far off") {
  std::mt19937 random(4);
  std::vector<Profile> profiles;
  for (const char* name : {"a", "b", "c", "d", "e"}) profiles.push_back(heavy_profile(random, name));
  std::vector<MeasuredRun> runs = runs_of(profiles, {1.1, 1.1, 1.1, 1.1, 1.1, 1});
  for (MeasuredRun& run : runs)
    if (run.profile.model == "c") run.minibatch_seconds *= 3;
  const Calibration found = calibrate(runs, two_devices());
  CHECK(found.factors.together == Approx(1.1).epsilon(0.002));
  for (size_t i = 0; i < runs.size(); ++i) {
    const double ratio = runs[i].minibatch_seconds / found.runs[i].left_out_seconds;
    CHECK(ratio == Approx(runs[i].profile.model == "c" ? 3 : 1).epsilon(0.003));
  }
  // Alone, a model has no others to be told by: the profile counts.
  const std::vector<MeasuredRun> single(runs.begin(), runs.begin() + 5);
  for (const CalibratedRun& run : calibrate(single, two_devices()).runs)
    CHECK(run.left_out_seconds == run.plain_seconds);
}

TEST_CASE("calibrate: no factor where links set the pace, and none below one") {
  std::mt19937 random(5);
  const Profile profile = heavy_profile(random, "a");
  std::vector<MeasuredRun> fast = runs_of({profile}, {});
  for (MeasuredRun& run : fast) run.minibatch_seconds *= 0.8;
  const Calibration found = calibrate(fast, two_devices());
  CHECK(found.factors == HostFactors{1, 1, 1, 1, 1, 5});
  CHECK(*found.runs[1].factor == Approx(0.8).epsilon(0.01));

  const Topology slow = two_devices(1e3);
  MeasuredRun run;
  run.plan = make_plan(profile, two_devices(), asked("dp"));
  run.profile = profile;
  run.minibatch_seconds = 3 * evaluate_plan(run.plan, profile, slow, {}).minibatch_seconds;
  const Calibration bound = calibrate({run}, slow);
  CHECK_FALSE(bound.runs[0].factor);
  CHECK(bound.factors.replicas == 1);
}

TEST_CASE("a calibrated topology is read as it was written, and strictly") {
  Topology topology = two_devices();
  CHECK(document_text(topology).find("calibration") == std::string::npos);
  topology.factors = {1, 1.25, 1.5, 1.125, 2, 12};
  const std::string text = document_text(topology);
  CHECK(parse_document<Topology>(text, "test").factors == topology.factors);
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"runs\": 12", "\"runs\": 0"},
                                                        {"1.25", "0.5"},
                                                        {"1.25", "11"},
                                                        {"together_factor", "togther_factor"}}) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    CHECK_THROWS_AS(parse_document<Topology>(other, "test"), InputError);
  }
}

TEST_CASE("plans are priced with the factors, the bound is not, and the choice may change with them") {
  std::mt19937 random(6);
  int changed = 0;
  for (int round = 0; round < 40; ++round) {
    const Profile profile = heavy_profile(random, "a");
    Topology topology = flat_topology(4, 1e6, 0, 0);
    const Plan plain = make_plan(profile, topology, {});
    topology.factors = {1, 1.05, 1.1, 1.2, 1.3, 9};
    const Plan plan = make_plan(profile, topology, {});
    const double stays = evaluate_plan(plain, profile, topology, {}).minibatch_seconds;
    CHECK(plan.predicted->minibatch_seconds <= stays * (1 + 1e-9));
    CHECK(plan.predicted->lower_bound_seconds <= plain.predicted->minibatch_seconds * (1 + 1e-9));
    changed += plan.shape_text() != plain.shape_text();
  }
  CHECK(changed > 3);
}

}  // namespace pipewright::testing
