#include "runtime/train/run_leader.h"

#include <algorithm>
#include <random>

#include "graph/error.h"
#include "tests/runtime/train/small_job.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

// Rank 0 of a job before its folder is the run's.
struct Leading {
  explicit Leading(Run run, int64_t world = 1)
      : job(prepare_job(std::move(run), world)),
        data(job),
        plans(job),
        measured(world),
        checkpoints({job, only_rank(), 0, [](CheckpointPart) {}, [] {}, [](int64_t) {}}),
        leader({job, data, nullptr, plans, checkpoints, measured, only_rank(),
                [this](const Error& error) { failure = error.what(); }}) {
    std::filesystem::create_directories(folder());  // as its lock does
  }

  void tell_minibatches(int64_t first, int64_t end) {
    for (int64_t k = first; k < end; ++k)
      leader.take(0, MinibatchLoss{k, 2.0 + static_cast<double>(k), 0.01 * static_cast<double>(k + 1)});
  }
  Json summary() const { return parse_json(read_file(folder() / "summary.json"), "summary"); }
  std::filesystem::path folder() const { return job.run.output; }

  Job job;
  TrainingData data;
  RunPlans plans;
  MeasuredSpeeds measured;
  RunCheckpoints checkpoints;
  std::string failure;
  RunLeader leader;
};

Run unsaved(const TemporaryFolder& folder) {
  Run run = small_run(folder);
  run.no_save = true;
  return run;
}

}  // namespace

TEST_CASE("leader: what ranks tell is in the run folder in order, whoever was first") {
  const TemporaryFolder folder;
  Leading leading(unsaved(folder));
  leading.leader.begin();
  leading.leader.tidy();
  CHECK_FALSE(leading.leader.tells_plans());
  CHECK(read_document<Run>(leading.folder() / "run.json").minibatches == 24);
  std::vector<int64_t> order(24);
  for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int64_t>(k);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  for (const int64_t k : order)
    leading.leader.take(0, MinibatchLoss{k, 2.0 + static_cast<double>(k), 0.01 * static_cast<double>(k + 1)});
  RankSummary rank;
  rank.rank = 0;
  leading.leader.take(0, rank);
  leading.leader.close("done", leading.job.plan, 1.5);
  int64_t next = 0;
  for (const Json& line : metrics_of(leading.job.run)) {
    if (!line.contains("minibatch")) continue;
    CHECK(line["minibatch"] == next);
    CHECK(line["loss"] == 2.0 + static_cast<double>(next));
    ++next;
  }
  CHECK(next == 24);
  CHECK(leading.summary()["status"] == "done");
  CHECK(leading.summary()["wall_seconds"] == 1.5);
}

TEST_CASE("leader: a run whose weights are missing at its end has not done what it says") {
  const TemporaryFolder folder;
  Leading leading(small_run(folder));
  leading.leader.begin();
  leading.tell_minibatches(0, 24);
  CHECK_THROWS_AS(leading.leader.close("done", leading.job.plan, 1), RunError);
  CHECK(leading.summary()["status"] == "failed");
}

TEST_CASE("leader: a run that has failed says so once, and what came before stays") {
  const TemporaryFolder folder;
  Leading leading(small_run(folder));
  leading.leader.begin();
  leading.tell_minibatches(0, 7);
  leading.leader.close("interrupted", leading.job.plan, 1);
  CHECK(leading.summary()["status"] == "interrupted");
  CHECK(metrics_of(leading.job.run).size() >= 7);
}

TEST_CASE("leader: a run that never began leaves nothing") {
  const TemporaryFolder folder;
  Leading leading(small_run(folder));
  leading.leader.check();
  leading.leader.close("failed", leading.job.plan, 1);
  CHECK_FALSE(std::filesystem::exists(leading.folder() / "summary.json"));
}

