// Runs that freeze layers while they train, with real processes.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "graph/summary.h"
#include "tests/end_to_end/changing_runs.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

std::vector<int64_t> frozen_layers(const fs::path& run) {
  std::vector<int64_t> frozen;
  for (const auto& generation : read_document<Summary>(run / "summary.json").generations)
    frozen.push_back(generation.frozen_layers);
  return frozen;
}

}  // namespace

TEST_CASE("layers that are frozen as a rule says: verified, resumed, and repeated as known changes") {
  const TemporaryFolder folder;
  const std::vector<std::string> plans = {
      write_plan(folder, "a.json", {1, 1}), write_plan(folder, "b.json", {2, 1}),
      write_flush_plan(folder, "c.json", {1, 1}, "1f1b-flush"), write_plan(folder, "d.json", {1, 1, 1})};
  const auto [number, rule, when] =
      GENERATE(table<size_t, std::string, std::string>({{0, "alpha,alpha=0.4", "long"},
                                                        {1, "alpha,every=20", "always"},
                                                        {2, "alpha,alpha=0.6,every=16", "always"},
                                                        {3, "alpha,alpha=0.9,every=16", "long"},
                                                        {1, "gradient,every=16", "always"},
                                                        {0, "bounded", "long"},
                                                        {3, "manual,at=1@30+2@70", "always"},
                                                        {0, "none", "long"}}));
  if (when == "long" && !is_long()) return;
  const std::string& plan = plans[number];
  INFO(plan << " " << rule);
  const std::vector<std::string> words = {
      "--plan", plan, "--optimizer", "adam", "--checkpoint-every-minibatches", "24", "--checkpoint-keep",
      "100"};
  const fs::path run = folder / "run";
  finish(folder, run, words + std::vector<std::string>{"--adapt", "freeze:rule=" + rule});
  const Outcome verified = runtime(folder, {"verify", "--run", run.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
  if (rule == "none") {
    CHECK(frozen_layers(run) == std::vector<int64_t>{0});
    return;
  }
  if (rule == "manual,at=1@30+2@70") CHECK(frozen_layers(run) == std::vector<int64_t>{0, 1, 2});
  if (rule.rfind("gradient", 0) != 0) REQUIRE(fs::exists(run / "changes.json"));
  if (!fs::exists(run / "changes.json")) return;

  // As if it had been known.
  const size_t every = rule.find("every=");
  const std::string drains = every == std::string::npos ? "" : ",drain-every=" + rule.substr(every + 6);
  const fs::path known = folder / "known";
  finish(
      folder, known,
      words + std::vector<std::string>{"--adapt", "manual:file=" + (run / "changes.json").string() + drains});
  CHECK(losses(known) == losses(run));
  const std::string last = "minibatch-" + std::to_string(kMinibatches);
  CHECK(tensor_files(run / "checkpoints" / last) == tensor_files(known / "checkpoints" / last));

  // From a checkpoint on, before a change and behind it; rules that go by gradients see other intervals then.
  if (rule == "bounded" || rule.rfind("gradient", 0) == 0) return;
  for (const char* from : {"minibatch-24", "minibatch-48", "minibatch-72"}) {
    INFO(from);
    if (std::string(from) != "minibatch-48" && !is_long()) continue;
    const fs::path resumed = folder / (std::string("from-") + from);
    finish(folder, resumed,
           words + std::vector<std::string>{"--adapt", "freeze:rule=" + rule, "--resume",
                                            (run / "checkpoints" / from).string()});
    CHECK(tensor_files(run / "checkpoints" / last) == tensor_files(resumed / "checkpoints" / last));
  }
}

TEST_CASE(
    "a layer that is frozen is not trained again, and one that the model has not is refused before the "
    "start") {
  const TemporaryFolder folder;
  const std::string plan = write_plan(folder, "a.json", {1, 1});
  Launch many(folder, folder / "run", {"--plan", plan, "--adapt", "freeze:rule=manual,at=99@10"});
  CHECK(many.code() == 2);
  CHECK_THAT(many.process.error(), Catch::Contains("99 layers cannot be frozen"));
  Launch fewer(folder, folder / "run", {"--plan", plan, "--adapt", "freeze:rule=manual,at=2@10+1@20"});
  CHECK(fewer.code() == 2);
  CHECK_THAT(fewer.process.error(), Catch::Contains("stays so"));
}

TEST_CASE(
    "a change that freezes and moves layers preserves the function: evaluations under all plans are equal") {
  const TemporaryFolder folder;
  const std::string changes = write_changes(
      folder, {{24, write_plan(folder, "b.json", {2, 1}), 2}, {60, write_plan(folder, "c.json", {1}), 4}});
  const fs::path run = folder / "run";
  finish(folder, run,
         {"--plan", write_plan(folder, "a.json", {1, 1, 1}), "--adapt", changes, "--optimizer", "adam",
          "--checkpoint-every-minibatches", "12", "--checkpoint-keep", "100"});
  CHECK(frozen_layers(run) == std::vector<int64_t>{0, 2, 4});
  for (const char* at : {"minibatch-24", "minibatch-60"}) {
    std::set<std::string> said;
    for (int64_t k = 0; k < 3; ++k) {
      const Outcome outcome =
          runtime(folder, {"evaluate", "--config", (run / "run.json").string(), "--plan",
                           (run / ("generation-" + std::to_string(k) + ".plan.json")).string(), "--resume",
                           (run / "checkpoints" / at).string(), "--json"});
      INFO(outcome.error);
      REQUIRE(outcome.code == 0);
      Json evaluation = parse_json(outcome.output, "evaluation");
      said.insert(evaluation.at("loss").dump() + " " + evaluation.at("top1").dump());
    }
    CAPTURE(at);
    CHECK(said.size() == 1);
  }
}

TEST_CASE("replicas that a change brings in have equal weights right after it, and after their first step") {
  const TemporaryFolder folder;
  const std::string before = write_plan(folder, "a.json", {1, 1});
  for (const auto& replicas : {std::vector<int64_t>{2, 1}, {2, 2}, {4}}) {
    const std::string after = write_plan(folder, "b.json", replicas);
    for (const int64_t rest : {int64_t{1}, replicas[0]}) {
      CAPTURE(replicas, rest);
      const fs::path run = folder / "run";
      fs::remove_all(run);
      finish(folder, run,
             {"--plan", before, "--momentum", "0.9", "--adapt",
              write_changes(folder, {{kMinibatches - rest, after, 3}})});
      std::map<int64_t, std::set<std::string>> digests;
      for (const RankSummary& rank : read_document<Summary>(run / "summary.json").ranks)
        if (!rank.weights_digest.empty()) digests[rank.stage].insert(rank.weights_digest);
      CHECK(digests.size() == replicas.size());
      for (const auto& [stage, found] : digests) CHECK(found.size() == 1);
    }
  }
}

TEST_CASE("all layers but the head may freeze, and replicas may be more than an epoch has minibatches") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const auto trained = [&](const std::vector<int64_t>& replicas, const std::string& samples,
                           const std::string& rule) {
    fs::remove_all(run);
    const Outcome outcome =
        runtime(folder, {"launch", "--model", kEndlessModel, "--data",
                         "synthetic-images:image=8,samples=" + samples, "--batch-size", "8", "--epochs", "6",
                         "--plan", write_plan(folder, "plan.json", replicas), "--adapt",
                         "freeze:rule=" + rule, "--checkpoint-every-epochs", "1", "--output", run.string()});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    const Outcome verified = runtime(folder, {"verify", "--run", run.string()});
    INFO(verified.error << verified.output);
    CHECK(verified.code == 0);
  };
  trained({1, 1, 1}, "64", "manual,at=6@10");
  CHECK(frozen_layers(run) == std::vector<int64_t>{0, 6});
  trained({4}, "16", "alpha,alpha=0.5");
  CHECK(frozen_layers(run).back() == 6);
  trained({2, 1}, "8", "alpha,alpha=0.3");
}
