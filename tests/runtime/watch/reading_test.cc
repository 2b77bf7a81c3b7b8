// What is read of a run folder while somebody writes it.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <tuple>

#include "graph/document.h"
#include "graph/live_status.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/journal/live_file.h"
#include "runtime/watch/file_tail.h"
#include "runtime/watch/loss_series.h"
#include "runtime/watch/run_reader.h"
#include "runtime/watch/run_watch.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Matchers::Contains;
using Phase = RunView::Phase;

namespace fs = std::filesystem;

namespace {

void append(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::app) << text; }

std::string line_of(int64_t minibatch, double loss) {
  return Json{{"minibatch", minibatch},
              {"epoch", minibatch / 4},
              {"loss", loss},
              {"samples", 8},
              {"elapsed_seconds", 0.5 * static_cast<double>(minibatch + 1)},
              {"learning_rate", 0.1}}
             .dump() +
         "\n";
}

Plan two_ranks() {
  Plan plan;
  plan.model = "mlp";
  plan.strategy = "manual";
  plan.world_size = 2;
  for (int64_t rank = 0; rank < 2; ++rank) {
    Stage stage;
    stage.nodes = {"node" + std::to_string(rank)};
    stage.ranks = {rank};
    plan.stages.push_back(stage);
  }
  return plan;
}

void begin_run(const fs::path& folder) {
  fs::create_directories(folder);
  Run run;
  run.model = "mlp";
  run.data = "synthetic-images";
  run.batch_size = 8;
  write_document(folder / "run.json", run);
  write_document(folder / "plan.json", two_ranks());
  append(folder / "metrics.jsonl", "");
}

