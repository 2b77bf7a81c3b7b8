// What a run leaves at its end: each rank's figures, the summary and the trace.
#include "runtime/train/run_results.h"

#include <random>

#include "graph/digest.h"
#include "graph/document.h"
#include "runtime/schedule/draw.h"
#include "runtime/transport/process_state.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

RankSummary ended(int64_t rank, int64_t stage, const std::string& digest) {
  RankSummary summary;
  summary.rank = rank;
  summary.stage = stage;
  summary.host = "node" + std::to_string(rank);
  summary.weights_digest = digest;
  return summary;
}

StageMemory memory_of(int64_t stage) {
  StageMemory memory;
  memory.weights_bytes = 100 * (stage + 1);
  memory.activations_bytes = 7 * (stage + 1);
  return memory;
}

void predict(Plan& plan) {
  Prediction& predicted = plan.predicted.emplace();
  predicted.minibatch_seconds = 0.25;
  predicted.stages.resize(plan.stages.size());
  for (size_t s = 0; s < plan.stages.size(); ++s)
    predicted.stages[s].memory = memory_of(static_cast<int64_t>(s));
}

// Trains, and calls `at_end` at the end of each rank, one at a time.
void train_random_job(RandomJob& job, const std::function<void(Worker&, const MemoryMeter&)>& at_end) {
  job.rules.total_minibatches = job.spans.back().end();
  std::mutex mutex;
  std::map<const Worker*, std::unique_ptr<MemoryMeter>> meters;
  std::map<const Worker*, std::unique_ptr<MemoryMeter::Attached>> attached;
  RankExtras extras;
  extras.prepare = [&](Worker& worker, WorkerHooks&) {
    const std::lock_guard lock(mutex);
    meters[&worker] = std::make_unique<MemoryMeter>();
    attached[&worker] = std::make_unique<MemoryMeter::Attached>(*meters[&worker]);
  };
  extras.finish = [&](Worker& worker) {
    const std::lock_guard lock(mutex);
    attached.erase(&worker);
    at_end(worker, *meters.at(&worker));
  };
  run_pipeline(job.model, job.plan, job.rules, job.spans,
               random_minibatches(job.model.graph, job.rules.total_minibatches, 5),
               job.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                        : make_world("local", job.plan.world_size),
               {}, extras);
}

}  // namespace

TEST_CASE("rank summary: what the worker did, what its stages hold, and what was predicted of them") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    RandomJob job = RandomJobs(seed).next(6);
    CAPTURE(seed, job.plan.shape_text(), job.plan.schedule);
    const bool predicted = seed % 3 > 0;
    if (predicted) predict(job.plan);
    train_random_job(job, [&](Worker& worker, const MemoryMeter& memory) {
      MeasuredTimes times;
      times.trained_seconds = 2 * worker.counts().busy_seconds;
      times.minibatches = 17;
      times.busy_seconds = 1e6;
      const RankSummary rank = summary_of_rank(3, job.plan, &worker, {}, memory, times, at::kCPU);
      CHECK(rank.rank == 3);
      CHECK(rank.stage == worker.stage().stage());
      CHECK(rank.replica == worker.replica());
      CHECK(rank.host == this_process().host);
      CHECK(rank.device == "cpu");
      CHECK(rank.busy_fraction == Approx(0.5));
      CHECK(rank.times->minibatches == 17);
      CHECK(rank.times->busy_seconds == worker.counts().busy_seconds);
      CHECK(rank.sent_bytes == worker.counts().sent_bytes);
      CHECK(rank.peak_memory_bytes == memory.peak_bytes());
      CHECK(rank.memory.gradients_bytes ==
            memory.peak_bytes_by_purpose()[static_cast<size_t>(MemoryPurpose::kGradients)]);
      CHECK(rank.memory.activations_bytes ==
            memory.peak_bytes_by_purpose()[static_cast<size_t>(MemoryPurpose::kActivations)]);
      CHECK(rank.peak_resident_bytes > 0);

      int64_t in_flight = 0, versions = 0, updates = 0;
      StageMemory expected;
      Digest digest;
      for (size_t i = 0; i < worker.stage_count(); ++i) {
        const StageReplica& stage = worker.stage(i);
        in_flight = std::max(in_flight, stage.peak_in_flight());
        versions = std::max(versions, stage.versions().peak_live());
        updates = std::max(updates, stage.versions().updates());
        expected += memory_of(stage.stage());
        for (const at::Tensor& weight : stage.weights())
          digest.add(weight.contiguous().const_data_ptr(), weight.nbytes());
      }
      CHECK(rank.peak_in_flight == in_flight);
      CHECK(rank.peak_weight_versions == versions);
      CHECK(rank.updates == updates);
      CHECK(rank.weights_digest == digest.text());
      CHECK(rank.predicted_memory_bytes == (predicted ? expected.total_bytes() : 0));
      REQUIRE(rank.predicted_memory.has_value() == predicted);
      if (predicted) CHECK(rank.predicted_memory->activations_bytes == expected.activations_bytes);
    });
  }
}

