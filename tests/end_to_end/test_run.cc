// The runtime as a process: same seed, same lines; and what each kind of bad input gets.
#include <catch2/catch.hpp>

#include "graph/summary.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kSmallJob = {"--model",
                                            kEndlessModel,
                                            "--data",
                                            "synthetic-images:image=8,samples=128",
                                            "--evaluation-data",
                                            "synthetic-images:image=8,samples=50",
                                            "--batch-size",
                                            "8",
                                            "--epochs",
                                            "2",
                                            "--momentum",
                                            "0.9"};

// Lines without the times in them.
std::vector<std::string> without_times(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  for (const auto& text : complete_lines(file)) {
    Json line = parse_json(text, file.string());
    line.erase("elapsed_seconds");
    lines.push_back(line.dump());
  }
  return lines;
}

}  // namespace

TEST_CASE("a second run with the same seed gives the same loss lines, another seed does not") {
  const TemporaryFolder folder;
  write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 8, folder), {2, 1}));
  std::vector<std::vector<std::string>> lines;
  for (const std::string seed : {"4", "4", "5"}) {
    const auto outcome =
        runtime(folder, std::vector<std::string>{"launch"} + kSmallJob +
                            std::vector<std::string>{"--plan", (folder / "plan.json").string(), "--seed",
                                                     seed, "--output", (folder / "run").string()});
    CAPTURE(outcome.error);
    REQUIRE(outcome.code == 0);
    lines.push_back(without_times(folder / "run" / "metrics.jsonl"));
  }
  CHECK(lines[0].size() == 2 * (16 + 1));
  CHECK(lines[0] == lines[1]);
  CHECK(lines[0] != lines[2]);
  const auto summary = read_document<Summary>(folder / "run" / "summary.json");
  CHECK(summary.status == "done");
  CHECK(summary.minibatches == 32);
  CHECK(summary.evaluation->samples == 50);
  REQUIRE(summary.ranks.size() == 3);
  for (const auto& rank : summary.ranks) {
    CAPTURE(rank.rank);
    CHECK(rank.updates == (rank.stage == 0 ? 16 : 32));
    CHECK(rank.peak_in_flight == (rank.stage == 0 ? 2 : 1));
    CHECK(rank.peak_weight_versions == (rank.stage == 0 ? 2 : 1));
    CHECK(rank.peak_memory_bytes > 0);
    CHECK(rank.sent_bytes > 0);
    CHECK_THAT(rank.weights_digest, Catch::StartsWith("xxh128:"));
  }
  CHECK(summary.ranks[0].weights_digest == summary.ranks[1].weights_digest);  // replicas
  CHECK(summary.ranks[0].weights_digest != summary.ranks[2].weights_digest);
  CHECK_NOTHROW(parse_json(read_file(folder / "run" / "trace.json"), "trace.json"));
}

TEST_CASE("one device: the same losses with and without the launcher, --json prints the summary") {
  const TemporaryFolder folder;
  const auto output = [&](const char* name) {
    return std::vector<std::string>{"--output", (folder / name).string()};
  };
  const auto alone = runtime(folder, kSmallJob + output("a") + std::vector<std::string>{"--json"});
  CAPTURE(alone.error);
  REQUIRE(alone.code == 0);
  CHECK(parse_document<Summary>(alone.output, "standard output").minibatches == 32);
  REQUIRE(runtime(folder, std::vector<std::string>{"launch"} + kSmallJob + output("b")).code == 0);
  CHECK(without_times(folder / "a" / "metrics.jsonl") == without_times(folder / "b" / "metrics.jsonl"));
}

TEST_CASE("a run document and options: options win, --print-config says where each setting came from") {
  const TemporaryFolder folder;
  write_file(folder / "run.json", R"({"schema": "pipewright.run/1", "model": "mlp", "data": "fashion-mnist",
                                      "batch_size": 16, "optimizer": {"momentum": 0.5}})");
  const auto outcome =
      runtime(folder, {"--config", (folder / "run.json").string(), "--momentum", "0.9", "--print-config"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.output, Catch::Contains("--momentum  0.9  (option)"));
  CHECK_THAT(outcome.output, Catch::Contains("--batch-size  16  (" + (folder / "run.json").string() + ")"));
  CHECK_THAT(outcome.output, Catch::Contains("--epochs  1  (default)"));
}

