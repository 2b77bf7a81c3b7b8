// `train --emulate PLAN` against `launch --plan PLAN`: one process writes what the ranks write.
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>

#include "graph/summary.h"
#include "tests/end_to_end/changing_runs.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

Outcome emulated(const TemporaryFolder& folder, const fs::path& output, const std::string& plan,
                 const Words& more) {
  return runtime(folder, Words{"train", "--emulate", plan} + job(output, more));
}

// Kinds of runs: a plan, and options that go with it.
struct Kind {
  std::string name;
  std::string plan;
  Words options;
};

std::string write(const TemporaryFolder& folder, const std::string& name, Plan plan,
                  const std::string& schedule, const std::string& weights, int64_t microbatches) {
  plan.schedule = schedule;
  plan.weights = weights;
  plan.microbatches = microbatches;
  if (weights == "flush")
    for (Stage& stage : plan.stages) stage.in_flight = std::max(stage.in_flight, microbatches);
  write_document(folder / (name + ".json"), plan);
  return (folder / (name + ".json")).string();
}

std::vector<Kind> kinds(const TemporaryFolder& folder) {
  const Graph graph = graph_of(kEndlessModel, 8, folder);
  const auto even = [&](const std::vector<int64_t>& replicas) { return even_plan(graph, replicas); };
  Plan shared = even({2, 1}), split = even({2, 2});
  shared.stages[0].shares = {2, 1};
  split.stages[0].split = {3, 1};
  split.stages[1].split = {1, 1};
  const Words momentum = {"--momentum", "0.9"};
  return {
      {"stash", write(folder, "stash", even({1, 1, 1}), "1f1b", "stash", 1),
       momentum + Words{"--delay-correction", "pipemare-t1"}},
      {"vertical",
       write(folder, "vertical", even({2, 2}), "1f1b", "vertical", 1),
       {"--optimizer", "adamw", "--gradient-accumulation", "2"}},
      {"2bw",
       write(folder, "2bw", even({1, 2}), "1f1b", "2bw", 4),
       {"--optimizer", "nadam", "--delay-correction", "error-feedback"}},
      {"2bw, two replicas", write(folder, "2bw-two", even({2, 1}), "1f1b", "2bw", 5),
       momentum + Words{"--optimizer", "muon", "--delay-correction", "dc"}},
      {"paci", write(folder, "paci", even({1, 2, 1}), "1f1b", "paci", 1), momentum},
      {"predict",
       write(folder, "predict", even({1, 2, 1}), "1f1b", "predict", 1),
       {"--optimizer", "adamw", "--gradient-accumulation", "2"}},
      {"flush", write(folder, "flush", even({2, 1}), "1f1b-flush", "flush", 4),
       momentum + Words{"--gradient-clipping-norm", "0.2"}},
      {"adafactor",
       write(folder, "adafactor", even({1, 2}), "1f1b", "stash", 1),
       {"--optimizer", "adafactor", "--weight-decay", "0.01"}},
      {"gpipe",
       write(folder, "gpipe", even({1, 1}), "gpipe", "flush", 3),
       {"--optimizer", "muon", "--momentum", "0.95"}},
      {"replicas", write(folder, "replicas", even({2, 3, 1}), "1f1b", "stash", 1),
       momentum + Words{"--gradient-accumulation", "3", "--learning-rate-scaling", "pipedream"}},
      {"shares", write(folder, "shares", shared, "1f1b", "stash", 1),
       Words{"--optimizer", "adam", "--learning-rate-policy", "cosine", "--warmup-minibatches", "5"}},
      {"split", write(folder, "split", split, "1f1b", "stash", 1),
       momentum + Words{"--gradient-clipping-norm", "0.3"}},
      {"interleaved", write_interleaved_plan(folder), {"--optimizer", "lion", "--learning-rate", "0.001"}},
      {"zb", write(folder, "zb", even({1, 1, 1}), "zb-h1", "flush", 4), momentum},
  };
}

Summary summary_of(const fs::path& run) { return read_document<Summary>(run / "summary.json"); }

}  // namespace

TEST_CASE("emulate: one process writes the losses, evaluations, weights and checkpoints of the ranks") {
  const TemporaryFolder folder;
  const Words common = {"--checkpoint-every-minibatches", "12", "--checkpoint-keep", "99"};
  for (const Kind& kind : kinds(folder)) {
    CAPTURE(kind.name);
    const fs::path real = folder / (kind.name + ".real"), one = folder / (kind.name + ".one");
    finish(folder, real, common + kind.options + Words{"--plan", kind.plan});
    const Outcome outcome = emulated(folder, one, kind.plan, common + kind.options);
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    CHECK(metrics(one) == metrics(real));
    CHECK(tensor_files(one) == tensor_files(real));
    size_t checkpoints = 0;
    for (const auto& entry : fs::directory_iterator(real / "checkpoints")) {
      CAPTURE(entry.path().filename());
      CHECK(tensor_files(one / "checkpoints" / entry.path().filename()) == tensor_files(entry.path()));
      ++checkpoints;
    }
    CHECK(checkpoints >= 4);
    CHECK(summary_of(one).emulated);
    CHECK(summary_of(one).world_size == 1);
    CHECK_FALSE(summary_of(real).emulated);
  }
}

