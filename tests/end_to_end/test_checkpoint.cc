// Runs that are killed, interrupted or out of room, and go on: with real processes.
// PIPEWRIGHT_RESUME_RUNS sets how many times a run is killed.
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <random>

#include "graph/summary.h"
#include "tests/end_to_end/checkpointed_runs.h"
#include "tests/support/long.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

// Launcher and ranks at once, as a power cut would.
void kill_all(Process& launcher) {
  const auto ranks = launcher.children();
  launcher.signal(SIGKILL);
  for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
  launcher.wait(60s);
  for (const pid_t rank : ranks) REQUIRE(eventually(60s, [&] { return ::kill(rank, 0) != 0; }));
}

fs::path final_checkpoint(const fs::path& output) {
  return output / "checkpoints" / ("minibatch-" + std::to_string(kMinibatches));
}

void check_equal(const fs::path& output, const fs::path& expected) {
  CHECK(metrics(output) == metrics(expected));
  CHECK(tensor_files(final_checkpoint(output)) == tensor_files(final_checkpoint(expected)));
}

}  // namespace

TEST_CASE(
    "killed at any time and resumed under the same plan: losses, evaluations and weights are equal bit for "
    "bit") {
  const char* count = std::getenv("PIPEWRIGHT_RESUME_RUNS");
  const int runs = count ? std::atoi(count) : is_long() ? 4 : 2;
  const TemporaryFolder folder;
  struct Case {
    std::vector<std::string> options;
    fs::path expected;
  };
  std::vector<Case> cases;
  Plan two_versions = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1, 1});
  two_versions.weights = "2bw";
  two_versions.microbatches = 3;
  write_document(folder / "2bw.json", two_versions);
  const std::vector<std::vector<std::string>> all = {
      {"--plan", write_plan(folder, "121.json", {1, 2, 1}), "--momentum", "0.9"},
      {"--plan", write_plan(folder, "21.json", {2, 1}), "--optimizer", "adam", "--transport", "gloo"},
      {"--plan", write_interleaved_plan(folder), "--momentum", "0.9"},
      {"--plan", write_plan(folder, "1111.json", {1, 1, 1, 1}), "--transport", "shm"},
      {"--plan", (folder / "2bw.json").string(), "--transport", "gloo", "--momentum", "0.9",
       "--delay-correction", "error-feedback"}};
  for (const auto& options : all) {
    if (static_cast<int>(cases.size()) == runs) break;
    const auto more = options + std::vector<std::string>{"--checkpoint-every-minibatches", "9"};
    const fs::path expected = folder / ("expected-" + std::to_string(cases.size()));
    finish(folder, expected, more);
    REQUIRE(losses(expected).size() == kMinibatches);
    cases.push_back({more, expected});
  }
  std::mt19937_64 random(static_cast<uint64_t>(runs));
  for (int i = 0; i < runs; ++i) {
    const Case& test = cases[static_cast<size_t>(i) % cases.size()];
    const fs::path output = folder / "run";
    fs::remove_all(output);
    int kills = 0;
    for (size_t lines = 1 + random() % 80; kills < 2; lines += 1 + random() % 30) {
      Launch launch(folder, output, test.options + std::vector<std::string>{"--resume", "latest"});
      const bool reached = eventually(60s, [&] {
        return complete_lines(output / "metrics.jsonl").size() >= lines ||
               launch.process.wait(0ms) != Process::kRunning;
      });
      INFO(launch.process.error());
      REQUIRE(reached);
      if (launch.process.wait(0ms) == 0) break;  // it was quicker
      kill_all(launch.process);
      ++kills;
    }
    finish(folder, output, test.options + std::vector<std::string>{"--resume", "latest"});
    CAPTURE(i, kills);
    check_equal(output, test.expected);
  }
}

TEST_CASE("how often checkpoints are written changes no loss and no weight") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--plan", write_plan(folder, "121.json", {1, 2, 1}), "--momentum",
                                            "0.9"};
  const auto with = [&](const std::string& name, const std::vector<std::string>& more) {
    finish(folder, folder / name, options + more);
    return folder / name;
  };
  const fs::path at_the_end = with("end", {"--checkpoint-every-epochs", "3"});
  check_equal(with("seven", {"--checkpoint-every-minibatches", "7"}), at_the_end);
  check_equal(with("two", {"--checkpoint-every-minibatches", "2", "--checkpoint-keep", "1"}), at_the_end);
  CHECK(metrics(with("none", {})) == metrics(at_the_end));
}

