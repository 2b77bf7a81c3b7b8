// Ranks that die, freeze or are interrupted: everybody else ends in time, says why, and what was written
// stays.
#include <catch2/catch.hpp>
#include <random>

#include "graph/summary.h"
#include "tests/end_to_end/commands.h"
#include "tests/end_to_end/jobs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

// Time-outs: what a test waits for, and what it does not.
const char* const kSoon = "4s";
const char* const kNever = "5min";

// Ranks as processes of the test: no launcher that could help. Rank 0 serves the store.
struct World {
  TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> ranks;

  explicit World(const std::vector<int64_t>& replicas, const std::string& timeout,
                 const std::string& transport = "auto", const std::vector<std::string>& more = {}) {
    const auto plan_file = folder / "plan.json";
    const Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
    write_document(plan_file, plan);
    const int port =
        // Tests that run side by side have other pids; from 32768 on are ports that the system hands out.
        20000 + static_cast<int>(::getpid() % 12000);
    for (int64_t rank = 0; rank < plan.world_size; ++rank) {
      const std::string name = "rank-" + std::to_string(rank);
      ranks.push_back(std::make_unique<Process>(
          std::vector<std::string>{program("runtime"), "train"} + endless_job(folder, timeout) +
              std::vector<std::string>{"--transport", transport, "--plan", plan_file.string(), "--rank",
                                       std::to_string(rank), "--world-size", std::to_string(plan.world_size),
                                       "--master-port", std::to_string(port)} +
              more,
          folder / (name + ".out"), folder / (name + ".err")));
    }
  }

  // Returns when training is under way on all ranks: rank 0 has written a good number of losses.
  void wait_for_training() {
    const auto losses = [&] { return complete_lines(folder / "run" / "metrics.jsonl").size(); };
    if (eventually(90s, [&] { return losses() > 40; })) return;
    std::string said = std::to_string(losses()) + " losses after 90 s";
    for (const auto& rank : ranks) said += "\n" + rank->output() + rank->error();
    FAIL(said);
  }
};

}  // namespace

TEST_CASE("a rank is killed: all others exit 5 long before the time-out and name it") {
  const auto victim = GENERATE(size_t{0}, size_t{1}, size_t{3});
  World world({1, 2, 1}, kNever);
  INFO("victim " << victim << "\n" << world.ranks[0]->error());
  world.wait_for_training();
  const auto before = complete_lines(world.folder / "run" / "metrics.jsonl");
  world.ranks[victim]->signal(SIGKILL);
  for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
    if (rank == victim) continue;
    CAPTURE(rank);
    CHECK(world.ranks[rank]->wait(60s) == 5);
    CAPTURE(world.ranks[rank]->error());
    // When rank 0 dies the store goes with it: those who see that first name the store, which is on rank 0.
    const std::string error = world.ranks[rank]->error();
    const bool named = error.find("rank " + std::to_string(victim)) != std::string::npos ||
                       (victim == 0 && error.find("store") != std::string::npos);
    CHECK(named);
  }
  const auto after = complete_lines(world.folder / "run" / "metrics.jsonl");
  REQUIRE(after.size() >= before.size());
  CHECK(std::equal(before.begin(), before.end(), after.begin()));
  for (const auto& line : after) CHECK_NOTHROW(parse_json(line, "metrics.jsonl"));
}

TEST_CASE("a rank is stopped: all others exit 5 within the time-out and name it") {
  World world({1, 1, 1}, kSoon);
  INFO(world.ranks[0]->error());
  world.wait_for_training();
  world.ranks[1]->signal(SIGSTOP);
  for (const size_t rank : {0, 2}) {
    CAPTURE(rank);
    CHECK(world.ranks[rank]->wait(60s) == 5);
    CHECK_THAT(world.ranks[rank]->error(), Catch::Contains("rank 1 has not been heard of") &&
                                               Catch::Contains("is stopped (SIGSTOP or a debugger)") &&
                                               Catch::Contains("waits for rank 1 (") &&
                                               Catch::Contains("of minibatch "));
    const Json flight =
        read_json_file(world.folder / "run" / "flight" / ("rank-" + std::to_string(rank) + ".json"));
    CHECK(flight.at("events").size() == 200);
    CHECK_FALSE(flight.at("next").at("operation").get<std::string>().empty());
  }
}

