// verify --against: a run beside what another program has trained, here another run of ours in that part.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

namespace {

constexpr int kTrainedMinibatches = 12;

struct Runs {
  TemporaryFolder folder;

  std::string train(const std::string& name, const std::vector<int64_t>& replicas,
                    const Words& more = {}) const {
    Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
    plan.schedule = "1f1b-flush";
    plan.weights = "flush";
    plan.microbatches = 2;
    write_document(folder / (name + ".plan.json"), plan);
    const std::string run = (folder / name).string();
    const Outcome outcome =
        runtime(folder, Words{"launch", "--plan", (folder / (name + ".plan.json")).string(), "--model",
                              kEndlessModel, "--data", "synthetic-images:image=8,samples=256", "--batch-size",
                              "8", "--minibatches", std::to_string(kTrainedMinibatches), "--momentum", "0.9",
                              "--checkpoint-every-minibatches", "4", "--output", run} +
                            more);
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return run;
  }
  Outcome against(const std::string& run, const Words& others, const Words& more = {}) const {
    Words words = {"verify", "--run", run};
    for (const std::string& other : others) words = words + Words{"--against", other};
    return runtime(folder, words + more);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }
};

}  // namespace

TEST_CASE(
    "against: the same training elsewhere is equal, or equal up to rounding, of another one is said where it "
    "begins") {
  const Runs runs;
  const std::string two = runs.train("two", {1, 1});
  const Outcome itself = runs.against(two, {two});
  INFO(itself.error << itself.output);
  CHECK(itself.code == 0);
  CHECK_THAT(itself.output, Catch::Contains("the other training equal bit for bit: 12 losses"));

  // One device on its own, and three replicas: other orders of sums.
  const std::string one = runs.train("one", {1}), three = runs.train("three", {3});
  for (const std::string& other : {one, three}) {
    const Json json = parse_json(runs.against(two, {other}, {"--json"}).output, "verify");
    CHECK(json["against"]["verdict"] != "wrong");
    CHECK(json["against"]["losses"]["compared"] == kTrainedMinibatches);
    REQUIRE(json["against"]["weights"].size() == 1);
    CHECK(json["against"]["weights"][0]["minibatches"] == kTrainedMinibatches);
  }

  // Other rates from minibatch 6 on, say: its weights after 4 are the same, losses from the second update on
  // are not.
  const std::string faster = runs.train(
      "faster", {1, 1}, {"--learning-rate-policy", "step", "--gamma", "3", "--step-minibatches", "4"});
  const Outcome wrong = runs.against(two, {faster});
  CHECK(wrong.code == 6);
  CHECK_THAT(wrong.error, Catch::Contains("the loss of minibatch 6 is"));
  CHECK_THAT(wrong.error, Catch::Contains("after 12 minibatches parameter \"layers."));
  CHECK_THAT(wrong.error, Catch::Contains(" of stage "));

  // Weights alone, of several minibatches: the first that lie off are named.
  const auto exported = [&](const std::string& run, int64_t after) {
    const std::string file = (runs.folder / (std::to_string(after) + ".safetensors")).string();
    const Outcome outcome = runtime(
        runs.folder,
        {"checkpoint", "export", run + "/checkpoints/minibatch-" + std::to_string(after), "--output", file});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return file;
  };
  const Words files = {exported(faster, 4), exported(faster, 8), exported(faster, 12)};
  const Json json = parse_json(runs.against(two, files, {"--json"}).output, "verify");
  REQUIRE(json["against"]["weights"].size() == 3);
  CHECK(json["against"]["weights"][0]["beyond"].empty());
  CHECK_FALSE(json["against"]["weights"][1]["beyond"].empty());
  CHECK_THAT(runs.against(two, files).error, Catch::Contains("after 8 minibatches parameter"));
}