TEST_CASE("resumed under other plans and worlds: the same training within the order of sums") {
  const TemporaryFolder folder;
  const std::vector<std::string> rules = {"--optimizer", "adamw", "--checkpoint-every-minibatches", "10"};
  // One minibatch an update everywhere: one process, and pipelines with one minibatch at a time.
  const fs::path expected = folder / "expected";
  finish(folder, expected, rules);
  const fs::path output = folder / "run";
  const auto stages3 = write_plan(folder, "111.json", {1, 1, 1}, "model-parallel");
  const auto stages2 = write_plan(folder, "11.json", {1, 1}, "model-parallel");
  const auto resumed = rules + std::vector<std::string>{"--resume", "latest"};
  finish(folder, output, resumed + std::vector<std::string>{"--plan", stages3, "--minibatches", "25"});
  finish(folder, output, resumed + std::vector<std::string>{"--minibatches", "47"});
  finish(folder, output, resumed + std::vector<std::string>{"--plan", stages2});
  const auto got = losses(output);
  const auto wanted = losses(expected);
  REQUIRE(got.size() == wanted.size());
  for (size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CHECK(got[k] == Approx(wanted[k]).epsilon(1e-5));
  }
}

TEST_CASE("resumed under other plans with flush: losses are those of one plan within 1e-5") {
  const TemporaryFolder folder;
  const auto flush = [&](const std::string& name, const std::vector<int64_t>& replicas,
                         const std::string& schedule) {
    Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
    plan.schedule = schedule;
    plan.weights = "flush";
    plan.microbatches = 4;
    for (Stage& stage : plan.stages) stage.in_flight = 4;
    write_document(folder / name, plan);
    return (folder / name).string();
  };
  const std::vector<std::string> rules = {"--momentum", "0.9", "--checkpoint-every-minibatches", "10"};
  const fs::path expected = folder / "expected";
  finish(folder, expected, rules + std::vector<std::string>{"--plan", flush("1.json", {1}, "1f1b-flush")});
  const fs::path output = folder / "run";
  const auto resumed = rules + std::vector<std::string>{"--resume", "latest"};
  const auto part = [&](const std::string& plan, const std::string& until) {
    finish(folder, output, resumed + std::vector<std::string>{"--plan", plan, "--minibatches", until});
  };
  part(flush("111.json", {1, 1, 1}, "gpipe"), "24");
  part(flush("21.json", {2, 1}, "1f1b-flush"), "48");
  part(flush("12.json", {1, 2}, "gpipe"), "72");
  part(flush("11.json", {1, 1}, "zb-h1"), "96");
  const auto got = losses(output);
  const auto wanted = losses(expected);
  REQUIRE(got.size() == wanted.size());
  for (size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CHECK(got[k] == Approx(wanted[k]).epsilon(1e-5));
  }
}

TEST_CASE("a disk that is full ends the run, older checkpoints and the metrics are intact, and it goes on") {
  const TemporaryFolder folder;
  const auto plan = write_plan(folder, "11.json", {1, 1}, "model-parallel");
  // Shared memory would be short of room too.
  const std::vector<std::string> options = {"--plan", plan,          "--checkpoint-every-minibatches",
                                            "8",      "--transport", "gloo"};
  const fs::path expected = folder / "expected";
  finish(folder, expected, options);
  const fs::path output = folder / "run";
  finish(folder, output, options + std::vector<std::string>{"--minibatches", "24"});

  // A stage's file is larger than any that a process may write; logs and metrics are smaller.
  const auto stage = final_checkpoint(expected) / "stage-0.safetensors";
  REQUIRE(fs::file_size(stage) > 50'000);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit little{40'000, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // inherited: a write then fails
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
  int code = 0;
  std::string error;
  {
    Launch launch(folder, output, options + std::vector<std::string>{"--resume", "latest"});
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    code = launch.code();
    error = launch.process.error();
  }
  std::signal(SIGXFSZ, handler);
  INFO(error);
  CHECK(code == 1);
  CHECK_THAT(error, Catch::Contains("stage-") && Catch::Contains("cannot be written: File too large"));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(output / "checkpoints"))
    left.push_back(entry.path().filename().string());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"minibatch-16", "minibatch-24", "minibatch-8"});
  CHECK(read_document<Summary>(output / "summary.json").status == "failed");

  finish(folder, output, options + std::vector<std::string>{"--resume", "latest"});
  check_equal(output, expected);
}

