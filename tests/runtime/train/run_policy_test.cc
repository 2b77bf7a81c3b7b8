#include "runtime/train/run_policy.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/train/change_text.h"
#include "tests/runtime/train/small_job.h"
#include "tests/support/process.h"

using namespace pipewright;
using namespace pipewright::testing;

TEST_CASE("policy: norms of a layer are means over replicas and roots of sums of squares over stages") {
  // Two replicas of stage 0, which has layer 0 and a part of layer 1, and stage 1 with the rest of it.
  const std::vector<GradientNorms> told = {{8, 0, {2, 3}}, {8, 0, {4, 5}}, {8, 1, {0, 3}}};
  const std::vector<double> norms = gathered_norms(told, 2);
  REQUIRE(norms.size() == 2);
  CHECK(norms[0] == 3);
  CHECK(norms[1] == 5);  // of 4 and 3
}

TEST_CASE(
    "policy: gathered norms do not depend on the order of ranks, nor on how often a stage is replicated") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t layers = 1 + random() % 6;
    const auto stages = static_cast<int64_t>(1 + random() % 4);
    std::vector<GradientNorms> once, several;
    for (int64_t stage = 0; stage < stages; ++stage) {
      GradientNorms of_stage{8, stage, {}};
      for (size_t l = 0; l < layers; ++l)
        of_stage.norms.push_back(static_cast<double>(random() % 100) / 8);  // sums are exact
      once.push_back(of_stage);
      const int replicas = 1 << (random() % 3);
      for (int k = 0; k < replicas; ++k) several.push_back(of_stage);
    }
    std::shuffle(several.begin(), several.end(), random);
    const auto expected = gathered_norms(once, layers), got = gathered_norms(several, layers);
    for (size_t l = 0; l < layers; ++l) CHECK(got[l] == Approx(expected[l]).epsilon(1e-14));
  }
}

TEST_CASE(
    "policy: a plan that is written while the run trains becomes a change, one that does not fit none") {
  const TemporaryFolder folder;
  Run run = small_run(folder);
  const std::string next = (folder / "next.json").string();
  run.adapt = "watch:file=" + next;
  const Job job = prepare_job(run, 1);
  REQUIRE(job.decides);
  const TrainingData data(job);
  MeasuredSpeeds measured(1);
  RunPolicy policy(job, data, measured);
  CHECK_FALSE(policy.decides_every());
  CHECK(policy.layer_norms() == nullptr);
  CHECK_FALSE(policy.reads_cores());
  CHECK(policy.decide_on_the_way(3, job.plan) == "");

  Plan deeper = job.plan;
  deeper.stages.front().in_flight = 3;
  write_document(next, deeper);
  std::string decided;
  REQUIRE(eventually(std::chrono::seconds(60), [&] {  // looked at ten times a second
    decided = policy.decide_on_the_way(4, job.plan);
    return !decided.empty();
  }));
  const PlannedChange change = change_from(decided);
  CHECK(change.plan.stages.front().in_flight == 3);
  CHECK(change.file == next);

  Plan unfit = deeper;
  unfit.stages.front().nodes.pop_back();
  write_document(next, unfit);
  for (int tries = 0; tries < 20; ++tries) {
    CHECK(policy.decide_on_the_way(5, deeper) == "");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_CASE("policy: a rule of freezing decides where the pipeline is empty, by the norms that ranks tell") {
  const TemporaryFolder folder;
  Run run = small_run(folder);
  run.adapt = "freeze:rule=alpha,alpha=0.5,every=6";
  const Job job = prepare_job(run, 1);
  const TrainingData data(job);
  MeasuredSpeeds measured(1);
  RunPolicy policy(job, data, measured);
  CHECK(policy.decides_every() == 6);
  const AskPolicy asked{6, {{6, 0, {0.1, 0.2, 1.0, 1.0}}}};
  const std::string decided = policy.decide_drained(asked, 0, 1, std::nullopt);
  REQUIRE_FALSE(decided.empty());
  const PlannedChange change = change_from(decided);
  CHECK(change.minibatch == 6);
  REQUIRE(change.freeze);
  CHECK(*change.freeze > 0);
  CHECK(change.plan.frozen_layers == *change.freeze);
}