TEST_CASE(
    "a rank is stopped while the pipeline drains or a checkpoint is written: the others end and name it") {
  // A checkpoint after every minibatch: there is hardly anything else that a rank can be stopped at.
  const auto victim = GENERATE(size_t{0}, size_t{2});
  World world({1, 1, 1}, kSoon, "auto", {"--checkpoint-every-minibatches", "1"});
  INFO("victim " << victim << "\n" << world.ranks[0]->error());
  world.wait_for_training();
  world.ranks[victim]->signal(SIGSTOP);
  for (size_t rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    CAPTURE(rank);
    CHECK(world.ranks[rank]->wait(60s) == 5);
    const std::string error = world.ranks[rank]->error();
    CAPTURE(error);
    // Rank 0 serves the store: stopped, it is missed as such.
    CHECK((error.find("rank " + std::to_string(victim)) != std::string::npos ||
           (victim == 0 && error.find("store") != std::string::npos)));
    const Json flight =
        read_json_file(world.folder / "run" / "flight" / ("rank-" + std::to_string(rank) + ".json"));
    CHECK_FALSE(flight.at("next").at("operation").get<std::string>().empty());
  }
}

TEST_CASE(
    "ranks are killed or stopped at random times: all others end in time and name rank, operation, "
    "minibatch") {
  // PIPEWRIGHT_FAULT_RUNS=100 for the long version.
  const char* given = std::getenv("PIPEWRIGHT_FAULT_RUNS");
  const int runs = given ? std::atoi(given) : 4;
  std::mt19937 draw(static_cast<uint32_t>(::getpid()));
  double longest_kill_seconds = 0, longest_stop_seconds = 0;
  for (int run = 0; run < runs; ++run) {
    const std::string transport = run % 2 == 0 ? "shm" : "gloo";
    const bool kill = run / 2 % 2 == 0;
    World world(draw() % 2 == 0 ? std::vector<int64_t>{1, 1, 1} : std::vector<int64_t>{2, 1},
                kill ? kNever : kSoon, transport);
    INFO("run " << run << " " << transport << (kill ? " kill" : " stop") << "\n" << world.ranks[0]->error());
    world.wait_for_training();
    std::this_thread::sleep_for(std::chrono::milliseconds(draw() % 1000));  // the random time
    const size_t victim = draw() % world.ranks.size();
    CAPTURE(victim);
    const auto begin = std::chrono::steady_clock::now();
    world.ranks[victim]->signal(kill ? SIGKILL : SIGSTOP);
    for (size_t rank = 0; rank < world.ranks.size(); ++rank) {
      if (rank == victim) continue;
      CAPTURE(rank);
      CHECK(world.ranks[rank]->wait(60s) == 5);
      const std::string error = world.ranks[rank]->error();
      CAPTURE(error);
      CHECK_THAT(error, Catch::Contains("rank " + std::to_string(victim)));
      CHECK((error.find("of minibatch ") != std::string::npos ||
             error.find("of round ") != std::string::npos ||
             error.find("after round ") != std::string::npos));
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    double& longest = kill ? longest_kill_seconds : longest_stop_seconds;
    longest = std::max(longest, seconds);
  }
  std::printf("%d faults: all others ended within %.1f s of a kill, %.1f s of a stop (time-out 4 s)\n", runs,
              longest_kill_seconds, longest_stop_seconds);
}

TEST_CASE("launch: one rank is killed, the launcher names it, exits 5 and leaves nothing behind") {
  const TemporaryFolder folder;
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), {1, 1, 1}));
  const auto page = folder / "run.html";
  Process launcher(
      std::vector<std::string>{program("runtime"), "launch"} + endless_job(folder) +
          std::vector<std::string>{"--plan", (folder / "plan.json").string(), "--report", page.string()},
      folder / "out", folder / "err");
  INFO(launcher.error());
  REQUIRE(eventually(90s, [&] { return complete_lines(folder / "run" / "metrics.jsonl").size() > 40; }));
  const auto ranks = launcher.children();
  REQUIRE(ranks.size() == 3);
  ::kill(ranks[1], SIGKILL);
  CHECK(launcher.wait(60s) == 5);
  const std::string error = launcher.error();
  CAPTURE(error);
  const std::string last = error.substr(error.find("pipewright-runtime: error:", error.rfind("error:") - 30));
  CHECK_THAT(last, Catch::Contains("rank 1"));  // ranks are started in order
  for (const pid_t rank : ranks) CHECK(::kill(rank, 0) != 0);
  CHECK(std::filesystem::exists(folder / "run" / "rank-2.log"));
  CHECK(std::filesystem::exists(folder / "run" / "flight"));
  CHECK(read_document<Summary>(folder / "run" / "summary.json").status == "failed");
  for (const std::string& told :
       {read_file(page), runtime(folder, {"report", (folder / "run").string()}).output})
    CHECK_THAT(told, Catch::Contains("The run failed: ") && Catch::Contains("rank 1"));
  CHECK_THAT(read_file(page), Catch::Contains("Of rank 1 no action is in the trace"));
}