TEST_CASE("a real file system that is full: the run ends, what is whole stays, and more room lets it go on") {
  const TemporaryFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  // Room for one checkpoint of some 200 KB and the beginning of a second.
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=300k") != 0)
    return skip("no right to mount a small file system");
  struct Unmount {
    const fs::path& disk;
    ~Unmount() { ::umount2(disk.c_str(), MNT_DETACH); }
  } unmount{disk};
  const std::vector<std::string> options = {"--plan",
                                            write_plan(folder, "11.json", {1, 1}, "model-parallel"),
                                            "--momentum",
                                            "0.9",
                                            "--checkpoint-every-minibatches",
                                            "8"};
  const fs::path expected = folder / "expected";
  finish(folder, expected, options);
  const fs::path output = disk / "run";
  {
    Launch launch(folder, output, options);
    CHECK(launch.code() == 1);
    CHECK_THAT(launch.process.error(), Catch::Contains("No space left on device"));
  }
  CHECK(fs::exists(output / "checkpoints" / "minibatch-8" / "manifest.json"));
  CHECK(std::distance(fs::directory_iterator(output / "checkpoints"), {}) == 1);
  REQUIRE(::mount("none", disk.c_str(), "tmpfs", MS_REMOUNT, "size=20m") == 0);
  finish(folder, output, options + std::vector<std::string>{"--resume", "latest"});
  check_equal(output, expected);
}

TEST_CASE("a damaged checkpoint is refused before anything starts, and the offered command works") {
  const TemporaryFolder folder;
  const std::vector<std::string> options = {"--checkpoint-every-minibatches", "30"};
  const fs::path output = folder / "run";
  finish(folder, output, options);
  const fs::path file = final_checkpoint(output) / "stage-0.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  write_file(file, bytes);
  Launch launch(folder, output, options + std::vector<std::string>{"--resume", "latest"});
  CHECK(launch.code() == 2);
  const std::string error = launch.process.error();
  const std::string good = (output / "checkpoints" / "minibatch-90").string();
  CHECK_THAT(error, Catch::Contains("it is not what was written"));
  CHECK_THAT(error, Catch::Contains("The last good one is minibatch-90: go on with --resume " + good));
  CHECK(metrics(output).size() == kMinibatches + 3);
  finish(folder, output, options + std::vector<std::string>{"--resume", good});
  CHECK(metrics(output).size() == kMinibatches + 3);
}

TEST_CASE("checkpoint inspect, merge, export, a run starts from what was exported") {
  const TemporaryFolder folder;
  const auto plan = write_plan(folder, "121.json", {1, 2, 1});
  const fs::path output = folder / "run";
  const std::vector<std::string> options = {"--checkpoint-every-minibatches", "30", "--momentum", "0.9"};
  finish(folder, output, options + std::vector<std::string>{"--plan", plan, "--minibatches", "60"});
  const auto command = [&](const std::vector<std::string>& words, int expected = 0) {
    Process process(std::vector<std::string>{program("runtime"), "checkpoint"} + words, folder / "out",
                    folder / "err");
    INFO(process.error());
    CHECK(process.wait(60s) == expected);
    return expected == 0 ? process.output() : process.error();
  };
  const std::string table = command({"inspect", output.string()});
  CHECK_THAT(table, Catch::Contains("minibatch-60: 60 minibatches (1 epochs of 32 and 28), cause: end") &&
                        Catch::Contains("plan 1-2-1 1f1b stash") && Catch::Contains("stage-2.safetensors"));
  const Json json = parse_json(command({"inspect", output.string(), "--json"}), "inspect");
  CHECK(json.at("manifest").at("next_minibatch") == 60);
  CHECK(json.at("files").size() == 3);
  CHECK(json.at("files")[1].at("intact") == true);

  // Merged, it is a checkpoint as any other.
  const std::string merged = (folder / "merged").string();
  command({"merge", output.string(), "--output", merged});
  CHECK_THAT(command({"inspect", merged}), Catch::Contains("plan 1 1f1b stash"));
  const auto resumed = [&](const std::string& from, const fs::path& into) {
    finish(folder, into, options + std::vector<std::string>{"--resume", from});
    return losses(into);
  };
  const auto from_merged = resumed(merged, folder / "a");  // its past is not beside it
  const auto from_run = resumed((output / "checkpoints" / "minibatch-60").string(), folder / "b");
  REQUIRE(from_merged.size() == kMinibatches - 60);
  REQUIRE(from_run.size() == kMinibatches);
  CHECK(std::equal(from_merged.begin(), from_merged.end(), from_run.begin() + 60));

  // Exported weights start a run; so does a merged file, whose optimizer is left aside.
  const std::string exported = (folder / "model.safetensors").string();
  const std::string whole = (folder / "whole.safetensors").string();
  CHECK_THAT(command({"export", output.string(), "--output", exported}), Catch::Contains("14 tensors"));
  command({"merge", output.string(), "--output", whole});
  const auto started = [&](const std::string& from, const std::vector<std::string>& more) {
    const fs::path into = folder / "started";
    finish(folder, into, std::vector<std::string>{"--initial-weights", from, "--minibatches", "8"} + more);
    return losses(into);
  };
  const auto first = started(exported, {});
  CHECK(first == started(whole, {}));
  CHECK(first.size() == 8);
  CHECK(started(exported, {"--plan", plan}).front() == first.front());

  CHECK_THAT(command({"export", output.string(), "--output", (folder / "model.pt").string()}, 2),
             Catch::Contains("ends in .safetensors"));
  CHECK_THAT(command({"inspekt", output.string()}, 2), Catch::Contains("did you mean 'inspect'?"));
  CHECK_THAT(command({"inspect"}, 2), Catch::Contains("expected one folder"));
  const fs::path file = output / "checkpoints" / "minibatch-60" / "stage-1.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 4;
  write_file(file, bytes);
  CHECK_THAT(command({"inspect", output.string()}, 2),
             Catch::Contains("not as written: stage-1.safetensors"));
  CHECK_THAT(command({"export", output.string(), "--output", exported}, 2),
             Catch::Contains("it is not what was written"));
}

