// What becomes of a run folder: two runs that want it, a second run after the first, somebody who removes it,
// a disk that stalls or is full, no descriptors left.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <tuple>

#include "graph/summary.h"
#include "tests/end_to_end/jobs.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

// A run of so many minibatches on two ranks, or on one process.
std::vector<std::string> job(const fs::path& output, int64_t minibatches, bool launched = true) {
  return std::vector<std::string>{program("runtime"), launched ? "launch" : "train",
                                  "--model",          kEndlessModel,
                                  "--data",           "synthetic-images:image=8,samples=256",
                                  "--batch-size",     "8",
                                  "--epochs",         "100000",
                                  "--minibatches",    std::to_string(minibatches),
                                  "--timeout",        "10s",
                                  "--output",         output.string()} +
         (launched ? std::vector<std::string>{"--ranks", "2"} : std::vector<std::string>{});
}

constexpr int64_t kEndless = 1'000'000;

// Of all files below the folder.
std::map<std::string, std::string> bytes_of(const fs::path& folder) {
  std::map<std::string, std::string> bytes;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes[entry.path().lexically_relative(folder)] = read_file(entry.path());
  }
  return bytes;
}

size_t lines_in(const fs::path& run) { return complete_lines(run / "metrics.jsonl").size(); }

}  // namespace

TEST_CASE("a second run into the folder of one that lives is refused, and the first does not notice") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const bool launched = GENERATE(true, false);
  Process first(job(run, kEndless, launched), folder / "out", folder / "err");
  INFO(first.error());
  REQUIRE(eventually(90s, [&] { return lines_in(run) > 20; }));
  const std::string document = read_file(run / "run.json");
  std::vector<std::vector<std::string>> others = {
      job(run, 10, true), job(run, 10, false), job(run, 10) + std::vector<std::string>{"--overwrite"},
      job(run, 10) + std::vector<std::string>{"--resume", "latest"}};
  // A rank 0 that other launchers start: its peers would come later.
  others.push_back(job(run, 10, false) +
                   std::vector<std::string>{"--rank", "0", "--world-size", "2", "--master-port",
                                            std::to_string(20000 + ::getpid() % 12000)});
  for (const auto& words : others) {
    Process second(words, folder / "out2", folder / "err2");
    CHECK(second.wait(60s) == 2);
    CHECK_THAT(second.error(), Catch::Contains(run.string() + ": a run is writing there: process " +
                                               std::to_string(first.pid()) + " on "));
  }
  const size_t before = lines_in(run);
  CHECK(eventually(60s, [&] { return lines_in(run) > before + 20; }));
  CHECK(read_file(run / "run.json") == document);
  CHECK_FALSE(fs::exists(run / "flight"));
  CHECK_FALSE(fs::exists(run / "earlier-1"));
  first.signal(SIGTERM);
  CHECK(first.wait(60s) == 143);
  CHECK(std::distance(fs::directory_iterator(run / "checkpoints"), {}) == 1);
}

TEST_CASE("a run whose launcher was killed can be gone on with at once") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const auto words = job(run, kEndless) + std::vector<std::string>{"--checkpoint-every-minibatches", "10"};
  Process first(words, folder / "out", folder / "err");
  REQUIRE(eventually(90s, [&] { return fs::exists(run / "checkpoints" / "minibatch-20"); }));
  first.signal(SIGKILL);
  Process next(words + std::vector<std::string>{"--resume", "latest"}, folder / "out2", folder / "err2");
  INFO(next.error());
  CHECK(eventually(60s, [&] { return next.error().find("goes on from") != std::string::npos; }));
  next.signal(SIGTERM);
  CHECK(next.wait(60s) == 143);
}

