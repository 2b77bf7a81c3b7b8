// What holds ranks together: messages, barriers, failures. Ranks are objects of one process here; real
// processes that die are in tests/end_to_end.
#include "runtime/control/control.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "runtime/transport/process_state.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace std::chrono_literals;
using pipewright::testing::eventually;

namespace {

struct Ranks {
  Store server;
  std::vector<std::atomic<bool>> woken;
  std::vector<std::unique_ptr<Control>> controls;

  explicit Ranks(int64_t size, std::chrono::milliseconds timeout = 60s, const std::string& secret = "")
      : server(Store::serve(0, "job", secret)), woken(static_cast<size_t>(size)) {
    for (int64_t rank = 0; rank < size; ++rank) {
      controls.push_back(std::make_unique<Control>(
          Store::join("127.0.0.1", server.port(), 60s, "job", secret), rank, size, timeout,
          [this, rank](const std::string&) { woken[static_cast<size_t>(rank)] = true; }));
    }
  }
  Control& operator[](size_t rank) { return *controls[rank]; }

  // How often a rank has said what it does, which is when it looks after the others.
  int64_t beats(int64_t rank) {
    const auto beat = Board(server).beat_of(rank);
    return beat ? beat->number : 0;
  }
  // Ranks that have nothing to complain of are asked so often.
  void let_beat(int64_t rank, int64_t times) {
    const int64_t begun = beats(rank);
    REQUIRE(eventually(60s, [&] { return beats(rank) >= begun + times; }));
  }
};

RankMessage text(const std::string& words) { return TraceDocument{words}; }
std::string words_of(const RankMessage& message) { return std::get<TraceDocument>(message).text; }

ExitCode code_of_check(Control& control) {
  try {
    control.check();
  } catch (const JobEnded& ended) {
    return ended.code();
  }
  return ExitCode::kDone;
}

}  // namespace

TEST_CASE("control: a rank is known, and missed, from the moment that it has come") {
  // Not only when its thread has first run: a process may be stopped before that.
  const Store server = Store::serve(0, "job");
  for (int64_t rank = 1; rank <= 20; ++rank) {
    const Control control(Store::join("127.0.0.1", server.port(), 60s, "job"), rank, 21, 60s,
                          [](const std::string&) {});
    Store asked = Store::join("127.0.0.1", server.port(), 60s, "job");
    const RankReport report = Board(asked).report_of(rank);
    CHECK(report.beat);
    CHECK(report.process);
  }
}

TEST_CASE("control: messages of all ranks reach rank 0's sink, each rank's in order, before finish returns") {
  Ranks ranks(3);
  std::vector<std::vector<std::string>> got(3);
  ranks[0].set_sink([&](int64_t rank, const RankMessage& message) {
    got[static_cast<size_t>(rank)].push_back(words_of(message));
  });
  std::vector<std::vector<std::string>> posted(3);
  for (int i = 0; i < 500; ++i) {
    for (size_t rank = 0; rank < 3; ++rank) {
      posted[rank].push_back("word " + std::to_string(i) + " of\n" + std::to_string(rank));
      ranks[rank].post(text(posted[rank].back()));
    }
  }
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) threads.emplace_back([&, rank] { ranks[rank].finish(60s); });
  for (auto& thread : threads) thread.join();
  CHECK(got == posted);
}

// A run hung for five minutes after its last minibatch: a rank had said its last words while its background
// thread was between delivering and looking whether it may end, and it ended without delivering them.
TEST_CASE("control: last words that come while the background thread is busy elsewhere are delivered") {
  Ranks ranks(2);
  std::vector<std::string> got;
  ranks[0].set_sink([&](int64_t rank, const RankMessage& message) {
    if (rank == 1) got.push_back(words_of(message));
  });
  std::thread ending;
  std::atomic<bool> begun = false;
  std::atomic<bool> tried = false;
  ranks[1].call_often([&] {  // on the background thread, after it has delivered
    if (begun.exchange(true)) return false;
    ending = std::thread([&] {
      ranks[1].post(text("last words"));
      ranks[1].finish(60s);
    });
    tried = eventually(60s, [&] { return ranks[1].finishing(); });
    return false;
  });
  const auto begin = std::chrono::steady_clock::now();
  ranks[0].finish(300s);
  CHECK(std::chrono::steady_clock::now() - begin < 60s);
  REQUIRE(begun);
  ending.join();
  CHECK(tried);
  CHECK(got == std::vector<std::string>{"last words"});
}

