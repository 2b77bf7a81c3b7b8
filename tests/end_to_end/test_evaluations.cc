// Programs whose evaluation was wrong: reported ones, and what PyTorch says of them.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>

#include "graph/document.h"
#include "tests/end_to_end/commands.h"
#include "tests/support/skip.h"

namespace pipewright::testing {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A reported program, trained and evaluated as its README says.
class Reported {
 public:
  // Skips the test where it is not there: false.
  bool open(const std::string& name, const std::string& model = "model", const std::string& data = "data") {
    const fs::path where = shared_data().empty() ? fs::path() : shared_data() / "reported" / name;
    if (where.empty() || !fs::exists(where / (model + ".pt2"))) {
      skip("no reported program " + name);
      return false;
    }
    model_ = {"--model", (where / (model + ".pt2")).string(), "--batch-size", "4"};
    data_ = "tensors:file=" + (where / (data + ".safetensors")).string();
    return true;
  }
  Words evaluation() const { return {"--evaluation-data", data_}; }
  Outcome train(const std::string& output, int64_t minibatches, const Words& more) {
    const Outcome outcome =
        runtime(folder_, Words{"train"} + model_ +
                             Words{"--data", data_, "--minibatches", std::to_string(minibatches), "--output",
                                   file(output).string()} +
                             more);
    INFO(outcome.error);
    CHECK(outcome.code == 0);
    return outcome;
  }
  Outcome run(const std::string& command, const std::string& run, const Words& more) {
    return runtime(folder_, Words{command} + model_ + evaluation() +
                                Words{"--initial-weights", (file(run) / "model.safetensors").string()} +
                                more);
  }
  Json evaluated(const std::string& run, const Words& more = {}) {
    const Outcome outcome = this->run("evaluate", run, Words{"--json"} + more);
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return parse_json(outcome.output, "evaluate");
  }
  // The run's own last evaluation.
  Json summary(const std::string& run) {
    return parse_json(bytes_of(file(run) / "summary.json"), "summary").at("evaluation");
  }
  fs::path file(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
  Words model_;
  std::string data_;
};

}  // namespace

TEST_CASE(
    "a model that keeps statistics of its own trains the same, evaluated or not, and every plan evaluates it "
    "alike") {
  Reported reported;
  if (!reported.open("evaluation_changes_buffers")) return;
  const Words rate = {"--learning-rate", "0.05"};
  reported.train("without", 12, rate);
  reported.train("with", 12, rate + reported.evaluation());
  reported.train("often", 12, rate + reported.evaluation() + Words{"--evaluate-every-minibatches", "2"});
  const std::string weights = bytes_of(reported.file("without") / "model.safetensors");
  CHECK(!weights.empty());
  CHECK(bytes_of(reported.file("with") / "model.safetensors") == weights);
  CHECK(bytes_of(reported.file("often") / "model.safetensors") == weights);
  const Json one = reported.evaluated("without");
  CHECK(reported.evaluated("without", {"--ranks", "2"}) == one);
  CHECK(reported.summary("with").at("loss") == one.at("loss"));
}

TEST_CASE("the loss of two tasks is that of both in evaluation, too") {
  Reported reported;
  if (!reported.open("evaluation_drops_second_loss")) return;
  reported.train("two", 6, Words{"--learning-rate", "0"} + reported.evaluation());
  CHECK(std::abs(reported.summary("two").at("loss").get<double>() - 2.4839) < 1e-4);
}

TEST_CASE("labels that the graph ignores count neither in the evaluation's loss nor in its top-1") {
  Reported reported;
  if (!reported.open("ignore_index_in_metrics")) return;
  reported.train("ignore", 6, Words{"--learning-rate", "0.05"} + reported.evaluation());
  CHECK(std::abs(reported.summary("ignore").at("loss").get<double>() - 1.65188) < 1e-5);
  CHECK(std::abs(reported.summary("ignore").at("top1").get<double>() - 0.1176) < 1e-4);
}

TEST_CASE("the classes of pixels are in the dimension that the cross entropy says") {
  for (const char* name : {"seg8", "seg3"}) {
    CAPTURE(name);
    Reported reported;
    if (!reported.open("segmentation_scores", name, name)) return;
    reported.train("seg", 6, reported.evaluation());
    const Json evaluation = reported.evaluated("seg");
    if (name == std::string("seg8")) CHECK(std::abs(evaluation.at("top1").get<double>() - 0.1211) < 1e-4);
    CHECK(evaluation.at("top1").is_number());
    CHECK(evaluation.value("perplexity", Json()).is_null());
    const Outcome predicted = reported.run("predict", "seg",
                                           {"--predictions", reported.file("scores.safetensors").string(),
                                            "--classes", reported.file("classes.jsonl").string()});
    INFO(predicted.error);
    REQUIRE(predicted.code == 0);
    // Of the file's own labels and classes the same share is right.
    std::ifstream lines(reported.file("classes.jsonl"));
    int64_t right = 0, all = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json sample = parse_json(line, "line");
      for (size_t i = 0; i < sample.at("class").size(); ++i, ++all)
        right += sample.at("class")[i] == sample.at("label")[i];
    }
    CHECK(static_cast<double>(right) / static_cast<double>(all) == evaluation.at("top1").get<double>());
  }
}

TEST_CASE("what is no class has no top-1, no perplexity, and no bound") {
  const std::vector<std::pair<std::string, std::string>> programs = {{"top1_of_float_labels", "binary"},
                                                                     {"top1_of_float_labels", "regression"},
                                                                     {"labels_that_are_no_classes", "binary"},
                                                                     {"binary_labels_crash", "model"}};
  for (const auto& [folder, name] : programs) {
    CAPTURE(folder, name);
    Reported reported;
    if (!reported.open(folder, name, name == "model" ? "data" : name)) return;
    reported.train("run", 6, reported.evaluation());
    const Json evaluation = reported.evaluated("run");
    CHECK(evaluation.at("loss").is_number());
    CHECK(evaluation.at("top1").is_null());
    CHECK(evaluation.value("perplexity", Json()).is_null());
    const Outcome predicted =
        reported.run("predict", "run", {"--predictions", reported.file("scores.safetensors").string()});
    INFO(predicted.error);
    CHECK(predicted.code == 0);
    const Outcome classes =
        reported.run("predict", "run", {"--classes", reported.file("classes.jsonl").string()});
    CHECK(classes.code == 2);
    CHECK_THAT(classes.error, Catch::Contains("nothing says which of them are classes"));
  }
}

TEST_CASE("parameters without a gradient do not decay") {
  Reported reported;
  if (!reported.open("decay_without_gradient")) return;
  const Words decay = {"--optimizer", "adamw", "--weight-decay", "0.5"};
  reported.train("start", 8, decay + Words{"--learning-rate", "0"});
  reported.train("decay", 8, decay + Words{"--learning-rate", "0.05"});
  const auto teacher = [&](const std::string& run) {
    const std::string file = bytes_of(reported.file(run) / "model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof(header));
    const Json entries = parse_json(file.substr(8, header), run);
    std::string bytes;
    for (const char* name : {"teacher.weight", "teacher.bias"}) {
      const auto& place = entries.at(name).at("data_offsets");
      bytes +=
          file.substr(8 + header + place[0].get<size_t>(), place[1].get<size_t>() - place[0].get<size_t>());
    }
    return bytes;
  };
  CHECK(teacher("start") == teacher("decay"));
  CHECK(bytes_of(reported.file("start") / "model.safetensors") !=
        bytes_of(reported.file("decay") / "model.safetensors"));
}

}  // namespace pipewright::testing
