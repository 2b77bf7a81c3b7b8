// What a job trains while its ranks are preempted, where that can be told by hand.
#include <catch2/catch.hpp>
#include <fstream>

#include "experiments/preemptions/preempted_job.h"
#include "graph/error.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;

namespace {

// A minibatch takes 1 s with one rank, 0.5 s with two; 10 s from a loss until training goes on.
PricedJob job_of(OnLoss on_loss) {
  PricedJob job;
  job.rules = {on_loss, 2, 1, 3};
  job.minibatch_seconds = {1, 0.5};
  job.recover_seconds = 10;
  job.checkpoint_seconds = 100;
  return job;
}

PreemptionTrace trace_of(std::vector<SlotChange> changes) {
  PreemptionTrace trace = {{0, {}, {0, 1}}};
  trace.insert(trace.end(), changes.begin(), changes.end());
  return trace;
}

}  // namespace

TEST_CASE("preemptions: a quiet job trains but for its start and its copies") {
  PricedJob job = job_of(OnLoss::kContinue);
  JobFigures figures = play(trace_of({}), job, 1005);
  CHECK(figures.minibatches == Approx(2000));
  CHECK(figures.ideal == Approx(2010));
  CHECK(figures.down_seconds == Approx(5));
  CHECK(figures.attempts == 1);
  job.copy_every = 10, job.copy_share = 0.02;
  CHECK(play(trace_of({}), job, 1005).minibatches == Approx(1960));
}

TEST_CASE("preemptions: who is left goes on from the newest state, who comes back is used") {
  // 300 s: checkpoint at 590 minibatches. 315 s: 620 done, 30 again. 325 s: goes on alone. 425 s: 690,
  // drained, and on with both from 435 s. 535 s: 890.
  const auto trace = trace_of({{315, {1}, {}}, {425, {}, {1}}});
  PricedJob job = job_of(OnLoss::kContinue);
  JobFigures figures = play(trace, job, 535);
  CHECK(figures.minibatches == Approx(890));
  CHECK(figures.again == Approx(30));
  CHECK(figures.attempts == 3);
  CHECK(figures.ideal == Approx(2 * 315 + 110 + 2 * 110));
  CHECK(figures.down_seconds == Approx(25));
  // Of 620 minibatches 620 are copied, the copy before them is whole.
  job.copy_every = 10;
  CHECK(play(trace, job, 535).again == Approx(10));
  CHECK(play(trace, job, 535).minibatches == Approx(910));
  // Without a drain what came behind the checkpoint of 400 s, at 665, is done again.
  job.copy_every = 0, job.drains = false;
  CHECK(play(trace, job, 535).again == Approx(30 + 25));
}

TEST_CASE("preemptions: who loses a rank and the neighbour with its copy goes back to the disk") {
  PricedJob job = job_of(OnLoss::kContinue);
  job.copy_every = 10;
  job.rules.ranks = 3;
  job.minibatch_seconds = {1, 0.5, 0.5};
  const PreemptionTrace trace = {{0, {}, {0, 1, 2}}, {315, {0, 1}, {}}};
  const JobFigures figures = play(trace, job, 400);
  CHECK(figures.copies_lost == 1);
  CHECK(figures.again == Approx(30));
  CHECK(figures.ends == 0);
}

TEST_CASE("preemptions: a restart waits until all ranks are there, and begins from the disk") {
  const JobFigures figures = play(trace_of({{315, {1}, {}}, {425, {}, {1}}}), job_of(OnLoss::kRestart), 530);
  CHECK(figures.ends == 1);
  CHECK(figures.attempts == 2);
  CHECK(figures.minibatches == Approx(590 + 200));
  CHECK(figures.down_seconds == Approx(5 + 110 + 5));
}

TEST_CASE("preemptions: drawn traces are alike for a seed, and as often as they should be") {
  DrawnTrace rules;
  rules.seconds = 1000 * 3600;
  const PreemptionTrace trace = draw(rules), again = draw(rules);
  REQUIRE(trace.size() == again.size());
  double times = 0, gone = 0, there = 0, area = 0, before = 0;
  for (size_t k = 0; k < trace.size(); ++k) {
    CHECK(trace[k].seconds == again[k].seconds);
    area += there * (trace[k].seconds - before);
    before = trace[k].seconds;
    times += !trace[k].gone.empty();
    gone += static_cast<double>(trace[k].gone.size());
    there += static_cast<double>(trace[k].come.size()) - static_cast<double>(trace[k].gone.size());
  }
  CHECK(times / 1000 == Approx(3).epsilon(0.1));
  CHECK(gone / times == Approx(4.0 / 3).epsilon(0.1));
  CHECK(area / before == Approx(8 - gone / 1000 * 2040 / 3600).epsilon(0.05));
}

TEST_CASE("preemptions: a published trace is thinned, and its instances take slots that are free") {
  pipewright::testing::TemporaryFolder folder;
  const std::string file = folder.path() / "trace.csv";
  std::ofstream(file)
      << "0,add,a\r\n0,add,b\r\n0,add,c\r\n60000,remove,a\r\n60000,remove,b\r\n90000,add,d\r\n"
         "90000,add,e\r\n";
  const PreemptionTrace trace = read_trace(file, 2, 2);
  REQUIRE(trace.size() == 3);
  CHECK(trace[0].come == std::vector<Slot>{0, 1});
  CHECK(trace[1].gone == std::vector<Slot>{0});
  CHECK(trace[1].seconds == 60);
  CHECK(trace[2].come == std::vector<Slot>{0});
  std::ofstream(file) << "0,add,a\n-1,add,b\n";
  CHECK_THROWS_AS(read_trace(file, 2, 2), InputError);
  CHECK_THROWS_AS(read_trace(file + ".none", 2, 2), InputError);
}
