// The text form of actions: one text for one list.
#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/schedule.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

TEST_CASE("actions have a text form that round-trips") {
  const std::string text = "RA0 F0 SA0 RG0 B0 SG0 AR0 U0 F9223372036854775807";
  CHECK(to_text(parse_actions(text)) == text);
  CHECK(parse_actions("F3") == std::vector<Action>{{ActionKind::kForward, 3}});
  CHECK(parse_actions("").empty());
  CHECK(parse_actions(" \t\n F1\n\nB1 ").size() == 2);
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<Action> actions(random() % 20);
    for (Action& action : actions)
      action = {static_cast<ActionKind>(random() % 10), static_cast<int64_t>(random() % 1000),
                static_cast<int64_t>(random() % 4) - 1};
    CHECK(parse_actions(to_text(actions)) == actions);
  }
}

TEST_CASE("what is no action is an error that names the word") {
  for (const std::string word :
       {"X3",  "F",   "3",   "23",  "02F3", "-1F3", "2F",  "BI",  "IB3",  "f3",
        "F-1", "F+1", "F03", "F3x", "F3,",  "RA",   "AF1", "F 3", "F1B1", "F9223372036854775808",
        "FF1", "\xff"}) {
    CAPTURE(word);
    CHECK_THROWS_AS(parse_actions("F0 B0 " + word), InputError);
  }
  CHECK_THROWS_WITH(parse_actions("F0 B0 X3"),
                    "actions, word 3: got 'X3', expected one of RA F SA RG B BI BW SG AR U and a "
                    "number, such as F3, or 2F3 at stage 2");
}

TEST_CASE("a whole schedule has a text form that round-trips") {
  PipelineShape shape{{1, 2, 1, 2}, {9, 9, 9, 9}};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = 2;
  shape.stages_per_rank = 2;
  const auto lists = schedule_of_all("interleaved", shape, {0, 2});
  const std::string text = to_text(lists, shape);
  CHECK(text ==
        "rank 0  stages 0,2 replica 0 | 0F0 0SA0 0F1 0SA1 2RA0 2F0 2SA0 2RA1 2F1 2SA1 2RG0 2B0 2SG0 2RG1 2B1 "
        "2SG1 0RG0 0B0 0RG1 0B1 0U0 2U0\n"
        "rank 1  stages 1,3 replica 0 | 1RA0 1F0 1SA0 3RA0 3F0 3B0 3SG0 1RG0 1B0 1SG0 1AR0 1U0 3AR0 3U0\n"
        "rank 2  stages 1,3 replica 1 | 1RA1 1F1 1SA1 3RA1 3F1 3B1 3SG1 1RG1 1B1 1SG1 1AR0 1U0 3AR0 3U0\n");
  CHECK(parse_schedule(text, shape) == lists);
  CHECK(to_text(schedule_of_all("1f1b", {{1, 1}, {2, 1}}, {0, 0}), {{1, 1}, {2, 1}}) ==
        "rank 0  stage 0 replica 0 |\nrank 1  stage 1 replica 0 |\n");
  for (const ScheduleRow& row : testing::schedules_of_any_shape()) {
    PipelineShape any{{2, 1, 3}, {12, 12, 12}};
    any.microbatches = 4;
    const std::string name = row.name;
    if (name != "1f1b" && name != "model-parallel") any.weights = WeightRule::kFlush;
    const auto all = schedule_of_all(name, any, {3, 20});
    CHECK(parse_schedule(to_text(all, any), any) == all);
  }
}

TEST_CASE("a text that is no schedule of these ranks is an error that names the line") {
  const PipelineShape pair{{1, 1}, {2, 1}};
  const std::string first = "rank 0  stage 0 replica 0 | F0 B0 U0\n",
                    second = "rank 1  stage 1 replica 0 | F0\n";
  CHECK(parse_schedule(first + second, pair).size() == 2);
  CHECK_THROWS_WITH(parse_schedule(first, pair), "schedule: ends after 1 ranks, expected 2");
  CHECK_THROWS_WITH(parse_schedule(first + second + second, pair),
                    "schedule, line 3: got 'rank 1  stage 1 replica 0 | F0', expected the end after 2 ranks");
  CHECK_THROWS_WITH(parse_schedule(second + first, pair),
                    Catch::Contains("line 1: got 'rank 1  stage 1 replica 0 |', expected 'rank 0  stage 0"));
  CHECK_THROWS_WITH(parse_schedule(first + "rank 1  stage 1 replica 0 | F0 Q1\n", pair),
                    Catch::Contains("schedule, line 2: actions, word 2: got 'Q1'"));
  CHECK_THROWS_AS(parse_schedule("", pair), InputError);
}

}  // namespace
}  // namespace pipewright
