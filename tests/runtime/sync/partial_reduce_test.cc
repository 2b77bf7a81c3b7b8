// Partial reduce: pipelines side by side that average their weights with whoever is ready, against the serial
// reference that repeats their groups, and against what must follow from its meaning.
#include <set>
#include <thread>

#include "models/zoo/registry.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/runtime/sync/served_run.h"

using namespace pipewright;
using namespace pipewright::testing;

TEST_CASE(
    "partial reduce: whatever plan, rules and delays, weights and losses are the serial program's with the "
    "same "
    "groups, bit for bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  std::map<size_t, int64_t> sizes;
  for (int64_t seed = 0; seed < side_by_side_cases(40); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed));
    const std::string sync =
        "partial-reduce:window=" + std::to_string(std::vector<int>{1, 2, 10}[static_cast<size_t>(seed) % 3]) +
        (seed % 2 == 0 ? ",scope=stage" : ",scope=pipeline") + (seed % 5 == 0 ? ",pairs-above=2" : "") +
        (seed % 4 < 2 ? ",minibatches=turns" : "");
    RandomJob job = jobs.next_side_by_side(sync, 6);
    if (seed % 3 == 0) cast_weights_once(job);
    if (!job.plan.tied_parameters.empty() && seed % 2 == 0) {
      CHECK_THROWS_WITH(check_side_by_side(job.plan, sync, job.rules.gradient_accumulation),
                        Catch::Contains("would differ"));
      continue;
    }
    check_side_by_side(job.plan, sync, job.rules.gradient_accumulation);
    job.rules.total_minibatches = job.spans.back().end();
    CAPTURE(seed, sync, job.plan.shape_text(), job.plan.schedule, job.rules.optimizer.name);
    const auto minibatches = random_minibatches(job.model.graph, job.spans.back().end(), 5);
    const Ran ran = run(job.model, job.plan, job.rules, job.spans, minibatches,
                        world_of(transports[static_cast<size_t>(seed) % transports.size()], job.plan),
                        static_cast<uint64_t>(seed) + 1);
    for (const auto& stage : ran.groups)
      for (const auto& group : stage) ++sizes[group.size()];
    const ReferenceResult expected =
        train_serially(job.model, {ran.part(job.plan, job.spans)}, job.rules,
                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    check_run(job.plan, job.rules, job.spans, ran.run, expected);
  }
  for (const size_t size : {1, 2, 3}) CHECK(sizes[size] > 0);
}

TEST_CASE(
    "shared minibatches: whatever plan, rules and delays, each is one pipeline's, and the serial program "
    "that "
    "is told whose ends with the same bits") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  int64_t uneven = 0;
  for (int64_t seed = 0; seed < side_by_side_cases(40); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed) + 7000);
    RandomJob job = jobs.next_side_by_side("none:minibatches=shared", 6);
    job.rules.total_minibatches = job.spans.back().end();
    CAPTURE(seed, job.plan.shape_text(), job.plan.schedule, job.rules.optimizer.name);
    const auto minibatches = random_minibatches(job.model.graph, job.spans.back().end(), 5);
    const Ran ran = run(job.model, job.plan, job.rules, job.spans, minibatches,
                        world_of(transports[static_cast<size_t>(seed) % transports.size()], job.plan),
                        static_cast<uint64_t>(seed) + 1);
    for (const auto& [first, pipelines] : ran.minibatches) {
      std::set<int64_t> counts;
      for (const auto& [pipeline, parts] : pipelines) {
        int64_t count = 0;
        for (const Span& part : parts) count += part.count;
        counts.insert(count);
      }
      uneven += counts.size() > 1 ? 1 : 0;
    }
    const ReferenceResult expected =
        train_serially(job.model, {ran.part(job.plan, job.spans)}, job.rules,
                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    check_run(job.plan, job.rules, job.spans, ran.run, expected);
  }
  CHECK(uneven > 0);
}

TEST_CASE("a pipeline that is slow trains few minibatches, and the others do not wait for it") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules;
  rules.sync = "none:minibatches=shared";
  rules.total_minibatches = 60;
  const auto minibatches = random_minibatches(model.graph, 60, 10);
  ServedGroups served(plan, rules.sync);
  RankExtras extras;
  extras.minibatches = [&](int64_t) { return connect_minibatches(served.client()); };
  const auto slow = [&](int64_t rank, const Action& action) {
    if (action.kind != ActionKind::kForward || plan.stages[1].ranks[0] != rank) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  };
  run_pipeline(model, plan, rules, {{0, 60}}, minibatches, make_world("local", 4), slow, extras);
  served.groups();
  int64_t of_slow = 0;
  for (const Span& part : served.minibatches().at(0).at(0)) of_slow += part.count;
  CHECK(of_slow >= 1);
  CHECK(of_slow < 30);  // taking turns it would train half of them
}

