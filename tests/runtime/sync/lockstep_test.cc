// AD-PSGD in lock-step: pairs of pipelines, drawn for every update, against the serial reference and against
// what must follow from its meaning.
#include <set>

#include "graph/random.h"
#include "models/zoo/registry.h"
#include "runtime/side_by_side/lockstep_pairs.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/runtime/sync/random_delays.h"

using namespace pipewright;
using namespace pipewright::testing;

TEST_CASE(
    "lock-step: the groups of a round are disjoint, hold every pipeline that updates and are pairs but for "
    "those left alone") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    KeyedRandom random({seed, 1});
    const LockstepPairs pairs{seed, 1 + static_cast<int64_t>(random.below(9)),
                              1 + static_cast<int64_t>(random.below(4))};
    const Span span{static_cast<int64_t>(random.below(40)), static_cast<int64_t>(random.below(60))};
    CAPTURE(seed, pairs.pipelines, pairs.interval, span.first, span.count);
    for (int64_t round = 0; round < 30; ++round) {
      std::set<int64_t> updates;  // by definition: the pipelines that train a minibatch of the round
      for (int64_t k = span.first; k < span.end(); ++k)
        if (k / pairs.pipelines / pairs.interval == round) updates.insert(k % pairs.pipelines);
      const std::vector<int64_t> order = pairs.drawn(round);
      CHECK(std::set<int64_t>(order.begin(), order.end()).size() == static_cast<size_t>(pairs.pipelines));
      int64_t alone = 0;
      for (const int64_t pipeline : updates) {
        const std::vector<int64_t> group = pairs.group_of(pipeline, round, span);
        CHECK(std::count(group.begin(), group.end(), pipeline) == 1);
        CHECK((group.size() == 1 || (group.size() == 2 && group[0] < group[1])));
        for (const int64_t member : group) {
          CHECK(updates.count(member) == 1);
          CHECK(pairs.group_of(member, round, span) == group);
        }
        alone += group.size() == 1;
      }
      if (static_cast<int64_t>(updates.size()) == pairs.pipelines) CHECK(alone == pairs.pipelines % 2);
    }
  }
}

TEST_CASE("lock-step: every pipeline meets every other one, about as often") {
  const LockstepPairs pairs{7, 6, 1};
  std::map<std::pair<int64_t, int64_t>, int64_t> met;
  constexpr int64_t kRounds = 3000;
  for (int64_t round = 0; round < kRounds; ++round)
    for (int64_t p = 0; p < 6; ++p) {
      const auto group = pairs.group_of(p, round, {0, 6 * kRounds});
      if (group[0] == p) ++met[{group[0], group[1]}];
    }
  CHECK(met.size() == 15);
  for (const auto& [pair, times] : met)
    CHECK(std::abs(times - kRounds / 5) < 130);  // over 5 standard deviations
}

TEST_CASE("lock-step: whatever plan and rules, weights and losses are the serial program's, bit for bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  for (int64_t seed = 0; seed < side_by_side_cases(60); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed) + 11000);
    RandomJob job = jobs.next_side_by_side("adpsgd-lockstep", 6);
    if (seed % 3 == 0) cast_weights_once(job);
    check_side_by_side(job.plan, job.rules.sync, job.rules.gradient_accumulation);
    job.rules.total_minibatches = job.spans.back().end();
    CAPTURE(seed, job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.rules.optimizer.name);
    const auto minibatches = random_minibatches(job.model.graph, job.spans.back().end(), 5);
    auto world =
        job.plan.world_size == 1
            ? std::vector<std::unique_ptr<Transport>>()
            : make_world(transports[static_cast<size_t>(seed) % transports.size()], job.plan.world_size);
    const PipelineRun run =
        run_pipeline(job.model, job.plan, job.rules, job.spans, minibatches, std::move(world),
                     random_delays(job.plan.world_size, static_cast<uint64_t>(seed)));
    const ReferenceResult expected =
        train_serially(job.model, job.plan, job.rules, job.spans,
                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    check_run(job.plan, job.rules, job.spans, run, expected);
  }
}

TEST_CASE("lock-step with two pipelines and plain SGD is one pipeline that all-reduces, to rounding") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  const Plan plan = plan_of(model, {2, 2}, {1, 1});
  TrainingRules rules;
  rules.seed = 5;
  rules.optimizer.learning_rate = 0.05;
  rules.total_minibatches = 12;
  const auto minibatches = random_minibatches(model.graph, 12, 10);
  const auto run = [&](const std::string& sync) {
    rules.sync = sync;
    return run_pipeline(model, plan, rules, {{0, 12}}, minibatches, make_world("local", 4));
  };
  const PipelineRun together = run("all-reduce"), pairs = run("adpsgd-lockstep");
  for (size_t k = 0; k < 12; ++k) CHECK(pairs.losses[k] == Approx(together.losses[k]).epsilon(1e-4));
  for (const auto& [name, copies] : pairs.weights) {
    INFO(name);
    CHECK(at::allclose(copies[0], together.weights.at(name)[0], 1e-4, 1e-6));
  }
}