// An evaluation was left out of metrics.jsonl: its results, of another rank, had come before rank 0's word
// that it begins, which was to come first.
TEST_CASE("control: rank 0 hears its own words before what another rank has said to them") {
  Store server = Store::serve(0);
  RankChannel first(0, 2), second(1, 2);
  std::vector<std::string> heard;
  first.set_sink([&](int64_t, const RankMessage& message) { heard.push_back(words_of(message)); });
  first.deliver(server);  // and then, before it looks for others' messages:
  first.post(text("question"));
  second.post(text("answer"));
  second.deliver(server);
  first.collect(server);
  CHECK(heard == std::vector<std::string>{"question", "answer"});
}

TEST_CASE("control: a barrier opens when all are there, one that stays away is a named error") {
  Ranks ranks(2);
  std::thread late([&] { ranks[1].barrier("both", 60s); });
  ranks[0].barrier("both", 60s);
  late.join();
  try {
    ranks[0].barrier("alone", 100ms);
    FAIL("the barrier opened");
  } catch (const PeerError& error) {
    CHECK_THAT(error.what(), Catch::Contains("rank 1 of 2 has not reached 'alone'"));
  }
}

TEST_CASE("control: the first failure counts, every other rank is woken and ends with 5") {
  Ranks ranks(3);
  const Failure first = ranks[2].fail({2, ExitCode::kNumerical, "rank 2: the loss is nan"});
  CHECK(first.message == "rank 2: the loss is nan");
  REQUIRE(eventually(60s, [&] { return ranks.woken[0] && ranks.woken[1]; }));
  CHECK(ranks[0].failure()->rank == 2);
  CHECK(code_of_check(ranks[0]) == ExitCode::kPeerLost);
  CHECK(code_of_check(ranks[1]) == ExitCode::kPeerLost);
  CHECK(code_of_check(ranks[2]) == ExitCode::kNumerical);
  CHECK(ranks[1].peer_lost("connection to rank 2 reset").message == first.message);
  CHECK(ranks[1].fail({1, ExitCode::kFailed, "later"}).message == first.message);
}

TEST_CASE("control: a rank that is no longer heard of is lost after the time-out") {
  Ranks ranks(3, 4s);
  for (size_t rank = 0; rank < 3; ++rank) REQUIRE_FALSE(ranks[rank].failure());
  ranks.let_beat(1, 1);
  ranks.controls[1].reset();  // no farewell, as a process that is stopped
  REQUIRE(eventually(60s, [&] { return ranks.woken[0] && ranks.woken[2]; }));
  CHECK_THAT(ranks[2].failure()->message, Catch::Contains("rank 1 has not been heard of for 4.0 s"));
}

TEST_CASE("control: a rank that has finished is not missed") {
  Ranks ranks(2, 1s);
  ranks[1].finish(60s);
  ranks.controls[1].reset();
  ranks.let_beat(0, 15);  // 1.5 times the time-out, at least
  CHECK_FALSE(ranks.woken[0]);
  ranks[0].finish(60s);
  CHECK_FALSE(ranks[0].failure());
}

TEST_CASE("control: a sink that cannot write fails the job with its own code, not as a lost peer") {
  Ranks ranks(2);
  ranks[0].set_sink([](int64_t, const RankMessage&) { throw RunError("metrics.jsonl: no space left"); });
  ranks[1].post(text("a line"));
  REQUIRE(eventually(60s, [&] { return ranks.woken[0] && ranks.woken[1]; }));
  CHECK_THAT(ranks[1].failure()->message, Catch::Contains("no space left"));
  CHECK(ranks[1].failure()->code == ExitCode::kFailed);
  CHECK(code_of_check(ranks[0]) == ExitCode::kFailed);
  CHECK(code_of_check(ranks[1]) == ExitCode::kPeerLost);
}

TEST_CASE("control: a rank whose main thread hangs while heartbeats go on is a failure that says who waits") {
  Progress waiting_far, waiting, hanging;  // by rank; this thread sleeps: it uses no CPU
  Ranks ranks(3, 1500ms);
  waiting_far.begin({"receive gradient of minibatch 4", {1}});
  waiting.begin({"receive gradient of minibatch 5", {2}});
  hanging.begin({"load samples of minibatch 7", {}});
  ranks[0].watch(waiting_far);
  ranks[1].watch(waiting);
  ranks[2].watch(hanging);
  REQUIRE(eventually(60s, [&] { return ranks.woken[0] && ranks.woken[1] && ranks.woken[2]; }));
  const std::string message = ranks[0].failure()->message;
  CHECK(ranks[0].failure()->rank == 2);
  CHECK_THAT(message,
             Catch::Contains("rank 2 does not get on: load samples of minibatch 7 since ") &&
                 Catch::Contains("rank 1 waits for rank 2 (receive gradient of minibatch 5 since ") &&
                 Catch::Contains("rank 0 waits for rank 1 (receive gradient of minibatch 4 since "));
}

