// Ranks that are lost, and runs that go on: whatever happens to whichever rank and wherever, a run whose
// ranks are started anew ends with the weights, the losses and the evaluations of one to which nothing
// happened.
#include <catch2/catch.hpp>
#include <memory>
#include <random>

#include "tests/end_to_end/recovered_runs.h"
#include "tests/support/long.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kRestart = {"--on-loss", "restart", "--copy-every", "4"};

std::map<std::string, std::string> faults(const std::string& text) {
  return {{"PIPEWRIGHT_TEST_FAULT", text}};
}

// Lines of minibatches and evaluations, without what is of the moment.
std::vector<std::string> told(const std::filesystem::path& output) {
  std::vector<std::string> lines;
  for (Json line : metrics(output)) {
    if (!line.contains("loss") && !line.contains("evaluation")) continue;
    line.erase("elapsed_seconds");
    line.erase("again");
    lines.push_back(line.dump());
  }
  return lines;
}

// RUN/.kept-HOST of this host.
std::filesystem::path place_of(const std::filesystem::path& output) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(output, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(".kept-", 0) == 0) return it->path();
  }
  return {};
}
std::filesystem::path memory_of(const std::filesystem::path& output) {
  return std::filesystem::read_symlink(place_of(output));
}
// The checkpoints of the first attempt in it.
std::vector<std::string> kept_in(const std::filesystem::path& output) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(place_of(output) / "attempt-0" / "checkpoints", error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] != '.') names.push_back(name);
  }
  return names;
}

// A launched job that has kept its first state, or has ended before. `apart`: words that start it elsewhere.
std::unique_ptr<Process> keeping(const TemporaryFolder& folder, const std::vector<std::string>& options,
                                 const std::vector<std::string>& apart = {}) {
  const auto output = folder / "run";
  auto process = std::make_unique<Process>(
      apart + std::vector<std::string>{program("runtime"), "launch"} + job(output, options + kRestart),
      folder / "out", folder / "err");
  REQUIRE(
      eventually(60s, [&] { return !kept_in(output).empty() || process->wait(0ms) != Process::kRunning; }));
  return process;
}

}  // namespace

TEST_CASE("a rank is killed at any point: the run ends as if nothing had happened") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--checkpoint-every-minibatches", "16", "--momentum", "0.9"};
  const std::vector<std::string> plan = {"--plan", write_plan(folder, "plan.json", {1, 2, 1})};
  finish(folder, folder / "quiet", options + plan);
  std::mt19937_64 random(7);
  const int cases = is_long() ? 60 : 4;
  int recovered = 0;
  for (int i = 0; i < cases; ++i) {
    // The first ones lie before the first state is kept, the last ones among the words of the end.
    const std::string fault =
        std::to_string(random() % 4) + ":" + std::to_string(i == 0 ? 0 : random() % 700) + ":9" +
        (i % 3 == 2 ? ";" + std::to_string(random() % 4) + ":" + std::to_string(random() % 300) + ":9:1"
                    : "");
    const auto output = folder / ("run-" + std::to_string(i));
    Process process(
        std::vector<std::string>{program("runtime"), "launch"} + job(output, options + plan + kRestart),
        folder / "out", folder / "err", faults(fault));
    const int code = process.wait(300s);
    CAPTURE(fault, process.error());
    REQUIRE(code == 0);
    CHECK(weights(output) == weights(folder / "quiet"));
    CHECK(told(output) == told(folder / "quiet"));
    CHECK(nothing_is_kept(output));
    for (const RecoverySummary& recovery : summary_of(output).recoveries) {
      ++recovered;
      CHECK(recovery.ranks == 4);
    }
    std::filesystem::remove_all(output);
  }
  CHECK(recovered >= cases / 3);
}

