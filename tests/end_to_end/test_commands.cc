// verify, evaluate and predict as processes.
#include <catch2/catch.hpp>
#include <fstream>

#include "graph/run.h"
#include "graph/summary.h"
#include "tests/end_to_end/jobs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kJob = {
    "--model",      kEndlessModel, "--data",     "synthetic-images:image=8,samples=96",
    "--batch-size", "8",           "--momentum", "0.9"};
const std::vector<std::string> kEvaluated = {"--evaluation-data", "synthetic-images:image=8,samples=50"};

struct Outcome {
  int code = 0;
  std::string output;
  std::string error;
};

Outcome run(const TemporaryFolder& folder, const std::vector<std::string>& words) {
  Process process(std::vector<std::string>{program("runtime")} + words, folder / "out", folder / "err",
                  {{"TMPDIR", fs::path(folder / "").string()}});
  const int code = process.wait(240s);
  return {code, process.output(), process.error()};
}

Json json_of(const Outcome& outcome) {
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  return parse_json(outcome.output, "standard output");
}

std::string write_plan(const TemporaryFolder& folder, const std::string& name,
                       const std::vector<int64_t>& replicas, const std::string& schedule = "1f1b",
                       const std::string& weights = "stash", int64_t microbatches = 1) {
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
  plan.schedule = schedule;
  plan.weights = weights;
  plan.microbatches = microbatches;
  for (Stage& stage : plan.stages)
    if (schedule == "gpipe") stage.in_flight = microbatches;
  write_document(folder / name, plan);
  return (folder / name).string();
}

std::vector<std::string> scratch_folders(const TemporaryFolder& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder / ""))
    if (entry.path().filename().string().rfind("pipewright-", 0) == 0) found.push_back(entry.path());
  return found;
}

}  // namespace

TEST_CASE("verify: every rule equals the serial reference, what computes the same as one device is near it") {
  const TemporaryFolder folder;
  struct Case {
    std::vector<int64_t> replicas;
    std::string schedule, weights;
    int64_t microbatches;
    bool one_device;
    std::vector<std::string> more;
  };
  const std::vector<Case> cases = {
      {{2, 1}, "1f1b", "stash", 1, false, {"--learning-rate-policy", "cosine"}},
      {{1, 1, 1}, "1f1b", "2bw", 3, false, {"--optimizer", "adam", "--momentum=0", "--learning-rate=1e-3"}},
      {{1, 3}, "1f1b-flush", "flush", 4, true, {"--gradient-clipping-norm", "0.5"}},
      {{3}, "1f1b", "stash", 1, true, {"--transport", "gloo", "--gradient-accumulation", "2"}}};
  for (const Case& c : cases) {
    auto words = kJob;
    if (c.more[0] == "--optimizer") words.resize(words.size() - 2);
    const std::string plan =
        write_plan(folder, "plan.json", c.replicas, c.schedule, c.weights, c.microbatches);
    const Json json =
        json_of(run(folder, std::vector<std::string>{"verify", "--json", "--plan", plan} + words + c.more +
                                std::vector<std::string>{"--minibatches", "13"}));
    CAPTURE(json.dump());
    CHECK(json["verdict"] == "equal");
    CHECK(json["minibatches"] == 13);
    CHECK(json["serial_reference"]["equal"] == true);
    CHECK(json["one_device"].is_null() == !c.one_device);
    if (!c.one_device) continue;
    CHECK(json["one_device"]["parameters"].size() == 14);
    CHECK(json["one_device"]["model"].get<double>() < 1e-4);
    CHECK(json["one_device"]["losses"].get<double>() < 1e-5);
  }
  CHECK(scratch_folders(folder).empty());
}