TEST_CASE(
    "pipemare-t1: the log has the rates that updates of the last stage are made at, with its division") {
  const TemporaryFolder folder;
  const Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1, 1});
  const std::string file = write(folder, "plan", plan, "1f1b", "vertical", 1);
  const Words options = {"--momentum", "0.9", "--delay-correction", "pipemare-t1"};
  REQUIRE(emulated(folder, folder / "one", file, options).code == 0);
  finish(folder, folder / "real", options + Words{"--plan", file});
  const std::vector<Json> lines = metrics(folder / "real");
  CHECK(lines == metrics(folder / "one"));
  const auto trained =
      std::count_if(lines.begin(), lines.end(), [](const Json& line) { return line.contains("minibatch"); });
  REQUIRE(trained > 12);
  const auto annealing = static_cast<double>(trained / 4);
  const double rate = lines[0]["learning_rate"];
  for (int64_t k = 0; k < trained; ++k) {
    // As the first stage, it reads versions of two updates before.
    const double delay = static_cast<double>(std::clamp<int64_t>(k, 1, 2));
    const double power = 1 - std::min(1.0, static_cast<double>(k) / annealing);
    CHECK(lines[static_cast<size_t>(k)]["learning_rate"].get<double>() ==
          Approx(rate * std::pow(delay, -power)));
  }
}

TEST_CASE(
    "emulate: a run goes on from a checkpoint of ranks, ranks from one of its, and a signal leaves one") {
  const TemporaryFolder folder;
  const Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 2, 1});
  const std::string file = write(folder, "plan", plan, "1f1b", "stash", 1);
  const Words rules = {"--momentum", "0.9", "--checkpoint-every-minibatches", "10"};
  const fs::path whole = folder / "whole";
  REQUIRE(emulated(folder, whole, file, rules).code == 0);
  const auto check = [&](const fs::path& run) {
    CHECK(metrics(run) == metrics(whole));
    CHECK(tensor_files(run) == tensor_files(whole));
  };
  // Emulated, then emulated; 40 lies within an epoch, with minibatches in flight.
  const fs::path again = folder / "again";
  REQUIRE(emulated(folder, again, file, rules + Words{"--minibatches", "43"}).code == 0);
  const Words from_40 = {"--resume", (again / "checkpoints/minibatch-40").string()};
  REQUIRE(emulated(folder, folder / "one", file, rules + from_40).code == 0);
  check(folder / "one");
  // Emulated, then ranks.
  finish(folder, folder / "ranks", rules + from_40 + Words{"--plan", file});
  check(folder / "ranks");
  // Ranks, then emulated.
  finish(folder, folder / "real", rules + Words{"--plan", file, "--minibatches", "43"});
  REQUIRE(emulated(folder, folder / "then", file,
                   rules + Words{"--resume", (folder / "real/checkpoints/minibatch-40").string()})
              .code == 0);
  check(folder / "then");

  const fs::path stopped = folder / "stopped";
  const Words words = Words{program("runtime"), "train", "--emulate", file} + job(stopped, rules);
  {
    Process process(words, folder / "out", folder / "err");
    REQUIRE(eventually(std::chrono::seconds(60),
                       [&] { return complete_lines(stopped / "metrics.jsonl").size() > 4; }));
    process.signal(SIGTERM);
    const int code = process.wait(std::chrono::seconds(60));
    REQUIRE((code == 143 || code == 0));  // it may have come to its end
  }
  REQUIRE(emulated(folder, stopped, file, rules + Words{"--resume", "latest"}).code == 0);
  check(stopped);
}

TEST_CASE("emulate: plans that change at known minibatches, and verify of such a run") {
  const TemporaryFolder folder;
  const Graph graph = graph_of(kEndlessModel, 8, folder);
  const std::string a = write(folder, "a", even_plan(graph, {2, 1}), "1f1b", "stash", 1);
  write(folder, "b", even_plan(graph, {1, 1, 1}), "1f1b", "stash", 1);
  const Words rules = {"--momentum", "0.9",     "--checkpoint-every-epochs",
                       "1",          "--adapt", write_changes(folder, {{21, "b.json"}, {64, "a.json"}})};
  finish(folder, folder / "real", rules + Words{"--plan", a});
  const Outcome outcome = emulated(folder, folder / "one", a, rules);
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  CHECK(metrics(folder / "one") == metrics(folder / "real"));
  CHECK(tensor_files(folder / "one") == tensor_files(folder / "real"));
  const Outcome verified = runtime(folder, {"verify", "--run", (folder / "one").string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
}

TEST_CASE("emulate: what it cannot do is refused before anything starts") {
  const TemporaryFolder folder;
  const Graph graph = graph_of(kEndlessModel, 8, folder);
  const std::string plan = write(folder, "plan", even_plan(graph, {2, 2}), "1f1b", "stash", 1);
  const auto refused = [&](const Words& more) {
    const Outcome outcome = emulated(folder, folder / "run", plan, more);
    CHECK((outcome.code == 2 || outcome.code == 3));
    CHECK_FALSE(fs::exists(folder / "run"));
    return outcome.error;
  };
  CHECK_THAT(refused({"--sync", "partial-reduce"}),
             Catch::Contains("pipelines side by side are not emulated"));
  CHECK_THAT(refused({"--sync", "hetpipe"}), Catch::Contains("not emulated"));
  CHECK_THAT(refused({"--plan", plan}), Catch::Contains("each names a plan"));
  CHECK_THAT(refused({"--on-loss", "restart"}), Catch::Contains("--on-loss"));
  CHECK_THAT(refused({"--disturb", "fixed:rank=1,factor=3"}), Catch::Contains("disturb"));
  CHECK_THAT(refused({"--adapt", "slow:plan=" + plan}), Catch::Contains("decides"));
  CHECK_THAT(refused({"--world-size", "2", "--rank", "0"}), Catch::Contains("rank"));
  const Outcome missing = emulated(folder, folder / "run", (folder / "none.json").string(), {});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.error, Catch::Contains("none.json"));
}