TEST_CASE("leader: what is told of another task is a defect, which the run hears of") {
  const TemporaryFolder folder;
  Leading leading(unsaved(folder));
  leading.leader.begin();
  leading.leader.take(0, ProbedLink{});
  CHECK_THROWS_AS(leading.leader.close("done", leading.job.plan, 1), CheckError);
}

TEST_CASE("leader: speeds, links and cores that ranks tell are there for who decides") {
  const TemporaryFolder folder;
  Leading leading(unsaved(folder), 2);
  leading.leader.begin();
  SpeedChange slower;
  slower.slowdown = 2.5;
  leading.leader.take(1, slower);
  leading.leader.take(1, CoreSample{{1, 2, 3}});
  leading.leader.take(1, WeightsSaved{});
  leading.leader.close("failed", leading.job.plan, 1);
  CHECK(leading.measured.ranks.slowdown(1) == 2.5);
  CHECK(leading.measured.ranks.slowdown(0) == 1);
  const auto cores = leading.measured.cores.take_all();
  REQUIRE(cores[1].size() == 1);
  CHECK(cores[1][0].features == std::vector<double>{1, 2, 3});
  CHECK(leading.leader.saved_stages() == 1);
}

TEST_CASE("leader: only pipelines side by side ask for groups, and what they are told is logged") {
  const TemporaryFolder folder;
  {
    Leading leading(unsaved(folder), 2);
    CHECK_FALSE(leading.leader.serve_groups());
  }
  Run run = unsaved(folder);
  run.sync = "partial-reduce";
  Leading leading(run, 2);
  const auto address = leading.leader.serve_groups();
  REQUIRE(address);
  CHECK(address->port > 0);
  CHECK(address->secret.size() >= 16);
  leading.leader.begin();
  CHECK(std::filesystem::exists(leading.folder() / kGroupLogName));
  leading.leader.close("failed", leading.job.plan, 1);
  CHECK(leading.failure.empty());
}

TEST_CASE("leader: all can stop behind what has begun, within the run") {
  const TemporaryFolder folder;
  Leading leading(unsaved(folder), 2);
  int64_t before = 0;
  for (int64_t last = -1; last < 23; ++last) {
    const int64_t stop = leading.leader.stop_behind(last);
    CHECK(stop > last);
    CHECK(stop >= before);
    CHECK(stop <= 24);
    before = stop;
  }
}

TEST_CASE(
    "leader: a start after a loss goes on in the folder of the one before, and marks what it does again") {
  const TemporaryFolder folder;
  Run run = unsaved(folder);
  run.recovery.on_loss = "restart";
  {
    Leading first(run);
    first.leader.begin();
    first.tell_minibatches(0, 10);
    first.leader.close("failed", first.job.plan, 1);
  }
  Attempt attempt;
  attempt.number = 1;
  attempt.reason = "rank 0 was killed by signal 9 (Killed)";
  attempt.state = RecoveredState{std::nullopt, "start"};
  Job job = prepare_job(run, 1, c10::kCPU, attempt);
  const TrainingData data(job);
  RunPlans plans(job);
  MeasuredSpeeds measured(1);
  RunCheckpoints checkpoints({job, only_rank(), 0, [](CheckpointPart) {}, [] {}, [](int64_t) {}});
  RunLeader leader({job, data, nullptr, plans, checkpoints, measured, only_rank(), [](const Error&) {}});
  leader.begin();
  for (int64_t k = 0; k < 24; ++k) leader.take(0, MinibatchLoss{k, 1, 0.01 * static_cast<double>(k + 1)});
  leader.close("done", job.plan, 2);
  std::vector<int64_t> times(24);
  int64_t again = 0, recoveries = 0;
  for (const Json& line : metrics_of(run)) {
    recoveries += line.contains("recovery");
    if (!line.contains("minibatch")) continue;
    ++times[line["minibatch"].get<size_t>()];
    again += line.contains("again");
  }
  CHECK(times == std::vector<int64_t>(24, 1));
  CHECK(again == 10);
  CHECK(recoveries == 1);
}