TEST_CASE("bad input: one clear line, the documented exit code, nothing started") {
  const TemporaryFolder folder;
  const Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1});
  write_document(folder / "plan.json", plan);
  Plan gap = plan;
  gap.stages[1].nodes.pop_back();
  write_document(folder / "gap.json", gap);
  Plan backwards = plan;
  std::swap(backwards.stages[0].nodes, backwards.stages[1].nodes);
  write_document(folder / "backwards.json", backwards);
  Plan other_rule = plan;
  other_rule.weights = "flush";
  write_document(folder / "flush.json", other_rule);
  Plan other_schedule = plan;
  other_schedule.schedule = "1f1bb";
  write_document(folder / "schedule.json", other_schedule);
  write_file(folder / "torn.json", read_file(folder / "plan.json").substr(0, 200));

  struct Bad {
    std::vector<std::string> words;
    int code;
    std::string says;
  };
  const auto file = [&](const char* name) { return (folder / name).string(); };
  const std::vector<std::string> shortest = {"--model", kEndlessModel, "--data",
                                             "synthetic-images:image=8,samples=128"};
  const std::vector<Bad> cases = {
      {{"lunch"}, 2, "launch"},
      {{"--modle", "mlp"}, 2, "--model"},
      {{"--data", "fashion-mnist"}, 2, "--model is missing"},
      {shortest + std::vector<std::string>{"--batch-size", "0"}, 2, "--batch-size: 0 is not in"},
      {shortest + std::vector<std::string>{"--batch-size", "many"}, 2, "batch-size"},
      {kSmallJob + std::vector<std::string>{"--batch-size", "8"}, 2, "more than once"},
      {kSmallJob + std::vector<std::string>{"--timeout", "30"}, 2, "30s"},
      {kSmallJob + std::vector<std::string>{"--optimizer", "sdg"}, 2, "sgd"},
      {kSmallJob + std::vector<std::string>{"--device", "cuda:0"}, 2, "cpu"},
      {kSmallJob + std::vector<std::string>{"--spares", "1"}, 2, "--on-loss end ends the job"},
      {kSmallJob + std::vector<std::string>{"--on-loss", "restart", "--copy-every", "0"}, 2,
       "--copy-every: 0"},
      {kSmallJob + std::vector<std::string>{"--rank", "0"}, 2, "--world-size"},
      {kSmallJob + std::vector<std::string>{"--rank", "3", "--world-size", "2"}, 2, "rank 3"},
      {{"--model", "mpl", "--data", "fashion-mnist"}, 2, "mlp"},
      {{"--model", kEndlessModel, "--data", "fashion-mnsit"}, 2, "fashion-mnist"},
      {{"--model", kEndlessModel, "--data", "synthetic-images:image=9"}, 2, "images"},
      {shortest + std::vector<std::string>{"--batch-size", "100000"}, 2, "128"},
      {{"--config", file("none.json")}, 2, "none.json"},
      {std::vector<std::string>{"launch"} + kSmallJob + std::vector<std::string>{"--plan", file("none.json")},
       2, "none.json"},
      {std::vector<std::string>{"launch"} + kSmallJob + std::vector<std::string>{"--plan", file("torn.json")},
       2, "torn.json"},
      {std::vector<std::string>{"launch"} + kSmallJob + std::vector<std::string>{"--plan", file("gap.json")},
       3, "node"},
      {std::vector<std::string>{"launch"} + kSmallJob +
           std::vector<std::string>{"--plan", file("backwards.json")},
       3, "stage"},
      {std::vector<std::string>{"launch"} + kSmallJob +
           std::vector<std::string>{"--plan", file("flush.json")},
       3, "stash"},
      {std::vector<std::string>{"launch"} + kSmallJob +
           std::vector<std::string>{"--plan", file("schedule.json")},
       3, "1f1b"},
      {std::vector<std::string>{"launch"} + kSmallJob +
           std::vector<std::string>{"--plan", file("plan.json"), "--ranks", "3"},
       3, "2 ranks"},
      {kSmallJob + std::vector<std::string>{"--plan", file("plan.json")}, 3, "2 ranks"},
  };
  for (const Bad& bad : cases) {
    const auto outcome =
        runtime(folder, bad.words + std::vector<std::string>{"--output", (folder / "run").string()});
    CAPTURE(bad.words, outcome.error);
    CHECK(outcome.code == bad.code);
    CHECK_THAT(outcome.error, Catch::Contains(bad.says));
    CHECK_FALSE(std::filesystem::exists(folder / "run" / "metrics.jsonl"));
  }
}