TEST_CASE("a rank is stopped before all have begun: nobody waits for it as for one that is late") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--plan", write_plan(folder, "plan.json", {1, 1, 1})};
  finish(folder, folder / "quiet", options);
  const bool met = GENERATE(false, true);
  CAPTURE(met);
  const auto output = folder / "run";
  Process process(std::vector<std::string>{program("runtime"), "launch"} +
                      job(output, options + std::vector<std::string>{"--on-loss", "restart"}),
                  folder / "out", folder / "err");
  // They are still being loaded; or rank 0 has just begun the run folder, and the others are about to.
  REQUIRE(eventually(60s, [&] {
    return process.children().size() == 3 && (!met || std::filesystem::exists(output / "run.json"));
  }));
  REQUIRE(::kill(process.children()[2], SIGSTOP) == 0);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  if (!met)
    CHECK_THAT(process.error(), Catch::Contains("is stopped (SIGSTOP or a debugger) while the ranks start"));
  CHECK(code == 0);
  CHECK(weights(output) == weights(folder / "quiet"));
}

TEST_CASE("random plans lose random ranks at random times: each run ends with the weights of a quiet one") {
  const TemporaryFolder folder;
  std::mt19937_64 random(11);
  const std::vector<std::vector<int64_t>> shapes = {{1, 1, 1}, {2, 1}, {1, 2, 1},       {3},
                                                    {2, 2},    {2, 3}, {1, 1, 1, 1, 1}, {1, 2, 2, 1}};
  const int faults = is_long() ? 300 : 4;
  for (int made = 0; made < faults;) {
    const size_t drawn = random() % shapes.size();
    const auto& shape = shapes[drawn];
    const std::string schedule = random() % 3 == 0 ? "gpipe" : "1f1b";
    const std::string plan = schedule == "gpipe" ? write_flush_plan(folder, "plan.json", shape, schedule)
                                                 : write_plan(folder, "plan.json", shape, schedule);
    const std::string transport = random() % 2 == 0 ? "shm" : "gloo";
    const std::string optimizer = random() % 2 == 0 ? "adam" : "sgd";
    const std::vector<std::string> options = {"--plan",          plan,      "--minibatches", "1280",
                                              "--transport",     transport, "--optimizer",   optimizer,
                                              "--learning-rate", "0.001"};
    // One for all runs that train the same, over whichever transport.
    const auto quiet = folder / ("quiet-" + std::to_string(drawn) + schedule + optimizer);
    if (!std::filesystem::exists(quiet)) finish(folder, quiet, options);
    const auto output = folder / "run";
    Process process(std::vector<std::string>{program("runtime"), "launch"} +
                        job(output, options + std::vector<std::string>{"--on-loss", "restart"}),
                    folder / "out", folder / "err");
    std::string what;
    const int hits = 1 + static_cast<int>(random() % 3);
    for (int hit = 0; hit < hits; ++hit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1500));
      const std::vector<pid_t> ranks = process.children();
      if (ranks.empty()) continue;
      const int signal = random() % 4 == 0 ? SIGSTOP : SIGKILL;
      const int together = random() % 4 == 0 ? 2 : 1;
      for (int k = 0; k < together; ++k) {
        const size_t rank = random() % ranks.size();
        ::kill(ranks[rank], signal);
        what += std::to_string(signal) + " to process " + std::to_string(rank) + "; ";
        ++made;
      }
    }
    const int code = process.wait(300s);
    CAPTURE(made, shape, options, what, process.error());
    REQUIRE(code == 0);
    CHECK(weights(output) == weights(quiet));
    CHECK(told(output) == told(quiet));
    CHECK(nothing_is_kept(output));
    std::filesystem::remove_all(output);
    if (is_long()) std::fprintf(stderr, "%d of %d faults\n", made, faults);
  }
}

