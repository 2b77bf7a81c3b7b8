// What a run document says about training, as its user asks for it: parameter groups, evaluation within
// epochs, the book's figures; and what a run says when its numbers break.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "graph/summary.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const Words kModel = {"--model", kEndlessModel, "--batch-size", "8"};

std::string write_training_plan(const TemporaryFolder& folder, const std::vector<int64_t>& replicas,
                                const std::string& schedule = "1f1b", const std::string& weights = "stash",
                                int64_t microbatches = 1) {
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
  plan.schedule = schedule;
  plan.weights = weights;
  plan.microbatches = microbatches;
  const fs::path file = folder / (schedule + ".plan.json");
  write_document(file, plan);
  return file.string();
}

// Lines without the times in them; of minibatches, or of evaluations.
std::vector<Json> untimed_lines(const fs::path& folder, bool evaluations) {
  std::vector<Json> lines;
  for (const auto& text : complete_lines(folder / "metrics.jsonl")) {
    Json line = parse_json(text, "metrics.jsonl");
    line.erase("elapsed_seconds");
    if (line.contains("evaluation") == evaluations) lines.push_back(line);
  }
  return lines;
}

// A data set of 64 images of 8 x 8 with labels, that the test may spoil.
struct OwnData {
  std::vector<float> images = std::vector<float>(64 * 64);
  std::vector<int64_t> labels = std::vector<int64_t>(64);

  OwnData() {
    for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<float>((i * 7919) % 97) / 97 - 0.5F;
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i % 10);
  }
  std::string write(const fs::path& file) const {
    const size_t image_bytes = images.size() * sizeof(float), label_bytes = labels.size() * sizeof(int64_t);
    Json header;
    header["labels"] = {{"dtype", "I64"}, {"shape", {64}}, {"data_offsets", {0, label_bytes}}};
    header["images"] = {{"dtype", "F32"},
                        {"shape", {64, 1, 8, 8}},
                        {"data_offsets", {label_bytes, label_bytes + image_bytes}}};
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += text;
    bytes.append(reinterpret_cast<const char*>(labels.data()), label_bytes);
    bytes.append(reinterpret_cast<const char*>(images.data()), image_bytes);
    write_file(file, bytes);
    return "tensors:file=" + file.string();
  }
};

}  // namespace

TEST_CASE(
    "groups, clipping and evaluation within epochs: the book says them, verify holds, a resumed run is the "
    "same") {
  const TemporaryFolder folder;
  const Words job = Words{"launch",
                          "--plan",
                          write_training_plan(folder, {2, 1}),
                          "--data",
                          "synthetic-images:image=8,samples=128",
                          "--evaluation-data",
                          "synthetic-images:image=8,samples=20",
                          "--epochs",
                          "2",
                          "--momentum",
                          "0.9",
                          "--weight-decay",
                          "0.1",
                          "--no-decay",
                          "bias",
                          "--parameter-group",
                          "^layers[.]0[.]:learning_rate_scale=0.1",
                          "--parameter-group",
                          "weight$:weight_decay=0.01,learning_rate_scale=0.5",
                          "--gradient-clipping-norm",
                          "0.1",
                          "--learning-rate-policy",
                          "cosine",
                          "--evaluate-every-minibatches",
                          "5",
                          "--checkpoint-every-minibatches",
                          "3",
                          "--checkpoint-keep",
                          "100"} +
                    kModel;
  const fs::path output = folder / "run";
  const auto whole = runtime(folder, job + Words{"--output", output.string()});
  INFO(whole.error);
  REQUIRE(whole.code == 0);
  std::vector<int64_t> evaluated;
  for (const Json& line : untimed_lines(output, true)) {
    const Json& evaluation = line["evaluation"];
    evaluated.push_back(evaluation.value("minibatches", (evaluation["epoch"].get<int64_t>() + 1) * 16));
    CHECK(evaluation["epoch"] == (evaluated.back() - 1) / 16);
    CHECK(evaluation["samples"] == 20);
  }
  // Behind whole rounds of both stages, and at the ends of epochs once.
  CHECK(evaluated == std::vector<int64_t>{6, 10, 16, 20, 26, 30, 32});
  const auto lines = untimed_lines(output, false);
  REQUIRE(lines.size() == 32);
  CHECK(lines[0]["learning_rate"] == 0.01);
  CHECK(lines[31]["learning_rate"].get<double>() < 1e-4);
  for (const Json& line : lines) CHECK(line["gradient_norm"].get<double>() > 0);
  const auto summary = read_document<Summary>(output / "summary.json");
  CHECK(summary.minibatch_flops > 1e4);
  CHECK(summary.flops_per_second == Approx(summary.minibatch_flops / summary.minibatch_seconds));

  const auto verified = runtime(folder, {"verify", "--run", output.string()});
  INFO(verified.error);
  CHECK(verified.code == 0);
  // From a checkpoint where the pipeline had drained for an evaluation, and from one in between.
  for (const char* checkpoint : {"minibatch-6", "minibatch-22"}) {
    const fs::path other = folder / checkpoint;
    const auto resumed = runtime(folder, job + Words{"--output", other.string(), "--resume",
                                                     (output / "checkpoints" / checkpoint).string()});
    INFO(resumed.error);
    REQUIRE(resumed.code == 0);
    CHECK(untimed_lines(other, false) == lines);
    CHECK(untimed_lines(other, true) == untimed_lines(output, true));
    const auto again = read_document<Summary>(other / "summary.json");
    for (size_t r = 0; r < 3; ++r) CHECK(again.ranks[r].weights_digest == summary.ranks[r].weights_digest);
  }
}

