// Runs whose replicas split minibatches, with real processes: through checkpoints, changes of the plan,
// evaluation.
#include <catch2/catch.hpp>

#include "graph/plan_changes.h"
#include "tests/end_to_end/changing_runs.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

// As many replicas as weights; none: one replica.
Plan split_plan(const TemporaryFolder& folder, const std::vector<std::vector<int64_t>>& splits) {
  std::vector<int64_t> replicas;
  for (const auto& weights : splits)
    replicas.push_back(std::max<int64_t>(1, static_cast<int64_t>(weights.size())));
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
  for (size_t s = 0; s < splits.size(); ++s) plan.stages[s].split = splits[s];
  return plan;
}

std::string write(const TemporaryFolder& folder, const std::string& name, const Plan& plan) {
  write_document(folder / name, plan);
  return (folder / name).string();
}

}  // namespace

TEST_CASE(
    "split: a run to stages that split and back ends as runs that are stopped there and resumed, as a run "
    "that is "
    "interrupted on the way, and as the serial reference") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {1, 2});
  Plan both = split_plan(folder, {{3, 1}, {1, 2}});
  both.stages[0].in_flight = 3;
  both.stages[0].recompute = true;
  both.stages[0].recompute_ratio = 0.5;
  const std::string b = write(folder, "b.json", both);
  const std::string c = write(folder, "c.json", split_plan(folder, {{}, {1, 1, 1}}));
  const std::vector<std::string> rules = {
      "--momentum", "0.9", "--gradient-clipping-norm", "0.5", "--checkpoint-every-epochs", "3"};
  const fs::path stopped = folder / "stopped";
  const auto part = [&](const std::string& plan, int64_t until) {
    finish(folder, stopped,
           rules + std::vector<std::string>{"--plan", plan, "--minibatches", std::to_string(until),
                                            "--resume", "latest"});
  };
  part(a, 21);
  part(b, 64);
  part(c, 75);
  part(a, 96);
  const fs::path changed = folder / "changed";
  const std::vector<std::string> plans = {
      "--plan", a, "--adapt", write_changes(folder, {{21, "b.json"}, {64, "c.json"}, {75, "a.json"}})};
  finish(folder, changed, rules + plans);
  CHECK(losses(changed).size() == kMinibatches);
  CHECK(metrics(changed) == metrics(stopped));
  const std::string last = "checkpoints/minibatch-" + std::to_string(kMinibatches);
  CHECK(tensor_files(changed / last) == tensor_files(stopped / last));

  // Interrupted while minibatches are in flight in stages that split: older versions of the weights are read.
  const fs::path resumed = folder / "resumed";
  const auto every = rules + plans + std::vector<std::string>{"--checkpoint-every-minibatches", "5"};
  finish(folder, resumed, every + std::vector<std::string>{"--minibatches", "43"});
  finish(folder, resumed,
         every + std::vector<std::string>{"--resume", (resumed / "checkpoints/minibatch-40").string()});
  CHECK(losses(resumed) == losses(changed));
  CHECK(tensor_files(resumed / last) == tensor_files(changed / last));

  const Outcome verified = runtime(folder, {"verify", "--run", changed.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, Catch::Contains("equal bit for bit"));
}

TEST_CASE("split: what a run cannot do is refused before it starts") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& plan, const std::vector<std::string>& more = {}) {
    const Outcome outcome =
        runtime(folder, std::vector<std::string>{"launch"} + job(folder / "run", {"--plan", plan}) + more);
    CHECK((outcome.code == 2 || outcome.code == 3));
    CHECK(!fs::exists(folder / "run"));
    return outcome.error;
  };
  const std::string two = write(folder, "two.json", split_plan(folder, {{1, 1}, {1, 1}}));
  CHECK_THAT(refused(two, {"--sync", "none"}), Catch::Contains("stage 0 has `split`"));
  CHECK_THAT(refused(write(folder, "few.json", split_plan(folder, {{1, 100}}))),
             Catch::Contains("replica 0 gets none"));
  const std::string a = write_plan(folder, "a.json", {1, 1});
  CHECK_THAT(refused(a, {"--adapt", write_changes(folder, {{5, "few.json"}})}),
             Catch::Contains("few.json: plan: stage 0 has `split`"));
}

// Programs that were reported to train otherwise in parts, without a word.
TEST_CASE("split: what a loss divides by is read from the program, or it is refused") {
  const fs::path reported = shared_data() / "reported" / "split_wrong_gradient";
  if (!fs::exists(reported)) return skip("no " + reported.string());
  const TemporaryFolder folder;
  const auto train = [&](const std::string& command, const std::string& program, const Words& more) {
    const fs::path run = folder / (program + "." + command);
    const Outcome outcome =
        runtime(folder, Words{command, "--model", (reported / (program + ".pt2")).string(), "--data",
                              "tensors:file=" + (reported / "data.safetensors").string(), "--batch-size", "4",
                              "--minibatches", "6", "--learning-rate", "0.05", "--output", run.string()} +
                            more);
    return std::pair(outcome, run);
  };
  for (const char* program : {"mean", "sum", "weighted", "masked", "ignore0"}) {
    CAPTURE(program);
    const auto [one, alone] = train("train", program, {});
    const auto [parts, split] =
        train("launch", program, {"--plan", (reported / (std::string(program) + ".plan.json")).string()});
    INFO(one.error << parts.error);
    REQUIRE(one.code == 0);
    REQUIRE(parts.code == 0);
    const auto expected = losses(alone), got = losses(split);
    REQUIRE(got.size() == 6);
    for (size_t k = 0; k < got.size(); ++k) CHECK(got[k] == Approx(expected[k]).epsilon(1e-5));
  }
  for (const char* program : {"softmax0", "cumsum0"}) {
    const auto [refused, run] =
        train("launch", program, {"--plan", (reported / (std::string(program) + ".plan.json")).string()});
    CHECK(refused.code == 3);
    CHECK_THAT(refused.error, Catch::Contains("computes along dimension 0, which counts samples"));
    CHECK(!fs::exists(run));
  }
}
