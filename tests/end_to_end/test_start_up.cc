// How the ranks of a job come together: by every launcher, into a folder that does not exist yet, few and
// many of them on this host's cores; and what each is told while it waits.
#include <catch2/catch.hpp>
#include <sstream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/run.h"
#include "graph/summary.h"
#include "runtime/control/control.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/rank_session.h"
#include "runtime/messages/order.h"
#include "runtime/transport/ask_store.h"
#include "runtime/transport/store.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kSmallJob = {"--model",       "mlp:layers=2,width=8,image=8,channels=1",
                                            "--data",        "synthetic-images:image=8,samples=128",
                                            "--batch-size",  "2",
                                            "--minibatches", "50"};

std::vector<std::string> small_job(const fs::path& output) {
  return kSmallJob + std::vector<std::string>{"--output", output.string()};
}

int64_t some_port() { return 20000 + ::getpid() % 12000; }

// A variable of another process.
std::string variable_of(pid_t pid, const std::string& name) {
  const std::string all = Process::contents("/proc/" + std::to_string(pid) + "/environ");
  const std::string found = std::string(1, '\0') + name + "=";
  const size_t at = (std::string(1, '\0') + all).find(found);
  if (at == std::string::npos) return "";
  const size_t begin = at + found.size() - 1;
  return all.substr(begin, all.find('\0', begin) - begin);
}

}  // namespace

// mpirun: test_launchers.cc.
TEST_CASE("every launcher of docs/launching.md makes the run folder that is not there") {
  const TemporaryFolder folder;
  const fs::path output = folder / "new" / "run";
  const std::vector<std::string> train =
      std::vector<std::string>{program("runtime"), "train"} + small_job(output);
  const auto demand_run = [&](int64_t ranks) {
    const auto summary = read_document<Summary>(output / "summary.json");
    CHECK(summary.status == "done");
    CHECK(summary.ranks.size() == static_cast<size_t>(ranks));
    CHECK_FALSE(fs::exists(output / "flight"));
    fs::remove_all(folder / "new");
  };
  SECTION("launch") {
    const Outcome outcome = run_command(
        folder, std::vector<std::string>{program("runtime"), "launch", "--ranks", "2"} + small_job(output));
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    demand_run(2);
  }
  SECTION("launch --hosts") {
    write_file(folder / "hosts", "left\nright\n");
    write_file(folder / "rsh", "#!/bin/sh\nhost=$1; shift\necho \"$*\" >> " + (folder / "lines").string() +
                                   "\nexec /bin/sh -c \"$*\"\n");
    fs::permissions(folder / "rsh", fs::perms::owner_all);
    const Outcome outcome =
        run_command(folder,
                    std::vector<std::string>{program("runtime"), "launch", "--ranks", "2", "--hosts",
                                             (folder / "hosts").string(), "--rsh", (folder / "rsh").string(),
                                             "--master-addr", "127.0.0.1"} +
                        small_job(output),
                    {{"PIPEWRIGHT_JOB_SECRET", "what-nobody-may-read"}});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    demand_run(2);
    // Command lines are for everybody to see.
    const std::string lines = Process::contents(folder / "lines");
    CHECK_THAT(lines, Catch::Contains("PIPEWRIGHT_JOB_SECRET") && !Catch::Contains("what-nobody-may-read"));
  }
  SECTION("ranks of one's own, Slurm's environment, MPICH's") {
    for (const std::string launcher : {"", "Slurm", "MPICH"}) {
      std::vector<std::unique_ptr<Process>> ranks;
      for (int rank = 0; rank < 2; ++rank) {
        const std::string number = std::to_string(rank);
        std::map<std::string, std::string> variables = {{"RANK", number},
                                                        {"WORLD_SIZE", "2"},
                                                        {"MASTER_ADDR", "localhost"},
                                                        {"MASTER_PORT", std::to_string(some_port())}};
        if (launcher == "MPICH")
          variables = {{"PMI_RANK", number},
                       {"PMI_SIZE", "2"},
                       {"MPI_LOCALRANKID", number},
                       {"MPI_LOCALNRANKS", "2"},
                       {"MASTER_PORT", std::to_string(some_port())}};
        if (launcher == "Slurm")
          variables = {{"SLURM_PROCID", number},
                       {"SLURM_NTASKS", "2"},
                       {"SLURM_LOCALID", number},
                       {"SLURM_JOB_ID", std::to_string(::getpid())},
                       {"SLURM_STEP_ID", "0"}};
        ranks.push_back(std::make_unique<Process>(train, folder / ("out" + number), folder / ("err" + number),
                                                  variables));
      }
      for (const auto& rank : ranks) {
        const int code = rank->wait(120s);
        INFO(rank->error());
        REQUIRE(code == 0);
      }
      demand_run(2);
    }
  }
}

