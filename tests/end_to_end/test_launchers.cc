// Ranks that somebody else starts: mpirun, Slurm (its environment, without it), ssh (a script that stands for
// it).
#include <sched.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "graph/summary.h"
#include "graph/topology.h"
#include "tests/end_to_end/jobs.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kShortJob = {
    "--model",      kEndlessModel, "--data",        "synthetic-images:image=8,samples=128",
    "--batch-size", "8",           "--minibatches", "20"};

std::vector<std::string> short_job(const TemporaryFolder& folder, const std::string& name = "run") {
  return kShortJob + std::vector<std::string>{"--plan", (folder / "plan.json").string(), "--output",
                                              (folder / name).string()};
}

Summary summary_of(const TemporaryFolder& folder, const std::string& name = "run") {
  return read_document<Summary>(folder / name / "summary.json");
}

void write_launched_plan(const TemporaryFolder& folder, const std::vector<int64_t>& replicas) {
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), replicas));
}

// Options of a job on hosts "left" (two ranks) and "right", with a script that stands for ssh (HOST COMMAND):
// each host notes in asked-HOST what it was asked to run.
std::vector<std::string> two_hosts(const TemporaryFolder& folder) {
  write_file(folder / "hosts", "left slots=2\nright\n");
  write_file(folder / "rsh", "#!/bin/sh\nhost=$1; shift\necho \"$@\" >> " + (folder / "asked-").string() +
                                 "$host\nexec /bin/sh -c \"$*\"\n");
  std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  return {"--hosts",  (folder / "hosts").string(), "--rsh", (folder / "rsh").string(), "--master-addr",
          "127.0.0.1"};
}

const std::string kMpirun = "/usr/bin/mpirun";

// The short job on two ranks, into folder/NAME. Its mpirun keeps its session in a folder of its own: one that
// begins removes or makes what others share below /tmp at the same time, and either may then fail ("A call to
// mkdir was unable to create the desired directory"). Short, for Open MPI makes sockets in it.
std::unique_ptr<Process> under_mpirun(const TemporaryFolder& folder, const std::string& name) {
  const auto sessions = folder / ("mpi-" + name);
  std::filesystem::create_directory(sessions);
  return std::make_unique<Process>(
      std::vector<std::string>{kMpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2",
                               program("runtime"), "train"} +
          short_job(folder, name),
      folder / (name + ".out"), folder / (name + ".err"),
      std::map<std::string, std::string>{{"OMPI_MCA_orte_tmpdir_base", sessions.string()},    // Open MPI 4
                                         {"PRTE_MCA_prte_tmpdir_base", sessions.string()}});  // 5
}

}  // namespace

TEST_CASE("mpirun starts the ranks") {
  if (!std::filesystem::exists(kMpirun)) return skip("no mpirun here (package openmpi-bin)");
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  const auto job = under_mpirun(folder, "run");
  const int code = job->wait(120s);
  INFO(job->output() << job->error());
  REQUIRE(code == 0);
  CHECK(summary_of(folder).status == "done");
  CHECK(summary_of(folder).ranks.size() == 2);
}

TEST_CASE("two mpirun jobs at the same time do not meet") {
  if (!std::filesystem::exists(kMpirun)) return skip("no mpirun here (package openmpi-bin)");
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  std::vector<std::unique_ptr<Process>> jobs;
  for (const std::string name : {"a", "b"}) jobs.push_back(under_mpirun(folder, name));
  for (auto& job : jobs) {
    const int code = job->wait(120s);
    INFO(job->output() << job->error());
    CHECK(code == 0);
  }
  CHECK(summary_of(folder, "a").minibatches == 20);
  CHECK(summary_of(folder, "b").minibatches == 20);
}

