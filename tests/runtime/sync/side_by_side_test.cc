// Pipelines side by side that nothing holds together between two drains (`--sync none`): against the serial
// reference, and against what must follow from its meaning.
#include <cstdlib>

#include "graph/error.h"
#include "models/zoo/registry.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

int64_t cases() {
  const char* given = std::getenv("PIPEWRIGHT_SIDE_BY_SIDE_CASES");
  return given ? std::stoll(given) : 40;
}

std::vector<std::unique_ptr<Transport>> some_world(const std::string& transport, const Plan& plan) {
  if (plan.world_size == 1) return {};
  return make_world(transport, plan.world_size);
}

}  // namespace

TEST_CASE("pipelines count the run's minibatches among themselves") {
  for (const int64_t count : {1, 2, 3, 5}) {
    for (int64_t first = 0; first < 12; ++first) {
      for (int64_t length = 0; length < 12; ++length) {
        std::vector<int64_t> taken(static_cast<size_t>(length), 0);
        for (int64_t index = 0; index < count; ++index) {
          const PipelineTurn turn{index, count};
          const Span own = turn.own({first, length});
          for (int64_t k = own.first; k < own.end(); ++k) {
            CHECK(turn.to_own(turn.to_run(k)) == k);
            CHECK(turn.before(turn.to_run(k)) == k);
            REQUIRE(turn.to_run(k) >= first);
            ++taken.at(static_cast<size_t>(turn.to_run(k) - first));
          }
        }
        CHECK(taken == std::vector<int64_t>(static_cast<size_t>(length), 1));
      }
    }
  }
}

TEST_CASE(
    "sync none: whatever plan and rules, weights, slots' effects, losses are the serial program's, bit for "
    "bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  for (int64_t seed = 0; seed < cases(); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed));
    RandomJob job = jobs.next_side_by_side("none", 6);
    if (seed % 3 == 0) cast_weights_once(job);
    CAPTURE(seed, job.plan.shape_text(), job.plan.schedule, job.rules.optimizer.name);
    check_side_by_side(job.plan, "none", job.rules.gradient_accumulation);
    compare(job.model, job.plan, job.rules, job.spans,
            some_world(transports[static_cast<size_t>(seed) % transports.size()], job.plan));
  }
}

TEST_CASE("sync none: a replica's pipeline until the drain is the pipeline alone") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules = momentum_rules();
  rules.sync = "none";
  rules.total_minibatches = 9;
  const auto minibatches = random_minibatches(model.graph, 9, 10);
  const PipelineRun both = run_pipeline(model, plan, rules, {{0, 9}}, minibatches, make_world("local", 4));
  // Plain SGD has no memory of which minibatch it sees: pipeline i alone, fed with its own ones.
  std::map<std::string, std::vector<at::Tensor>> alone;
  for (const int64_t i : {0, 1}) {
    const Plan own = plan_of(model, {1, 1}, {2, 1});
    std::vector<MinibatchFields> fed;
    for (size_t k = static_cast<size_t>(i); k < 9; k += 2) fed.push_back(minibatches[k]);
    const Span span{0, static_cast<int64_t>(fed.size())};
    TrainingRules of_one = rules;
    of_one.sync = "all-reduce";
    const PipelineRun run = run_pipeline(model, own, of_one, {span}, fed, make_world("local", 2));
    for (size_t k = 0; k < fed.size(); ++k)
      CHECK(both.losses[2 * k + static_cast<size_t>(i)] == run.losses[k]);
    for (const auto& [name, copies] : run.weights) alone[name].push_back(copies[0]);
  }
  for (const auto& [name, copies] : alone) {
    const at::Tensor mean = (copies[0] + copies[1]) / 2.0;
    INFO(name);
    for (const at::Tensor& weight : both.weights.at(name)) CHECK(weight.equal(mean));
  }
}

TEST_CASE("sync none with one replica is all-reduce with one replica") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {1, 1}, {2, 1});
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 11;
  const auto minibatches = random_minibatches(model.graph, 11, 10);
  std::vector<PipelineRun> runs;
  for (const char* sync : {"none", "all-reduce"}) {
    rules.sync = sync;
    runs.push_back(run_pipeline(model, plan, rules, {{0, 7}, {7, 4}}, minibatches, make_world("local", 2)));
  }
  CHECK(runs[0].losses == runs[1].losses);
  for (const auto& [name, copies] : runs[0].weights) CHECK(copies[0].equal(runs[1].weights.at(name)[0]));
}

TEST_CASE("sync none refuses plans that are no pipelines side by side, and says which stage") {
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const auto refused = [](const Plan& plan) -> std::string {
    try {
      check_side_by_side(plan, "none", 1);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refused(plan_of(model, {2, 2}, {2, 1})).empty());
  CHECK_THAT(refused(plan_of(model, {2, 1}, {2, 1})), Catch::Contains("stage 0 has 2, stage 1 has 1"));
  Plan uneven = plan_of(model, {2, 2}, {2, 1});
  uneven.stages[1].shares = {2, 1};
  CHECK_THAT(refused(uneven), Catch::Contains("stage 1 has uneven shares"));
  uneven.stages[1].shares = {3, 3};
  CHECK(refused(uneven).empty());
  CHECK_THAT(refused(with_schedule(plan_of(model, {2, 2}, {3, 3}), "gpipe", "flush", 3)),
             Catch::Contains("2 pipelines cannot divide an update interval of 3 microbatches"));
  CHECK(refused(with_schedule(plan_of(model, {2, 2}, {4, 4}), "gpipe", "flush", 4)).empty());
  for (const char* name : {"nome", "all_reduce"}) CHECK_THROWS_AS(sync_facts(name), InputError);
}