TEST_CASE("evaluation within epochs changes nothing of a run that drains at every update") {
  const TemporaryFolder folder;
  const Words job = Words{"launch",
                          "--plan",
                          write_training_plan(folder, {1, 1}, "1f1b-flush", "flush", 2),
                          "--data",
                          "synthetic-images:image=8,samples=96",
                          "--evaluation-data",
                          "synthetic-images:image=8,samples=8"} +
                    kModel;
  const auto losses = [&](const char* name, const Words& more) {
    const auto outcome = runtime(folder, job + more + Words{"--output", (folder / name).string()});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return untimed_lines(folder / name, false);
  };
  CHECK(losses("a", {}) == losses("b", {"--evaluate-every-minibatches", "3"}));
  CHECK(untimed_lines(folder / "b", true).size() == 4);  // after 4, 6, 10 and the 12 of the epoch
  for (const Json& line : untimed_lines(folder / "a", false)) {
    CHECK(line.contains("learning_rate"));
    CHECK_FALSE(line.contains("gradient_norm"));
  }
}

TEST_CASE("what a run asks of parameters and evaluations must be there") {
  const TemporaryFolder folder;
  const Words job =
      Words{"--data", "synthetic-images:image=8,samples=64", "--output", (folder / "run").string()} + kModel;
  const auto refused = [&](const Words& more, const std::string& says) {
    const auto outcome = runtime(folder, job + more);
    CAPTURE(outcome.error);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.error, Catch::Contains(says));
    CHECK_FALSE(fs::exists(folder / "run" / "metrics.jsonl"));
  };
  refused({"--no-decay", "biass"}, "no_decay \"biass\": matches no trainable parameter");
  refused({"--parameter-group", "bias"}, "expected EXPRESSION:key=value,key=value");
  refused({"--parameter-group", "bias:weight_decay=0", "--parameter-group", "haed:weight_decay=0"}, "haed");
  refused({"--no-decay", "(("}, "is no regular expression");
  refused({"--evaluate-every-minibatches", "5"}, "there is nothing to evaluate");
}

TEST_CASE("numbers that the data breaks are laid to the data: field and sample, on one rank and on several") {
  const TemporaryFolder folder;
  struct Case {
    const char* what;
    void (*spoil)(OwnData&);
    std::string says;
  };
  const std::vector<Case> cases = {
      {"nan", [](OwnData& d) { d.images[37 * 64 + 5] = std::numeric_limits<float>::quiet_NaN(); },
       "field 'images' of sample 37 of the data, number 5 of minibatch 4, holds nan"},
      {"inf", [](OwnData& d) { d.images[37 * 64 + 5] = -std::numeric_limits<float>::infinity(); },
       "field 'images' of sample 37 of the data, number 5 of minibatch 4, holds -inf"},
      {"labels", [](OwnData& d) { std::fill_n(d.labels.begin() + 16, 8, -100); },
       "all labels of minibatch 2 are -100, which ask nothing"}};
  const std::string plan = write_training_plan(folder, {1, 1});
  for (const Case& c : cases) {
    OwnData data;
    c.spoil(data);
    const std::string spec = data.write(folder / (std::string(c.what) + ".safetensors"));
    for (const Words& way : {Words{"train"}, Words{"launch", "--plan", plan}}) {
      const auto outcome =
          runtime(folder, way + kModel + Words{"--data", spec, "--output", (folder / c.what).string()});
      CAPTURE(c.what, way, outcome.error);
      CHECK(outcome.code == 6);
      CHECK_THAT(outcome.error, Catch::Contains(c.says));
      if (way == Words{"train"}) CHECK_THAT(outcome.error, Catch::Contains("The data is the cause"));
      CHECK_THAT(outcome.error, !Catch::Contains("--learning-rate"));
      fs::remove_all(folder / c.what);
    }
  }
}

