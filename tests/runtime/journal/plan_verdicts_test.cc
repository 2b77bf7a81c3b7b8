#include "runtime/journal/plan_verdicts.h"

#include <catch2/catch.hpp>

using namespace pipewright;

namespace {

GenerationSummary stretch(int64_t first, int64_t minibatches, const std::string& reason, double steady,
                          double last) {
  GenerationSummary generation;
  generation.first_minibatch = first;
  generation.minibatches = minibatches;
  generation.plan = "p" + std::to_string(first) + ".json";
  generation.reason = reason;
  generation.minibatch_seconds = steady;
  generation.last_minibatch_seconds = last;
  return generation;
}

}  // namespace

TEST_CASE("a change of the plan is judged by what came before it and by what it took") {
  Summary summary;
  summary.generations = {stretch(0, 200, "start", 0.1, 0.241), stretch(200, 400, "interference", 0.14, 0.14)};
  summary.generations[0].predicted_minibatch_seconds = 0.098;
  summary.generations[1].drain_seconds = 0.1;
  summary.generations[1].move_seconds = 0.2;
  summary.generations[1].start_seconds = 0.1;
  CHECK(
      plan_verdicts(summary) ==
      std::vector<std::string>{
          "minibatches 0 to 199, plan p0.json: 100 ms a minibatch, predicted 98 ms",
          "minibatches 200 to 599, plan p200.json: 140 ms a minibatch; helped: 241 ms -> 140 ms a minibatch, "
          "saved 40 s"});
  summary.generations[1].minibatch_seconds = 0.3;
  CHECK(plan_verdicts(summary).back() ==
        "minibatches 200 to 599, plan p200.json: 300 ms a minibatch; did not help: 241 ms -> 300 ms a "
        "minibatch, "
        "lost 24 s");
}

TEST_CASE("going on is no change, and what was not trained or timed is not judged") {
  Summary summary;
  summary.generations = {stretch(0, 8, "start", 0.1, 0.2)};
  CHECK(plan_verdicts(summary).empty());
  summary.generations = {stretch(0, 8, "start", 0.1, 0.2),
                         stretch(8, 8, "resume", 0.05, 0.05),
                         stretch(16, 0, "manual", 0, 0),
                         stretch(16, 4, "manual", 0.025, 0.025),
                         stretch(20, 2, "manual", 0, 0),
                         stretch(22, 8, kLossReason + std::string("rank 1 was killed"), 0.2, 0.2)};
  CHECK(plan_verdicts(summary) ==
        std::vector<std::string>{
            "minibatches 0 to 7, plan p0.json: 100 ms a minibatch",
            "minibatches 8 to 15, plan p8.json: 50 ms a minibatch",
            "minibatches 16 to 19, plan p16.json: 25 ms a minibatch; helped: 50 ms -> 25 ms a "
            "minibatch, saved 100 ms",
            "minibatches 22 to 29, plan p22.json: 200 ms a minibatch"});
}