TEST_CASE(
    "the memory that holds the state is removed while the run trains: it goes on, and so does recovery") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {
      "--plan", write_plan(folder, "plan.json", {1, 1}), "--minibatches", "4000", "--momentum", "0.9"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  Process process(std::vector<std::string>{program("runtime"), "launch"} + job(output, options + kRestart),
                  folder / "out", folder / "err");
  const auto said = [&](const std::string& words) {
    return eventually(60s, [&] {
      return process.error().find(words) != std::string::npos || process.wait(0ms) != Process::kRunning;
    });
  };
  REQUIRE(eventually(60s, [&] { return !kept_in(output).empty(); }));
  // At once: the ranks are writing.
  const std::filesystem::path memory = memory_of(output), removed = memory.string() + ".removed";
  std::filesystem::rename(memory, removed);
  std::filesystem::remove_all(removed);
  const bool at_once = GENERATE(false, true);
  if (!at_once) REQUIRE(said("is kept again"));
  const std::vector<pid_t> ranks = process.children();
  if (!ranks.empty()) ::kill(ranks.back(), SIGKILL);
  const int code = process.wait(300s);
  CAPTURE(at_once, process.error());
  REQUIRE(code == 0);
  CHECK(weights(output) == weights(folder / "quiet"));
  CHECK(told(output) == told(folder / "quiet"));
  CHECK(nothing_is_kept(output));
  const std::string error = process.error();
  if (!at_once) {
    CHECK(times_in(error, "is not kept for lost ranks") == 1);
    CHECK_THAT(error, Catch::Contains("; training goes on, and until a later one is kept a loss goes back"));
    REQUIRE(summary_of(output).recoveries.size() == 1);
    CHECK(summary_of(output).recoveries.front().from == "memory");
  }
}