TEST_CASE("numbers that diverge: short figures, one error, one cure") {
  const TemporaryFolder folder;
  OwnData data;
  const std::string spec = data.write(folder / "data.safetensors");
  const std::string plan = write_training_plan(folder, {1, 1});
  for (const Words& way : {Words{"train"}, Words{"launch", "--plan", plan}}) {
    for (const Words& more : {Words{"--learning-rate", "1e6"},
                              Words{"--learning-rate", "1e6", "--gradient-clipping-norm", "1e9"}}) {
      const auto outcome =
          runtime(folder, way + kModel + more +
                              Words{"--data", spec, "--epochs", "3", "--output", (folder / "run").string()});
      CAPTURE(way, more, outcome.error);
      CHECK(outcome.code == 6);
      if (way == Words{"train"}) {
        CHECK(times_in(outcome.error, "is not finite on stage") +
                  times_in(outcome.error, "the loss of minibatch") ==
              1);
        CHECK(times_in(outcome.error, "lower --learning-rate") == 1);
      }
      for (size_t at = outcome.error.find("loss "); at != std::string::npos;
           at = outcome.error.find("loss ", at + 1))
        CHECK(outcome.error.find_first_not_of("0123456789.e+-", at + 5) - at - 5 <= 12);
      fs::remove_all(folder / "run");
    }
  }
}

TEST_CASE("an evaluation minibatch whose labels ask nothing adds nothing") {
  const TemporaryFolder folder;
  OwnData data;
  std::fill_n(data.labels.begin() + 8, 8, -100);
  std::fill_n(data.labels.begin() + 20, 2, -100);
  const std::string spec = data.write(folder / "data.safetensors");
  const std::string plan = write_training_plan(folder, {1, 1});
  const auto outcome = runtime(
      folder, Words{"launch", "--plan", plan} + kModel +
                  Words{"--data", OwnData().write(folder / "train.safetensors"), "--evaluation-data", spec,
                        "--output", (folder / "run").string(), "--checkpoint-every-epochs", "1"});
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  const Json evaluation = untimed_lines(folder / "run", true).at(0)["evaluation"];
  REQUIRE(evaluation["loss"].is_number());
  CHECK(evaluation["samples"] == 64);
  // Of the minibatches by themselves, by the labels that count.
  double sum = 0, labels = 0;
  for (int64_t k = 0; k < 8; ++k) {
    if (k == 1) continue;
    OwnData part = data;
    for (int64_t i = 0; i < 64; ++i)
      if (i / 8 != k) part.labels[static_cast<size_t>(i)] = -100;
    const auto alone =
        runtime(folder, {"evaluate", "--json", "--config", (folder / "run" / "run.json").string(), "--resume",
                         "latest", "--evaluation-data", part.write(folder / "part.safetensors")});
    INFO(alone.error);
    REQUIRE(alone.code == 0);
    const double counted = k == 2 ? 6 : 8;
    sum += counted * parse_json(alone.output, "evaluate").at("loss").get<double>();
    labels += counted;
  }
  CHECK(evaluation["loss"].get<double>() == Approx(sum / labels).epsilon(1e-6));
}

TEST_CASE(
    "a plan and a checkpoint go with the model, whatever path it is found by, and what does not fit is said "
    "in "
    "words") {
  const TemporaryFolder folder;
  const std::string fixture = PIPEWRIGHT_SOURCE_DIR "/tests/models/pt2/modes";
  const fs::path first = folder / "a.pt2", second = folder / "elsewhere" / "b.pt2";
  fs::create_directories(second.parent_path());
  fs::copy_file(fixture + ".pt2", first);
  fs::copy_file(fixture + ".pt2", second);
  const Graph graph = graph_of(first.string(), 4, folder);
  Plan plan = single_stage_plan(graph, 1);
  write_document(folder / "plan.json", plan);
  const auto words = [&](const fs::path& model, const char* batch) {
    return Words{"--plan",       (folder / "plan.json").string(),
                 "--model",      model.string(),
                 "--batch-size", batch,
                 "--data",       "tensors:file=" + fixture + ".safetensors",
                 "--output",     (folder / "run").string()};
  };
  auto outcome = runtime(folder, words(second, "4") + Words{"--checkpoint-every-epochs", "1"});
  INFO(outcome.error);
  REQUIRE(outcome.code == 0);
  outcome = runtime(folder, words(first, "4") + Words{"--epochs", "2", "--resume", "latest"});
  INFO(outcome.error);
  CHECK(outcome.code == 0);
  // Another model's plan.
  const auto other =
      runtime(folder, Words{"--plan", (folder / "plan.json").string(), "--data",
                            "synthetic-images:image=8,samples=64", "--output", (folder / "other").string()} +
                          kModel);
  CHECK(other.code == 3);
  CHECK_THAT(other.error, Catch::Contains("the plan is for model"));
}