TEST_CASE(
    "verify --run: a finished and resumed run holds, changed documents and losses do not, with exit code 6") {
  const TemporaryFolder folder;
  const fs::path output = folder / "run";
  const auto train = [&](const std::vector<std::string>& more) {
    const Outcome outcome = run(
        folder,
        std::vector<std::string>{"launch", "--plan", write_plan(folder, "plan.json", {1, 1})} + kJob +
            std::vector<std::string>{"--output", output.string(), "--checkpoint-every-minibatches", "10"} +
            more);
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
  };
  train({"--epochs", "2"});
  const std::vector<std::string> verify = {"verify", "--run", output.string()};
  const Outcome whole = run(folder, verify);
  INFO(whole.error);
  CHECK(whole.code == 0);
  CHECK(whole.output.find("minibatches 0 to 23") != std::string::npos);
  CHECK(whole.output.find("equal bit for bit: losses equal") != std::string::npos);

  train({"--epochs", "3", "--resume", "latest"});
  // Its beginning is not in run.json any more: from the oldest checkpoint that is left.
  const Outcome resumed = run(folder, verify);
  INFO(resumed.error);
  CHECK(resumed.code == 0);
  CHECK(resumed.output.find("to 35") != std::string::npos);

  const auto document = read_document<Run>(output / "run.json");
  Run changed = document;
  changed.optimizer.learning_rate *= 1.0001;
  write_document(output / "run.json", changed);
  const Outcome different = run(folder, verify);
  CHECK(different.code == 6);
  CAPTURE(different.error);
  CHECK(different.error.find("verify: parameter \"") != std::string::npos);
  CHECK(different.error.find("of stage 0 differs from the serial reference at [0") != std::string::npos);
  CHECK(different.error.find("the first loss that differs is that of minibatch 2") != std::string::npos);
  write_document(output / "run.json", document);

  // One digit of one loss.
  std::string metrics = read_file(output / "metrics.jsonl");
  const size_t line = metrics.find("{\"minibatch\":33,");
  REQUIRE(line != std::string::npos);
  const size_t digit = metrics.find("\"loss\":", line) + 7;
  metrics[digit] = metrics[digit] == '1' ? '2' : '1';
  write_file(output / "metrics.jsonl", metrics);
  const Outcome loss = run(folder, verify + std::vector<std::string>{"--json"});
  CHECK(loss.code == 6);
  CHECK(parse_json(loss.output, "output")["serial_reference"]["first_loss"]["minibatch"] == 33);
  CHECK(loss.error.find("all weights are equal") != std::string::npos);
}

TEST_CASE("verify goes on from a checkpoint, and begins with given weights") {
  const TemporaryFolder folder;
  const std::string plan = write_plan(folder, "plan.json", {1, 2});
  const Outcome first =
      run(folder, std::vector<std::string>{"launch", "--plan", plan, "--optimizer", "adam"} +
                      std::vector<std::string>(kJob.begin(), kJob.end() - 2) +
                      std::vector<std::string>{"--output", (folder / "run").string(), "--minibatches", "6",
                                               "--checkpoint-every-epochs", "1"});
  INFO(first.error);
  REQUIRE(first.code == 0);
  const std::string checkpoint = (folder / "run" / "checkpoints" / "minibatch-6").string();
  const Json resumed =
      json_of(run(folder, std::vector<std::string>{"verify", "--json", "--plan", plan, "--optimizer", "adam",
                                                   "--minibatches", "20", "--resume", checkpoint} +
                              std::vector<std::string>(kJob.begin(), kJob.end() - 2)));
  CHECK(resumed["first_minibatch"] == 6);
  CHECK(resumed["minibatches"] == 14);
  CHECK(resumed["verdict"] == "equal");

  const std::string weights = (folder / "weights.safetensors").string();
  REQUIRE(run(folder, {"checkpoint", "export", checkpoint, "--output", weights}).code == 0);
  const Json given =
      json_of(run(folder, std::vector<std::string>{"verify", "--json", "--plan", plan, "--minibatches", "5",
                                                   "--precision", "bfloat16", "--initial-weights", weights} +
                              kJob));
  CHECK(given["verdict"] == "equal");
  // What it trained left the run folder alone.
  CHECK(fs::exists(folder / "run" / "summary.json"));
  CHECK_FALSE(fs::exists("runs/latest/verify.json"));
}

