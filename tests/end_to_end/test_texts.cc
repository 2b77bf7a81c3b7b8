// What the programs tell people: help, where settings come from, what was slow.
#include <sched.h>

#include <catch2/catch.hpp>
#include <regex>
#include <sstream>

#include "graph/run.h"
#include "graph/summary.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const Words kJob = {"--model", kEndlessModel, "--data", "synthetic-images:image=8,samples=96", "--batch-size",
                    "8"};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The names under "Commands" of a program's --help; a program of one command has "" only.
std::vector<std::string> commands_of(const TemporaryFolder& folder, const std::string& name) {
  const Outcome help = run_program(folder, name, {"--help"});
  REQUIRE(help.code == 0);
  std::vector<std::string> commands;
  bool inside = false;
  for (const std::string& line : lines_of(help.output)) {
    if (line.rfind("Commands", 0) == 0) {
      inside = true;
    } else if (inside && line.rfind("  ", 0) == 0) {
      commands.push_back(line.substr(2, line.find(' ', 2) - 2));
    } else {
      inside = false;
    }
  }
  return commands;
}

struct HelpOption {
  std::string name;
  bool takes_value = false;
  std::optional<std::string> usual;  // what stands in (=...)
  std::string text;
};

std::vector<HelpOption> options_of(const std::string& help) {
  std::vector<HelpOption> options;
  const std::regex head(R"(^  --([a-z0-9-]+)( ([A-Za-z]+)( \(=([^)]*)\))?)?( .*)?$)");
  for (const std::string& line : lines_of(help)) {
    std::smatch found;
    if (std::regex_match(line, found, head)) {
      HelpOption option;
      option.name = found[1];
      option.takes_value = found[2].matched;
      if (found[4].matched) option.usual = found[5];
      option.text = found[6];
      options.push_back(option);
    } else if (!options.empty() && line.rfind("    ", 0) == 0) {
      options.back().text += " " + line.substr(line.find_first_not_of(' '));
    }
  }
  return options;
}

// Values without a default: what is asked about, and what is off, or follows from the rest, when it is not
// given.
const std::set<std::string> kWithout = {"against",
                                        "bandwidth",
                                        "batch-size",
                                        "class-profile",
                                        "classes",
                                        "compat",
                                        "config",
                                        "cpus",
                                        "data",
                                        "device-classes",
                                        "disturb",
                                        "dot",
                                        "emulate",
                                        "evaluation-data",
                                        "gpus",
                                        "hosts",
                                        "initial-weights",
                                        "input",
                                        "levels",
                                        "master-addr",
                                        "master-port",
                                        "max-stages",
                                        "memory-over-time",
                                        "milestones",
                                        "model",
                                        "optimizer",
                                        "output",
                                        "parameter-group",
                                        "period",
                                        "pin",
                                        "plan",
                                        "predictions",
                                        "profile",
                                        "rank",
                                        "ranks",
                                        "replicas",
                                        "report",
                                        "resume",
                                        "run",
                                        "runs",
                                        "sailor",
                                        "slot",
                                        "stages",
                                        "topology",
                                        "trace",
                                        "world-size"};

}  // namespace

TEST_CASE("help of every command of the three programs says what each option is worth when it is not given") {
  const TemporaryFolder folder;
  size_t values = 0;
  for (const std::string name : {"profiler", "optimizer", "runtime"}) {
    for (const std::string& command : commands_of(folder, name)) {
      const Outcome help = run_program(folder, name, {command, "--help-all"});
      INFO(name << " " << command << "\n" << help.output << help.error);
      REQUIRE(help.code == 0);
      for (const HelpOption& option : options_of(help.output)) {
        INFO("--" << option.name << option.text);
        CHECK_FALSE(option.text.empty());
        if (!option.takes_value) continue;
        ++values;
        const bool in_words = std::regex_search(option.text, std::regex("default|without"));
        CHECK((option.usual || in_words || kWithout.count(option.name) == 1));
      }
    }
  }
  CHECK(values > 100);
}

TEST_CASE("help of every command fits a screen, and its examples work as they stand, one after the other") {
  const TemporaryFolder folder;
  const std::string bin = fs::path(program("runtime")).parent_path();
  size_t examples = 0;
  for (const std::string name : {"profiler", "optimizer", "runtime"}) {
    for (const std::string& command : commands_of(folder, name)) {
      const Outcome help = run_program(folder, name, {command, "--help"});
      const std::vector<std::string> lines = lines_of(help.output);
      INFO(name << " " << command << "\n" << help.output);
      CHECK(help.code == 0);
      CHECK(lines.size() <= 24);
      // Those of the commands that everybody uses; others need data sets or folders of others.
      if (lines.empty() || lines.back().rfind("--help-all", 0) != 0 || command == "interference") continue;
      const auto line = std::find_if(lines.begin(), lines.end(),
                                     [](const std::string& each) { return each.rfind("Example: ", 0) == 0; });
      REQUIRE(line != lines.end());
      ++examples;
      const std::string run = "cd '" + folder.path().string() + "' && PATH='" + bin + "':$PATH " +
                              line->substr(std::string("Example: ").size());
      Process process({"/bin/sh", "-c", run}, folder / "out", folder / "err");
      const int code = process.wait(300s);
      INFO(run << "\n" << process.error());
      CHECK(code == 0);
    }
  }
  CHECK(examples >= 10);
}

