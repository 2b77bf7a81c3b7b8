// What anybody may read of a job: the newest word, from any of its processes.
#include "runtime/control/board.h"

#include <catch2/catch.hpp>
#include <thread>

#include "graph/error.h"

using namespace pipewright;
using namespace std::chrono_literals;

namespace {

struct Job {
  Store server = Store::serve(0);
  Store reader = Store::join("127.0.0.1", server.port(), 60s);
};

}  // namespace

TEST_CASE("board: a rank is what it has last said, and nothing before it has said any") {
  Job job;
  const Board said(job.server), read(job.reader);
  CHECK_FALSE(read.beat_of(1));
  CHECK_FALSE(read.report_of(1).process);
  CHECK(read.report_of(1).state == ProcessState::kUnknown);

  said.set_process(1, this_process());
  Beat beat;
  beat.number = 1;
  beat.work = 17;
  beat.progress.activity = {"receive activation of minibatch 3", {0}};
  said.set_beat(1, beat);
  beat.number = 2;
  said.set_beat(1, beat);
  CHECK(said.beat_of(1)->number == 2);  // a store acknowledges no value, but answers in order
  const RankReport report = read.report_of(1);
  CHECK(report.rank == 1);
  CHECK(report.process->pid == this_process().pid);
  CHECK(report.state == ProcessState::kRunning);
  CHECK(report.beat->number == 2);
  CHECK(read.beat_of(1)->work == 17);
  const auto reports = read.reports_of_all(3);
  REQUIRE(reports.size() == 3);
  CHECK_FALSE(reports[0].beat);
  CHECK(reports[1].beat->progress.activity.peers == std::vector<int64_t>{0});
  CHECK_FALSE(reports[2].beat);
}

TEST_CASE("board: a rank's place is taken once") {
  Job job;
  CHECK(Board(job.server).claim(2));
  CHECK_FALSE(Board(job.reader).claim(2));
  CHECK(Board(job.reader).claim(3));
}

TEST_CASE("board: a meeting opens when the last has come, and meetings are apart") {
  Job job;
  const Board first(job.server), second(job.reader);
  first.come_to("start", 0, 2);
  CHECK(second.has_come_to("start", 0));
  CHECK_FALSE(second.has_come_to("start", 1));
  CHECK_FALSE(second.is_open("start"));
  second.come_to("end", 1, 2);
  CHECK_FALSE(first.is_open("start"));
  CHECK_FALSE(first.is_open("end"));
  second.come_to("start", 1, 2);
  CHECK(first.is_open("start"));
}

TEST_CASE("board: the first failure counts, with all that was said of it") {
  Job job;
  const Board first(job.server), second(job.reader);
  CHECK_FALSE(second.failure());
  CHECK_THROWS_AS(second.await_failure(50ms), PeerError);
  CHECK(first.announce_failure({1, ExitCode::kPeerLost, "rank 2 has died", "start it again", 2}));
  CHECK_FALSE(second.announce_failure({0, ExitCode::kNumerical, "the loss is nan"}));
  for (const Failure& failure : {*second.failure(), second.await_failure(60s)}) {
    CHECK(failure.rank == 1);
    CHECK(failure.code == ExitCode::kPeerLost);
    CHECK(failure.message == "rank 2 has died");
    CHECK(failure.remedy == "start it again");
    CHECK(failure.lost == 2);
  }
}

TEST_CASE("board: many processes announce failures at once, all read the same one") {
  Job job;
  std::vector<std::thread> ranks;
  std::vector<std::string> read(8);
  for (size_t rank = 0; rank < read.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      Store store = Store::join("127.0.0.1", job.server.port(), 60s);
      const Board board(store);
      board.announce_failure({static_cast<int64_t>(rank), ExitCode::kFailed, "of " + std::to_string(rank)});
      read[rank] = board.await_failure(60s).message;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(read == std::vector<std::string>(8, read[0]));
}

TEST_CASE("board: how far the job has come") {
  Job job;
  const Board said(job.server), read(job.reader);
  CHECK_FALSE(read.has_begun());
  CHECK_FALSE(read.newest_kept());
  said.set_begun();
  CHECK(said.has_begun());
  CHECK(read.has_begun());
  said.set_newest_kept(20);
  said.set_newest_kept(int64_t{1} << 40);
  CHECK(said.newest_kept() == int64_t{1} << 40);
  CHECK(read.newest_kept() == int64_t{1} << 40);
}