TEST_CASE("launch: Ctrl-C ends all ranks cleanly with 130, SIGTERM with 143, the run folder is whole") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  const Reaches way = GENERATE(from_range(kWaysOfSignals));
  CAPTURE(signal, static_cast<int>(way));
  const TemporaryFolder folder;
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), {2, 1}));
  const auto page = folder / "run.html";
  Process launcher(
      std::vector<std::string>{program("runtime"), "launch"} + endless_job(folder) +
          std::vector<std::string>{"--plan", (folder / "plan.json").string(), "--report", page.string()},
      folder / "out", folder / "err");
  INFO(launcher.error());
  REQUIRE(eventually(90s, [&] { return complete_lines(folder / "run" / "metrics.jsonl").size() > 40; }));
  const auto ranks = launcher.children();
  deliver(signal, way, processes_of(launcher));
  CHECK(launcher.wait(60s) == 128 + signal);
  CHECK_THAT(launcher.error(),
             Catch::Contains("all ranks have ended") && Catch::Contains("go on with --resume latest"));
  for (const pid_t rank : ranks) CHECK(::kill(rank, 0) != 0);
  for (const auto& line : complete_lines(folder / "run" / "metrics.jsonl"))
    CHECK_NOTHROW(parse_json(line, "metrics"));
  const auto summary = read_document<Summary>(folder / "run" / "summary.json");
  CHECK(summary.status == "interrupted");
  CHECK_THAT(read_file(page), Catch::Contains("The run was interrupted: a signal has ended it."));
  CHECK(summary.minibatches > 0);
  const std::string checkpoint = "minibatch-" + std::to_string(summary.minibatches);
  CHECK(std::filesystem::exists(folder / "run" / "checkpoints" / checkpoint / "manifest.json"));
}

TEST_CASE("launch: the launcher is stopped, its ranks give the store up and end by themselves") {
  // The launcher serves the store: requests to it never return. Ranks once waited for them for ever.
  const TemporaryFolder folder;
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), {1, 1}));
  Process launcher(std::vector<std::string>{program("runtime"), "launch"} + endless_job(folder, kSoon) +
                       std::vector<std::string>{"--plan", (folder / "plan.json").string()},
                   folder / "out", folder / "err");
  REQUIRE(eventually(90s, [&] { return complete_lines(folder / "run" / "metrics.jsonl").size() > 40; }));
  const auto ranks = launcher.children();
  REQUIRE(ranks.size() == 2);
  launcher.signal(SIGSTOP);
  // Nobody reaps them while the launcher is stopped: ended is a zombie.
  const auto ended = [](pid_t pid) {
    const std::string stat = Process::contents("/proc/" + std::to_string(pid) + "/stat");
    return stat.empty() || stat.find(") Z ") != std::string::npos;
  };
  CHECK(eventually(60s, [&] { return ended(ranks[0]) && ended(ranks[1]); }));
  launcher.signal(SIGCONT);
  CHECK(launcher.wait(60s) == 5);
}

TEST_CASE("a rank that waits for the others hears Ctrl-C") {
  const TemporaryFolder folder;
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), {1, 1}));
  const int port = 20000 + static_cast<int>(::getpid() % 12000);
  Process rank(std::vector<std::string>{program("runtime"), "train"} + endless_job(folder) +
                   std::vector<std::string>{"--plan", (folder / "plan.json").string(), "--rank", "1",
                                            "--world-size", "2", "--master-port", std::to_string(port)},
               folder / "out", folder / "err");
  // Nobody serves the store.
  CHECK(eventually(60s, [&] { return times_in(rank.error(), "waiting for rank 0 at ") > 0; }));
  deliver(SIGINT, GENERATE(Reaches::kFirst, Reaches::kAllTwice), {rank.pid()});
  CHECK(rank.wait(60s) == 130);
}

TEST_CASE("one process: Ctrl-C ends it with 130 and a summary") {
  const TemporaryFolder folder;
  Process process(std::vector<std::string>{program("runtime")} + endless_job(folder), folder / "out",
                  folder / "err");
  REQUIRE(eventually(60s, [&] { return complete_lines(folder / "run" / "metrics.jsonl").size() > 20; }));
  deliver(SIGINT, GENERATE(Reaches::kFirst, Reaches::kAllTwice), {process.pid()});
  CHECK(process.wait(60s) == 130);
  CHECK(read_document<Summary>(folder / "run" / "summary.json").status == "interrupted");
}