TEST_CASE(
    "runs into one folder one after the other: nothing is lost, --overwrite removes, inputs may lie there") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const auto trained = [&](const std::vector<std::string>& more, int64_t minibatches = 12) {
    Process process(job(run, minibatches) + more, folder / "out", folder / "err");
    const int code = process.wait(90s);
    INFO(process.error());
    CHECK(code == 0);
    return process.error();
  };
  trained({"--seed", "1", "--checkpoint-every-minibatches", "6"});
  const auto first = metrics(run);
  CHECK_THAT(trained({"--seed", "2"}), Catch::Contains("is now in earlier-1"));
  const auto second = metrics(run);
  CHECK(metrics(run / "earlier-1") == first);
  CHECK(read_document<Summary>(run / "earlier-1" / "summary.json").status == "done");
  CHECK(fs::exists(run / "earlier-1" / "checkpoints" / "minibatch-12" / "manifest.json"));
  CHECK_FALSE(fs::exists(run / "checkpoints"));
  // The document that lies in the folder starts it again; what was set aside can be gone on from, and
  // reported.
  Process again({program("runtime"), "launch", "--config", (run / "run.json").string(), "--ranks", "2"},
                folder / "out", folder / "err");
  INFO(again.error());
  CHECK(again.wait(90s) == 0);
  CHECK(metrics(run) == second);
  CHECK(metrics(run / "earlier-2") == second);
  trained({"--seed", "1", "--resume", (run / "earlier-1" / "checkpoints" / "minibatch-6").string()});
  CHECK(metrics(run) == first);
  CHECK(metrics(run / "earlier-3") == second);
  Process report({program("runtime"), "report", run.string(), (run / "earlier-1").string()}, folder / "out",
                 folder / "err");
  CHECK(report.wait(60s) == 0);
  const std::string said = trained({"--overwrite"});
  CHECK(said.find("earlier-") == std::string::npos);
  CHECK_FALSE(fs::exists(run / "earlier-4"));
}

TEST_CASE("a run folder that is removed, replaced or emptied under a run ends it with what is lost") {
  struct Damage {
    const char* what;
    std::function<void(const fs::path& run)> damage;
    const char* says;
  };
  const auto damage = GENERATE_COPY(from_range(std::vector<Damage>{
      {"the folder", [](const fs::path& run) { fs::remove_all(run); },
       "has gone while the run wrote into it"},
      {"another folder in its place",
       [](const fs::path& run) {
         fs::remove_all(run);
         fs::create_directories(run / "checkpoints");
       },
       "metrics.jsonl: has gone"},
      {"moved away", [](const fs::path& run) { fs::rename(run, run.string() + "-moved"); }, "has gone"},
      {"metrics.jsonl", [](const fs::path& run) { fs::remove(run / "metrics.jsonl"); },
       "metrics.jsonl: has gone while the run wrote into it"},
  }));
  const bool launched = GENERATE(true, false);
  const bool checkpoints = GENERATE(true, false);
  CAPTURE(damage.what, launched, checkpoints);
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  Process process(job(run, kEndless, launched) +
                      (checkpoints ? std::vector<std::string>{"--checkpoint-every-minibatches", "50"}
                                   : std::vector<std::string>{}),
                  folder / "out", folder / "err");
  REQUIRE(eventually(90s, [&] { return lines_in(run) > 60; }));
  REQUIRE(eventually(60s, [&] {
    try {
      damage.damage(run);
      return true;
    } catch (const fs::filesystem_error&) {  // the run has just written into it
      return false;
    }
  }));
  CHECK(process.wait(60s) == 1);
  // A checkpoint that is being written meets it in its own way.
  CHECK_THAT(process.error(), Catch::Contains(damage.says) ||
                                  Catch::Contains("has gone while the run wrote") ||
                                  Catch::Contains("is not there as its rank wrote it") ||
                                  Catch::Contains("cannot be written: No such file or directory"));
  // The folder does not come back half filled.
  if (std::string(damage.what) == "the folder") CHECK_FALSE(fs::exists(run));
}

