// Settings as people give them: learning rates, paths with odd letters, order of samples, --print-config.
#include <catch2/catch.hpp>

#include "graph/summary.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/skip.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

const Words kSettingsJob = {
    "--model", kEndlessModel, "--data", "synthetic-images:image=8,samples=96", "--batch-size", "8"};

std::vector<Json> minibatches_of(const fs::path& run) {
  std::vector<Json> lines;
  for (const std::string& line : complete_lines(run / "metrics.jsonl"))
    if (const Json json = parse_json(line, "metrics"); json.contains("loss")) lines.push_back(json);
  return lines;
}

std::vector<double> rates_of(const fs::path& run) {
  std::vector<double> rates;
  for (const Json& line : minibatches_of(run)) rates.push_back(line.at("learning_rate").get<double>());
  return rates;
}

void check_rates(const std::vector<double>& rates, const std::vector<double>& expected) {
  REQUIRE(rates.size() == expected.size());
  for (size_t k = 0; k < rates.size(); ++k) CHECK(rates[k] == Approx(expected[k]).epsilon(1e-4));
}

}  // namespace

TEST_CASE(
    "the rate decays from the end of the warm-up, and a run that goes on for longer says what changes") {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  const Words train = {"train", "--output", run.string()};
  const Words cosine = {"--learning-rate",      "0.1", "--learning-rate-policy", "cosine",
                        "--warmup-minibatches", "4"};
  const Outcome first =
      runtime(folder, train + kSettingsJob + cosine +
                          Words{"--minibatches", "12", "--checkpoint-every-minibatches", "12"});
  INFO(first.error);
  REQUIRE(first.code == 0);
  check_rates(rates_of(run), {0.025, 0.05, 0.075, 0.1, 0.1, 0.0961940, 0.0853553, 0.0691342, 0.05, 0.0308658,
                              0.0146447, 0.00380602});
  CHECK(first.error.find("learning rate: ") == std::string::npos);
  const Outcome second = runtime(folder, train + Words{"--resume", "latest", "--minibatches", "16"});
  INFO(second.error);
  REQUIRE(second.code == 0);
  CHECK_THAT(second.error,
             Catch::Contains(
                 "learning rate: from minibatch 12 on 0.025, behind 0.00381: the policy 'cosine' ends with "
                 "the run, which has 16 minibatches now and had 12; --decay-minibatches 8 keeps the rates "
                 "it had\n"));
  CHECK(rates_of(run).at(12) == Approx(0.025));

  const Outcome longer = runtime(folder, Words{"train", "--output", (folder / "longer").string(),
                                               "--minibatches", "2", "--warmup-minibatches", "4"} +
                                             kSettingsJob);
  REQUIRE(longer.code == 0);
  CHECK_THAT(longer.error,
             Catch::Contains("learning rate: the warm-up of 4 minibatches is longer than the run of 2 "
                             "minibatches: the rate ends at 0.005 of 0.01\n"));
  const Outcome refused = runtime(
      folder, Words{"train", "--milestones", "6,3", "--learning-rate-policy", "milestones"} + kSettingsJob);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.error, Catch::Contains("--milestones: got '6,3': 3 is not above 6"));
}

TEST_CASE("reported: learning rates behind a warm-up") {
  const fs::path reported = shared_data() / "reported" / "learning_rate_after_warm_up";
  if (shared_data().empty() || !fs::exists(reported)) return skip("no shared data: reported runs");
  const TemporaryFolder folder;
  const Outcome run =
      runtime(folder, {"train", "--model", (reported / "model.pt2").string(), "--data",
                       "tensors:file=" + (reported / "data.safetensors").string(), "--batch-size", "4",
                       "--minibatches", "12", "--learning-rate", "0.1", "--learning-rate-policy", "cosine",
                       "--warmup-minibatches", "4", "--output", (folder / "run").string()});
  INFO(run.error);
  REQUIRE(run.code == 0);
  const std::vector<double> rates = rates_of(folder / "run");
  CHECK(rates.at(3) == Approx(0.1));
  CHECK(rates.at(4) == Approx(0.1));
  CHECK(rates.at(5) == Approx(0.0961940));
  CHECK(rates.at(6) == Approx(0.0853553));
}

