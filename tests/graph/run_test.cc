#include "graph/run.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "graph/document.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::error_of;
using testing::sample_run;

template <typename Edit>
std::string invalid_run(const Edit& edit) {
  Run run = sample_run();
  edit(run);
  return error_of<InputError>([&] { run.validate("run.json"); });
}

TEST_CASE("model and data are all that a run needs") {
  const Run run =
      parse_document<Run>(R"({"schema": "pipewright.run/1", "model": "mlp", "data": "fashion-mnist"})", "r");
  CHECK(run.batch_size == 64);
  CHECK(run.optimizer.name == "sgd");
  CHECK(run.output == "runs/latest");
  CHECK(error_of<InputError>([] {
          parse_document<Run>(R"({"schema": "pipewright.run/1", "model": "mlp"})", "r");
        }) == "r: data: missing");
}

TEST_CASE("parts of nested settings keep the other defaults") {
  const Run run = parse_document<Run>(
      R"({"schema": "pipewright.run/1", "model": "m", "data": "d", "optimizer": {"name": "adam"}, "learning_rate_policy": {"gamma": 0.5}})",
      "r");
  CHECK(run.optimizer.name == "adam");
  CHECK(run.optimizer.beta2 == 0.999);
  CHECK(run.learning_rate_policy.gamma == 0.5);
  CHECK(run.learning_rate_policy.name == "constant");
}

TEST_CASE("what was on or off before there was auto is read as it was meant") {
  const auto graphs = [](const std::string& value) {
    return parse_document<Run>(
               R"({"schema": "pipewright.run/1", "model": "m", "data": "d", "cuda_graphs": )" + value + "}",
               "r")
        .cuda_graphs;
  };
  CHECK(graphs("false") == "off");
  CHECK(graphs("true") == "on");
  CHECK(graphs("\"auto\"") == "auto");
}

TEST_CASE("settings have ranges, wherever they come from") {
  CHECK_NOTHROW(sample_run().validate("run.json"));
  CHECK(invalid_run([](Run& r) { r.model = ""; }) ==
        "run.json: model: empty; expected a model, such as \"mlp\"");
  CHECK(invalid_run([](Run& r) { r.batch_size = 0; }) ==
        "run.json: batch_size: 0 is not in 1..9007199254740992");
  CHECK(invalid_run([](Run& r) { r.optimizer.name = "adma"; }) ==
        "run.json: optimizer.name: \"adma\" is not one of sgd, adam, adamw, nadam, lion, muon, adafactor; "
        "did you mean "
        "'adam'?");
  CHECK(invalid_run([](Run& r) { r.optimizer.momentum = 1.5; }) ==
        "run.json: optimizer.momentum: 1.5 is not in 0.0..1.0");
  CHECK(invalid_run([](Run& r) { r.optimizer.learning_rate = std::nan(""); }) ==
        "run.json: optimizer.learning_rate: NaN is not a finite number");
  CHECK(invalid_run([](Run& r) { r.optimizer.beta1 = 1; }) ==
        "run.json: optimizer.beta1: 1.0 is not below 1");
  CHECK(invalid_run([](Run& r) { r.optimizer.momentum = 0; }) ==
        "run.json: optimizer.nesterov: needs a momentum above 0");
  CHECK(invalid_run([](Run& r) { r.learning_rate_policy.name = "cosin"; }).find("did you mean 'cosine'?") !=
        std::string::npos);
  CHECK(invalid_run([](Run& r) { r.learning_rate_scaling = "linear"; }) ==
        "run.json: learning_rate_scaling: \"linear\" is not one of none, pipedream");
  CHECK(invalid_run([](Run& r) { r.timeout_seconds = 0; }).rfind("run.json: timeout_seconds: ", 0) == 0);
  CHECK(invalid_run([](Run& r) { r.threads = 0; }) == "run.json: threads: 0 is not in 1..4096");
  CHECK(invalid_run([](Run& r) { r.data_workers = -1; }) == "run.json: data_workers: -1 is not in 0..4096");
  CHECK(invalid_run([](Run& r) { r.recovery.spares = 100'000; }) ==
        "run.json: recovery.spares: 100000 is not in 0..1024");
  CHECK(invalid_run([](Run& r) { r.recovery.copy_every_minibatches = 1'000'001; }) ==
        "run.json: recovery.copy_every_minibatches: 1000001 is not in 1..1000000");
  CHECK(invalid_run([](Run& r) { r.seed = -1; }) == "run.json: seed: -1 is less than 0");
  CHECK(invalid_run([](Run& r) { r.output = ""; }) == "run.json: output: empty; expected a folder");
}

}  // namespace
}  // namespace pipewright
