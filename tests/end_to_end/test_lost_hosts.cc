// Hosts that are lost with all their processes and what is in their memory, and runs that go on: a script
// stands for ssh, and hosts of this machine have folders of their own in /dev/shm.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "tests/end_to_end/recovered_runs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

class HostsJob {
 public:
  /// Lines of a hosts file.
  explicit HostsJob(const std::string& hosts) {
    write_file(folder / "hosts", hosts);
    write_file(folder / "rsh", "#!/bin/sh\nhost=$1; shift\n[ -e " + (folder / "down-").string() +
                                   "$host ] && { echo no route to $host >&2; exit 255; }\n"
                                   "exec /bin/sh -c \"$*\"\n");
    std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  }

  std::unique_ptr<Process> launch(const std::vector<std::string>& options) const {
    const std::vector<std::string> hosts = {"--hosts",       (folder / "hosts").string(),
                                            "--rsh",         (folder / "rsh").string(),
                                            "--master-addr", "127.0.0.1",
                                            "--copy-every",  "4"};
    return std::make_unique<Process>(
        std::vector<std::string>{program("runtime"), "launch"} + job(output(), options + hosts),
        folder / "out", folder / "err");
  }
  std::filesystem::path output() const { return folder / "run"; }
  size_t minibatches() const { return complete_lines(output() / "metrics.jsonl").size(); }
  std::filesystem::path memory_of(const std::string& host) const {
    return std::filesystem::read_symlink(output() / (".kept-" + host));
  }

  /// Until all of these hosts have a whole state from behind `minibatch` in their memory.
  void await_state(const std::vector<std::string>& hosts, int64_t minibatch = 0) const {
    REQUIRE(eventually(120s, [&] {
      return std::all_of(hosts.begin(), hosts.end(),
                         [&](const std::string& host) { return newest_of(host) > minibatch; });
    }));
  }

  void cut_off(const std::string& host) const { write_file(folder / ("down-" + host), ""); }
  void reach_again(const std::string& host) const { std::filesystem::remove(folder / ("down-" + host)); }
  /// All at once, as a host ends.
  void kill_processes(const Process& launcher, const std::string& host) const {
    int killed = 0;
    for (const pid_t pid : launcher.children()) {
      const std::string environment = Process::contents("/proc/" + std::to_string(pid) + "/environ");
      const std::string variable = "PIPEWRIGHT_HOST=" + host;
      if (environment.find(variable + '\0') == std::string::npos) continue;
      ::kill(pid, SIGKILL);
      ++killed;
    }
    CHECK(killed > 0);
  }
  void lose(const Process& launcher, const std::string& host) const {
    const std::filesystem::path memory = memory_of(host);
    kill_processes(launcher, host);
    std::filesystem::remove_all(memory);
  }
  /// Further ones than there are now.
  bool train(Process& launcher, size_t further) const {
    const size_t before = minibatches();
    return eventually(
        60s, [&] { return minibatches() >= before + further || launcher.wait(0ms) != Process::kRunning; });
  }

  const TemporaryFolder folder;

 private:
  int64_t newest_of(const std::string& host) const {
    const std::string prefix = "minibatch-";
    int64_t newest = -1;
    std::error_code error;
    const std::filesystem::path place = output() / (".kept-" + host);
    for (std::filesystem::directory_iterator it(place, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code gone;
      for (std::filesystem::directory_iterator state(it->path() / "checkpoints", gone), last;
           !gone && state != last; state.increment(gone)) {
        const std::string name = state->path().filename().string();
        if (name.rfind(prefix, 0) == 0)
          newest = std::max<int64_t>(newest, std::stoll(name.substr(prefix.size())));
      }
    }
    return newest;
  }
};

}  // namespace

TEST_CASE("a host is lost with its memory, and answers again: the run ends as if nothing had happened") {
  const HostsJob job("left slots=2\nright\n");
  const std::vector<std::string> options = {
      "--plan", write_plan(job.folder, "plan.json", {1, 1, 1}), "--minibatches", "800", "--momentum", "0.9"};
  finish(job.folder, job.folder / "quiet", options);
  auto launcher = job.launch(options + std::vector<std::string>{"--on-loss", "restart"});
  job.await_state({"left", "right"});
  const std::filesystem::path left = job.memory_of("left"), right = job.memory_of("right");
  CHECK(left != right);
  job.lose(*launcher, "right");
  REQUIRE(job.train(*launcher, 200));
  job.await_state({"left", "right"}, 60);
  job.lose(*launcher, "left");  // with rank 0
  const int code = launcher->wait(120s);
  CAPTURE(launcher->error());
  REQUIRE(code == 0);
  CHECK(weights(job.output()) == weights(job.folder / "quiet"));
  const Summary summary = summary_of(job.output());
  REQUIRE(summary.recoveries.size() == 2);
  for (const RecoverySummary& recovery : summary.recoveries) {
    CHECK(recovery.from == "memory");
    CHECK(recovery.ranks == 3);
  }
  CHECK(nothing_is_kept(job.output()));
  for (const std::filesystem::path& memory : {left, right}) CHECK_FALSE(std::filesystem::exists(memory));
}

