// What frozen layers make of samples over the generations of a run: begun, ended, counted and refused.
#include "runtime/train/run_cache.h"

#include <random>
#include <thread>

#include "graph/model_layers.h"
#include "models/load.h"
#include "tests/runtime/kept_prefixes.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

constexpr int64_t kCachedBatch = 4, kEpochMinibatches = 5;

// A run without processes: its model, its data, and what is logged of its cache.
struct CachedRun {
  Job job;
  TrainingData data{job};
  std::vector<std::string> lines;

  CachedRun(const Model& model, const std::string& cache, const TemporaryFolder& folder)
      : job{run_of(model, cache, folder), model, single_stage_plan(model.graph, 1), {}} {
    at::set_num_threads(1);
  }
  std::unique_ptr<RunCache> make(Exchange* exchange = nullptr) {
    return RunCache::make(job.run,
                          {data, exchange, [this](const std::string& line) { lines.push_back(line); }});
  }
  Plan plan(int64_t frozen_layers) const { return frozen_plan(job.plan, job.model.graph, frozen_layers); }
  Model frozen(const Plan& plan) const { return frozen_model(job.model, plan.frozen_layers); }
  Worker worker(const Plan& plan) const { return {frozen(plan), plan, 0, nullptr, data.rules_of(0)}; }

  // The losses of so many epochs, of a worker whose first stage is fed by `prefix` if there is one.
  std::vector<double> train(Worker& worker, CachedPrefix* prefix, int64_t first_epoch, int64_t epochs) const {
    std::vector<double> losses;
    WorkerHooks hooks;
    hooks.fields = [&](int64_t, int64_t k) {
      const auto fields = field_numbers(data.dataset(), worker.stage().program().fields());
      return Loader(data.dataset(), fields, {data.request(k)}, {.count = 0}, /*ahead=*/0).next();
    };
    hooks.forward_done = [&](int64_t, double loss, const std::vector<at::Tensor>&) {
      losses.push_back(loss);
    };
    KeptPrefixes::train(worker, prefix, {first_epoch * kEpochMinibatches, epochs * kEpochMinibatches}, hooks);
    return losses;
  }

 private:
  static Run run_of(const Model& model, const std::string& cache, const TemporaryFolder& folder) {
    Run run;
    run.model = model.graph.name;
    run.data = "synthetic-images:image=8,samples=" + std::to_string(kCachedBatch * kEpochMinibatches);
    run.batch_size = kCachedBatch;
    run.epochs = 100;
    run.cache = cache;
    run.output = folder.path().string();
    return run;
  }
};

// A rank of several, on the host of that name.
struct RankOfHost {
  RankOfHost(const Store& server, int64_t rank, int64_t world_size, const std::string& host = "node")
      : store(Store::join("127.0.0.1", server.port(), std::chrono::seconds(20))),
        exchange(store, {rank, world_size, std::chrono::seconds(20)}) {
    exchange.say(Topic::kHost, host);
  }
  Store store;
  Exchange exchange;
};

Model cached_model() { return load_model("mlp:layers=5,width=12,image=8", kCachedBatch); }

// Its first layer looks at the other samples of the minibatch.
Model mixing_model() {
  ModelBuilder model("mixing", kCachedBatch);
  std::string x = model.flatten(model.input("images", "float32", {1, 8, 8}));
  for (int i = 0; i < 3; ++i) {
    const auto layer = model.layer("layer." + std::to_string(i));
    x = model.linear(x, {.features = 12});
    const std::string mean = model.call_one(
        "mean", "dim", {{"self", named(x)}, {"dim", std::vector<int64_t>{0}}, {"keepdim", true}}, {1, 12});
    x = model.call_one("sub", "Tensor", {{"self", named(x)}, {"other", named(mean)}}, {kCachedBatch, 12});
  }
  const auto head = model.layer("head");
  return model.finish_classification(model.linear(x, {.features = 10}));
}

void check_equal_summaries(const CacheSummary& a, const CacheSummary& b) {
  CHECK(a.to_json().dump() == b.to_json().dump());
}

}  // namespace