TEST_CASE("control: waiting is right as long as somebody at the end of the chain works") {
  Progress waiting, working;
  Ranks ranks(2, 2s);
  waiting.begin({"receive activation of minibatch 0", {1}});
  working.begin({"forward of minibatch 0", {}});
  ranks[0].watch(waiting);
  ranks[1].watch(working);
  volatile double sum = 0;  // this thread, which made both, works
  const int64_t begun = ranks.beats(0);
  REQUIRE(eventually(60s, [&] {
    for (int i = 0; i < 10'000'000; ++i) sum = sum + i;
    return ranks.beats(0) >= begun + 20;  // 4 s, at least: twice the time-out
  }));
  CHECK_FALSE(ranks.woken[0]);
  CHECK_FALSE(ranks.woken[1]);
}

TEST_CASE("control: the end is waited for as long as somebody's file is still being written") {
  ::setenv("TMPDIR", "/var/tmp", 1);  // a disk: scripts/test keeps the tests' folders in memory
  const pipewright::testing::TemporaryFolder folder;
  const int64_t before = bytes_to_disk();
  std::ofstream(folder / "probe") << std::string(65536, 'x') << std::flush;
  if (bytes_to_disk() == before)
    return pipewright::testing::skip("files of " + folder.path().string() + " are on no disk");
  Ranks ranks(2, 4s);
  std::atomic<bool> at_end = false;
  std::thread writer([&] {
    std::ofstream file(folder / "checkpoint");
    for (const auto end = std::chrono::steady_clock::now() + 7s; std::chrono::steady_clock::now() < end;) {
      file << std::string(65536, 'x') << std::flush;
      std::this_thread::sleep_for(50ms);
    }
    at_end = true;
    ranks[1].barrier("end", 60s, Meeting::kEnd);
  });
  CHECK_NOTHROW(ranks[0].barrier("end", 3s, Meeting::kEnd));  // which is over twice meanwhile
  CHECK(at_end);
  writer.join();
}

TEST_CASE("control: who gets nothing more done is not waited for at the end") {
  Ranks ranks(2);
  try {
    ranks[0].barrier("end", 1500ms, Meeting::kEnd);
    FAIL("the barrier opened");
  } catch (const PeerError& error) {
    CHECK_THAT(error.what(), Catch::Contains("after 1.5 s rank 1 of 2 has not reached 'end'"));
  }
}

TEST_CASE("control: nobody who reaches the port can end the job or post a message") {
  Ranks ranks(2, 60s, "the secret");
  std::vector<std::string> got;
  ranks[0].set_sink([&](int64_t, const RankMessage& message) { got.push_back(words_of(message)); });
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(ranks.server.port());
  options.waitWorkers = false;
  c10d::TCPStore stranger("127.0.0.1", options);
  const auto say = [&](const std::string& key, const std::string& value) {
    stranger.set("job/" + key, std::vector<uint8_t>(value.begin(), value.end()));
  };
  say("failure", Failure{1, ExitCode::kFailed, "forged"}.to_text());
  say("messages/1/0", text_of(text("forged")) + "\n");
  say("orders/1/0", text_of(Order(BeginNoMore{1, 2})) + "\n");
  stranger.add("job/messages", 1);
  ranks.let_beat(0, 3);
  ranks.let_beat(1, 3);
  CHECK_FALSE(ranks[0].failure());
  CHECK_FALSE(ranks[1].failure());
  CHECK(got.empty());
  ranks[1].post(text("true"));
  std::thread other([&] { ranks[1].finish(60s); });
  ranks[0].finish(60s);
  other.join();
  CHECK(got == std::vector<std::string>{"true"});
}

TEST_CASE("control: ranks that wait for each other, or for one that has finished, are a failure") {
  Progress first, second;
  Ranks ranks(2, 1s);
  const bool circle = GENERATE(true, false);
  first.begin({"receive activation of minibatch 3", {1}});
  if (circle) {
    second.begin({"receive gradient of minibatch 2", {0}});
  } else {
    second.begin({"end of training", {}, true});
  }
  ranks[0].watch(first);
  ranks[1].watch(second);
  REQUIRE(eventually(60s, [&] { return ranks.woken[0] && ranks.woken[1]; }));
  CHECK_THAT(ranks[0].failure()->message,
             Catch::Contains(circle ? "ranks wait for each other" : "rank 1 has finished, but a message") &&
                 Catch::Contains("rank 0 waits for rank 1 (receive activation of minibatch 3"));
}

TEST_CASE("failure: text form round trips") {
  const Failure failure{3, ExitCode::kNumerical, "a \"quoted\" message\nwith two lines", "a cure"};
  const Failure again = Failure::from_text(failure.to_text());
  CHECK(again.rank == 3);
  CHECK(again.code == ExitCode::kNumerical);
  CHECK(again.message == failure.message);
  CHECK(again.remedy == failure.remedy);
}