struct Tail {
  explicit Tail(const fs::path& file) : tail(file) {}
  std::vector<std::string> look() {
    tail.look(
        [this] {
          ++again;
          lines.clear();
        },
        [this](const std::string& line) { lines.push_back(line); });
    return lines;
  }
  FileTail tail;
  int again = 0;
  std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("watch: of a file that grows each line comes once, whole") {
  const TemporaryFolder folder;
  const fs::path file = folder / "lines";
  Tail tail(file);
  CHECK(tail.look().empty());
  append(file, "a\nb");
  CHECK(tail.look() == std::vector<std::string>{"a"});
  append(file, "c\n");
  CHECK(tail.look() == std::vector<std::string>{"a", "bc"});
  CHECK(tail.look().size() == 2);
  CHECK(tail.again == 0);
}

TEST_CASE("watch: a file that was replaced, or cut and written on, is read anew") {
  const TemporaryFolder folder;
  const fs::path file = folder / "lines";
  Tail tail(file);
  append(file, "a\nb\nc\n");
  tail.look();
  fs::resize_file(file, 2);
  append(file, "x\ny\nz\n");  // longer than it was
  CHECK(tail.look() == std::vector<std::string>{"a", "x", "y", "z"});
  CHECK(tail.again == 1);
  fs::remove(file);
  append(file, "other\n");
  CHECK(tail.look() == std::vector<std::string>{"other"});
  CHECK(tail.again == 2);
}

TEST_CASE("watch: a long file comes in pieces") {
  const TemporaryFolder folder;
  const fs::path file = folder / "lines";
  const std::string line(1 << 20, 'x');
  for (int i = 0; i < 9; ++i) append(file, line + "\n");
  FileTail tail(file);
  int lines = 0, looks = 1;
  while (tail.look([] {}, [&](const std::string& read) { lines += read == line; })) ++looks;
  CHECK(lines == 9);
  CHECK(looks >= 3);
}

TEST_CASE("watch: the curve of a long run keeps its shape and a bounded number of points") {
  LossSeries series;
  const auto told = static_cast<int64_t>(10 * LossSeries::kMostStretches + 3);
  for (int64_t k = 0; k < told; ++k) series.add(k, static_cast<double>(k));
  const std::vector<double> points = series.points(100);
  REQUIRE(points.size() == 100);
  for (size_t i = 0; i < points.size(); ++i)
    CHECK(points[i] == Approx(static_cast<double>(told) * (static_cast<double>(i) + 0.5) / 100).margin(150));
  CHECK(series.points(1 << 20).size() <= LossSeries::kMostStretches);
}

TEST_CASE("watch: a run that goes back forgets the losses behind, and one that diverges leaves a gap") {
  LossSeries series;
  for (int64_t k = 0; k < 8; ++k) series.add(k, 1);
  series.add(4, 3);
  CHECK(series.points(100) == std::vector<double>{1, 1, 1, 1, 2});  // what its stretch holds stays
  series.add(5, std::nan(""));
  CHECK(std::isnan(series.points(100).back()));
}

TEST_CASE("watch: a folder without a run, one that starts, one that runs, and how it ends") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  RunReader reader(run);
  CHECK(reader.look().phase == Phase::kAbsent);
  {
    const RunFolderLock lock(run);
    CHECK(reader.look().phase == Phase::kStarting);
    begin_run(run);
    for (int64_t k = 0; k < 6; ++k)
      append(run / "metrics.jsonl", line_of(k, 2 - 0.25 * static_cast<double>(k)));
    append(run / "metrics.jsonl",
           R"({"evaluation":{"epoch":0,"loss":0.5,"top1":0.75,"samples":8}})"
           "\n"
           R"({"speed":{"minibatch":3,"found":5,"before_seconds":1,"after_seconds":2,"slowdown":2,"rank":1}})"
           "\n"
           "{torn");
    {
      LiveFile live(run, 8, 4);
      live.take(1, {"receive activation of minibatch 5", 0.25, 5, 1.5, 1 << 20}, false);
      const RunView& view = reader.look();
      CHECK(view.phase == Phase::kRunning);
      CHECK(view.model == "mlp");
      CHECK(view.plan == "1-1, 1f1b, stash");
      CHECK(view.done == 6);
      CHECK(view.minibatches == 8);
      CHECK(view.epoch == 1);
      CHECK(view.samples_per_second == Approx(16));
      CHECK(view.loss == Approx(2 - 0.25 * 2.5));
      CHECK(view.losses.points(10).size() == 6);
      CHECK(view.events == std::vector<std::string>{
                               "epoch 1: evaluation loss 0.5000, top-1 75.00 %",
                               "minibatch 3: rank 1 computes 2.0 times as long as when the run was quiet"});
      REQUIRE(view.ranks.size() == 1);
      CHECK(view.ranks[0].rank == 1);
      CHECK(view.ranks[0].stages == std::vector<int64_t>{1});
      CHECK(view.ranks[0].operation == "receive activation of minibatch 5");
      CHECK(view.ranks[0].slowdown == 2);
      CHECK(view.ranks[0].memory_bytes == 1 << 20);
      CHECK_FALSE(view.ranks[0].waiting);
    }
    CHECK_FALSE(fs::exists(run / LiveStatus::kFile));
    CHECK(reader.look().phase == Phase::kRunning);  // between the last word and the summary
    Summary summary;
    summary.status = "failed";
    summary.minibatches = 6;
    write_document(run / "summary.json", summary);
    CHECK(reader.look().phase == Phase::kRunning);  // the launcher has not ended
  }
  CHECK(reader.look().phase == Phase::kFailed);
  fs::create_directory(run / "flight");
  append(run / "flight" / "rank-1.json", R"({"rank":1,"error":"rank 1 has died; here: rank 1, forward"})");
  RunReader late(run);
  CHECK(late.look().why == "rank 1 has died");
  CHECK_THAT(error_of<RunError>([&] { demand_done(late.look()); }), Contains("rank 1 has died"));
}

TEST_CASE("watch: loss and speed are those of the last 50 minibatches") {
  const TemporaryFolder folder;
  begin_run(folder.path());
  for (int64_t k = 0; k < 60; ++k)
    append(folder / "metrics.jsonl", line_of(k, k < 10 ? 1000 : static_cast<double>(k)));
  RunReader reader(folder.path());
  const RunView& view = reader.look();
  CHECK(view.loss == Approx((10 + 59) / 2.0));
  CHECK(view.samples_per_second == Approx(16));
}

TEST_CASE(
    "watch: a run that has ended is as fast as its samples over its wall time, its steady state beside it") {
  const TemporaryFolder folder;
  begin_run(folder.path());
  Summary summary;
  summary.status = "done";
  summary.minibatches = 60;
  summary.first_minibatch = 20;
  summary.samples = 480;
  summary.wall_seconds = 64;
  summary.minibatch_seconds = 0.25;
  summary.samples_per_second = 32;
  write_document(folder / "summary.json", summary);
  const RunView view = RunReader(folder.path()).look();
  CHECK(view.samples_per_second == Approx(5));
  CHECK(view.minibatch_seconds == 0.25);
}