// torchrun's agent serves the store, as a launcher of ours does, but makes no folder.
TEST_CASE("ranks whose store an agent serves make the run folder that is not there") {
  const TemporaryFolder folder;
  const fs::path output = folder / "new" / "run";
  const Store agent = Store::serve(0);
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string number = std::to_string(rank);
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{program("runtime"), "train"} + small_job(output), folder / ("out" + number),
        folder / ("err" + number),
        std::map<std::string, std::string>{{"RANK", number},
                                           {"WORLD_SIZE", "2"},
                                           {"LOCAL_RANK", number},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", std::to_string(agent.port())},
                                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                           {"TORCHELASTIC_RESTART_COUNT", "0"}}));
  }
  for (const auto& rank : ranks) {
    const int code = rank->wait(120s);
    INFO(rank->error());
    REQUIRE(code == 0);
  }
  CHECK(read_document<Summary>(output / "summary.json").ranks.size() == 2);
}

TEST_CASE("torchrun starts the ranks, into a folder that is not there") {
  std::string torchrun = std::getenv("PIPEWRIGHT_TORCHRUN") ? std::getenv("PIPEWRIGHT_TORCHRUN") : "";
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string entry; torchrun.empty() && std::getline(path, entry, ':');)
    if (fs::exists(entry + "/torchrun")) torchrun = entry + "/torchrun";
  if (torchrun.empty()) return skip("no torchrun here (PyTorch's; PIPEWRIGHT_TORCHRUN names one)");
  const TemporaryFolder folder;
  const fs::path output = folder / "new" / "run";
  const Outcome outcome = run_command(
      folder, std::vector<std::string>{torchrun, "--standalone", "--nnodes", "1", "--nproc-per-node", "2",
                                       "--no-python", program("runtime"), "train"} +
                  small_job(output));
  INFO(outcome.output << outcome.error);
  REQUIRE(outcome.code == 0);
  CHECK(read_document<Summary>(output / "summary.json").ranks.size() == 2);
}

TEST_CASE("many ranks on few cores start, train and end") {
  // PIPEWRIGHT_MANY_RANKS=64 for more; benchmarks/start_up measures.
  const char* given = std::getenv("PIPEWRIGHT_MANY_RANKS");
  const std::string ranks = given ? given : "16";
  const TemporaryFolder folder;
  for (const std::string transport : {"shm", "gloo"}) {
    const Outcome outcome = run_command(
        folder,
        std::vector<std::string>{program("runtime"), "launch", "--ranks", ranks, "--transport", transport} +
            small_job(folder / transport));
    INFO(transport << "\n" << outcome.error);
    REQUIRE(outcome.code == 0);
    CHECK(read_document<Summary>(folder / transport / "summary.json").minibatches == 50);
  }
}

TEST_CASE("a rank that waits says for whom, and ends with their names when the start time-out is over") {
  const TemporaryFolder folder;
  const std::string port = std::to_string(some_port());
  const auto rank = [&](const std::string& number) {
    return std::make_unique<Process>(
        std::vector<std::string>{program("runtime"), "train", "--rank", number, "--world-size", "4",
                                 "--master-port", port, "--timeout", "5s", "--start-timeout", "15s"} +
            small_job(folder / "run"),
        folder / (number + ".out"), folder / (number + ".err"));
  };
  SECTION("for rank 0, which serves the store") {
    const auto waiting = rank("2");
    CHECK(waiting->wait(90s) == 5);
    CHECK_THAT(waiting->error(),
               Catch::Contains("rank 2 of 4: waiting for rank 0 at 127.0.0.1:" + port + " (") &&
                   Catch::Contains("nobody has served the job's store at 127.0.0.1:" + port + " for 15 s") &&
                   Catch::Contains("--start-timeout"));
  }
  SECTION("for others") {
    const auto first = rank("0");
    const auto third = rank("3");
    CHECK(first->wait(90s) == 5);
    CHECK(third->wait(90s) == 5);
    CHECK_THAT(first->error(), Catch::Contains("waiting for ranks 1, 2 of 4 at 127.0.0.1:" + port + " (") &&
                                   Catch::Contains("ranks 1, 2 of 4 have not reached 'arrival'"));
    CHECK(times_in(first->error(), "waiting for") < 5);
    CHECK(times_in(third->error(), "waiting for ranks") == 0);  // one speaks for all
  }
}

