// No file that a user can name makes a program wait for ever: each is put on a server that has gone.
#include <algorithm>
#include <catch2/catch.hpp>
#include <list>

#include "tests/end_to_end/checkpointed_runs.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/skip.h"

namespace pipewright::testing {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr auto kPatience = 1s;

std::map<std::string, std::string> dead(const fs::path& folder, const std::string& at) {
  return {{"LD_PRELOAD", PIPEWRIGHT_TEST_DEAD_SERVER},
          {"PIPEWRIGHT_TEST_DEAD_FOLDER", folder.string() + "/"},
          {"PIPEWRIGHT_TEST_DEAD_AT", at},
          {"PIPEWRIGHT_FILE_TIMEOUT", std::to_string(kPatience.count()) + "s"}};
}

/// A run with a checkpoint, and everything else that the commands below read, in one folder.
void fill(const TemporaryFolder& made, const fs::path& folder) {
  fs::create_directories(folder);
  finish(made, folder / "run", {"--checkpoint-every-epochs", "1"});
  fs::copy_file(PIPEWRIGHT_SOURCE_DIR "/tests/models/pt2/residual.pt2", folder / "residual.pt2");
  const auto run = [&](const Words& words) {
    Process process(words, made / "out", made / "err");
    const int code = process.wait(60s);
    INFO(process.error());
    REQUIRE(code == 0);
  };
  run({program("profiler"), "--model", kEndlessModel, "--batch-size", "8", "--warmup", "0", "--repeats", "1",
       "--output", folder / "profile.json"});
  run({program("optimizer"), "plan", "--profile", folder / "profile.json", "--gpus", "2", "--bandwidths",
       "1GB/s", "--output", folder / "plan.json"});
  fs::create_directories(folder / "images/a");
  for (int i = 0; i < 8; ++i) write_file(folder / "images/a" / (std::to_string(i) + ".png"), "no image");
}

/// Every way to name a file. `d` ends in a slash.
std::vector<Words> commands(const std::string& d, const TemporaryFolder& alive) {
  const Words train = {"runtime",       "train",
                       "--model",       kEndlessModel,
                       "--data",        "synthetic-images:image=8,samples=256",
                       "--batch-size",  "8",
                       "--minibatches", "4",
                       "--timeout",     "1s",
                       "--output",      (alive / "run").string()};
  const auto with = [&](const std::string& option, const std::string& value) {
    Words words = train;
    const auto at = std::find(words.begin(), words.end(), option);
    if (at == words.end()) return words + Words{option, value};
    *(at + 1) = value;
    return words;
  };
  const Words plan = {"optimizer", "plan", "--gpus", "2", "--bandwidths", "1GB/s"};
  return {plan + Words{"--profile", d + "profile.json"},
          {"optimizer", "compare", "--profile", d + "profile.json", "--gpus", "2", "--bandwidths", "1GB/s"},
          {"optimizer", "check", "--plan", d + "plan.json"},
          {"optimizer", "simulate", "--plan", d + "plan.json"},
          {"profiler", "graph", "--batch-size", "4", "--model", d + "residual.pt2"},
          {"profiler", "--model", kEndlessModel, "--batch-size", "4", "--data",
           "image-folder:root=" + d + "images,image=8,channels=1"},
          {"profiler", "report", "--profile", d + "profile.json", "--output", (alive / "r.md").string()},
          {"runtime", "train", "--config", d + "run/run.json"},
          with("--plan", d + "plan.json"),
          with("--model", d + "residual.pt2"),
          with("--data", "image-folder:root=" + d + "images,image=8,channels=1"),
          with("--data", "tensors:file=" + d + "run/model.safetensors"),
          with("--initial-weights", d + "run/model.safetensors"),
          with("--resume", d + "run/checkpoints/minibatch-96"),
          {"runtime", "report", d + "run"},
          {"runtime", "checkpoint", "inspect", d + "run/checkpoints/minibatch-96"},
          {"runtime", "evaluate", "--config", d + "run/run.json"},
          {"runtime", "launch", "--ranks", "2", "--config", d + "run/run.json"}};
}

/// Commands that make something at a name before they read anything of it.
std::vector<Words> writers(const std::string& d, const fs::path& alive) {
  return {{"optimizer", "plan", "--gpus", "2", "--bandwidths", "1GB/s", "--profile", alive / "profile.json",
           "--output", d + "plans"},
          {"profiler", "--model", kEndlessModel, "--batch-size", "4", "--output", d + "p.json"},
          {"runtime", "train", "--model", kEndlessModel, "--data", "synthetic-images:image=8,samples=256",
           "--batch-size", "8", "--minibatches", "4", "--timeout", "1s", "--output", d + "new"},
          {"runtime", "launch", "--ranks", "2", "--model", kEndlessModel, "--data",
           "synthetic-images:image=8,samples=256", "--batch-size", "8", "--minibatches", "4", "--timeout",
           "1s", "--output", d + "new"}};
}

void all_end(const std::vector<Words>& all, const fs::path& folder, const std::string& at,
             const TemporaryFolder& made) {
  std::list<Process> running;
  for (size_t i = 0; i < all.size(); ++i) {
    Words words = all[i];
    words[0] = program(words[0]);
    running.emplace_back(words, made / ("out" + std::to_string(i)), made / ("err" + std::to_string(i)),
                         dead(folder, at));
  }
  size_t i = 0;
  for (Process& process : running) {
    std::string command = at;
    for (const std::string& word : all[i]) command += " " + word;
    CAPTURE(command);
    const int code = process.wait(60s);
    CAPTURE(process.error());
    CHECK(code == 1);
    CHECK_THAT(process.error(),
               Catch::Contains(folder.string()) && (Catch::Contains("has not answered for") ||
                                                    Catch::Contains("it waits for something outside")));
    ++i;
  }
}

TEST_CASE("a file whose server has gone ends every program, with the file's name") {
  if (kSanitized)
    return skip("a sanitizer's library must be the first of all, so nothing can be preloaded");
  const TemporaryFolder made;
  const fs::path folder = made / "dead";
  fill(made, folder);
  for (const std::string at : {"name", "read"})
    all_end(commands(folder.string() + "/", made), folder, at, made);
  const fs::path gone = made / "gone";
  all_end(writers(gone.string() + "/", folder), gone, "name", made);
}

}  // namespace
}  // namespace pipewright::testing