TEST_CASE("Slurm's environment places the ranks") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {2, 1});
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string name = "rank" + std::to_string(rank);
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{program("runtime"), "train"} + short_job(folder), folder / (name + ".out"),
        folder / (name + ".err"),
        std::map<std::string, std::string>{{"SLURM_PROCID", std::to_string(rank)},
                                           {"SLURM_NTASKS", "3"},
                                           {"SLURM_LOCALID", std::to_string(rank)},
                                           {"SLURM_JOB_ID", std::to_string(::getpid())},
                                           {"SLURM_STEP_ID", "0"},
                                           {"SLURM_STEP_NODELIST", "localhost"}}));
  }
  for (auto& rank : ranks) {
    const int code = rank->wait(120s);
    INFO(rank->error());
    CHECK(code == 0);
  }
  CHECK(summary_of(folder).ranks.size() == 3);
}

// What `scontrol requeue`, torchrun --max-restarts and systemd's Restart do: all ranks of the job end, of
// whatever, and are started again as they were.
TEST_CASE("ranks that a scheduler starts again with --resume latest end with the weights of a quiet run") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  const auto start = [&](const std::string& name, int rank) {
    const std::vector<std::string> words = {program("runtime"),
                                            "train",
                                            "--model",
                                            kEndlessModel,
                                            "--data",
                                            "synthetic-images:image=8,samples=128",
                                            "--batch-size",
                                            "8",
                                            "--minibatches",
                                            "3000",
                                            "--momentum",
                                            "0.9",
                                            "--plan",
                                            (folder / "plan.json").string(),
                                            "--output",
                                            (folder / name).string(),
                                            "--resume",
                                            "latest",
                                            "--checkpoint-every-minibatches",
                                            "100",
                                            "--timeout",
                                            "10s"};
    const std::string log = name + "-" + std::to_string(rank);
    return std::make_unique<Process>(
        words, folder / (log + ".out"), folder / (log + ".err"),
        std::map<std::string, std::string>{{"SLURM_PROCID", std::to_string(rank)},
                                           {"SLURM_NTASKS", "2"},
                                           {"SLURM_LOCALID", std::to_string(rank)},
                                           {"SLURM_JOB_ID", std::to_string(::getpid())},
                                           {"SLURM_STEP_ID", "0"},
                                           {"SLURM_STEP_NODELIST", "localhost"}});
  };
  struct Round {
    int signal = 0;  // 0: they come to their end
    int to = 0;      // a rank; -1: all
    int code = 0;    // of the other
  };
  const auto train = [&](const std::string& name, const std::vector<Round>& rounds) {
    const auto metrics = folder / name / "metrics.jsonl";
    for (const Round& round : rounds) {
      const size_t before = complete_lines(metrics).size();
      std::vector<std::unique_ptr<Process>> ranks;
      for (const int rank : {0, 1}) ranks.push_back(start(name, rank));
      if (round.signal != 0) {
        REQUIRE(eventually(90s, [&] {
          const size_t lines = complete_lines(metrics).size();
          return lines > before + 300 || ranks[0]->wait(0ms) != Process::kRunning;
        }));
        for (int rank = 0; rank < 2; ++rank)
          if (round.to < 0 || round.to == rank) ranks[static_cast<size_t>(rank)]->signal(round.signal);
      }
      for (int rank = 0; rank < 2; ++rank) {
        const int code = ranks[static_cast<size_t>(rank)]->wait(300s);
        CAPTURE(name, round.signal, round.to, rank, ranks[static_cast<size_t>(rank)]->error());
        CHECK(code == (round.signal != 0 && round.to == rank ? 128 + round.signal : round.code));
      }
    }
  };
  train("quiet", {{}});
  train("run", {{SIGKILL, 1, 5}, {SIGTERM, -1, 143}, {SIGKILL, 0, 5}, {}});
  CHECK(read_file(folder / "run" / "model.safetensors") == read_file(folder / "quiet" / "model.safetensors"));
  CHECK(complete_lines(folder / "run" / "metrics.jsonl").size() ==
        complete_lines(folder / "quiet" / "metrics.jsonl").size());
}

