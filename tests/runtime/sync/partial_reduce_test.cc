// Partial reduce: pipelines side by side that average their weights with whoever is ready, against the serial
// reference that repeats their groups, and against what must follow from its meaning.
#include <cstdlib>
#include <random>
#include <thread>

#include "models/zoo/registry.h"
#include "runtime/groups/group_client.h"
#include "runtime/groups/group_server.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

int64_t cases() {
  const char* given = std::getenv("PIPEWRIGHT_SIDE_BY_SIDE_CASES");
  return given ? std::stoll(given) : 40;
}

std::vector<std::unique_ptr<Transport>> world_of(const std::string& transport, const Plan& plan) {
  if (plan.world_size == 1) return {};
  return make_world(transport, plan.world_size);
}

// Serves the groups of one run, and keeps what it decided.
class ServedGroups {
 public:
  ServedGroups(const Plan& plan, const std::string& sync)
      : stages_(static_cast<int64_t>(plan.stages.size())),
        pipelines_(static_cast<int64_t>(plan.stages[0].ranks.size())),
        of_whole_pipelines_(partial_reduce_rules(sync).of_whole_pipelines),
        groups_(plan.stages.size()) {
    GroupServer::Settings settings;
    settings.secret = "test";
    settings.rules = partial_reduce_rules(sync);
    settings.decided = [this](int64_t, const GroupDecision& decision) {
      if (!decision.passed_on) groups_[static_cast<size_t>(decision.stage)].push_back(decision.pipelines);
    };
    server_ = std::make_unique<GroupServer>(std::move(settings));
  }

  std::unique_ptr<Groups> client() const {
    GroupClientSettings settings;
    settings.host = "127.0.0.1";
    settings.server = {server_->port(), "test"};
    settings.stages = stages_;
    settings.pipelines = pipelines_;
    return connect_groups(std::move(settings));
  }

  /// Behind the run.
  GroupsByStage groups() {
    server_.reset();
    if (of_whole_pipelines_) return GroupsByStage(groups_.size(), groups_.back());
    return groups_;
  }

 private:
  const int64_t stages_, pipelines_;
  const bool of_whole_pipelines_;
  GroupsByStage groups_;
  std::unique_ptr<GroupServer> server_;
};

struct Ran {
  PipelineRun run;
  GroupsByStage groups;
};

// `delays`: ranks sleep now and then, so that groups are of all sizes.
Ran run(const Model& model, const Plan& plan, const TrainingRules& rules, const std::vector<Span>& spans,
        const std::vector<MinibatchFields>& minibatches, std::vector<std::unique_ptr<Transport>> world,
        uint64_t delays = 0) {
  ServedGroups served(plan, rules.sync);
  RankExtras extras;
  extras.groups = [&](int64_t) { return served.client(); };
  std::vector<std::mt19937_64> random;
  for (int64_t r = 0; r < plan.world_size; ++r) random.emplace_back(delays * 1000 + static_cast<uint64_t>(r));
  const auto before = [&](int64_t rank, const Action& action) {
    auto& own = random[static_cast<size_t>(rank)];
    if (delays == 0 || action.kind != ActionKind::kBackward || own() % 4 != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
  };
  Ran ran;
  ran.run = run_pipeline(model, plan, rules, spans, minibatches, std::move(world), before, extras);
  ran.groups = served.groups();
  return ran;
}

}  // namespace

TEST_CASE(
    "partial reduce: whatever plan, rules and delays, weights and losses are the serial program's with the "
    "same "
    "groups, bit for bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  std::map<size_t, int64_t> sizes;
  for (int64_t seed = 0; seed < cases(); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed));
    const std::string sync =
        "partial-reduce:window=" + std::to_string(std::vector<int>{1, 2, 10}[static_cast<size_t>(seed) % 3]) +
        (seed % 2 == 0 ? ",scope=stage" : ",scope=pipeline") + (seed % 5 == 0 ? ",pairs-above=2" : "");
    RandomJob job = jobs.next_side_by_side(sync, 6);
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
    PlanSpans part{job.plan, job.spans, ran.groups};
    if (job.plan.stages[0].ranks.size() == 1) part.groups.clear();
    const ReferenceResult expected = train_serially(
        job.model, {part}, job.rules, [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    check_run(job.plan, job.rules, job.spans, ran.run, expected);
  }
  for (const size_t size : {1, 2, 3}) CHECK(sizes[size] > 0);
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
    rules.sync = std::string("partial-reduce:window=1,scope=") + scope;
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

TEST_CASE("the serial program refuses groups of another run") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const Plan plan = plan_of(model, {2, 2}, {2, 1});
  TrainingRules rules;
  rules.sync = "partial-reduce";
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