TEST_CASE(
    "against: losses are a list or lines, what is neither losses nor weights of the model is refused by "
    "name") {
  const Runs runs;
  const std::string run = runs.train("run", {1});
  std::string list;
  for (const Json& line : metrics(run)) list += (list.empty() ? "[" : ", ") + line["loss"].dump();
  const Outcome equal = runs.against(run, {runs.write("losses.json", list + "]")});
  INFO(equal.error);
  CHECK(equal.code == 0);
  CHECK_THAT(equal.output, Catch::Contains("equal bit for bit: 12 losses"));
  const Outcome off = runs.against(run, {runs.write("off.json", "[NaN, 1]")});
  CHECK(off.code == 6);
  CHECK_THAT(off.error, Catch::Contains("the loss of minibatch 0 is"));
  const auto refused = [&](const Words& others, const std::string& message) {
    const Outcome outcome = runs.against(run, others);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.error, Catch::Contains(message));
  };
  refused({runs.write("text.json", "losses")}, "got \"losses\", expected losses");
  refused({runs.write("words.json", "[\"2.5\"]")}, "expected losses");
  refused({runs.write("empty.json", "")}, "an empty file, expected losses");
  refused({runs.write("gap.jsonl", "{\"minibatch\": 1, \"loss\": 2}\n")},
          "minibatch 1 stands where 0 should");
  refused({run + "/none.json"}, "none.json");
  refused({(runs.folder / "run.plan.json").string()}, "expected losses");
  refused({run, run + "/metrics.jsonl"}, "losses are in");
  refused({run, run + "/model.safetensors"}, "are both of after minibatch 11");
}

TEST_CASE(
    "against: what PyTorch has trained of exported programs is equal up to rounding, cut into two stages") {
  const fs::path fixtures = fs::path(PIPEWRIGHT_SOURCE_DIR) / "tests/models/pt2";
  const Json expected = read_json_file(fixtures / "expected.json");
  const Runs runs;
  for (const std::string name : {"residual", "attention", "batch_norm"}) {
    CAPTURE(name);
    const Json& trained = expected.at(name);
    const std::string model = (fixtures / (name + ".pt2")).string();
    Plan plan = even_plan(graph_of(model, trained["batch_size"], runs.folder), {1, 1});
    plan.schedule = "1f1b-flush";
    plan.weights = "flush";
    write_document(runs.folder / "plan.json", plan);
    const std::string run = (runs.folder / name).string();
    const Outcome launched = runtime(
        runs.folder, {"launch", "--model", model, "--plan", (runs.folder / "plan.json").string(), "--data",
                      "tensors:file=" + (fixtures / (name + ".safetensors")).string(), "--batch-size",
                      trained["batch_size"].dump(), "--learning-rate", trained["learning_rate"].dump(),
                      "--seed", trained["seed"].dump(), "--checkpoint-every-epochs", "1", "--output", run});
    INFO(launched.error);
    REQUIRE(launched.code == 0);
    const Outcome verified = runs.against(run, {runs.write("losses.json", trained["losses"].dump())});
    INFO(verified.error);
    CHECK(verified.code == 0);
    CHECK_THAT(verified.output, Catch::Contains(std::to_string(trained["losses"].size()) + " losses"));
  }
}

TEST_CASE("batches: a run's minibatches are a file, in its order, of the fields that the model reads") {
  const Runs runs;
  const std::string file = (runs.folder / "batches.safetensors").string();
  const Words job = {
      "batches",      "--model", kEndlessModel,   "--data", "synthetic-images:image=8,samples=64",
      "--batch-size", "8",       "--minibatches", "5"};
  const Outcome written = runtime(runs.folder, job + Words{"--output", file});
  INFO(written.error);
  REQUIRE(written.code == 0);
  CHECK_THAT(written.output, Catch::Contains("minibatches 0 to 4 of 8 samples"));
  const std::string header = Process::contents(file);
  CHECK_THAT(header, Catch::Contains("\"images\":{\"dtype\":\"F32\",\"shape\":[5,8,1,8,8]"));
  CHECK_THAT(header, Catch::Contains("\"labels\":{\"dtype\":\"I64\",\"shape\":[5,8]"));
  const Outcome refused = runtime(runs.folder, job);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.error, Catch::Contains("--output is missing"));
}