TEST_CASE("launch: a signal before there are ranks ends it with the signal's code, and a line that says so") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  const int signal = GENERATE(SIGINT, SIGTERM);
  Process launcher(std::vector<std::string>{program("runtime"), "launch"} + short_job(folder), folder / "out",
                   folder / "err");
  // From when on it hears of it: LibTorch's libraries are being loaded.
  REQUIRE(eventually(60s, [&] {
    const std::string status = Process::contents("/proc/" + std::to_string(launcher.pid()) + "/status");
    const size_t at = status.find("SigCgt:");
    return at != std::string::npos &&
           (std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }));
  launcher.signal(signal);
  CHECK(launcher.wait(60s) == 128 + signal);
  CHECK_THAT(launcher.error(), Catch::Contains("error: ") && Catch::Contains("nothing had been trained"));
  CHECK_FALSE(std::filesystem::exists(folder / "run" / "metrics.jsonl"));
}

TEST_CASE("a rank that is already there is refused, and the job it came into goes on") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  const std::string port = std::to_string(20000 + ::getpid() % 12000);
  const auto rank = [&](const std::string& number, const std::vector<std::string>& job,
                        const std::string& name) {
    return std::make_unique<Process>(
        std::vector<std::string>{program("runtime"), "train"} + job +
            std::vector<std::string>{"--plan", (folder / "plan.json").string(), "--rank", number,
                                     "--world-size", "2", "--master-port", port},
        folder / (name + ".out"), folder / (name + ".err"));
  };
  const auto first = rank("0", endless_job(folder), "first");
  const auto second = rank("1", endless_job(folder), "second");
  const auto lines = [&] { return complete_lines(folder / "run" / "metrics.jsonl").size(); };
  INFO(first->error());
  REQUIRE(eventually(90s, [&] { return lines() > 20; }));
  const auto stranger = rank("1", endless_job(folder), "stranger");
  CHECK(stranger->wait(60s) == 2);
  CHECK_THAT(stranger->error(),
             Catch::Contains("rank 1 is already there") && Catch::Contains("--master-port"));
  const size_t before = lines();
  CHECK(eventually(60s, [&] { return lines() > before + 20; }));
  // A second rank 0 does not even get as far as the folder.
  const std::string document = read_file(folder / "run" / "run.json");
  const auto usurper = rank("0", endless_job(folder) + std::vector<std::string>{"--seed", "5"}, "usurper");
  CHECK(usurper->wait(60s) == 2);
  CHECK_THAT(usurper->error(), Catch::Contains("cannot serve a store on port"));
  CHECK(read_file(folder / "run" / "run.json") == document);
  CHECK_FALSE(std::filesystem::exists(folder / "run" / "earlier-1"));
  deliver(SIGTERM, GENERATE(from_range(kWaysOfSignals)), {first->pid(), second->pid()});
  CHECK(first->wait(60s) == 143);
  CHECK(second->wait(60s) == 143);
}

TEST_CASE(
    "launch --hosts: ranks on several hosts through a remote shell, memory within a host, Gloo between") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {2, 1});
  Process launcher(
      std::vector<std::string>{program("runtime"), "launch"} + short_job(folder) + two_hosts(folder),
      folder / "out", folder / "err");
  const int code = launcher.wait(120s);
  INFO(launcher.error());
  REQUIRE(code == 0);
  CHECK(complete_lines(folder / "asked-left").size() == 2);
  CHECK(complete_lines(folder / "asked-right").size() == 1);
  const Summary summary = summary_of(folder);
  REQUIRE(summary.ranks.size() == 3);
  CHECK(summary.ranks[0].host == "left");
  CHECK(summary.ranks[1].host == "left");
  CHECK(summary.ranks[2].host == "right");
}

