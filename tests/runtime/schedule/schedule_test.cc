// The schedules themselves, by example: the lists of every rank, written out.
#include "runtime/schedule/schedule.h"

#include <catch2/catch.hpp>
#include <limits>

#include "graph/error.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

std::vector<std::string> compute(const std::string& name, const PipelineShape& shape, Span span) {
  std::vector<std::string> texts;
  for (const Placement& at : placements(shape))
    texts.push_back(to_text(schedule_named(name).make(shape, at.stage, at.replica, span)));
  return texts;
}

std::vector<std::string> lowered(const std::string& name, const PipelineShape& shape, Span span) {
  std::vector<std::string> texts;
  for (const std::vector<Action>& list : schedule_of_all(name, shape, span)) texts.push_back(to_text(list));
  return texts;
}

using Texts = std::vector<std::string>;

TEST_CASE("1f1b: a straight pipeline warms up by its depth, then alternates") {
  CHECK(compute("1f1b", {{1, 1, 1}, {3, 2, 1}}, {0, 4}) == Texts{"F0 F1 F2 B0 U0 F3 B1 U1 B2 U2 B3 U3",
                                                                 "F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3",
                                                                 "F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3"});
}

TEST_CASE("1f1b: replicas take minibatches in turn, one update a round") {
  CHECK(compute("1f1b", {{2, 1}, {2, 1}}, {0, 6}) ==
        Texts{"F0 F2 B0 U0 F4 B2 U1 B4 U2", "F1 F3 B1 U0 F5 B3 U1 B5 U2",
              "F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3 F4 B4 U4 F5 B5 U5"});
  CHECK(compute("1f1b", {{1, 2}, {3, 1}}, {0, 4}) ==
        Texts{"F0 F1 F2 B0 U0 F3 B1 U1 B2 U2 B3 U3", "F0 B0 U0 F2 B2 U1", "F1 B1 U0 F3 B3 U1"});
}

TEST_CASE(
    "1f1b: a replica without a minibatch in a short round still takes part in its update, in the same "
    "place") {
  // Minibatches 4..8 of three replicas: round 1 lacks minibatch 3, round 2 is whole.
  CHECK(compute("1f1b", {{3}, {1}}, {4, 5}) ==
        Texts{"U1 F6 B6 U2", "F4 B4 U1 F7 B7 U2", "F5 B5 U1 F8 B8 U2"});
  // With two in flight all replicas run the forward of round 2 before the update of round 1.
  CHECK(compute("1f1b", {{3}, {2}}, {4, 5}) ==
        Texts{"F6 U1 B6 U2", "F4 F7 B4 U1 B7 U2", "F5 F8 B5 U1 B8 U2"});
  // A short last round.
  CHECK(compute("1f1b", {{3}, {2}}, {0, 4}) == Texts{"F0 F3 B0 U0 B3 U1", "F1 B1 U0 U1", "F2 B2 U0 U1"});
  // Two minibatches in two rounds.
  CHECK(compute("1f1b", {{4}, {1}}, {3, 2}) == Texts{"U0 F4 B4 U1", "U0 U1", "U0 U1", "F3 B3 U0 U1"});
}

TEST_CASE("1f1b: fewer minibatches than the depth") {
  CHECK(compute("1f1b", {{1, 1}, {9, 1}}, {0, 2}) == Texts{"F0 F1 B0 U0 B1 U1", "F0 B0 U0 F1 B1 U1"});
  CHECK(compute("1f1b", {{1, 1}, {2, 1}}, {5, 0}) == Texts{"", ""});
}

TEST_CASE("model-parallel: one after the other") {
  CHECK(compute("model-parallel", {{1, 1}, {7, 7}}, {0, 2}) ==
        Texts{"F0 B0 U0 F1 B1 U1", "F0 B0 U0 F1 B1 U1"});
  CHECK(compute("model-parallel", {{2, 1}, {1, 1}}, {0, 4}) ==
        Texts{"F0 B0 U0 F2 B2 U1", "F1 B1 U0 F3 B3 U1", "F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3"});
}

TEST_CASE("forward: nothing comes back") {
  CHECK(lowered("forward", {{1, 2}, {1, 1}}, {1, 3}) ==
        Texts{"F1 SA1 F2 SA2 F3 SA3", "RA2 F2", "RA1 F1 RA3 F3"});
}