TEST_CASE("run cache: over the generations of a run each sample is counted once, as it was come by") {
  const TemporaryFolder folder;
  std::mt19937_64 random(6);
  int64_t deepened_runs = 0;
  for (int round = 0; round < 25; ++round) {
    CAPTURE(round);
    CachedRun run(cached_model(), "memory:memory=8MiB,use=always", folder);
    const auto layers = static_cast<int64_t>(model_layers(run.job.model.graph).size());
    REQUIRE(layers >= 3);
    const auto cache = run.make();
    REQUIRE(cache);
    CacheSummary expected;
    std::vector<Plan> plans;
    int64_t frozen = 0, kept = 0, epoch = 0;  // `kept`: the depth of the values that are there
    for (int generation = 0; generation < 5; ++generation) {
      if (generation == 0 || random() % 2 == 0)
        frozen += static_cast<int64_t>(random() % static_cast<uint64_t>(layers - frozen + 1));
      CAPTURE(generation, frozen, kept);
      plans.push_back(run.plan(frozen));
      std::vector<const Plan*> before;
      for (size_t p = 0; p + 1 < plans.size(); ++p) before.push_back(&plans[p]);
      Worker worker = run.worker(plans.back()), whole = run.worker(plans.back());
      cache->begin(run.frozen(plans.back()), plans.back(), before, worker);
      CHECK((cache->prefix() != nullptr) == (frozen > 0));
      const int64_t epochs = 1 + static_cast<int64_t>(random() % 2);
      CHECK(run.train(worker, cache->prefix(), epoch, epochs) == run.train(whole, nullptr, epoch, epochs));
      epoch += epochs;
      if (frozen > 0) {
        // The first minibatch of a generation is computed always, and from the beginning.
        expected.computed += kCachedBatch;
        const int64_t rest = kCachedBatch * (kEpochMinibatches - 1);
        (kept == frozen ? expected.fetched : kept > 0 ? expected.deepened : expected.computed) += rest;
        expected.fetched += kCachedBatch * kEpochMinibatches * (epochs - 1);
        deepened_runs += kept > 0 && kept < frozen;
        kept = frozen;
      }
      const CacheSummary within = cache->summary();
      CHECK(within.fetched == expected.fetched);
      CHECK(within.deepened == expected.deepened);
      CHECK(within.computed == expected.computed);
      CHECK(within.refused == "");
      CHECK((within.memory_bytes > 0) == (kept > 0));
      CHECK((within.compute_seconds > 0) == (kept > 0));
      cache->end();
      CHECK_FALSE(cache->prefix());
      check_equal_summaries(cache->summary(), within);
      cache->end();
      check_equal_summaries(cache->summary(), within);
    }
    CHECK(cache->can_keep());
  }
  CHECK(deepened_runs > 5);
}

TEST_CASE("run cache: why nothing is kept is said of the plan in force, not of those before it") {
  const TemporaryFolder folder;
  CachedRun run(cached_model(), "memory:memory=8MiB,use=always", folder);
  REQUIRE(run.job.model.graph_for);
  const auto cache = run.make();
  REQUIRE(cache);
  Plan split = frozen_plan(single_stage_plan(run.job.model.graph, 2), run.job.model.graph, 1);
  split.stages[0].split = {1, 1};
  const auto world = make_world("local", 2);
  Worker sharing(run.frozen(split), split, 0, world[0].get(), run.data.rules_of(0));
  cache->begin(run.frozen(split), split, {}, sharing);
  CHECK_FALSE(cache->prefix());
  CHECK(cache->summary().refused == kFirstStageSplits);
  cache->end();
  CHECK(cache->summary().refused == kFirstStageSplits);
  CHECK(cache->can_keep());
  REQUIRE(run.lines.size() == 1);
  CHECK_THAT(run.lines[0], Catch::Contains(kFirstStageSplits));

  const Plan whole = run.plan(1);
  Worker worker = run.worker(whole);
  cache->begin(run.frozen(whole), whole, {&split}, worker);
  CHECK(cache->prefix());
  CHECK(cache->summary().refused == "");
  cache->end();

  cache->begin(run.frozen(split), split, {&whole}, sharing);
  cache->end();
  Worker trained = run.worker(run.job.plan);
  cache->begin(run.job.model, run.job.plan, {&whole, &split}, trained);
  CHECK_FALSE(cache->prefix());
  CHECK(cache->summary().refused == "");
}

TEST_CASE("run cache: a rank that has only later stages keeps nothing, and has no reason to give") {
  const TemporaryFolder folder;
  CachedRun run(cached_model(), "memory:memory=8MiB,use=always", folder);
  const auto cache = run.make();
  Plan plan = frozen_plan(plan_of(run.job.model, {1, 1}, {2, 1}), run.job.model.graph, 1);
  const auto world = make_world("local", 2);
  Worker last(run.frozen(plan), plan, 1, world[1].get(), run.data.rules_of(0));
  cache->begin(run.frozen(plan), plan, {}, last);
  CHECK_FALSE(cache->prefix());
  CHECK(cache->summary().refused == "");
  CHECK(run.lines.empty());
}