TEST_CASE("verify, evaluate and predict --hosts: the ranks are on the hosts, what they find is told here") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {2, 1});
  const auto hosts = two_hosts(folder);
  const auto output_of = [&](const std::vector<std::string>& words) {
    for (const char* host : {"asked-left", "asked-right"}) std::filesystem::remove(folder / host);
    Process process(std::vector<std::string>{program("runtime")} + words + hosts, folder / "out",
                    folder / "err");
    const int code = process.wait(120s);
    INFO(process.error());
    REQUIRE(code == 0);
    CHECK(complete_lines(folder / "asked-left").size() == 2);
    CHECK(complete_lines(folder / "asked-right").size() == 1);
    return parse_json(process.output(), "output");
  };
  CHECK(output_of(std::vector<std::string>{"verify", "--json"} + short_job(folder))["verdict"] == "equal");
  const std::vector<std::string> trained = {"--plan",
                                            (folder / "plan.json").string(),
                                            "--resume",
                                            (folder / "run" / "checkpoints" / "minibatch-20").string(),
                                            "--output",
                                            (folder / "second").string(),
                                            "--json",
                                            "--evaluation-data",
                                            "synthetic-images:image=8,samples=50"};
  CHECK(output_of(std::vector<std::string>{"evaluate"} + trained)["samples"] == 50);
  CHECK(output_of(std::vector<std::string>{"predict", "--classes", (folder / "classes.jsonl").string()} +
                  trained)["samples"] == 50);
  CHECK(complete_lines(folder / "classes.jsonl").size() == 50);
}

TEST_CASE("launch --hosts: a host that cannot be reached ends the job with its words") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  write_file(folder / "hosts", "left\nright\n");
  write_file(folder / "rsh",
             "#!/bin/sh\nhost=$1; shift\n[ $host = left ] || { echo no route to $host >&2; exit 255; }\n"
             "exec /bin/sh -c \"$*\"\n");
  std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  Process launcher(std::vector<std::string>{program("runtime"), "launch"} + short_job(folder) +
                       std::vector<std::string>{"--hosts", (folder / "hosts").string(), "--rsh",
                                                (folder / "rsh").string(), "--master-addr", "127.0.0.1"},
                   folder / "out", folder / "err");
  CHECK(launcher.wait(60s) == 5);
  CHECK_THAT(launcher.error(), Catch::Contains("rank 1 on right") && Catch::Contains("255"));
  CHECK_THAT(Process::contents(folder / "run" / "rank-1.log"), Catch::Contains("no route to right"));
}

TEST_CASE("doctor looks at this host and at others, says what to do, and ends with 1 if something is wrong") {
  const TemporaryFolder folder;
  write_file(folder / "hosts", "left slots=2\nright\n");
  write_file(folder / "rsh",
             "#!/bin/sh\nhost=$1; shift\n[ $host = left ] || { echo no route to $host >&2; exit 255; }\n"
             "exec /bin/sh -c \"$*\"\n");
  std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  const Outcome alone = runtime(folder, {"doctor"});
  INFO(alone.output << alone.error);
  CHECK(alone.code == 0);
  const Outcome all =
      runtime(folder, {"doctor", "--hosts", (folder / "hosts").string(), "--rsh", (folder / "rsh").string()});
  INFO(all.output << all.error);
  CHECK(all.code == 1);
  CHECK_THAT(all.output, Catch::Contains("\nleft\n") && Catch::Contains("is the same on both"));
  CHECK_THAT(all.output.substr(all.output.find("\nright\n")),
             Catch::Contains("WRONG  reached") && Catch::Contains(" right true must work"));
  CHECK_THAT(all.error, Catch::Contains("1 of "));
  CHECK(runtime(folder, {"doctor", "--rsh", "ssh"}).code == 2);
}