TEST_CASE("rank summary: times that differences of clocks may spoil stay within what they can be") {
  const Plan plan;
  const MemoryMeter memory;
  EarlierWorkers workers;
  workers.counts.busy_seconds = 5;
  MeasuredTimes times;
  times.cpu_seconds = -1e-6;
  CHECK(summary_of_rank(0, plan, nullptr, workers, memory, times, at::kCPU).busy_fraction == 0);
  times.trained_seconds = 4;
  const RankSummary rank = summary_of_rank(0, plan, nullptr, workers, memory, times, at::kCPU);
  CHECK(rank.busy_fraction == 1);
  CHECK(rank.times->cpu_seconds == 0);
}

TEST_CASE(
    "rank summary: under several plans counts add up, of peaks the most is told, of the rest the last") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    RandomJob job = RandomJobs(seed).next(6);
    const auto earlier_of = [&](EarlierWorkers start) {
      std::vector<EarlierWorkers> by_rank;
      train_random_job(job, [&](Worker& worker, const MemoryMeter&) {
        by_rank.push_back(start);
        by_rank.back().add(worker);
      });
      return by_rank;
    };
    EarlierWorkers start;
    start.counts = {100, 200, 300, 400, 0.5};
    start.stage = 77, start.replica = 78, start.updates = 1000;
    start.peak_in_flight = seed % 2 == 0 ? 1000 : 0;
    start.peak_weight_versions = seed % 2 == 0 ? 0 : 1000;
    for (const EarlierWorkers& all : earlier_of(start)) {
      // Of a rank without a part in the last plan.
      const MemoryMeter memory;
      const RankSummary rank = summary_of_rank(4, job.plan, nullptr, all, memory, {}, at::kCPU);
      CHECK(rank.stage < static_cast<int64_t>(job.plan.stages.size()));
      CHECK(rank.replica < 77);
      CHECK(rank.times->busy_seconds > 100);
      CHECK(rank.receive_wait_seconds >= 200);
      CHECK(rank.sync_wait_seconds >= 300);
      CHECK(rank.sent_bytes >= 400);
      CHECK(rank.largest_spread == 0.5);
      CHECK((rank.peak_in_flight == 1000) == (seed % 2 == 0));
      CHECK((rank.peak_weight_versions == 1000) == (seed % 2 == 1));
      CHECK(rank.updates < 1000);
      CHECK(rank.weights_digest == "");
      CHECK_FALSE(rank.predicted_memory);
    }
  }
}

TEST_CASE("rank summary: replicas of a stage end with one digest, whatever the pipeline") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    RandomJob job = RandomJobs(seed).next(6);
    Summary summary;
    std::map<int64_t, std::set<std::string>> by_stage;
    train_random_job(job, [&](Worker& worker, const MemoryMeter& memory) {
      summary.ranks.push_back(summary_of_rank(static_cast<int64_t>(summary.ranks.size()), job.plan, &worker,
                                              {}, memory, {}, at::kCPU));
      by_stage[worker.stage().stage()].insert(summary.ranks.back().weights_digest);
    });
    demand_equal_replicas(summary);
    for (const auto& [stage, digests] : by_stage) CHECK(digests.size() == 1);
  }
}

TEST_CASE("replicas of a stage that ended with different weights fail the run, and stages may differ") {
  std::mt19937_64 random(4);
  int64_t failed = 0, passed = 0;
  for (int round = 0; round < 500; ++round) {
    Summary summary;
    std::map<int64_t, int64_t> first_of;  // by stage, of the ranks that have weights
    std::string expected = "<no exception>";
    for (int64_t rank = 0; rank < 6; ++rank) {
      const auto stage = static_cast<int64_t>(random() % 3);
      // "" is a rank without a part in the last plan; its stage is that of an earlier one.
      const std::string digest =
          random() % 4 == 0 ? "" : "xxh128:" + std::to_string(stage + (random() % 6 == 0 ? 9 : 0));
      summary.ranks.push_back(ended(rank, stage, digest));
      if (digest.empty()) continue;
      const int64_t first = first_of.try_emplace(stage, rank).first->second;
      const RankSummary& one = summary.ranks[static_cast<size_t>(first)];
      if (one.weights_digest == digest || expected[0] == 's') continue;
      expected = "stage " + std::to_string(stage) + ": its replicas ended with different weights: rank " +
                 std::to_string(first) + " on node" + std::to_string(first) + " (" + one.weights_digest +
                 ") and rank " + std::to_string(rank) + " on node" + std::to_string(rank) + " (" + digest +
                 ")";
    }
    CHECK(error_of<NumericalError>([&] { demand_equal_replicas(summary); }) == expected);
    ++(expected[0] == 's' ? failed : passed);
  }
  CHECK(failed > 50);
  CHECK(passed > 50);
}

namespace {

Plan replicated_plan(int64_t replicas) {
  Plan plan;
  plan.strategy = "data-parallel";
  plan.schedule = "1f1b";
  plan.weights = "stash";
  plan.stages.emplace_back();
  for (int64_t q = 0; q < replicas; ++q) plan.stages[0].ranks.push_back(q);
  plan.world_size = replicas;
  return plan;
}

JournalSettings journal_in(const TemporaryFolder& folder) {
  JournalSettings settings;
  settings.folder = folder.path();
  settings.batch_size = 8;
  settings.total_minibatches = 100;
  settings.minibatches_per_epoch = 100;
  return settings;
}

}  // namespace