TEST_CASE("models and data have the same odd paths, and tensors are shuffled when that is asked for") {
  const TemporaryFolder folder;
  const fs::path fixtures = fs::path(PIPEWRIGHT_SOURCE_DIR) / "tests" / "models" / "pt2";
  const std::string odd = "a, b=c \u00e9\u6a21";
  const fs::path model = folder / (odd + ".pt2"), data = folder / (odd + ".safetensors");
  fs::copy_file(fixtures / "residual.pt2", model);
  fs::copy_file(fixtures / "residual.safetensors", data);
  const auto with_backslash = [](std::string path) { return path.insert(path.find(','), "\\"); };
  std::vector<std::vector<Json>> runs;
  for (const bool escaped : {false, true}) {
    // A comma before KEY= has to be written with a backslash in a value; both may be.
    const std::string spec = escaped ? with_backslash(model.string()) : model.string();
    const fs::path output = folder / (escaped ? "escaped" : "plain");
    const Outcome run =
        runtime(folder, {"train", "--model", spec, "--data", "tensors:file=" + with_backslash(data.string()),
                         "--batch-size", "4", "--minibatches", "2", "--output", output.string()});
    INFO(run.error);
    REQUIRE(run.code == 0);
    runs.push_back(minibatches_of(output));
  }
  for (size_t k = 0; k < 2; ++k) CHECK(runs[0].at(k)["loss"] == runs[1].at(k)["loss"]);
  const Outcome shuffled =
      runtime(folder, {"train", "--model", model.string(), "--data",
                       "tensors:file=" + with_backslash(data.string()) + ",shuffle=yes", "--batch-size", "4",
                       "--minibatches", "2", "--output", (folder / "shuffled").string()});
  INFO(shuffled.error);
  CHECK(shuffled.code == 0);
}

TEST_CASE("print-config: with --json it is JSON, in all programs") {
  const TemporaryFolder folder;
  write_file(folder / "profile.json", "{}");
  const auto settings = [&](const std::string& name, const Words& words) {
    const Outcome outcome = run_program(folder, name, words + Words{"--print-config", "--json"});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    std::map<std::string, Json> found;
    for (const Json& setting : parse_json(outcome.output, "settings"))
      found[setting.at("setting").get<std::string>()] = setting;
    return found;
  };
  const auto run = settings("runtime", Words{"train"} + kSettingsJob + Words{"--momentum", "0.5"});
  CHECK(run.at("momentum") == Json{{"setting", "momentum"}, {"value", 0.5}, {"from", "option"}});
  CHECK(run.at("model").at("value") == kEndlessModel);
  CHECK(run.at("batch-size").at("value") == 8);
  const auto plan = settings("optimizer", {"plan", "--profile", (folder / "profile.json").string(), "--gpus",
                                           "2", "--bandwidths", "1GB/s", "--optimizer", "adamw"});
  CHECK(plan.at("optimizer-slots") ==
        Json{{"setting", "optimizer-slots"}, {"value", 2}, {"from", "--optimizer adamw"}});
  CHECK(settings("profiler", {"--model", kEndlessModel, "--batch-size", "8"}).at("model").at("from") ==
        "command line");
}

TEST_CASE("a correction of delays that the plan has no such delays for is refused before anything starts") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& schedule, const std::string& weights,
                           const std::string& correction) {
    Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1});
    plan.schedule = schedule;
    plan.weights = weights;
    plan.microbatches = 4;
    for (Stage& stage : plan.stages) stage.in_flight = 4;
    if (weights == "stash") plan.microbatches = 1;
    write_document(folder / "plan.json", plan);
    const Outcome run =
        runtime(folder, Words{"launch", "--plan", (folder / "plan.json").string(), "--minibatches", "4",
                              "--output", (folder / "run").string(), "--delay-correction", correction} +
                            kSettingsJob);
    CHECK(run.code != 0);
    CHECK(!fs::exists(folder / "run"));
    return run.error;
  };
  CHECK_THAT(refused("gpipe", "flush", "dc"),
             Catch::Contains("delay_correction 'dc': the plan's weights 'flush'"));
  CHECK_THAT(refused("1f1b", "stash", "error-feedback"),
             Catch::Contains("'stash' have stages of other delays"));
  CHECK_THAT(refused("1f1b", "2bw", "pipemare-t1"), Catch::Contains("'pipemare-t1' changes nothing"));
  CHECK_THAT(refused("1f1b", "2bw", "pipemare"), Catch::Contains("did you mean 'pipemare-t1'?"));
}

