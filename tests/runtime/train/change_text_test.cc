// What rank 0 decides arrives at the others as it was decided.
#include "runtime/train/change_text.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "graph/document.h"
#include "tests/runtime/random_pipelines.h"

namespace pipewright::testing {
namespace {

std::string random_words(RandomJobs& jobs) {
  std::string words;
  for (int64_t n = jobs.between(0, 6); n > 0; --n)
    words += jobs.one_of<std::string>(
        {"a", "\"", "\\", "\n", "\t", "\u00e4", "\u6f22", "/", " ", "{", "\x01", "\x7f"});
  return words;
}

// Any finite one, of all sizes.
double random_number(RandomJobs& jobs) {
  double number = 0;
  do {
    const auto bits = static_cast<uint64_t>(
        jobs.between(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
    std::memcpy(&number, &bits, sizeof number);
  } while (!std::isfinite(number));
  return number;
}

PlannedChange random_change(uint64_t seed) {
  RandomJobs jobs(seed);
  PlannedChange change;
  change.minibatch = jobs.between(1, int64_t{1} << 53);
  change.file = random_words(jobs);
  change.plan = jobs.next(6).plan;
  for (Stage& stage : change.plan.stages) stage.layers.push_back(random_words(jobs));
  if (jobs.chance(50)) {
    Prediction& predicted = change.plan.predicted.emplace();
    predicted.minibatch_seconds = 1e-9 * static_cast<double>(jobs.between(0, 1 << 30));
    predicted.bottleneck = random_words(jobs);
    predicted.stages.resize(change.plan.stages.size());
    for (StagePrediction& stage : predicted.stages) stage.memory.weights_bytes = jobs.between(0, 1 << 30);
  }
  change.reason = random_words(jobs);
  if (jobs.chance(50)) change.freeze = jobs.between(0, 100);
  if (jobs.chance(50)) change.gradient_accumulation = jobs.between(1, 100);
  if (jobs.chance(50)) change.learning_rate_scale = random_number(jobs);
  return change;
}

}  // namespace

TEST_CASE("change text: a decision comes back as it was, to the bit, and is one line") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const PlannedChange change = random_change(seed);
    const std::string text = text_of(change);
    CHECK(text.find('\n') == std::string::npos);
    const PlannedChange back = change_from(text);
    CHECK(back.minibatch == change.minibatch);
    CHECK(back.file == change.file);
    CHECK(back.reason == change.reason);
    CHECK(document_text(back.plan) == document_text(change.plan));
    CHECK(back.freeze == change.freeze);
    CHECK(back.gradient_accumulation == change.gradient_accumulation);
    CHECK(back.learning_rate_scale == change.learning_rate_scale);
    CHECK(text_of(back) == text);
  }
}

TEST_CASE("change text: a file whose name is no UTF-8 is named as well as can be") {
  PlannedChange change = random_change(1);
  change.file = "plans/caf\xe9.json";
  CHECK(change_from(text_of(change)).file == "plans/caf\uFFFD.json");
}

}  // namespace pipewright::testing