TEST_CASE(
    "a start that fails leaves the run before it as it was, byte for byte, and going on from it works") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const auto run_to = [&](const std::vector<std::string>& words,
                          const std::map<std::string, std::string>& more = {}) {
    auto process = std::make_unique<Process>(words, folder / "out", folder / "err", more);
    process->wait(120s);
    return process;
  };
  REQUIRE(
      run_to(job(run, 20) + std::vector<std::string>{"--checkpoint-every-minibatches", "10"})->wait(0ms) ==
      0);
  write_document(folder / "plan.json",
                 even_plan(graph_of("mlp:layers=3,width=4,image=8", 8, folder), {1, 1}));
  const auto before = bytes_of(run);
  REQUIRE(before.count("summary.json") + before.count("rank-1.log") + before.count("model.safetensors") == 3);

  const std::string weights = (run / "model.safetensors").string();
  struct Start {
    std::vector<std::string> words;
    int code;
  };
  const std::vector<Start> bad = {
      {{"--data", "synthetic-images:image=16,samples=256"}, 2},
      {{"--data", "synthetic-images:image=8,samples=256,classes=99"}, 2},
      {{"--data", "synthetic-images:image=8,samples=4"}, 2},
      {{"--data", "synthetic-text:tokens=8,samples=256"}, 2},
      {{"--data", "tensors:file=" + (folder / "none.safetensors").string()}, 2},
      {{"--evaluation-data", "synthetic-images:image=16,samples=64"}, 2},
      {{"--evaluation-data", "tensors:file=" + weights}, 2},
      {{"--initial-weights", weights, "--model", "mlp:layers=2,width=64,image=8,channels=1"}, 2},
      {{"--initial-weights", (folder / "plan.json").string()}, 2},
      {{"--plan", (folder / "plan.json").string()}, 3},
      {{"--resume", (run / "checkpoints" / "minibatch-15").string()}, 2},
      {{"--resume", "latest", "--data", "synthetic-images:image=8,samples=512"}, 2},
      {{"--resume", "latest", "--minibatches", "15"}, 2},
      {{"--optimizer", "none"}, 2},
      {{"--model", "no-such-model"}, 2}};
  const auto without = [](std::vector<std::string> words, const std::vector<std::string>& given) {
    for (size_t i = 0; i < given.size(); i += 2) {
      const auto at = std::find(words.begin(), words.end(), given[i]);
      if (at != words.end()) words.erase(at, at + 2);
    }
    return words;
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    const bool launched = i % 3 != 0, overwrite = i % 2 == 0 && bad[i].words[0] != "--resume";
    auto words = without(job(run, 20, launched), bad[i].words) + bad[i].words;
    if (overwrite) words.push_back("--overwrite");
    CAPTURE(bad[i].words, launched, overwrite);
    const auto process = run_to(words, {{"TMPDIR", (folder / "").string()}});
    INFO(process->error());
    CHECK((process->wait(0ms) == bad[i].code || process->wait(0ms) == 3));
    REQUIRE(bytes_of(run) == before);
  }

  // Only rank 1's data is wrong, which it finds before it meets rank 0.
  const auto rank = [&](const std::string& number, const std::string& data) {
    return std::make_unique<Process>(
        without(job(run, 20, false), {"--data", ""}) +
            std::vector<std::string>{"--data", data, "--overwrite", "--start-timeout", "5s"},
        folder / (number + ".out"), folder / (number + ".err"),
        std::map<std::string, std::string>{{"RANK", number},
                                           {"WORLD_SIZE", "2"},
                                           {"MASTER_PORT", std::to_string(20000 + ::getpid() % 12000)}});
  };
  const auto first = rank("0", "synthetic-images:image=8,samples=256");
  const auto second = rank("1", "synthetic-images:image=16,samples=256");
  CHECK(second->wait(60s) == 2);
  CHECK(first->wait(60s) == 5);
  CHECK(bytes_of(run) == before);

  const auto on = run_to(job(run, 30) + std::vector<std::string>{"--resume", "latest"});
  INFO(on->error());
  CHECK(on->wait(0ms) == 0);
  CHECK_THAT(on->error(), Catch::Contains("minibatch-20: 20 of 30 minibatches are done"));
}

TEST_CASE(
    "resume: latest names the checkpoints that stand aside, and begins anew only where there are none") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const auto run_to = [&](const std::vector<std::string>& words) {
    Process process(words, folder / "out", folder / "err");
    const int code = process.wait(120s);
    return std::pair(code, process.error());
  };
  const std::vector<std::string> latest = {"--resume", "latest"};
  auto [code, error] =
      run_to(job(run, 20, false) + std::vector<std::string>{"--checkpoint-every-minibatches", "10"} + latest);
  CHECK(code == 0);
  CHECK_THAT(error, Catch::Contains("training starts from the beginning"));
  REQUIRE(run_to(job(run, 5, false)).first == 0);
  const auto before = bytes_of(run);
  for (const bool launched : {false, true}) {
    std::tie(code, error) = run_to(job(run, 30, launched) + latest);
    CHECK(code == 2);
    const std::string aside = (run / "earlier-1" / "checkpoints").string();
    CHECK_THAT(error, Catch::Contains("has no checkpoint of its own yet; an earlier run's are in " + aside +
                                      ": minibatch-20, minibatch-10") &&
                          Catch::Contains("--resume " + aside + "/minibatch-20"));
    CHECK(bytes_of(run) == before);
  }
  std::tie(code, error) =
      run_to({program("runtime"), "evaluate", "--config", (run / "run.json").string(), "--resume", "latest",
              "--evaluation-data", "synthetic-images:image=8,samples=64"});
  INFO(error);
  CHECK(code == 0);  // the final weights
  std::tie(code, error) = run_to(
      job(run, 30, false) +
      std::vector<std::string>{"--resume", (run / "earlier-1" / "checkpoints" / "minibatch-20").string()});
  CHECK(code == 0);
}