TEST_CASE("lowering adds communication where there is a neighbour, and a reduce where there are replicas") {
  CHECK(lowered("1f1b", {{1, 2, 1}, {1, 1, 1}}, {0, 2}) ==
        Texts{"F0 SA0 RG0 B0 U0 F1 SA1 RG1 B1 U1", "RA0 F0 SA0 RG0 B0 SG0 AR0 U0",
              "RA1 F1 SA1 RG1 B1 SG1 AR0 U0", "RA0 F0 B0 SG0 U0 RA1 F1 B1 SG1 U1"});
  CHECK(lowered("1f1b", {{1}, {1}}, {0, 2}) == Texts{"F0 B0 U0 F1 B1 U1"});
}

TEST_CASE("depths that would deadlock are cut to what the stage before supplies") {
  CHECK(usable_in_flight({{1, 1, 1}, {3, 2, 1}}) == std::vector<int64_t>{3, 2, 1});
  CHECK(usable_in_flight({{1, 1}, {1, 2}}) == std::vector<int64_t>{1, 1});
  CHECK(usable_in_flight({{1, 3, 1}, {5, 2, 1}}) == std::vector<int64_t>{5, 2, 1});
  CHECK(usable_in_flight({{1, 3, 1}, {3, 2, 9}}) == std::vector<int64_t>{3, 1, 1});
  CHECK(usable_in_flight({{4, 2}, {2, 9}}) == std::vector<int64_t>{2, 3});
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> unlimited = usable_in_flight({{1, 2}, {most, most}});
  CHECK(unlimited[0] > 1000000000);
  CHECK(unlimited[1] > 1000000000);
  // PipeDream's own depths are never cut.
  for (const std::vector<int64_t>& replicas : testing::all_replica_counts(4, 4)) {
    const std::vector<int64_t> depths = pipedream_in_flight(replicas);
    CHECK(usable_in_flight({replicas, depths}) == depths);
  }
  CHECK(pipedream_in_flight({2, 1, 1}) == std::vector<int64_t>{2, 2, 1});
  CHECK(pipedream_in_flight({8, 4, 4}) == std::vector<int64_t>{2, 2, 1});
  CHECK(pipedream_in_flight({3, 1}) == std::vector<int64_t>{2, 1});
}

TEST_CASE("rounds are clipped to the span") {
  const Span span{5, 6};  // 5 | 6 7 8 | 9 10
  const StageTurns turns({{3}, {1}}, 0);
  CHECK(turns.rounds_of(span).first == 1);
  CHECK(turns.rounds_of(span).end() == 4);
  std::vector<int64_t> sizes;
  for (int64_t round = 0; round <= 4; ++round) sizes.push_back(turns.round_size(round, span));
  CHECK(sizes == std::vector<int64_t>{0, 1, 3, 2, 0});
  CHECK(turns.round_begin(1, span) == 5);
  CHECK(turns.round_begin(3, span) == 9);
  CHECK(turns.rounds_of({7, 0}).count == 0);
}

TEST_CASE("schedules are found by name, a wrong name, shape or span is an error") {
  CHECK(std::string(schedule_named("1f1b").name) == "1f1b");
  CHECK_THROWS_AS(schedule_named("1f1c"), InputError);
  CHECK_THROWS_WITH(schedule_named("1f1c"), Catch::Contains("'1f1c'") && Catch::Contains("'1f1b'"));
  CHECK_THROWS_AS(schedule_of_rank("gpape", {{1}, {1}}, 0, 0, {0, 1}), InputError);
  for (const PipelineShape& shape :
       {PipelineShape{{}, {}}, PipelineShape{{1}, {}}, PipelineShape{{0}, {1}}, PipelineShape{{1}, {0}},
        PipelineShape{{1, 1}, {1}}, PipelineShape{{-3}, {1}}})
    CHECK_THROWS_AS(schedule_of_all("1f1b", shape, {0, 4}), PlanError);
  CHECK_THROWS_AS(schedule_of_rank("1f1b", {{1}, {1}}, 0, 0, {-1, 4}), PlanError);
  CHECK_THROWS_AS(schedule_of_rank("1f1b", {{1}, {1}}, 0, 0, {0, -4}), PlanError);
  CHECK_THROWS_AS(schedule_of_rank("1f1b", {{1}, {1}}, 1, 0, {0, 4}), CheckError);
  CHECK_THROWS_AS(schedule_of_rank("1f1b", {{1}, {1}}, 0, 1, {0, 4}), CheckError);
}

}  // namespace
}  // namespace pipewright