TEST_CASE(
    "run cache: once frozen layers mix samples, no rank of the run keeps anything, under no later plan") {
  const TemporaryFolder folder;
  const Store server = Store::serve(0);
  RankOfHost first(server, 0, 2), second(server, 1, 2);
  for (const bool several : {false, true}) {
    CAPTURE(several);
    CachedRun run(mixing_model(), "memory:memory=8MiB,use=always", folder);
    const auto cache = run.make(several ? &first.exchange : nullptr);
    const auto other = several ? run.make(&second.exchange) : nullptr;
    REQUIRE(cache);
    CHECK(cache->can_keep());
    if (several) CHECK(other->can_keep());
    const Plan plan = run.plan(1);
    Worker worker = run.worker(plan), whole = run.worker(plan);
    cache->begin(run.frozen(plan), plan, {}, worker);
    CHECK(run.train(worker, cache->prefix(), 0, 2) == run.train(whole, nullptr, 0, 2));
    CHECK_THAT(cache->summary().refused, Catch::Contains("depends on more than its sample"));
    CHECK(cache->summary().fetched == 0);
    CHECK(cache->summary().computed == 2 * kCachedBatch * kEpochMinibatches);
    CHECK_FALSE(cache->can_keep());
    cache->end();
    CHECK_THAT(cache->summary().refused, Catch::Contains("depends on more than its sample"));
    Worker trained = run.worker(run.job.plan);
    cache->begin(run.job.model, run.job.plan, {&plan}, trained);
    CHECK(cache->summary().refused == "");
    CHECK_FALSE(cache->can_keep());
    if (!several) continue;
    other->hear_impure();
    CHECK_FALSE(other->can_keep());
    CHECK(other->summary().refused == "");
  }
}

TEST_CASE("run cache: ranks of a host that come at the same time have one store") {
  const TemporaryFolder folder;
  constexpr size_t kRanks = 4;
  for (int round = 0; round < 10; ++round) {
    const Store server = Store::serve(0);
    std::vector<std::unique_ptr<CachedRun>> runs;
    std::vector<std::unique_ptr<RunCache>> caches(kRanks);
    for (size_t rank = 0; rank < kRanks; ++rank)
      runs.push_back(std::make_unique<CachedRun>(cached_model(), "memory:memory=8MiB,use=always", folder));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        RankOfHost self(server, static_cast<int64_t>(rank), kRanks);
        caches[rank] = runs[rank]->make(&self.exchange);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t rank = 0; rank < kRanks; ++rank) {
      CAPTURE(round, rank);
      REQUIRE(caches[rank]);
      CHECK(runs[rank]->lines.empty());
      const Plan plan = runs[rank]->plan(2);
      Worker worker = runs[rank]->worker(plan);
      caches[rank]->begin(runs[rank]->frozen(plan), plan, {}, worker);
      runs[rank]->train(worker, caches[rank]->prefix(), 0, 1);
      const int64_t others = kCachedBatch * (kEpochMinibatches - 1);
      const CacheSummary summary = caches[rank]->summary();
      CHECK(summary.computed == kCachedBatch + (rank == 0 ? others : 0));
      CHECK(summary.fetched == (rank == 0 ? 0 : others));
      caches[rank]->end();
    }
  }
}

TEST_CASE("run cache: the first rank of each host makes its store, whoever comes first") {
  const TemporaryFolder folder;
  CachedRun run(cached_model(), "memory:memory=8MiB,use=always", folder);
  const Store server = Store::serve(0);
  const std::vector<std::string> hosts = {"a", "b", "a", "b", "a"};
  std::vector<std::unique_ptr<RunCache>> caches(hosts.size());
  std::vector<std::thread> ranks;
  for (size_t rank = hosts.size(); rank-- > 0;) {
    ranks.emplace_back([&, rank] {
      RankOfHost self(server, static_cast<int64_t>(rank), static_cast<int64_t>(hosts.size()), hosts[rank]);
      caches[rank] = run.make(&self.exchange);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& cache : caches) CHECK(cache);
  Store store = Store::join("127.0.0.1", server.port(), std::chrono::seconds(20));
  Exchange said(store, {0, 5, std::chrono::milliseconds(50)});
  CHECK(said.said_by(0, Topic::kCache) != said.said_by(1, Topic::kCache));
  for (const int64_t other : {2, 3, 4}) CHECK_THROWS_AS(said.said_by(other, Topic::kCache), PeerError);
}

TEST_CASE("run cache: a run that asks for none has none, one that can have none goes on and is told once") {
  const TemporaryFolder folder;
  CachedRun without(cached_model(), "none", folder);
  CHECK_FALSE(without.make());
  CHECK(without.lines.empty());

  const Store server = Store::serve(0);
  RankOfHost first(server, 0, 2), second(server, 1, 2);
  write_file(folder / "file", "no folder");
  CachedRun run(cached_model(), "disk:memory=0B,disk=1MiB,root=" + (folder / "file/below").string(), folder);
  CHECK_FALSE(run.make(&first.exchange));
  REQUIRE(run.lines.size() == 1);
  CHECK_THAT(run.lines[0], Catch::StartsWith("cache: ") && Catch::Contains("training goes on without"));
  CHECK_FALSE(run.make(&second.exchange));
  CHECK(run.lines.size() == 1);
}

}  // namespace pipewright::testing