TEST_CASE(
    "SIGINT and SIGTERM leave a checkpoint at any time, the run goes on as if it had not been stopped, bit "
    "for "
    "bit") {
  const TemporaryFolder folder;
  std::vector<std::vector<std::string>> cases = {
      {},
      {"--plan", write_plan(folder, "2.json", {2})},
      {"--plan", write_plan(folder, "121.json", {1, 2, 1})},
      {"--plan", write_plan(folder, "mp.json", {1, 1, 1}, "model-parallel")},
      {"--plan", write_plan(folder, "31.json", {3, 1})}};
  if (!is_long()) cases.resize(3);
  std::mt19937_64 random(9);
  for (const auto& plan : cases) {
    const auto options = plan + std::vector<std::string>{"--checkpoint-every-epochs", "3"};
    CAPTURE(options);
    const fs::path expected = folder / "expected";
    const fs::path output = folder / "run";
    fs::remove_all(expected);
    fs::remove_all(output);
    finish(folder, expected, options);
    const int number = random() % 2 ? SIGINT : SIGTERM;
    size_t trained = 0;
    for (size_t lines = 1 + random() % 60; trained < kMinibatches; lines = trained + 1 + random() % 60) {
      Launch launch(folder, output, options + std::vector<std::string>{"--resume", "latest"});
      REQUIRE(eventually(60s, [&] {
        return losses(output).size() >= lines || launch.process.wait(0ms) != Process::kRunning;
      }));
      deliver(number, kWaysOfSignals[random() % kWaysOfSignals.size()], processes_of(launch.process));
      const int code = launch.process.wait(60s);
      INFO(launch.process.error());
      const size_t before = trained;
      trained = losses(output).size();
      if (code == 0) {  // it was quicker
        CHECK(trained == kMinibatches);
        break;
      }
      REQUIRE(code == 128 + number);
      CHECK(trained > before);
      CHECK(fs::exists(output / "checkpoints" / ("minibatch-" + std::to_string(trained)) / "manifest.json"));
      CHECK(read_document<Summary>(output / "summary.json").status == "interrupted");
      CHECK_THAT(launch.process.error(), Catch::Contains("go on with --resume latest"));
    }
    finish(folder, output, options + std::vector<std::string>{"--resume", "latest"});
    check_equal(output, expected);
  }
}

TEST_CASE("a signal to one rank of several stops all of them with a checkpoint") {
  const TemporaryFolder folder;
  const auto plan = write_plan(folder, "11.json", {1, 1});
  const size_t victim = GENERATE(size_t{0}, size_t{1}, size_t{2});  // 2: all of them, twice
  std::vector<std::unique_ptr<Process>> ranks;
  const int port = 20000 + static_cast<int>((::getpid() + 977 * (victim + 1)) % 12000);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = "rank-" + std::to_string(rank);
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{program("runtime"), "train"} + endless_job(folder) +
            std::vector<std::string>{"--plan", plan, "--rank", std::to_string(rank), "--world-size", "2",
                                     "--master-port", std::to_string(port)},
        folder / (name + ".out"), folder / (name + ".err")));
  }
  INFO(ranks[0]->error());
  REQUIRE(eventually(90s, [&] { return complete_lines(folder / "run" / "metrics.jsonl").size() > 40; }));
  if (victim < 2) {
    ranks[victim]->signal(SIGTERM);
  } else {
    deliver(SIGTERM, Reaches::kAllTwice, {ranks[0]->pid(), ranks[1]->pid()});
  }
  for (const auto& rank : ranks) {
    CHECK(rank->wait(60s) == 143);
    CHECK_THAT(rank->error(), Catch::Contains("terminated (SIGTERM)"));
  }
  const auto lines = complete_lines(folder / "run" / "metrics.jsonl").size();
  CHECK(
      fs::exists(folder / "run" / "checkpoints" / ("minibatch-" + std::to_string(lines)) / "manifest.json"));
}