TEST_CASE("probe measures the links, by level where ranks are on several hosts") {
  const TemporaryFolder folder;
  write_file(folder / "hosts", "left slots=2\nright slots=2\n");
  write_file(folder / "rsh", "#!/bin/sh\nshift\nexec /bin/sh -c \"$*\"\n");
  std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  Process process({program("runtime"), "probe", "--ranks", "4", "--hosts", (folder / "hosts").string(),
                   "--rsh", (folder / "rsh").string(), "--master-addr", "127.0.0.1", "--output",
                   (folder / "topology.json").string()},
                  folder / "out", folder / "err");
  const int code = process.wait(120s);
  INFO(process.output() << process.error());
  REQUIRE(code == 0);
  const auto topology = read_document<Topology>(folder / "topology.json");
  REQUIRE(topology.levels.size() == 2);
  CHECK(topology.levels[0].count == 2);
  CHECK(topology.levels[1].count == 2);
  for (const auto& level : topology.levels) {
    CHECK(level.bandwidth_bytes_per_second > 1e6);
    CHECK(level.latency_seconds > 0);
  }
  // All four are on this machine, whatever its hosts are called.
  cpu_set_t usable;
  REQUIRE(sched_getaffinity(0, sizeof usable, &usable) == 0);
  const int64_t cores = CPU_COUNT(&usable);
  CHECK(topology.cores == (cores < 4 ? SharedCores{4, cores} : SharedCores{}));
  REQUIRE(topology.devices.size() == 4);
  CHECK(topology.devices[1].host == "left");
  CHECK(topology.devices[2].host == "right");
}

TEST_CASE("probe looks at a link closely, over each transport") {
  const TemporaryFolder folder;
  const auto [transport, ranks, held] =
      GENERATE(table<std::string, std::string, int64_t>({{"shm", "4", 8 << 20}, {"gloo", "2", 0}}));
  INFO(transport);
  Process process({program("runtime"), "probe", "--ranks", ranks, "--transport", transport, "--output",
                   (folder / "topology.json").string()},
                  folder / "out", folder / "err");
  const int code = process.wait(120s);
  INFO(process.output() << process.error());
  REQUIRE(code == 0);
  const auto topology = read_document<Topology>(folder / "topology.json");
  REQUIRE(topology.levels.size() == 1);
  const TopologyLevel& level = topology.levels[0];
  CHECK(level.count == std::stoll(ranks));
  CHECK(level.buffered_bytes == held);
  CHECK(level.both_ways_bytes_per_second > 0);
  CHECK(level.exchange_bytes_per_second > 0);
  for (const double seconds : {level.core_seconds_per_message, level.core_seconds_per_byte}) {
    CHECK(seconds >= 0);
    CHECK(seconds < 1);
  }
  REQUIRE(level.messages.size() > 1);
  CHECK(level.messages[0].bytes == 8);
  for (size_t i = 0; i < level.messages.size(); ++i) {
    CHECK(level.messages[i].seconds > 0);
    if (i > 0) CHECK(level.messages[i].bytes > level.messages[i - 1].bytes);
  }
  CHECK_THAT(process.output(), Catch::Contains("ranks 0 and 1:") && Catch::Contains("8 B") &&
                                   Catch::Contains("both ways at once") && Catch::Contains("noise: half of"));
  // Two pairs at once, of four ranks.
  CHECK((process.output().find("2 pairs of a host's ranks at once") != std::string::npos) == (ranks == "4"));
}

TEST_CASE("two launches at the same time on one host do not meet") {
  const TemporaryFolder folder;
  write_launched_plan(folder, {1, 1});
  std::vector<std::unique_ptr<Process>> jobs;
  for (const std::string name : {"a", "b"}) {
    jobs.push_back(std::make_unique<Process>(std::vector<std::string>{program("runtime"), "launch"} +
                                                 short_job(folder, name) +
                                                 std::vector<std::string>{"--seed", name == "a" ? "1" : "2"},
                                             folder / (name + ".out"), folder / (name + ".err")));
  }
  for (auto& job : jobs) {
    const int code = job->wait(120s);
    INFO(job->error());
    CHECK(code == 0);
  }
  CHECK(summary_of(folder, "a").minibatches == 20);
  CHECK(summary_of(folder, "a").train_loss != summary_of(folder, "b").train_loss);
}