TEST_CASE("a loss that is not finite on the last stage is the reason on every rank") {
  const TemporaryFolder folder;
  const std::string model = "mlp:layers=4,width=64,image=8,channels=1", run = (folder / "run").string();
  write_document(folder / "plan.json", even_plan(graph_of(model, 8, folder), {1, 1}));
  const auto outcome =
      runtime(folder, {"launch", "--model", model, "--plan", (folder / "plan.json").string(), "--data",
                       "synthetic-images:image=8,channels=1,samples=80", "--batch-size", "8", "--minibatches",
                       "10", "--learning-rate", "1e6", "--output", run});
  CAPTURE(outcome.error);
  CHECK(outcome.code == 6);
  CHECK_THAT(runtime(folder, {"report", run}).output,
             Catch::Contains("The run failed: ") && Catch::Contains("not a number"));
}

TEST_CASE("of a run that failed before its first minibatch nothing is said that nobody has measured") {
  const TemporaryFolder folder;
  const std::string run = (folder / "run").string(), other = (folder / "other").string();
  const auto failed =
      runtime(folder, kSmallJob + std::vector<std::string>{"--learning-rate", "1e6", "--output", run});
  REQUIRE(failed.code == 6);
  auto summary = read_document<Summary>(folder / "run" / "summary.json");
  // As of one that failed at once.
  summary.minibatches = summary.samples = 0;
  summary.minibatch_seconds = summary.samples_per_second = summary.train_loss = 0;
  summary.ranks.clear();
  write_document(folder / "run" / "summary.json", summary);
  write_file(folder / "run" / "metrics.jsonl", "");
  std::filesystem::copy(run, other);
  for (const std::vector<std::string>& runs : {std::vector{run}, std::vector{run, other}}) {
    const std::string page = (folder / "page.html").string();
    const std::string told = runtime(folder, std::vector<std::string>{"report"} + runs).output;
    INFO(told);
    CHECK_THAT(told, Catch::Contains("(failed)") && Catch::Contains("| - |"));
    CHECK(runtime(folder,
                  std::vector<std::string>{"report"} + runs + std::vector<std::string>{"--output", page})
              .code == 0);
    // Cells of tables, and what is said; axes begin at 0.
    for (const std::string& text : {told, read_file(page)})
      for (const char* zero : {"| 0 s |", "| 0 B |", "| 0 |", "| 0.0000 |", "<td>0 s<", "<td>0 B<", "<td>0<",
                               "<td>0.0000<", " 0 samples/s"})
        CHECK_THAT(text, !Catch::Contains(zero));
  }
}

TEST_CASE("a loss that is not finite stops the run: exit 6 names minibatch and stage") {
  const TemporaryFolder folder;
  const auto outcome = runtime(
      folder,
      kSmallJob + std::vector<std::string>{"--learning-rate", "1e6", "--output", (folder / "run").string()});
  CAPTURE(outcome.error);
  CHECK(outcome.code == 6);
  CHECK_THAT(outcome.error, Catch::Contains("the loss of minibatch"));
  CHECK(read_document<Summary>(folder / "run" / "summary.json").status == "failed");
}