// In a mount namespace with a /dev/shm of its own, so that nobody else is short of memory.
TEST_CASE(
    "the memory that holds the state is full while the run trains: it is kept on the disk from then on") {
  const TemporaryFolder folder("/var/tmp");  // not in the /dev/shm that the run's own one hides
  const std::string mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm";
  if (Process({"/usr/bin/unshare", "-m", "sh", "-c", mount}, folder / "o", folder / "e").wait(60s) != 0)
    return skip("no right to mount a /dev/shm of its own");
  const std::vector<std::string> options = {
      "--plan", write_plan(folder, "plan.json", {1, 1}), "--minibatches", "4000", "--momentum", "0.9"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  const std::vector<std::string> apart = {
      "/usr/bin/unshare", "-m", "sh", "-c", mount + " && exec \"$@\"", "sh", program("runtime"), "launch"};
  Process process(apart + job(output, options + kRestart), folder / "out", folder / "err");
  const bool has_place = eventually(60s, [&] {
    return std::filesystem::is_symlink(place_of(output)) || process.wait(0ms) != Process::kRunning;
  });
  CAPTURE(has_place, process.error());
  REQUIRE(std::filesystem::is_symlink(place_of(output)));
  // As a program does that takes all there is, and goes on taking: when the first write fails, a state that
  // is about to be removed may hold room that the next one fits into.
  const std::filesystem::path full =
      std::filesystem::path("/proc") / std::to_string(process.pid()) / "root" / "dev/shm/full";
  std::ofstream out(full, std::ios::binary);
  const std::string piece(1 << 16, 'x');
  REQUIRE(eventually(60s, [&] {
    while (out.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
    out.clear();
    return !std::filesystem::is_symlink(place_of(output)) || process.wait(0ms) != Process::kRunning;
  }));
  REQUIRE(eventually(60s, [&] {
    return process.error().find("is kept again") != std::string::npos ||
           process.wait(0ms) != Process::kRunning;
  }));
  CHECK_FALSE(std::filesystem::is_symlink(place_of(output)));
  const std::vector<pid_t> ranks = process.children();
  if (!ranks.empty()) ::kill(ranks.back(), SIGKILL);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  CHECK(weights(output) == weights(folder / "quiet"));
  CHECK_THAT(process.error(),
             Catch::Contains("is kept on the disk") && Catch::Contains("is not kept for lost ranks"));
  REQUIRE(summary_of(output).recoveries.size() == 1);
  CHECK(summary_of(output).recoveries.front().from == "memory");
}

TEST_CASE("memory that cannot be written into holds no state: it is kept on the disk, and found there") {
  const TemporaryFolder folder("/var/tmp");  // not in the /dev/shm that the run's own one hides
  const std::string options_of_mount = GENERATE("size=64m,ro", "size=64m,nr_inodes=100");
  if (options_of_mount != "size=64m,ro" && !is_long()) return;
  CAPTURE(options_of_mount);
  const std::string mount = "mount -t tmpfs -o " + options_of_mount + " tmpfs /dev/shm";
  if (Process({"/usr/bin/unshare", "-m", "sh", "-c", mount}, folder / "o", folder / "e").wait(60s) != 0)
    return skip("no right to mount a /dev/shm of its own");
  const std::vector<std::string> options = {
      "--plan", write_plan(folder, "plan.json", {1, 1}), "--minibatches", "4000", "--transport", "gloo"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  const std::vector<std::string> apart = {"/usr/bin/unshare",        "-m", "sh", "-c",
                                          mount + " && exec \"$@\"", "sh"};
  const auto keeps = keeping(folder, options, apart);
  Process& process = *keeps;
  const std::vector<pid_t> ranks = process.children();
  REQUIRE(ranks.size() == 2);
  REQUIRE(::kill(ranks.back(), SIGKILL) == 0);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  CHECK_THAT(process.error(), Catch::Contains("is kept on the disk"));
  CHECK(weights(output) == weights(folder / "quiet"));
  REQUIRE(summary_of(output).recoveries.size() == 1);
  CHECK(summary_of(output).recoveries.front().next_minibatch > 0);
}

TEST_CASE("a host is renamed while the run trains: the state in its memory is still this run's") {
  const TemporaryFolder folder;
  if (Process({"/usr/bin/unshare", "-u", "sh", "-c", "hostname before"}, folder / "o", folder / "e")
          .wait(60s) != 0)
    return skip("no right to name a host of its own");
  const std::vector<std::string> options = {"--plan", write_plan(folder, "plan.json", {1, 1}),
                                            "--minibatches", "4000"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  const std::vector<std::string> apart = {
      "/usr/bin/unshare", "-u", "sh", "-c", "hostname before && exec \"$@\"", "sh"};
  const auto keeps = keeping(folder, options, apart);
  Process& process = *keeps;
  const std::vector<pid_t> ranks = process.children();
  REQUIRE(ranks.size() == 2);
  const std::string launcher = std::to_string(process.pid());
  REQUIRE(Process({"/usr/bin/nsenter", "-u", "-t", launcher, "hostname", "after"}, folder / "o", folder / "e")
              .wait(60s) == 0);
  REQUIRE(::kill(ranks.back(), SIGKILL) == 0);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  CHECK(weights(output) == weights(folder / "quiet"));
  CHECK(nothing_is_kept(output));
  REQUIRE(summary_of(output).recoveries.size() == 1);
  CHECK(summary_of(output).recoveries.front().from == "memory");
}

TEST_CASE("all ranks are stopped at once: the launcher notices what nobody else can") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--plan", write_plan(folder, "plan.json", {1, 1}),
                                            "--minibatches", "4000"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  const auto keeps = keeping(folder, options);
  Process& process = *keeps;
  const std::vector<pid_t> ranks = process.children();
  REQUIRE(ranks.size() == 2);
  for (const pid_t rank : ranks) REQUIRE(::kill(rank, SIGSTOP) == 0);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  CHECK_THAT(process.error(), Catch::Contains("is stopped (SIGSTOP or a debugger)"));
  CHECK(weights(output) == weights(folder / "quiet"));
  CHECK(summary_of(output).recoveries.size() == 1);
}

TEST_CASE("a rank alone is lost: it goes on from what it kept, as one of several") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--ranks", "1", "--minibatches", "4000", "--momentum", "0.9"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  const auto keeps = keeping(folder, options);
  Process& process = *keeps;
  REQUIRE(process.children().size() == 1);
  REQUIRE(::kill(process.children()[0], SIGKILL) == 0);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  CHECK(weights(output) == weights(folder / "quiet"));
  CHECK(told(output) == told(folder / "quiet"));
  CHECK(nothing_is_kept(output));
  CHECK(std::filesystem::exists(output / "rank-0.log"));
  REQUIRE(summary_of(output).recoveries.size() == 1);
  CHECK(summary_of(output).recoveries.front().from == "memory");
  CHECK(summary_of(output).recoveries.front().next_minibatch > 0);
}

TEST_CASE("pipelines that average in groups lose a rank: verify knows who was in them before") {
  const TemporaryFolder folder;
  const std::string sync = GENERATE("partial-reduce", "adpsgd");
  CAPTURE(sync);
  const std::vector<std::string> options = {
      "--ranks", "3", "--minibatches", "4000", "--sync", sync, "--checkpoint-every-epochs", "1"};
  const auto output = folder / "run";
  const auto keeps = keeping(folder, options);
  Process& process = *keeps;
  REQUIRE(process.children().size() == 3);
  REQUIRE(::kill(process.children()[1], SIGKILL) == 0);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  REQUIRE(summary_of(output).recoveries.size() == 1);
  CHECK(summary_of(output).recoveries.front().next_minibatch > 0);
  const Outcome verified = runtime(folder, {"verify", "--run", output.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
}

TEST_CASE("the run folder is removed and a rank is lost: the job ends, and nothing of it stays in memory") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--plan",        write_plan(folder, "plan.json", {1, 1}),
                                            "--minibatches", "4000",
                                            "--disturb",     "compute:duration=2ms"};
  const auto output = folder / "run";
  Process process(std::vector<std::string>{program("runtime"), "launch"} + job(output, options + kRestart),
                  folder / "out", folder / "err");
  // The launcher looks once a second: these are four.
  REQUIRE(eventually(60s, [&] {
    return process.wait(0ms) != Process::kRunning ||
           (!kept_in(output).empty() && complete_lines(output / "metrics.jsonl").size() > 1500);
  }));
  const auto memory = memory_of(output);
  REQUIRE(std::filesystem::is_directory(memory));
  std::filesystem::rename(output, folder / "elsewhere");
  std::filesystem::remove_all(folder / "elsewhere");
  for (const pid_t rank : process.children()) ::kill(rank, SIGKILL);
  const int code = process.wait(300s);
  CAPTURE(process.error());
  CHECK(code != 0);
  CHECK_FALSE(std::filesystem::exists(memory));
}

TEST_CASE("the terminal of a launcher is closed: what is kept becomes a checkpoint") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--plan", write_plan(folder, "plan.json", {1, 1}),
                                            "--minibatches", "4000"};
  finish(folder, folder / "quiet", options);
  const auto output = folder / "run";
  {
    const auto keeps = keeping(folder, options);
    Process& process = *keeps;
    for (const pid_t rank : process.children()) ::kill(rank, SIGHUP);
    process.signal(SIGHUP);
    const int code = process.wait(300s);
    CAPTURE(process.error());
    REQUIRE(code == 143);
    CHECK(nothing_is_kept(output));
  }
  finish(folder, output, options + kRestart + std::vector<std::string>{"--resume", "latest"});
  CHECK(weights(output) == weights(folder / "quiet"));
}

