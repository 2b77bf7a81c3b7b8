// A whole training run in this process, on one rank: what it leaves in its folder, whatever was asked for.
#include "runtime/train/training.h"

#include <map>
#include <random>

#include "graph/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/runtime/train/small_job.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

struct DrawnRun {
  Run run;
  std::vector<int64_t> checkpoints;          // of the run folder, without those that were removed
  std::map<std::string, int64_t> evaluated;  // "epoch/minibatches": how often
};

// With epochs of 12 minibatches.
DrawnRun drawn(const TemporaryFolder& folder, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  DrawnRun d{small_run(folder), {}, {}};
  Run& run = d.run;
  run.minibatches = between(1, 40);
  run.seed = between(0, 1000);
  run.checkpoint.keep = 100;
  if (between(0, 1)) run.checkpoint.every_minibatches = between(1, 15);
  if (between(0, 2) == 0) run.checkpoint.every_epochs = between(1, 2);
  if (between(0, 1)) run.gradient_accumulation = between(1, 3);
  if (between(0, 1)) {
    run.evaluation_data = "synthetic-images:image=4,channels=1,samples=10,seed=3";
    if (between(0, 1)) run.evaluate_every_minibatches = between(1, 15);
  }
  if (between(0, 2) == 0) run.recovery.on_loss = "restart";
  RunLength length;
  length.minibatches = run.minibatches;
  length.minibatches_per_epoch = 12;
  length.evaluate_every = run.evaluate_every_minibatches;
  length.period = run.gradient_accumulation;
  for (int64_t n = 1; n <= run.minibatches; ++n) {
    if (checkpoint_due(n, run.checkpoint, length.period, length)) d.checkpoints.push_back(n);
    if (run.evaluation_data.empty()) continue;
    if (n == run.minibatches || n % 12 == 0) ++d.evaluated[std::to_string((n - 1) / 12) + "/0"];
    if (evaluation_within_epoch(n, length)) ++d.evaluated[std::to_string(n / 12) + "/" + std::to_string(n)];
  }
  return d;
}

std::map<std::string, int64_t> evaluations_of(const std::vector<Json>& lines) {
  std::map<std::string, int64_t> evaluated;
  for (const Json& line : lines) {
    if (!line.contains("evaluation")) continue;
    const Json& evaluation = line["evaluation"];
    ++evaluated[std::to_string(evaluation["epoch"].get<int64_t>()) + "/" +
                std::to_string(evaluation.value("minibatches", int64_t{0}))];
  }
  return evaluated;
}

}  // namespace

TEST_CASE("training: a run has each minibatch, evaluation and checkpoint that was asked for, once") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const TemporaryFolder folder;
    const DrawnRun d = drawn(folder, seed);
    CAPTURE(seed, document_text(d.run));
    train(prepare_job(d.run, 1), only_rank());
    const std::vector<Json> lines = metrics_of(d.run);
    std::vector<int64_t> minibatches;
    for (const Json& line : lines)
      if (line.contains("minibatch") && line.contains("loss") && !line.contains("evaluation"))
        minibatches.push_back(line["minibatch"]);
    REQUIRE(static_cast<int64_t>(minibatches.size()) == d.run.minibatches);
    for (size_t k = 0; k < minibatches.size(); ++k) CHECK(minibatches[k] == static_cast<int64_t>(k));
    CHECK(evaluations_of(lines) == d.evaluated);
    std::vector<int64_t> checkpoints;
    for (const auto& checkpoint : list_checkpoints(d.run.output)) {
      checkpoints.push_back(minibatch_of(checkpoint).value());
      open_checkpoint(checkpoint);
    }
    std::sort(checkpoints.begin(), checkpoints.end());
    CHECK(checkpoints == d.checkpoints);
    const Json summary =
        parse_json(read_file(std::filesystem::path(d.run.output) / "summary.json"), "summary");
    CHECK(summary["status"] == "done");
    CHECK(std::filesystem::exists(std::filesystem::path(d.run.output) / "model.safetensors"));
  }
}

TEST_CASE("training: a run that goes on from any of its checkpoints ends with the weights of the whole one") {
  const TemporaryFolder folder;
  Run run = small_run(folder);
  run.checkpoint.every_minibatches = 5;
  run.checkpoint.keep = 100;
  run.optimizer.momentum = 0.9;
  train(prepare_job(run, 1), only_rank());
  const std::string weights = read_file(std::filesystem::path(run.output) / "model.safetensors");
  for (const auto& checkpoint : list_checkpoints(run.output)) {
    Run later = run;
    later.resume = checkpoint.string();
    later.output = (folder / "later").string();
    CAPTURE(checkpoint.string());
    Job job = prepare_job(later, 1);
    job.overwrite = true;
    train(job, only_rank());
    CHECK((read_file(std::filesystem::path(later.output) / "model.safetensors") == weights));
  }
}

TEST_CASE(
    "training: a loss that is not finite ends the run with where it came from, and the folder says so") {
  const TemporaryFolder folder;
  Run run = small_run(folder);
  run.optimizer.learning_rate = 1e30;
  CHECK_THROWS_AS(train(prepare_job(run, 1), only_rank()), NumericalError);
  const Json summary = parse_json(read_file(std::filesystem::path(run.output) / "summary.json"), "summary");
  CHECK(summary["status"] == "failed");
  CHECK_FALSE(std::filesystem::exists(std::filesystem::path(run.output) / "model.safetensors"));
}