TEST_CASE("a host goes for good, and a spare one takes its ranks") {
  const HostsJob job("left\nright\nthird\n");
  const std::vector<std::string> options = {"--plan", write_plan(job.folder, "plan.json", {1, 1}),
                                            "--minibatches", "800"};
  finish(job.folder, job.folder / "quiet", options);
  const std::string lost = GENERATE("left", "right");
  auto launcher = job.launch(options + std::vector<std::string>{"--on-loss", "restart", "--spares", "1"});
  job.await_state({"left", "right"});
  job.cut_off(lost);
  job.lose(*launcher, lost);
  const int code = launcher->wait(120s);
  CAPTURE(lost, launcher->error());
  REQUIRE(code == 0);
  CHECK(weights(job.output()) == weights(job.folder / "quiet"));
  const Summary summary = summary_of(job.output());
  REQUIRE(summary.recoveries.size() == 1);
  CHECK(summary.recoveries[0].from == "memory");
  for (const RankSummary& rank : summary.ranks) CHECK(rank.host != lost);
  CHECK(nothing_is_kept(job.output()));
}

TEST_CASE(
    "hosts that are left go on under a plan of their own, and one that comes back late does not confuse") {
  const HostsJob job("left slots=2\nright\n");
  const std::string profile = profile_of(job.folder);
  const std::vector<std::string> options = {"--plan",
                                            write_plan(job.folder, "plan.json", {1, 1, 1}),
                                            "--checkpoint-every-epochs",
                                            "1",
                                            "--minibatches",
                                            "4000",
                                            "--on-loss",
                                            "continue:profile=" + profile};
  const std::string lost = GENERATE("left", "right");
  auto launcher = job.launch(options);
  job.await_state({"left", "right"});
  job.cut_off(lost);
  const bool comes_back = lost == "right";
  if (comes_back) {
    job.kill_processes(*launcher, lost);  // what is in its memory stays there
  } else {
    job.lose(*launcher, lost);
  }
  REQUIRE(job.train(*launcher, 200));
  if (comes_back) {
    job.reach_again(lost);
    const Outcome joined = runtime(job.folder, {"join", "--run", job.output().string(), "--host", lost});
    CAPTURE(joined.output, joined.error);
    // A quick run may be over by then.
    CHECK((joined.code == 0 || launcher->wait(60s) != Process::kRunning));
  }
  const int code = launcher->wait(120s);
  CAPTURE(lost, launcher->error());
  REQUIRE(code == 0);
  const Summary summary = summary_of(job.output());
  REQUIRE(summary.recoveries.size() >= 1);
  CHECK(summary.recoveries[0].from != "start");  // a checkpoint of an epoch may be newer
  CHECK(summary.minibatches == 4000);
  const Outcome verified = runtime(job.folder, {"verify", "--run", job.output().string()});
  CAPTURE(verified.output, verified.error);
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, Catch::Contains("equal bit for bit"));
  CHECK(nothing_is_kept(job.output()));
}

TEST_CASE("without copies a host's loss goes back to the last checkpoint, that of a process does not") {
  const HostsJob job("left\nright\n");
  const std::vector<std::string> options = {"--plan",
                                            write_plan(job.folder, "plan.json", {1, 1}),
                                            "--minibatches",
                                            "800",
                                            "--checkpoint-every-minibatches",
                                            "200"};
  finish(job.folder, job.folder / "quiet", options);
  auto launcher = job.launch(options + std::vector<std::string>{"--on-loss", "restart", "--copies", "0"});
  job.await_state({"left", "right"}, 200);
  job.kill_processes(*launcher, "right");
  REQUIRE(job.train(*launcher, 100));
  job.lose(*launcher, "right");
  const int code = launcher->wait(120s);
  CAPTURE(launcher->error());
  REQUIRE(code == 0);
  CHECK(weights(job.output()) == weights(job.folder / "quiet"));
  const Summary summary = summary_of(job.output());
  REQUIRE(summary.recoveries.size() == 2);
  CHECK(summary.recoveries[0].from == "memory");
  CHECK(summary.recoveries[1].from == "checkpoint");
}

TEST_CASE("a job that cannot go on leaves a checkpoint of what the hosts that are left have in memory") {
  const HostsJob job("left\nright\n");
  auto launcher = job.launch({"--plan", write_plan(job.folder, "plan.json", {1, 1}), "--minibatches", "30000",
                              "--on-loss", "continue:profile=" + profile_of(job.folder), "--fewest", "2"});
  job.await_state({"left", "right"});
  const std::filesystem::path left = job.memory_of("left");
  job.cut_off("right");
  job.lose(*launcher, "right");
  CHECK(launcher->wait(60s) == 5);
  CAPTURE(launcher->error());
  CHECK_THAT(launcher->error(), Catch::Contains("go on with --resume latest"));
  CHECK(nothing_is_kept(job.output()));
  CHECK_FALSE(std::filesystem::exists(left));
  // It is whole, although a part of it was written on the host that has gone.
  const Outcome resumed =
      runtime(job.folder, {"launch", "--config", (job.output() / "run.json").string(), "--resume", "latest",
                           "--on-loss", "end", "--minibatches", "2000"});
  CAPTURE(resumed.output, resumed.error);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.error, Catch::Contains("goes on from"));
}