TEST_CASE("the ranks that are left go on under a plan made for them, and verify proves it") {
  const TemporaryFolder folder;
  const std::string profile = profile_of(folder);
  const std::vector<std::string> options = {"--plan",
                                            write_plan(folder, "plan.json", {1, 1, 1}),
                                            "--checkpoint-every-epochs",
                                            "1",
                                            "--on-loss",
                                            "continue:profile=" + profile,
                                            "--copy-every",
                                            "4",
                                            "--minibatches",
                                            "384"};
  const auto output = folder / "run";
  // The second loss comes before anything further was kept, or behind it.
  const std::string second = GENERATE("", ";0:40:9:1", ";1:0:9:1");
  Process process(std::vector<std::string>{program("runtime"), "launch"} + job(output, options),
                  folder / "out", folder / "err", faults("1:1500:9" + second));
  const int code = process.wait(300s);
  CAPTURE(second, process.error());
  REQUIRE(code == 0);
  const Summary summary = summary_of(output);
  REQUIRE(summary.recoveries.size() >= 1);
  CHECK(summary.recoveries.back().ranks <= (second.empty() ? 2 : 1));
  CHECK(summary.recoveries.front().from != "start");
  CHECK(summary.minibatches == 384);
  CHECK(losses(output).size() == 384);
  const Outcome verified = runtime(folder, {"verify", "--run", output.string()});
  CAPTURE(verified.output, verified.error);
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, Catch::Contains("equal bit for bit"));
}