TEST_CASE("launch's store: only this host reaches it, only who knows the secret is believed") {
  const TemporaryFolder folder;
  Process launcher(
      std::vector<std::string>{program("runtime"), "launch", "--ranks", "2"} + endless_job(folder),
      folder / "out", folder / "err");
  const auto lines = [&] { return complete_lines(folder / "run" / "metrics.jsonl").size(); };
  REQUIRE(eventually(90s, [&] { return lines() > 20; }));
  const auto children = launcher.children();
  REQUIRE(children.size() == 2);
  const int64_t port = std::stoll(variable_of(children[0], "MASTER_PORT"));
  CHECK(variable_of(children[0], "PIPEWRIGHT_JOB_SECRET").size() == 64);
  const auto who = [&](const std::string& host) {
    return ask_store(host, port, std::chrono::steady_clock::now() + 10s).who;
  };
  CHECK(who("127.0.0.1") == StoreAnswer::Who::kStore);
  CHECK(who("127.0.0.2") == StoreAnswer::Who::kNobody);

  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  c10d::TCPStore stranger("127.0.0.1", options);
  const auto say = [&](const std::string& key, const std::string& value) {
    stranger.set("pipewright/0/" + key, std::vector<uint8_t>(value.begin(), value.end()));
  };
  say("failure", Failure{1, ExitCode::kFailed, "forged"}.to_text());
  say("orders/1/0", text_of(Order(BeginNoMore{1, 15})) + "\n");
  const size_t before = lines();
  CHECK(eventually(60s, [&] { return lines() > before + 50; }));
  CHECK(launcher.wait(0ms) == Process::kRunning);

  // A rank of another job, that does not know it.
  const Outcome other =
      run_command(folder, std::vector<std::string>{program("runtime"), "train", "--rank", "1", "--world-size",
                                                   "2", "--master-port", std::to_string(port)} +
                              small_job(folder / "other"));
  CHECK(other.code == 2);
  CHECK_THAT(other.error, Catch::Contains("is of a job with a secret"));
  launcher.signal(SIGINT);
  CHECK(launcher.wait(60s) == 130);
}

TEST_CASE("a run without a plan says how many ranks it had, and is repeated by as many or refused") {
  const TemporaryFolder folder;
  const std::string config = (folder / "first" / "run.json").string();
  const auto command = [&](const std::string& name, const std::vector<std::string>& words) {
    return run_command(folder, std::vector<std::string>{program("runtime"), name} + words);
  };
  Outcome outcome = command("launch", std::vector<std::string>{"--ranks", "2"} + small_job(folder / "first"));
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  CHECK(read_document<Run>(config).world_size == 2);

  outcome = command("launch", {"--config", config, "--output", (folder / "second").string()});
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  CHECK(read_document<Summary>(folder / "second" / "summary.json").ranks.size() == 2);
  CHECK(read_document<Summary>(folder / "second" / "summary.json").train_loss ==
        read_document<Summary>(folder / "first" / "summary.json").train_loss);

  outcome = command("train", {"--config", config, "--output", (folder / "third").string()});
  CHECK(outcome.code == 3);
  CHECK_THAT(outcome.error,
             Catch::Contains("world_size: the run is one of 2 ranks") && Catch::Contains("start 2 ranks"));
  CHECK_FALSE(fs::exists(folder / "third"));

  // What is asked for wins.
  outcome = command("launch", {"--config", config, "--ranks", "1", "--output", (folder / "fourth").string()});
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  CHECK(read_document<Run>(folder / "fourth" / "run.json").world_size == 1);
}

TEST_CASE("launch: what one rank found wrong is said once, with its code and its cure") {
  const TemporaryFolder folder;
  // Found by the ranks, not by the launcher: the folder of rank 0's metrics is a file by then.
  const auto job = small_job(folder / "run");
  fs::create_directories(folder / "run" / "run.json");
  const Outcome outcome =
      run_command(folder, std::vector<std::string>{program("runtime"), "launch", "--ranks", "2"} + job);
  CAPTURE(outcome.error);
  CHECK(outcome.code == 1);
  CHECK(times_in(outcome.error, "error: ") == 1);
  CHECK_THAT(outcome.error, Catch::Contains("rank 0: ") && Catch::Contains("rank-*.log"));
  CHECK_THAT(Process::contents(folder / "run" / "rank-0.log"), Catch::Contains("error: "));
}