TEST_CASE("weights that the optimizer cannot predict are refused before anything starts, and with a sync") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& weights, const Words& how) {
    Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {2, 2});
    plan.weights = weights;
    write_document(folder / "plan.json", plan);
    const Outcome run = runtime(folder, Words{"launch", "--plan", (folder / "plan.json").string(),
                                              "--minibatches", "4", "--output", (folder / "run").string()} +
                                            kSettingsJob + how);
    CHECK(run.code != 0);
    CHECK(!fs::exists(folder / "run"));
    return run.error;
  };
  CHECK_THAT(refused("predict", {"--optimizer", "lion"}), Catch::Contains("'lion' has no form of it"));
  CHECK_THAT(refused("predict", {"--momentum", "0"}), Catch::Contains("'sgd' without momentum"));
  CHECK_THAT(refused("paci", {"--sync", "none"}), Catch::Contains("does not go with weights 'paci'"));
  CHECK_THAT(refused("pacy", {}), Catch::Contains("did you mean \"paci\"?") || Catch::Contains("'paci'"));
}

TEST_CASE("a plan for an optimizer that keeps less, and bfloat16 on a CPU, are remarked once") {
  const TemporaryFolder folder;
  const std::string profile = (folder / "profile.json").string();
  REQUIRE(run_program(folder, "profiler",
                      {"--model", kEndlessModel, "--batch-size", "8", "--warmup", "0", "--repeats", "1",
                       "--output", profile})
              .code == 0);
  const auto train = [&](const Words& optimizer, const Words& how) {
    const Outcome planned = run_program(
        folder, "optimizer",
        Words{"plan", "--profile", profile, "--gpus", "1", "--output", (folder / "one.json").string()} +
            optimizer);
    INFO(planned.error);
    REQUIRE(planned.code == 0);
    CHECK_THAT(planned.output,
               Catch::Contains(optimizer.empty() ? "with 1 value of the optimizer for each "
                                                   "parameter (assumed, as of sgd with momentum; "
                                                   "--optimizer NAME says it)"
                                                 : "with 2 values of the optimizer"));
    const Outcome run = runtime(folder, Words{"launch", "--plan", (folder / "one.json").string(),
                                              "--minibatches", "2", "--output", (folder / "run").string()} +
                                            kSettingsJob + how);
    INFO(run.error);
    REQUIRE(run.code == 0);
    return run.error;
  };
  CHECK_THAT(train({}, {"--optimizer", "adamw"}),
             Catch::Contains("warning: adamw keeps 2 values for each parameter, ") &&
                 Catch::Contains(": plan with pipewright-optimizer --optimizer adamw\n"));
  CHECK_THAT(train({"--optimizer", "adamw"}, {"--optimizer", "adamw"}), !Catch::Contains("warning: adamw"));
  const std::string bfloat16 = train({}, {"--precision", "bfloat16"});
  CHECK_THAT(bfloat16, Catch::Contains("warning: on a CPU most models train slower in bfloat16"));
  CHECK(bfloat16.find("bfloat16", bfloat16.find("bfloat16") + 10) == std::string::npos);
  const Outcome both = run_program(
      folder, "optimizer",
      {"plan", "--profile", profile, "--gpus", "1", "--optimizer", "adam", "--optimizer-slots", "1"});
  CHECK(both.code == 2);
  CHECK_THAT(both.error, Catch::Contains("--optimizer-slots: not together with --optimizer, which says it"));
}