TEST_CASE("watch: what a plan predicts is shown of the runs that it predicts") {
  for (const auto& [sync, accumulation, shown] :
       {std::tuple("all-reduce", 1, 0.25), {"all-reduce", 2, 0.0}, {"partial-reduce", 1, 0.0}}) {
    const TemporaryFolder folder;
    begin_run(folder.path());
    Plan plan = two_ranks();
    plan.stages.pop_back();
    plan.stages[0].ranks = {0, 1};
    plan.predicted.emplace();
    plan.predicted->minibatch_seconds = 0.25;
    plan.predicted->bottleneck = "stage 0: compute";
    plan.predicted->stages.resize(1);
    write_document(folder / "plan.json", plan);
    Run run = read_document<Run>(folder / "run.json");
    run.sync = sync;
    run.gradient_accumulation = accumulation;
    write_document(folder / "run.json", run);
    CHECK(RunReader(folder.path()).look().predicted_minibatch_seconds == shown);
  }
}

TEST_CASE("watch: an old summary in a folder that a run holds is an earlier run's") {
  const TemporaryFolder folder;
  begin_run(folder.path());
  Summary summary;
  summary.status = "done";
  write_document(folder / "summary.json", summary);
  {
    const RunFolderLock lock(folder.path());
    CHECK(RunReader(folder.path()).look().phase == Phase::kStarting);
  }
  CHECK(RunReader(folder.path()).look().phase == Phase::kDone);
}

TEST_CASE(
    "watch: a run that nobody writes any more has failed, one without a lock lives while it is written") {
  const TemporaryFolder folder;
  begin_run(folder.path());
  CHECK(RunReader(folder.path()).look().phase == Phase::kRunning);
  fs::last_write_time(folder / "metrics.jsonl", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const RunView view = RunReader(folder.path()).look();
  CHECK(view.phase == Phase::kFailed);
  CHECK(view.why == "its processes have ended without a word");
}

TEST_CASE("watch: of a run on another host nobody knows whether it was killed, but by what it writes") {
  const TemporaryFolder folder;
  begin_run(folder.path());
  append(folder / ".lock", ProcessName{"elsewhere", "another machine", 17, 1}.to_text());
  const auto written = [&](std::chrono::seconds ago) {
    fs::last_write_time(folder / "metrics.jsonl", fs::file_time_type::clock::now() - ago);
    return RunReader(folder.path()).look().phase;
  };
  CHECK(written(std::chrono::seconds(200)) == Phase::kRunning);
  CHECK(written(std::chrono::seconds(400)) == Phase::kFailed);
}

TEST_CASE("watch: how fast ranks get on, and how long they wait, is what two looks differ by") {
  const TemporaryFolder folder;
  begin_run(folder.path());
  const RunFolderLock lock(folder.path());
  RunReader reader(folder.path());
  LiveStatus status;
  status.minibatches = 100;
  status.ranks[0] = {1000, "forward of minibatch 10", 0, 10, 1, 1};
  write_document(folder / LiveStatus::kFile, status);
  CHECK_FALSE(reader.look().ranks.at(0).samples_per_second);
  status.at_seconds = 1002;
  status.ranks[0] = {1002, "forward of minibatch 20", 0, 20, 1.5, 1};
  write_document(folder / LiveStatus::kFile, status);
  const RunView view = reader.look();
  CHECK(view.ranks.at(0).samples_per_second == Approx(5 * 8));
  CHECK(view.ranks.at(0).waiting == Approx(0.25));
  status.ranks[0] = {1003, "forward of minibatch 2", 0, 2, 0, 1};  // started anew
  write_document(folder / LiveStatus::kFile, status);
  CHECK_FALSE(reader.look().ranks.at(0).samples_per_second);
}

TEST_CASE("watch: a folder that is not there is waited for, but not one whose name is a slip") {
  const TemporaryFolder folder;
  begin_run(folder / "straight");
  fs::create_directory(folder / "other");
  const auto refused = [&](const fs::path& path) {
    try {
      demand_place_of_run(folder.path() / path);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused("straight").empty());
  CHECK(refused("othre").empty());  // no run is there
  CHECK(refused("something").empty());
  CHECK(refused("straight2").empty());  // the next one
  CHECK_THAT(refused("strait"), Contains("is not there; did you mean '") && Contains("/straight'?"));
  CHECK_THAT(refused("Straight/"), Contains("/straight'?"));
  begin_run(folder / "runs" / "first");
  CHECK_THAT(refused("rums/first"),
             Contains("nor is the folder that it would be in; did you mean '") && Contains("/runs/first'?"));
  CHECK_THAT(refused("rums/second"), Contains("nor is the folder that it would be in") && !Contains("mean"));
  append(folder / "file", "");
  CHECK_THAT(refused("file"), Contains("is a file"));
}