TEST_CASE("without a plan the ranks that are left go on too, and verify proves it") {
  const TemporaryFolder folder;
  const auto output = folder / "run";
  Process process(std::vector<std::string>{program("runtime"), "launch"} +
                      job(output, {"--ranks", "2", "--checkpoint-every-epochs", "1", "--on-loss",
                                   "continue:profile=" + profile_of(folder), "--copy-every", "4",
                                   "--minibatches", "384"}),
                  folder / "out", folder / "err", faults("1:700:9"));
  const int code = process.wait(300s);
  CAPTURE(process.error());
  REQUIRE(code == 0);
  REQUIRE(summary_of(output).recoveries.size() == 1);
  const Outcome verified = runtime(folder, {"verify", "--run", output.string()});
  CAPTURE(verified.output, verified.error);
  CHECK(verified.code == 0);
}

TEST_CASE("a run that cannot go on leaves a checkpoint and says what is missing") {
  const TemporaryFolder folder;
  const std::vector<std::string> plan = {"--plan", write_plan(folder, "plan.json", {1, 1})};
  finish(folder, folder / "quiet", plan);
  const auto output = folder / "run";
  SECTION("fewer ranks are left than it may have") {
    Process process(
        std::vector<std::string>{program("runtime"), "launch"} +
            job(output, plan + std::vector<std::string>{"--on-loss", "continue:profile=" + profile_of(folder),
                                                        "--fewest", "2", "--minibatches", "6000"}),
        folder / "out", folder / "err", faults("1:12000:9"));
    CHECK(process.wait(60s) == 5);
    CHECK_THAT(process.error(), Catch::Contains("rank 1 was killed by signal 9") &&
                                    Catch::Contains("1 place for a rank is left") &&
                                    Catch::Contains("go on with --resume latest"));
  }
  SECTION("every start is lost again before it gets anywhere") {
    Process process(std::vector<std::string>{program("runtime"), "launch"} + job(output, plan + kRestart),
                    folder / "out", folder / "err", faults("1:120:9;1:3:9:*"));
    // The first start comes to point 3 as well: nothing has been kept by then.
    CHECK(process.wait(60s) == 5);
    CHECK_THAT(process.error(), Catch::Contains("in a row"));
  }
  SECTION("a rank has an error of its own, which would come again") {
    Process process(std::vector<std::string>{program("runtime"), "launch"} + job(output, plan + kRestart),
                    folder / "out", folder / "err", faults("1:120:throw"));
    CHECK(process.wait(60s) == 1);
    CHECK_THAT(process.error(), Catch::Contains("a fault at point 120") && !Catch::Contains("start 2"));
  }
  SECTION("its launcher is killed: what was kept in memory is found by the next one") {
    Process process(std::vector<std::string>{program("runtime"), "launch"} +
                        job(output, plan + kRestart + std::vector<std::string>{"--minibatches", "100000"}),
                    folder / "out", folder / "err");
    REQUIRE(eventually(60s, [&] { return complete_lines(output / "metrics.jsonl").size() > 40; }));
    process.signal(SIGKILL);
    process.wait(60s);
    Process next(
        std::vector<std::string>{program("runtime"), "launch"} +
            job(output, plan + std::vector<std::string>{"--resume", "latest", "--minibatches", "100000"}),
        folder / "out2", folder / "err2");
    REQUIRE(eventually(60s, [&] {
      return next.error().find("what an earlier run kept in memory is now") != std::string::npos ||
             next.wait(0ms) != Process::kRunning;
    }));
    CAPTURE(next.error());
    CHECK(eventually(60s, [&] { return next.error().find("goes on from") != std::string::npos; }));
    next.signal(SIGTERM);
    next.wait(60s);
  }
  CHECK(nothing_is_kept(output));
}

