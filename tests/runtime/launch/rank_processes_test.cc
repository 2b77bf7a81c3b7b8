// The processes of an attempt: what ranks are told, and what becomes of their output, signals and ends. A
// script stands for the remote shell, and is the rank.
#include "runtime/launch/rank_processes.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "graph/atomic_file.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

class Ranks {
 public:
  /// `script`: what a host does, which is its $1.
  explicit Ranks(const std::string& script) {
    write_file(folder / "rsh", "#!/bin/sh\n" + script);
    std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
    settings.remote_shell = (folder / "rsh").string();
  }
  RankPlaces on(const std::vector<std::string>& hosts, int64_t attempt = 0) const {
    RankPlaces places{attempt, {}, hosts, "127.0.0.1", 1, 1, true};
    for (size_t rank = 0; rank < hosts.size(); ++rank) places.slots.push_back(static_cast<Slot>(10 + rank));
    return places;
  }
  /// Until so many have ended: their numbers.
  static std::vector<size_t> await_ends(RankProcesses& processes, size_t count) {
    std::vector<size_t> ended;
    REQUIRE(eventually(60s, [&] {
      processes.take_output();
      for (const size_t i : processes.newly_ended()) ended.push_back(i);
      return ended.size() == count;
    }));
    return ended;
  }
  std::string log(const std::string& name) const { return Process::contents(folder / name); }

  const TemporaryFolder folder;
  LaunchSettings settings;
};

}  // namespace

TEST_CASE("what a rank is told: its number, that on its host, and where the store is") {
  RankPlaces places{2, {0, 1, 5}, {"", "b", ""}, "node1", 4711, 1, true};
  const auto says = [](const std::vector<std::string>& variables, const std::string& variable) {
    return std::find(variables.begin(), variables.end(), variable) != variables.end();
  };
  const auto third = variables_of(places, 2), second = variables_of(places, 1);
  for (const char* variable :
       {"RANK=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=3", "MASTER_ADDR=node1",
        "MASTER_PORT=4711", "PIPEWRIGHT_ATTEMPT=2", "PIPEWRIGHT_PIN=1/2"})
    CHECK(says(third, variable));
  CHECK(says(second, "LOCAL_RANK=0"));
  CHECK(says(second, "PIPEWRIGHT_HOST=b"));
  CHECK_FALSE(says(third, "PIPEWRIGHT_HOST=b"));
  places.pin = false;
  places.attempt = 0;
  for (const std::string& variable : variables_of(places, 2))
    CHECK((variable.rfind("PIPEWRIGHT_PIN", 0) != 0 && variable.rfind("PIPEWRIGHT_ATTEMPT", 0) != 0));
}

TEST_CASE("ranks end each in its own way, with their words in their logs") {
  Ranks ranks(
      "cat > /dev/null; echo I am $1 >&2; [ $1 = good ] || { [ $1 = bad ] && exit 3; kill -9 $$; }\n");
  RankProcesses processes(ranks.settings, "secret", ranks.folder.path(), /*hidden=*/true);
  processes.start(ranks.on({"good", "bad", "killed"}));
  CHECK(Ranks::await_ends(processes, 3).size() == 3);
  processes.drain_output(/*wait=*/true);
  CHECK(processes.all()[0].exited_with(0));
  CHECK(processes.all()[1].exited_with(3));
  CHECK(processes.all()[1].slot == 11);
  CHECK_FALSE(processes.all()[2].exited_with(9));
  CHECK_FALSE(processes.all_done());
  CHECK(ranks.log(".rank-1.log") == "I am bad\n");
  processes.show_logs(ranks.folder.path());
  CHECK_FALSE(processes.logs_are_hidden());
  CHECK(ranks.log("rank-2.log") == "I am killed\n");
  // The next attempt's words come behind them.
  processes.start(ranks.on({"good", "good"}, /*attempt=*/1));
  Ranks::await_ends(processes, 2);
  processes.drain_output(/*wait=*/true);
  CHECK(processes.all().size() == 2);
  CHECK(processes.all_done());
  CHECK(ranks.log("rank-1.log") == "I am bad\nI am good\n");
}

TEST_CASE("remote shells get no signals but the last, and the end leaves no process") {
  Ranks ranks("cat > /dev/null; echo there >&2; exec sleep 1000\n");
  RankProcesses processes(ranks.settings, "secret", ranks.folder.path(), /*hidden=*/false);
  processes.start(ranks.on({"a", "b"}));
  REQUIRE(eventually(60s, [&] {
    processes.take_output();
    return ranks.log("rank-0.log") == "there\n" && ranks.log("rank-1.log") == "there\n";
  }));
  processes.signal_all(SIGTERM);
  processes.take_output();
  CHECK(processes.newly_ended().empty());
  const std::vector<pid_t> pids = {processes.all()[0].pid, processes.all()[1].pid};
  processes.end();
  for (const pid_t pid : pids) CHECK(::kill(pid, 0) != 0);
  CHECK_FALSE(processes.all()[0].running);
}