TEST_CASE("a disk that takes no metrics for longer than the time-out ends nothing") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run", pipe = run / "metrics.jsonl";
  fs::create_directory(run);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  const auto read_all = [&, text = std::string()]() mutable {
    char buffer[65536];
    for (ssize_t got; (got = ::read(reader, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    return static_cast<int64_t>(std::count(text.begin(), text.end(), '\n'));
  };
  auto lines = read_all;
  constexpr int64_t kMinibatches = 3000;  // more than a pipe holds
  const bool launched = GENERATE(true, false);
  auto words = job(run, kMinibatches, launched);
  *(std::find(words.begin(), words.end(), "--timeout") + 1) = "3s";
  Process process(words, folder / "out", folder / "err");
  INFO(process.error());
  // Once as many lines have come as the pipe takes, nobody reads for longer than the time-out.
  CHECK(process.wait(8s) == Process::kRunning);
  REQUIRE(eventually(120s, [&] { return lines() >= kMinibatches; }));
  CHECK(process.wait(60s) == 0);
  CHECK(lines() == kMinibatches);
  CHECK(read_document<Summary>(run / "summary.json").minibatches == kMinibatches);
  ::close(reader);
}

TEST_CASE("a file system that is full leaves whole lines in metrics.jsonl, and the reason is said") {
  const TemporaryFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=128k") != 0)
    return skip("no right to mount a small file system");
  struct Unmount {
    const fs::path& disk;
    ~Unmount() { ::umount2(disk.c_str(), MNT_DETACH); }
  } unmount{disk};
  const bool launched = GENERATE(true, false);
  const fs::path run = disk / (launched ? "launched" : "alone");
  Process process(job(run, kEndless, launched), folder / "out", folder / "err");
  CHECK(process.wait(120s) == 1);
  CHECK_THAT(process.error(), Catch::Contains("metrics.jsonl: cannot be written: No space left on device"));
  const std::string text = read_file(run / "metrics.jsonl");
  CHECK(text.size() > 10'000);
  CHECK(text.back() == '\n');
  fs::remove_all(run);
}

TEST_CASE(
    "few descriptors: a run works or says that there are too few of them, never that a peer or the store is "
    "lost") {
#ifdef __SANITIZE_ADDRESS__
  return skip("the sanitizer opens a pipe to look at an object, and calls one broken that it cannot look at");
#endif
  const TemporaryFolder folder;
  const bool launched = GENERATE(true, false);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  int worked = 0, refused = 0;
  for (rlim_t most = launched ? 12 : 4; most <= (launched ? 60 : 8); most += launched ? 8 : 1) {
    // Both limits: the program lifts the soft one. In a shell: a hard limit cannot be lifted again.
    std::string line = "ulimit -n " + std::to_string(most) + "; exec";
    for (const std::string& word : job(folder / "run", 3, launched)) line += " '" + word + "'";
    Process process({"/bin/sh", "-c", line}, folder / "out", folder / "err");
    const int code = process.wait(120s);
    CAPTURE(most, launched, code, process.error());
    if (code == 0) {
      ++worked;
      continue;
    }
    ++refused;
    // The loader of shared libraries says it in its own words, before the program begins.
    CHECK((code == 1 || code == 2 || code == 127));
    const bool by_loader = code == 127;
    CHECK_THAT(process.error(), Catch::Contains("open files") || Catch::Contains("Too many open files") ||
                                    Catch::Contains(by_loader ? "cannot open shared object file: Error 24"
                                                              : "Too many open files"));
    CHECK_THAT(process.error(), !Catch::Contains("has gone or cannot be reached"));
  }
  std::printf("%d worked, %d were refused\n", worked, refused);
  CHECK(worked > 0);
  CHECK(refused > 0);
}
