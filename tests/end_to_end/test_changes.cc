// Runs whose plan changes, with real processes. PIPEWRIGHT_MANY_CHANGES sets how often it does in one of
// them.
#include <catch2/catch.hpp>
#include <cmath>

#include "graph/plan_changes.h"
#include "graph/profile.h"
#include "graph/summary.h"
#include "optimizer/plan/plan_sequence.h"
#include "tests/end_to_end/changing_runs.h"
#include "tests/end_to_end/held.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

fs::path last_checkpoint(const fs::path& run) {
  return run / "checkpoints" / ("minibatch-" + std::to_string(kMinibatches));
}

}  // namespace

TEST_CASE(
    "a run whose plan changes ends as runs that are stopped there and resumed under the next plan, and as "
    "the serial reference") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {1, 2, 1});
  const std::string b = write_flush_plan(folder, "b.json", {1, 1}, "gpipe");  // ranks 2 and 3 wait
  const std::string c = write_plan(folder, "c.json", {2, 2});
  const std::vector<std::string> rules = {"--momentum", "0.9", "--checkpoint-every-epochs", "3"};

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

  // At 64 an epoch ends.
  const std::vector<std::string> plans = {
      "--plan", a, "--adapt", write_changes(folder, {{21, "b.json"}, {64, "c.json"}, {75, "a.json"}})};
  const fs::path changed = folder / "changed";
  finish(folder, changed, rules + plans);
  CHECK(losses(changed).size() == kMinibatches);
  CHECK(losses(changed) == losses(stopped));
  CHECK(tensor_files(last_checkpoint(changed)) == tensor_files(last_checkpoint(stopped)));
  int64_t next = 0;
  std::vector<int64_t> firsts;  // of plans, as the book tells
  for (const std::string& text : complete_lines(changed / "metrics.jsonl")) {
    const Json line = parse_json(text, "metrics.jsonl");
    if (line.contains("minibatch")) CHECK(line["minibatch"] == next++);
    if (!line.contains("generation")) continue;
    firsts.push_back(line["generation"]["first_minibatch"].get<int64_t>());
    CHECK(firsts.back() == next);
  }
  CHECK(next == kMinibatches);
  CHECK(firsts == std::vector<int64_t>{0, 21, 64, 75});
  const auto summary = read_document<Summary>(changed / "summary.json");
  CHECK(summary.ranks.size() == 4);
  REQUIRE(summary.generations.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const GenerationSummary& generation = summary.generations[i];
    CHECK(generation.number == static_cast<int64_t>(i));
    CHECK(generation.ranks == (i == 1 ? 2 : 4));
    CHECK(generation.reason == (i == 0 ? "start" : "manual"));
    CHECK((generation.moved_bytes > 0) == (i > 0));
    CHECK(read_document<Plan>(changed / generation.plan).world_size == generation.ranks);
  }
  // What `check --changes` says will move is what has moved, but for counts of updates and places in
  // messages.
  const auto profile = folder / "profile.json";
  Process profiler(
      {program("profiler"), "--model", kEndlessModel, "--batch-size", "8", "--output", profile.string()},
      folder / "out", folder / "err");
  REQUIRE(profiler.wait(60s) == 0);
  for (size_t i = 1; i < 4; ++i) {
    int64_t expected = 0;
    for (const PlanMove& move : profiled_moves(read_document<Profile>(profile), /*optimizer_slots=*/1,
                                               read_document<Plan>(changed / summary.generations[i - 1].plan),
                                               read_document<Plan>(changed / summary.generations[i].plan)))
      expected += move.bytes;
    const int64_t moved = summary.generations[i].moved_bytes;
    const auto parameters = static_cast<int64_t>(graph_of(kEndlessModel, 8, folder).parameters.size());
    CHECK(moved >= expected);
    CHECK(moved <= expected + 4 * parameters * 3 * 64);
  }

  // Interrupted under the second plan, and gone on.
  const fs::path resumed = folder / "resumed";
  const auto every = rules + plans + std::vector<std::string>{"--checkpoint-every-minibatches", "5"};
  finish(folder, resumed, every + std::vector<std::string>{"--minibatches", "43"});
  finish(folder, resumed,
         every + std::vector<std::string>{"--resume", (resumed / "checkpoints/minibatch-40").string()});
  CHECK(losses(resumed) == losses(changed));
  CHECK(tensor_files(last_checkpoint(resumed)) == tensor_files(last_checkpoint(changed)));

  // And under a plan of its own that does not change: its past is not forgotten.
  const fs::path settled = folder / "settled";
  finish(folder, settled, every + std::vector<std::string>{"--minibatches", "43"});
  finish(folder, settled, rules + std::vector<std::string>{"--plan", c, "--resume", "latest"});
  const auto of_settled = read_document<Summary>(settled / "summary.json");
  REQUIRE(of_settled.generations.size() == 3);
  CHECK(of_settled.generations[1].plan == "generation-1.plan.json");
  CHECK(fs::exists(settled / "generation-1.plan.json"));
  CHECK(of_settled.generations[2].plan == "plan.json");
  CHECK(of_settled.generations[2].reason == "resume");
  CHECK(of_settled.generations[2].first_minibatch == 43);

  const Outcome report = runtime(folder, {"report", changed.string()});
  CHECK(report.code == 0);
  CHECK_THAT(report.output, Catch::Contains("| changed | 64 | generation-2.plan.json | manual | 4 |"));
  const Outcome verified = runtime(folder, {"verify", "--run", changed.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output,
             Catch::Contains("the last of 4 plans, 1-2-1") && Catch::Contains("minibatches 0 to 95"));
}