TEST_CASE("the serial program refuses minibatches of another run") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules;
  rules.sync = "none:minibatches=shared";
  const auto minibatches = random_minibatches(model.graph, 4, 10);
  const auto train = [&](PartsBySpan parts) {
    train_serially(model, {{plan, {{0, 4}}, {}, std::move(parts)}}, rules,
                   [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  };
  CHECK_NOTHROW(train({{0, {{0, {{0, 3}}}, {1, {{3, 1}}}}}}));
  CHECK_NOTHROW(train({{0, {{1, {{0, 9}}}}}}));
  CHECK_THROWS_WITH(train({{0, {{0, {{0, 3}}}}}}), Catch::Contains("minibatch 3 was handed out to nobody"));
  CHECK_THROWS_WITH(train({{2, {{0, {{0, 4}}}}}}), Catch::Contains("minibatch 0 was handed out to nobody"));
  CHECK_THROWS_WITH(train({{0, {{0, {{0, 4}}}, {1, {{3, 1}}}}}}),
                    Catch::Contains("minibatch 3 was handed out twice"));
  CHECK_THROWS_WITH(train({{0, {{2, {{0, 4}}}}}}), Catch::Contains("handed out to pipeline 2"));
}

TEST_CASE("partial reduce with a window of 1 and plain SGD is one pipeline that all-reduces, to rounding") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  const Plan plan = plan_of(model, {3, 3}, {1, 1});
  TrainingRules rules;
  rules.seed = 5;
  rules.optimizer.learning_rate = 0.05;
  rules.total_minibatches = 12;
  const auto minibatches = random_minibatches(model.graph, 12, 10);
  rules.sync = "all-reduce";
  const PipelineRun together =
      run_pipeline(model, plan, rules, {{0, 12}}, minibatches, make_world("local", 6));
  for (const char* scope : {"stage", "pipeline"}) {
    rules.sync = std::string("partial-reduce:window=1,minibatches=turns,scope=") + scope;
    const Ran ran = run(model, plan, rules, {{0, 12}}, minibatches, make_world("local", 6), 3);
    for (const auto& stage : ran.groups) {
      CHECK(stage.size() == 4);
      for (const auto& group : stage) CHECK(group.size() == 3);
    }
    for (size_t k = 0; k < 12; ++k) CHECK(ran.run.losses[k] == Approx(together.losses[k]).epsilon(1e-4));
    for (const auto& [name, copies] : ran.run.weights) {
      INFO(name);
      CHECK(at::allclose(copies[0], together.weights.at(name)[0], 1e-4, 1e-6));
    }
  }
}

TEST_CASE("stages of one rank do not wait for groups that the same rank has yet to ask for") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=5,width=8,image=4,channels=1", 4);
  const Plan plan = interleaved_plan(model, 4, 2, 2, 4);
  const auto minibatches = random_minibatches(model.graph, 16, 10);
  const std::vector<Span> spans = {{0, 10}, {10, 6}};
  for (const char* scope : {"stage", "pipeline"})
    for (const double clipping_norm : {0.0, 0.1}) {
      TrainingRules rules;
      rules.sync = std::string("partial-reduce:window=2,scope=") + scope;
      rules.gradient_clipping_norm = clipping_norm;
      rules.total_minibatches = 16;
      CAPTURE(rules.sync, clipping_norm);
      const Ran ran = run(model, plan, rules, spans, minibatches, make_world("local", 4), 3);
      const ReferenceResult expected = train_serially(model, {ran.part(plan, spans)}, rules, [&](int64_t k) {
        return minibatches[static_cast<size_t>(k)];
      });
      check_run(plan, rules, spans, ran.run, expected);
    }
}

TEST_CASE("the serial program refuses groups of another run") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules;
  rules.sync = "partial-reduce:minibatches=turns";
  auto minibatches = random_minibatches(model.graph, 4, 10);
  const auto train = [&](GroupsByStage groups) {
    const auto count = static_cast<int64_t>(minibatches.size());
    train_serially(model, {{plan, {{0, count}}, std::move(groups)}}, rules,
                   [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  };
  const std::vector<std::vector<int64_t>> alone = {{0}, {1}, {0}, {1}}, both = {{0, 1}, {0, 1}};
  CHECK_NOTHROW(train({alone, both}));
  CHECK_THROWS_WITH(train({alone, {{0, 1}}}), Catch::Contains("the groups of stage 1 end before"));
  CHECK_THROWS_WITH(train({alone}), Catch::Contains("the groups of stage 1 end before"));
  CHECK_THROWS_WITH(train({alone, {{0, 2}, {1}, {0}, {1}}}), Catch::Contains("has pipeline 2 of 2"));
  // At stage 0 the first of one with the last of the other, at stage 1 the other way round.
  minibatches = random_minibatches(model.graph, 6, 10);
  CHECK_THROWS_WITH(train({{{0}, {0}, {0, 1}, {1}, {1}}, {{1}, {1}, {0, 1}, {0}, {0}}}),
                    Catch::Contains("waits for ever"));
}