TEST_CASE("what cannot be recovered is refused before anything starts") {
  const TemporaryFolder folder;
  const std::string plan = write_plan(folder, "plan.json", {1, 1});
  const auto refused = [&](const std::vector<std::string>& options, const std::string& command = "launch") {
    const Outcome outcome =
        runtime(folder, std::vector<std::string>{command} +
                            job(folder / "run", std::vector<std::string>{"--plan", plan} + options));
    CHECK(outcome.code == 2);
    return outcome.error;
  };
  CHECK_THAT(refused({"--on-loss", "restrat"}),
             Catch::Contains("--on-loss 'restrat' is not known; did you mean 'restart'?"));
  CHECK_THAT(refused({"--on-loss", "restart", "--spares", "1"}),
             Catch::Contains("--spares 1 is of no use with --on-loss restart on one host"));
  const auto written = [&](const std::string& recovery, const std::vector<std::string>& options = {}) {
    write_file(
        folder / "run.json",
        R"({"schema": "pipewright.run/1", "model": "mlp", "data": "none", "recovery": )" + recovery + "}");
    return refused(std::vector<std::string>{"--config", (folder / "run.json").string()} + options);
  };
  CHECK_THAT(written(R"({"on_loss": "restrat"})"),
             Catch::Contains("run.json: recovery.on_loss 'restrat' is not known; did you mean 'restart'?"));
  CHECK_THAT(written(R"({"copy_every_minibatches": 5})"),
             Catch::Contains("run.json: recovery.copy_every_minibatches is of use after a loss only"));
  CHECK_THAT(written(R"({"on_loss": "restart", "fewest": 2})"),
             Catch::Contains("run.json: recovery.fewest is of use with --on-loss continue only"));
  // As written by a run, and where --on-loss says otherwise: what is wrong is another thing.
  CHECK_THAT(written(R"({"on_loss": "end", "copies": 1, "spares": 0})", {"--fewest", "0"}),
             Catch::Contains("--fewest: 0 is not in"));
  CHECK_THAT(written(R"({"on_loss": "restart", "copies": 0})", {"--on-loss", "end", "--resume", "nowhere"}),
             Catch::Contains("nowhere"));
  CHECK_THAT(refused({"--on-loss", "continue"}), Catch::Contains("continue:profile=PROFILE.json"));
  CHECK_THAT(refused({"--on-loss", "continue:profile=none.json"}), Catch::Contains("none.json"));
  CHECK_THAT(refused({"--on-loss", "restart", "--rank", "0", "--world-size", "2"}, "train"),
             Catch::Contains("pipewright-runtime launch"));
  CHECK_THAT(refused({"--on-loss", "continue:profile=" + profile_of(folder), "--adapt", "slow:plan=" + plan}),
             Catch::Contains("--on-loss continue does not go with --adapt"));
  CHECK_THAT(refused({"--on-loss", "continue:profile=" + profile_of(folder), "--fewest", "5"}),
             Catch::Contains("--fewest 5: the run has 2 ranks"));
  const Outcome other = run_program(folder, "profiler",
                                    {"profile", "--model", "mlp:layers=2,width=32,image=8,channels=1",
                                     "--batch-size", "8", "--output", (folder / "other.json").string()});
  REQUIRE(other.code == 0);
  CHECK_THAT(refused({"--on-loss", "continue:profile=" + (folder / "other.json").string()}),
             Catch::Contains("its profile gives no plan for 1 of the ranks"));
  CHECK_FALSE(std::filesystem::exists(folder / "run" / "metrics.jsonl"));
}