TEST_CASE(
    "verify --adapt trains past the last change and compares with the reference that follows the plans") {
  const TemporaryFolder folder;
  write_flush_plan(folder, "b.json", {1, 1}, "zb-h1");
  const Outcome verified =
      runtime(folder, {"verify", "--model", kEndlessModel, "--data", "synthetic-images:image=8,samples=256",
                       "--batch-size", "8", "--epochs", "2", "--optimizer", "adam", "--transport", "gloo",
                       "--plan", write_plan(folder, "a.json", {2, 1}), "--adapt",
                       write_changes(folder, {{5, "b.json"}, {11, "a.json"}}), "--json"});
  INFO(verified.error);
  REQUIRE(verified.code == 0);
  CHECK_THAT(verified.output, Catch::Contains("\"minibatches\": 43"));  // 11 + 32
}

TEST_CASE("what is wrong with a list of changes is said before anything starts") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {1, 1});
  const auto error_of = [&](const std::string& adapt, const std::vector<std::string>& more = {}) {
    const Outcome outcome = runtime(folder, std::vector<std::string>{"launch"} +
                                                job(folder / "run", {"--plan", a, "--adapt", adapt}) + more);
    CHECK((outcome.code == 2 || outcome.code == 3));
    CHECK(!fs::exists(folder / "run"));
    return outcome.error;
  };
  CHECK_THAT(error_of("manul"), Catch::Contains("did you mean 'manual'"));
  CHECK_THAT(error_of("manual"), Catch::Contains("file"));
  CHECK_THAT(error_of("watch"), Catch::Contains("--adapt watch:file=NEXT.json"));
  CHECK_THAT(error_of("slow"), Catch::Contains("--adapt slow:plan=PLAN.json"));
  CHECK_THAT(error_of("slow:plan=" + (folder / "none.json").string()), Catch::Contains("none.json"));
  CHECK_THAT(error_of("slow:factor=1,plan=" + a), Catch::Contains("factor"));
  CHECK_THAT(error_of("manual:file=" + (folder / "none.json").string()), Catch::Contains("none.json"));
  CHECK_THAT(error_of(write_changes(folder, {{5, "a.json"}, {5, "a.json"}})),
             Catch::Contains("[1].minibatch") && Catch::Contains("rising"));
  CHECK_THAT(error_of(write_changes(folder, {{5, "other.json"}})), Catch::Contains("other.json"));
  write_plan(folder, "three.json", {1, 1, 1});
  CHECK_THAT(error_of(write_changes(folder, {{5, "three.json"}}), {"--ranks", "2"}),
             Catch::Contains("3 ranks"));
  Plan other = even_plan(graph_of("mlp:layers=3,width=64,image=8,channels=1", 8, folder), {1, 1});
  write_document(folder / "model.json", other);
  CHECK_THAT(error_of(write_changes(folder, {{5, "model.json"}})), Catch::Contains("model.json"));
}

TEST_CASE("many changes in one run: no memory, descriptors, threads or store keys are left behind") {
  const char* count = std::getenv("PIPEWRIGHT_MANY_CHANGES");
  const int64_t many = count ? std::atoll(count) : 200;
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {2, 1});
  write_flush_plan(folder, "b.json", {1, 1}, "1f1b-flush");
  write_plan(folder, "c.json", {1, 2});
  std::vector<PlanChange> changes;
  for (int64_t i = 1; i <= many; ++i)
    changes.push_back(
        {2 * i, std::vector<std::string>{"a.json", "b.json", "c.json"}[static_cast<size_t>(i) % 3]});
  const fs::path run = folder / "run";
  Process launcher(
      {program("runtime"), "launch", "--model", kEndlessModel, "--data",
       "synthetic-images:image=8,samples=256", "--batch-size", "8", "--optimizer", "adam", "--minibatches",
       "1000000", "--plan", a, "--adapt", write_changes(folder, changes), "--output", run.string()},
      folder / "out", folder / "err");
  const auto come_to = [&](int64_t change) {
    const bool there = eventually(300s, [&] {
      return static_cast<int64_t>(complete_lines(run / "metrics.jsonl").size()) > 3 * change ||
             launcher.wait(0ms) != Process::kRunning;
    });
    INFO(launcher.error());
    REQUIRE(there);
    REQUIRE(launcher.wait(0ms) == Process::kRunning);
  };
  come_to(many / 4);
  const Held early = Held::by(launcher);
  REQUIRE(early.threads.size() == 3);
  come_to(many + 10);
  check_growth(early, launcher);
  launcher.signal(SIGTERM);
  CHECK(launcher.wait(60s) == 143);
}
