// What ranks say they do, and what is made of it.
#include <catch2/catch.hpp>

#include "graph/error.h"
#include "runtime/heartbeat.h"
#include "runtime/schedule/schedule.h"

using namespace pipewright;

namespace {

RankReport report(int64_t rank, const std::string& operation, std::vector<int64_t> peers, double seconds) {
  RankReport report;
  report.rank = rank;
  report.beat = Beat{1, {{operation, std::move(peers)}, seconds, 0}, false};
  return report;
}

}  // namespace

TEST_CASE("progress: an action in words, with the ranks it needs") {
  PipelineShape shape;  // ranks 0 | 1 2 | 3
  shape.replicas = {1, 2, 1};
  shape.in_flight = {4, 2, 1};
  const auto peers = [&](ActionKind kind, int64_t index, int64_t rank) {
    return activity_of({kind, index}, shape, rank).peers;
  };
  CHECK(peers(ActionKind::kSendActivation, 4, 0) == std::vector<int64_t>{1});
  CHECK(peers(ActionKind::kSendActivation, 5, 0) == std::vector<int64_t>{2});
  CHECK(peers(ActionKind::kReceiveActivation, 5, 2) == std::vector<int64_t>{0});
  CHECK(peers(ActionKind::kReceiveGradient, 5, 2) == std::vector<int64_t>{3});
  CHECK(peers(ActionKind::kSendGradient, 7, 3) == std::vector<int64_t>{2});
  CHECK(peers(ActionKind::kReduce, 7, 1) == std::vector<int64_t>{2});
  CHECK(peers(ActionKind::kForward, 7, 1).empty());
  CHECK(activity_of({ActionKind::kReceiveActivation, 17}, shape, 3).operation ==
        "receive activation of minibatch 17");
  CHECK(activity_of({ActionKind::kReduce, 3}, shape, 1).operation == "average gradients of round 3");
}

TEST_CASE("progress: ranks that run several stages") {
  PipelineShape shape;  // stages 0 1 2 3 on ranks 0 1 0 1
  shape.replicas = {1, 1, 1, 1};
  shape.in_flight = {4, 4, 4, 4};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = 4;
  shape.stages_per_rank = 2;
  CHECK(activity_of({ActionKind::kReceiveActivation, 3, 2}, shape, 0).peers == std::vector<int64_t>{1});
  CHECK(activity_of({ActionKind::kForward, 3, 2}, shape, 0).operation == "forward of minibatch 3 at stage 2");
}

TEST_CASE("progress: the last 200 operations are kept, and a thread that works is not stalled") {
  Progress progress;
  for (int i = 0; i < 500; ++i) progress.begin({"operation " + std::to_string(i), {}});
  const auto events = progress.events();
  REQUIRE(events.size() == 200);
  CHECK(events.back().operation == "operation 498");
  CHECK(progress.now().activity.operation == "operation 499");
  volatile double sum = 0;
  for (int i = 0; i < 30'000'000; ++i) sum = sum + i;
  CHECK(progress.now().stalled_seconds < 0.05);
  progress.end();
  CHECK(progress.now().stalled_seconds == 0);
}

TEST_CASE("heartbeat: text form round trips, other text is an error, not a crash") {
  const Beat beat{7, {{"average gradients of round 3", {1, 2}, true}, 1.5, 0.25}, true};
  const Beat again = Beat::from_text(beat.to_text());
  CHECK(again.number == 7);
  CHECK(again.progress.activity.operation == beat.progress.activity.operation);
  CHECK(again.progress.activity.peers == beat.progress.activity.peers);
  CHECK(again.progress.activity.done);
  CHECK(again.progress.seconds == 1.5);
  CHECK(again.progress.stalled_seconds == 0.25);
  CHECK(again.finished);
  for (const char* text : {"", "x", "{}", "[1]", "{\"number\": \"a\"}"}) {
    CHECK_THROWS_AS(Beat::from_text(text), PeerError);
    CHECK_THROWS_AS(ProcessName::from_text(text), PeerError);
  }
}

TEST_CASE("heartbeat: who waits for whom, through any number of ranks") {
  const std::vector<RankReport> reports = {
      report(0, "receive gradient of minibatch 15", {1}, 11),
      report(1, "forward of minibatch 17", {}, 0.5),
      report(2, "receive activation of minibatch 17", {1}, 12),
      report(3, "receive activation of minibatch 16", {2}, 12.5),
  };
  CHECK(who_waits_for(reports, 1) ==
        "rank 0 waits for rank 1 (receive gradient of minibatch 15 since 11.0 s); "
        "rank 2 waits for rank 1 (receive activation of minibatch 17 since 12.0 s); "
        "rank 3 waits for rank 2 (receive activation of minibatch 16 since 12.5 s)");
  CHECK(who_waits_for(reports, 3).empty());
  CHECK(waiting_chain(reports, 3) == std::vector<int64_t>{3, 2, 1});
  CHECK(waiting_chain(reports, 1) == std::vector<int64_t>{1});
}

TEST_CASE("heartbeat: of the replicas that reduce, the one that has not come is waited for") {
  const std::vector<RankReport> reports = {
      report(0, "average gradients of round 3", {1, 2}, 5),
      report(1, "average gradients of round 3", {0, 2}, 4),
      report(2, "backward of minibatch 11", {}, 6),
  };
  CHECK(waiting_chain(reports, 0) == std::vector<int64_t>{0, 2});
  CHECK(waiting_chain(reports, 1) == std::vector<int64_t>{1, 2});
}

TEST_CASE("heartbeat: a circle of waiting ranks ends") {
  const std::vector<RankReport> reports = {
      report(0, "receive gradient of minibatch 1", {1}, 5),
      report(1, "receive activation of minibatch 2", {0}, 4),
  };
  CHECK(waiting_chain(reports, 0) == std::vector<int64_t>{0, 1, 0});
  CHECK(chain_words(reports, {0, 1, 0}) ==
        "rank 0 waits for rank 1 (receive gradient of minibatch 1 since 5.0 s); "
        "rank 1 waits for rank 0 (receive activation of minibatch 2 since 4.0 s)");
}

TEST_CASE("processes: this one runs, one that never was has gone, another host's is not known") {
  const ProcessName self = this_process();
  CHECK(state_of(self) == ProcessState::kRunning);
  ProcessName other = self;
  other.start_ticks += 1;  // a later process with our number
  CHECK(state_of(other) == ProcessState::kGone);
  other.identity = "elsewhere";
  CHECK(state_of(other) == ProcessState::kUnknown);
  CHECK(ProcessName::from_text(self.to_text()).pid == self.pid);
  CHECK(state_of_pid(1'000'000'000) == ProcessState::kGone);
}
