// The text form of actions: one text for one list.
#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/schedule.h"

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

}  // namespace
}  // namespace pipewright