TEST_CASE("results: the summary has what the journal heard, the plan and the run's end, in the file too") {
  const TemporaryFolder folder;
  Journal journal(journal_in(folder));
  for (int64_t k = 0; k < 100; ++k) journal.take(0, MinibatchLoss{k, 2.5, 0.5 * static_cast<double>(k + 1)});
  journal.take(1, ended(1, 0, "xxh128:aa"));
  journal.take(0, ended(0, 0, "xxh128:aa"));
  journal.close();
  Plan plan = replicated_plan(2);
  predict(plan);
  RunEnd end{"interrupted", 3, 12.5, "all-reduce", {}, 4e9};
  const Summary summary = write_results(folder.path(), plan, journal, end);
  CHECK(summary.status == "interrupted");
  CHECK(summary.world_size == 3);
  CHECK(summary.wall_seconds == 12.5);
  CHECK(summary.strategy == plan.strategy);
  CHECK(summary.schedule == plan.schedule);
  CHECK(summary.weights == plan.weights);
  CHECK(summary.minibatches == 100);
  CHECK(summary.samples == 800);
  CHECK(summary.train_loss == 2.5);
  CHECK(summary.cores > 0);
  CHECK(summary.predicted_minibatch_seconds == 0.25);
  CHECK(summary.minibatch_seconds == Approx(0.5));
  CHECK(summary.minibatch_flops == 4e9);
  CHECK(summary.flops_per_second == Approx(8e9));
  CHECK_FALSE(summary.sync);
  REQUIRE(summary.ranks.size() == 2);
  CHECK(summary.ranks[0].rank == 0);
  CHECK(document_text(read_document<Summary>(folder / "summary.json")) == document_text(summary));
}

TEST_CASE("results: of a run that trained nothing there is no speed") {
  const TemporaryFolder folder;
  Journal journal(journal_in(folder));
  journal.close();
  const Summary summary =
      write_results(folder.path(), replicated_plan(1), journal, {"failed", 1, 1, "all-reduce", {}, 4e9});
  CHECK(summary.flops_per_second == 0);
  CHECK(summary.predicted_minibatch_seconds == 0);
  CHECK(read_document<Summary>(folder / "summary.json").status == "failed");
}

TEST_CASE("results: the trace has the events of all ranks that told some, in the order they came") {
  const TemporaryFolder folder;
  Journal journal(journal_in(folder));
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < 4; ++rank) {
    TraceWriter of_rank;
    for (int64_t k = 0; k < 3 * rank; ++k) {
      const Action action{ActionKind::kBackward, 100 * rank + k};
      of_rank.add(trace_span(rank, action, static_cast<double>(k), static_cast<double>(k + 1)));
      names.push_back(to_text(action) + " of " + std::to_string(rank));
    }
    journal.take(rank, TraceDocument{of_rank.json(), 1700000000000000 + 250 * (3 - rank)});
  }
  journal.close();
  write_results(folder.path(), replicated_plan(4), journal, {"done", 4, 1, "all-reduce", {}, 0});
  std::vector<std::string> written;
  const Json document = parse_json(read_file(folder / "trace.json"), "trace");
  for (const Json& event : document.at("traceEvents"))
    written.push_back(event.at("name").get<std::string>() + " of " + event.at("pid").dump());
  CHECK(written == names);
  // On one clock: rank 3 began first, rank 1 half a millisecond later.
  for (const Json& event : document.at("traceEvents")) {
    const int64_t rank = event.at("pid"), number = std::stoll(event.at("name").get<std::string>().substr(1));
    CHECK(event.at("ts").get<double>() ==
          static_cast<double>(1000000 * (number - 100 * rank) + 250 * (3 - rank)));
  }
}

TEST_CASE("results: pipelines side by side tell how they were held together, if there were several") {
  const TemporaryFolder folder;
  Journal journal(journal_in(folder));
  journal.close();
  RunEnd end{"done", 4, 1, "partial-reduce:window=5", {{{1, 3}, {2, 40}, {4, 7}}, 6, 10}, 0};
  const auto sync = [&](int64_t pipelines) {
    return write_results(folder.path(), replicated_plan(pipelines), journal, end).sync;
  };
  CHECK_FALSE(sync(1));
  REQUIRE(sync(4));
  CHECK(sync(4)->rule == "partial-reduce:window=5");
  CHECK(sync(4)->pipelines == 4);
  CHECK(sync(4)->group_sizes == std::vector<int64_t>{3, 40, 0, 7});
  CHECK(sync(4)->columns == 6);
  CHECK(sync(4)->longest_window_updates == 2.5);
  const auto written = read_document<Summary>(folder / "summary.json").sync;
  REQUIRE(written);
  CHECK(written->group_sizes == std::vector<int64_t>{3, 40, 0, 7});
  end.sync = "all-reduce";
  CHECK_FALSE(sync(4));
}

}  // namespace pipewright::testing
