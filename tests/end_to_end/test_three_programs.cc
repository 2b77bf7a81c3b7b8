// Profile, plan, train: the way of a user, on real images.
#include <catch2/catch.hpp>

#include "graph/profile.h"
#include "graph/summary.h"
#include "tests/end_to_end/jobs.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

TEST_CASE("the three programs with 4 ranks on Fashion-MNIST: the loss falls and the accuracy beats 75 %") {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    return skip("dataset-fashion-mnist is not installed: scripts/setup installs it");
  }
  const TemporaryFolder folder;
  const auto step = [&](const std::vector<std::string>& words) {
    Process process(words, folder / "out", folder / "err");
    const int code = process.wait(300s);
    CAPTURE(words, process.error());
    REQUIRE(code == 0);
  };
  const std::string model = "convnet:width=8";
  const auto profile = (folder / "profile.json").string();
  step({program("profiler"), "--model", model, "--batch-size", "32", "--data", "fashion-mnist", "--warmup",
        "2", "--repeats", "5", "--output", profile});
  // A link so slow that shipping gradients of every layer does not pay: the plan has stages.
  step({program("optimizer"), "--profile", profile, "--gpus", "4", "--strategy", "hybrid", "--bandwidths",
        "2GB/s", "--output", folder.path().string()});
  const Plan plan = read_document<Plan>(folder / "gpus=4.json");
  CHECK(plan.stages.size() >= 2);
  CHECK(plan.profile_digest == document_digest(read_document<Profile>(profile)));
  step({program("optimizer"), "check", "--plan", (folder / "gpus=4.json").string(), "--profile", profile});
  step({program("runtime"),
        "launch",
        "--model",
        model,
        "--data",
        "fashion-mnist",
        "--evaluation-data",
        "fashion-mnist",
        "--plan",
        (folder / "gpus=4.json").string(),
        "--batch-size",
        "32",
        "--minibatches",
        "700",
        "--learning-rate",
        "0.02",
        "--momentum",
        "0.9",
        "--output",
        (folder / "run").string()});

  const auto summary = read_document<Summary>(folder / "run" / "summary.json");
  CHECK(summary.status == "done");
  CHECK(summary.world_size == plan.world_size);
  CHECK(summary.predicted_minibatch_seconds > 0);
  REQUIRE(summary.evaluation);
  CHECK(summary.evaluation->samples == 10000);
  CHECK(summary.evaluation->top1 > 0.75);
  const auto lines = complete_lines(folder / "run" / "metrics.jsonl");
  const auto loss_of = [&](size_t first) {
    double sum = 0;
    for (size_t i = first; i < first + 50; ++i)
      sum += parse_json(lines.at(i), "metrics")["loss"].get<double>();
    return sum / 50;
  };
  CHECK(loss_of(650) < 0.6 * loss_of(0));
}