TEST_CASE("evaluate gives the numbers of the training run's own evaluation, under its plan and any other") {
  const TemporaryFolder folder;
  const fs::path output = folder / "run";
  const Outcome trained = run(
      folder, std::vector<std::string>{"launch", "--plan", write_plan(folder, "plan.json", {2, 1})} + kJob +
                  kEvaluated +
                  std::vector<std::string>{"--output", output.string(), "--checkpoint-every-epochs", "1"});
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  const std::string checkpoint = (output / "checkpoints" / "minibatch-12").string();
  const auto own = parse_json(complete_lines(output / "metrics.jsonl").back(), "metrics")["evaluation"];
  const auto check = [&](const std::vector<std::string>& words) {
    CAPTURE(words);
    const Json json = json_of(run(folder, std::vector<std::string>{"evaluate", "--json"} + words));
    CHECK(json["loss"] == own["loss"]);
    CHECK(json["top1"] == own["top1"]);
    CHECK(json["samples"] == 50);
  };
  check({"--config", (output / "run.json").string(), "--resume", "latest"});
  check({"--resume", checkpoint});
  check({"--resume", checkpoint, "--plan", write_plan(folder, "other.json", {1, 2, 1})});
  const std::string weights = (folder / "weights.safetensors").string();
  REQUIRE(run(folder, {"checkpoint", "export", output.string(), "--output", weights}).code == 0);
  check(
      std::vector<std::string>{"--model", kEndlessModel, "--batch-size", "8", "--initial-weights", weights} +
      kEvaluated);
  CHECK(fs::exists(output / "summary.json"));  // the run is as it was
  CHECK(scratch_folders(folder).empty());

  // Two ranks that somebody else has started.
  const std::string port = std::to_string(20000 + ::getpid() % 20000);
  const std::vector<std::string> rank = {
      "evaluate",     "--resume", checkpoint,      "--plan", write_plan(folder, "two.json", {1, 1}),
      "--world-size", "2",        "--master-port", port,     "--rank"};
  Process second(std::vector<std::string>{program("runtime")} + rank + std::vector<std::string>{"1"},
                 folder / "out1", folder / "err1");
  Process zero(std::vector<std::string>{program("runtime")} + rank + std::vector<std::string>{"0", "--json"},
               folder / "out0", folder / "err0");
  CHECK(zero.wait(120s) == 0);
  INFO(zero.error());
  CHECK(second.wait(60s) == 0);
  CHECK(second.output().empty());
  CHECK(parse_json(zero.output(), "output")["loss"] == own["loss"]);
}

TEST_CASE("predict writes the same bytes under every plan, they say what evaluate says") {
  const TemporaryFolder folder;
  const fs::path output = folder / "run";
  REQUIRE(run(folder, std::vector<std::string>{"train", "--output", output.string(),
                                               "--checkpoint-every-epochs", "1"} +
                          kJob + kEvaluated)
              .code == 0);
  const std::string checkpoint = (output / "checkpoints" / "minibatch-12").string();
  std::vector<std::string> scores, classes;
  for (const auto& replicas : {std::vector<int64_t>{1}, {1, 1}, {1, 1, 1}, {1, 2}, {3}}) {
    const std::string plan = write_plan(folder, "plan.json", replicas);
    const Outcome outcome = run(
        folder, {"predict", "--resume", checkpoint, "--plan", plan, "--predictions",
                 (folder / "p.safetensors").string(), "--classes", (folder / "p.jsonl").string(), "--json"});
    CHECK(json_of(outcome)["samples"] == 50);
    scores.push_back(read_file(folder / "p.safetensors"));
    classes.push_back(read_file(folder / "p.jsonl"));
    CHECK(scores.back() == scores.front());
    CHECK(classes.back() == classes.front());
  }
  const auto own = parse_json(complete_lines(output / "metrics.jsonl").back(), "metrics")["evaluation"];
  int64_t hits = 0;
  const auto lines = complete_lines(folder / "p.jsonl");
  REQUIRE(lines.size() == 50);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json line = parse_json(lines[i], "p.jsonl");
    CHECK(line["sample"] == i);
    hits += line["class"] == line["label"];
  }
  CHECK(static_cast<double>(hits) / 50 == own["top1"].get<double>());
}

TEST_CASE("what the commands refuse, and with which words") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& words, const std::string& text) {
    const Outcome outcome = run(folder, words);
    CAPTURE(words, outcome.error);
    CHECK(outcome.code == 2);
    CHECK(outcome.error.find(text) != std::string::npos);
  };
  refused(std::vector<std::string>{"evaluate"} + kJob + kEvaluated,
          "no weights to run: neither --resume nor --initial-weights is given");
  refused(std::vector<std::string>{"evaluate", "--resume", "latest", "--output", (folder / "none").string()} +
              kJob + kEvaluated,
          "there is no checkpoint in");
  refused(std::vector<std::string>{"evaluate", "--resume", "latest"} + kJob, "there is no evaluation data");
  refused(std::vector<std::string>{"predict"} + kJob, "neither --predictions nor --classes is given");
  refused({"verify", "--run", (folder / "none").string()}, "is no run folder");
  refused({"verify", "--run", (folder / "none").string(), "--plan", "x"}, "--plan does not go with --run");
  refused(std::vector<std::string>{"verify", "--tolerance=-1", "--minibatches", "1"} + kJob, "--tolerance");
}