TEST_CASE("help of the runtime shows the run document's defaults") {
  const TemporaryFolder folder;
  const Outcome help = runtime(folder, {"train", "--help-all"});
  std::map<std::string, HelpOption> options;
  for (const HelpOption& option : options_of(help.output)) options[option.name] = option;
  const Outcome config = runtime(folder, {"train", "--print-config", "--model", "m", "--data", "d"});
  REQUIRE(config.code == 0);
  size_t compared = 0;
  const std::regex line(R"(^--(\S+)  (.*)  \(default\)$)");
  for (const std::string& text : lines_of(config.output)) {
    std::smatch found;
    if (!std::regex_match(text, found, line)) continue;
    INFO(text);
    if (found[1] == "ranks") continue;  // launch's; a rank of train has --world-size
    REQUIRE(options.count(found[1]) == 1);
    const HelpOption& option = options[found[1]];
    const Json value = parse_json(found[2], "value");
    if (!option.takes_value || value == "" || value == Json::array()) continue;
    ++compared;
    CHECK(option.usual);
    if (!option.usual) continue;
    const std::string shown = *option.usual;
    // "30s" for 30.0, "25MiB" for its bytes.
    const bool has_unit = shown.find_first_not_of("0123456789.e-") != std::string::npos && value.is_number();
    if (!has_unit) CHECK(shown == (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  CHECK(compared > 25);
}

TEST_CASE("resume: what nobody says again is as in the checkpoint, and is told") {
  const TemporaryFolder folder;
  const std::string output = (folder / "run").string();
  const Outcome first = runtime(
      folder, Words{"train"} + kJob +
                  Words{"--output", output, "--momentum", "0.9", "--weight-decay", "0.001", "--seed", "7",
                        "--epochs", "2", "--minibatches", "6", "--checkpoint-every-minibatches", "6"});
  INFO(first.error);
  REQUIRE(first.code == 0);
  const Words resume = {"train", "--resume", "latest", "--output", output};
  // Nothing of it is lost, whatever is left out.
  const auto config = [&](const Words& more) {
    const Outcome outcome = runtime(folder, resume + more + Words{"--print-config"});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return outcome.output;
  };
  const std::string checkpoint = output + "/checkpoints/minibatch-6";
  const std::string plain = config({});
  CHECK_THAT(plain, Catch::Contains("--momentum  0.9  (checkpoint " + checkpoint + ")"));
  CHECK_THAT(plain, Catch::Contains("--seed  7  (checkpoint " + checkpoint + ")"));
  CHECK_THAT(plain, Catch::Contains("--minibatches  6  (checkpoint " + checkpoint + ")"));
  CHECK_THAT(plain, Catch::Contains("--learning-rate  0.01  (default)"));
  CHECK_THAT(plain, Catch::Contains("--output  \"" + output + "\"  (option)"));
  CHECK_THAT(plain, Catch::Contains("--plan  \"\"  (default)"));
  CHECK_THAT(config({"--momentum", "0.5"}), Catch::Contains("--momentum  0.5  (option)"));
  // Epochs that are asked for are not cut short by a number of minibatches that is not.
  CHECK_THAT(config({"--epochs", "1"}), Catch::Contains("--minibatches  0  (default)"));
  CHECK_THAT(runtime(folder, Words{"train", "--output", output, "--print-config"} + kJob).output,
             Catch::Contains("--momentum  0.0  (default)"));

  const Outcome second = runtime(folder, resume + Words{"--minibatches", "9"});
  INFO(second.error);
  REQUIRE(second.code == 0);
  CHECK_THAT(second.error, Catch::Contains("as in the checkpoint " + checkpoint + ": ") &&
                               Catch::Contains("--momentum 0.9") && Catch::Contains("--seed 7"));
  CHECK(read_document<Run>(folder / "run" / "run.json").optimizer.momentum == 0.9);
  // The same as all said again.
  const auto losses = [&](const fs::path& of) {
    std::vector<double> values;
    for (const std::string& line : complete_lines(of / "metrics.jsonl"))
      values.push_back(parse_json(line, "metrics")["loss"].get<double>());
    return values;
  };
  const fs::path whole = folder / "whole";
  REQUIRE(runtime(folder, Words{"train"} + kJob +
                              Words{"--output", whole.string(), "--momentum", "0.9", "--weight-decay",
                                    "0.001", "--seed", "7", "--minibatches", "9"})
              .code == 0);
  CHECK(losses(folder / "run") == losses(whole));
}

TEST_CASE("evaluate --resume latest: the run's last checkpoint, or the run folder that has none") {
  const TemporaryFolder folder;
  const std::string output = (folder / "run").string();
  const Words evaluated = {"--evaluation-data", "synthetic-images:image=8,samples=50"};
  const Outcome none = runtime(folder, Words{"evaluate", "--resume", "latest", "--output", output});
  CHECK(none.code == 2);
  CHECK_THAT(none.error, Catch::Contains("there is no checkpoint in " + output + "/checkpoints"));
  const Outcome usual = runtime(folder, Words{"evaluate", "--resume", "latest"} + kJob + evaluated);
  CHECK(usual.code == 2);
  CHECK_THAT(usual.error, Catch::Contains("there is no checkpoint in runs/latest/checkpoints"));
  CHECK_THAT(usual.error, !Catch::Contains(fs::path(folder / "").string()));

  REQUIRE(
      runtime(folder, Words{"train"} + kJob + evaluated +
                          Words{"--output", output, "--minibatches", "5", "--checkpoint-every-epochs", "1"})
          .code == 0);
  const Outcome alone = runtime(folder, {"evaluate", "--config", output + "/run.json", "--resume", "latest"});
  INFO(alone.error);
  CHECK(alone.code == 0);
  CHECK_THAT(alone.output, Catch::Contains("50 samples"));
  CHECK_THAT(runtime(folder, {"evaluate", "--resume", "latest", "--output", output}).output,
             Catch::Contains("50 samples"));
}

TEST_CASE("predict: of a program that gives its loss only it says what to return") {
  const TemporaryFolder folder;
  const std::string fixture = std::string(PIPEWRIGHT_SOURCE_DIR) + "/tests/models/pt2/dropout";
  const std::string model = fixture + ".pt2";
  const std::string data = "tensors:file=" + fixture + ".safetensors";
  const Outcome trained = runtime(folder, {"train", "--model", model, "--data", data, "--batch-size", "4",
                                           "--minibatches", "1", "--output", (folder / "run").string()});
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  const Outcome outcome =
      runtime(folder, {"predict", "--model", model, "--evaluation-data", data, "--initial-weights",
                       (folder / "run" / "model.safetensors").string(), "--batch-size", "4", "--classes",
                       (folder / "c.jsonl").string()});
  CHECK(outcome.code == 2);
  INFO(outcome.error);
  CHECK_THAT(outcome.error, Catch::Contains("gives its loss only") && Catch::Contains("(loss, scores)"));
}

TEST_CASE("more ranks than cores are warned of at the start, and a slow run says at its end why it was") {
  const TemporaryFolder folder;
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1});
  plan.predicted.emplace();
  plan.predicted->minibatch_seconds = 1e-6;
  plan.predicted->stages.resize(plan.stages.size());
  write_document(folder / "plan.json", plan);
  const Words job = Words{"launch", "--plan", (folder / "plan.json").string()} + kJob;
  // Rank 1 waits for so long that nothing that the machine does besides is a likelier cause; those are named
  // in slowness_test, of figures that no machine has made.
  const Words slow = {"--disturb", "random:rank=1,probability=1,duration=40ms"};
  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const Outcome crowded = runtime(folder, job + slow + Words{"--output", (folder / "crowded").string()});
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  INFO(crowded.error << crowded.output);
  REQUIRE(crowded.code == 0);
  CHECK_THAT(crowded.error, Catch::Contains("warning: 2 ranks on 1 core: they take turns"));
  CHECK_THAT(crowded.output,
             Catch::Contains(" times slower than predicted; likely: rank 1 waits 80 ms a minibatch in the "
                             "mean because of --disturb"));
  const auto summary = read_document<Summary>(folder / "crowded" / "summary.json");
  CHECK(summary.cores == 1);
  for (const RankSummary& rank : summary.ranks) {
    REQUIRE(rank.times);
    CHECK(rank.times->minibatches == 12);
    CHECK(rank.times->cpu_seconds > 0);
    // Of the thread that computes, while it does: two clocks, read one after the other, hardly differ.
    CHECK(rank.times->cpu_seconds <= 2 * (rank.times->busy_seconds - rank.times->injected_seconds) + 0.05);
    CHECK(rank.times->busy_seconds <= rank.times->trained_seconds);
    CHECK(rank.times->load_wait_seconds <= rank.times->busy_seconds);
  }
  CHECK_THAT(runtime(folder, {"report", (folder / "crowded").string()}).output,
             Catch::Contains("crowded: ") && Catch::Contains(" times slower than predicted"));
  // As predicted: nothing is said.
  plan.predicted->minibatch_seconds = 1e3;
  plan.predicted->shared_cores = 1;
  write_document(folder / "plan.json", plan);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const Outcome planned = runtime(folder, job + Words{"--output", (folder / "planned").string()});
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  CHECK_THAT(planned.error, Catch::Contains("2 ranks on 1 core: they take turns, as the plan says"));
  CHECK_THAT(planned.output, !Catch::Contains("slower than predicted"));
  CHECK_THAT(runtime(folder, job + Words{"--output", (folder / "fast").string()}).output,
             !Catch::Contains("slower than predicted"));
}
