// The dry run: every small plan completes as the theory of runtime/schedule/order.h says, and what is wrong
// is found.
#include "runtime/schedule/check.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::all_replica_counts;
using testing::dashed;

std::vector<std::vector<int64_t>> depth_choices(const std::vector<int64_t>& replicas) {
  const size_t stages = replicas.size();
  std::vector<int64_t> growing(stages);  // deeper downstream: must be cut
  for (size_t stage = 0; stage < stages; ++stage) growing[stage] = static_cast<int64_t>(stage) + 2;
  return {std::vector<int64_t>(stages, 1), pipedream_in_flight(replicas), std::vector<int64_t>(stages, 3),
          growing, std::vector<int64_t>(stages, 1000)};
}

// What check_schedule itself does not promise: counts that follow from the theory.
bool as_in_theory(const ScheduleCheck& check, const PipelineShape& shape, Span span, bool deep) {
  if (!check.completes || !check.problem.empty()) return false;
  const std::vector<int64_t> depths =
      deep ? usable_in_flight(shape) : std::vector<int64_t>(shape.replicas.size(), 1);
  bool good = static_cast<int64_t>(check.ranks.size()) == shape.ranks();
  std::vector<std::vector<int64_t>> processed(shape.replicas.size(), std::vector<int64_t>(span.count, 0));
  for (const RankCheck& rank : check.ranks) {
    const int64_t stage = rank.placement.stage, replica = rank.placement.replica;
    const int64_t replicas = shape.replicas[stage];
    const Rounds rounds = StageTurns(shape, stage).rounds_of(span);
    const int64_t ahead = std::min(depths[stage] - 1, std::max<int64_t>(0, rounds.count - 1));
    good = good && rank.updates == rounds.count;
    // The number of versions: one more than how far this rank runs ahead, fewer in a span too short to get
    // there. Equal when no round is short.
    const bool whole = span.first % replicas == 0 && span.end() % replicas == 0;
    const int64_t versions = 1 + std::min(ahead, rounds.count - ahead);
    good = good && rank.peak_in_flight <= ahead + 1 && rank.peak_versions <= versions;
    if (whole && span.count > 0)
      good = good && rank.peak_in_flight == ahead + 1 && rank.peak_versions == versions;
    good = good && rank.minibatches.size() == rank.forward_version.size();
    for (size_t i = 0; i < rank.minibatches.size(); ++i) {
      const int64_t minibatch = rank.minibatches[i];
      ++processed[stage][minibatch - span.first];
      good = good && minibatch % replicas == replica;
      good = good &&
             rank.forward_version[i] == std::max<int64_t>(0, minibatch / replicas - rounds.first - ahead);
    }
  }
  for (const std::vector<int64_t>& stage : processed)
    for (const int64_t times : stage) good = good && times == 1;
  return good;
}

TEST_CASE("every plan of up to four stages and four replicas completes, with the versions of the theory") {
  int64_t plans = 0;
  for (const std::vector<int64_t>& replicas : all_replica_counts(4, 4)) {
    ++plans;
    for (const std::vector<int64_t>& depths : depth_choices(replicas))
      for (int64_t count = 0; count <= 12; ++count)
        for (const int64_t first : {0, 1, 5, 11}) {
          const PipelineShape shape{replicas, depths};
          const ScheduleCheck check = check_schedule("1f1b", shape, {first, count});
          if (!as_in_theory(check, shape, {first, count}, true))
            FAIL(dashed(replicas) << " depths " << dashed(depths) << " span " << first << "+" << count << ": "
                                  << check.problem);
        }
    for (int64_t count = 0; count <= 12; ++count)
      for (const int64_t first : {0, 3}) {
        const PipelineShape shape{replicas, std::vector<int64_t>(replicas.size(), 2)};
        const ScheduleCheck check = check_schedule("model-parallel", shape, {first, count});
        if (!as_in_theory(check, shape, {first, count}, false))
          FAIL("model-parallel " << dashed(replicas) << " span " << first << "+" << count << ": "
                                 << check.problem);
      }
  }
  CHECK(plans == 4 + 16 + 64 + 256);
}

TEST_CASE("long spans and many replicas complete") {
  for (const std::vector<int64_t>& replicas : std::vector<std::vector<int64_t>>{
           {9, 5, 1, 1}, {15, 1}, {1, 15}, {7, 3, 6}, {1, 1, 1, 1, 1, 1, 1, 1, 3, 1}})
    for (const std::vector<int64_t>& depths : depth_choices(replicas)) {
      CAPTURE(dashed(replicas), dashed(depths));
      CHECK(as_in_theory(check_schedule("1f1b", {replicas, depths}, {17, 1000}), {replicas, depths},
                         {17, 1000}, true));
    }
}

TEST_CASE("drawn example: versions of a straight pipeline") {
  const ScheduleCheck check = check_schedule("1f1b", {{1, 1, 1}, {3, 2, 1}}, {0, 6});
  REQUIRE(check.completes);
  using Numbers = std::vector<int64_t>;
  CHECK(check.ranks[0].forward_version == Numbers{0, 0, 0, 1, 2, 3});
  CHECK(check.ranks[1].forward_version == Numbers{0, 0, 1, 2, 3, 4});
  CHECK(check.ranks[2].forward_version == Numbers{0, 1, 2, 3, 4, 5});
  CHECK(check.ranks[0].peak_versions == 3);
  CHECK(check.ranks[1].peak_versions == 2);
  CHECK(check.ranks[2].peak_versions == 1);
  CHECK(check.ranks[0].minibatches == Numbers{0, 1, 2, 3, 4, 5});
}

TEST_CASE("drawn example: paci, one version and at most one update between forward and backward") {
  PipelineShape shape{{1, 1, 1}, {3, 2, 1}};
  shape.weights = WeightRule::kPaci;
  const ScheduleCheck check = check_schedule("1f1b", shape, {0, 6});
  REQUIRE(check.completes);
  using Numbers = std::vector<int64_t>;
  CHECK(check.ranks[0].forward_version == Numbers{0, 0, 0, 0, 1, 1});
  CHECK(check.ranks[1].forward_version == Numbers{0, 0, 1, 2, 3, 4});
  CHECK(check.ranks[2].forward_version == Numbers{0, 1, 2, 3, 4, 5});
  CHECK(check.ranks[0].updates == 3);
  CHECK(check.ranks[1].updates == 6);
  for (const RankCheck& rank : check.ranks) CHECK(rank.peak_versions == 1);
}

TEST_CASE("paci: a list in which a minibatch sees two updates between forward and backward is refused") {
  PipelineShape shape{{1, 1}, {1, 3}};  // the second stage may not use its depth, and so updates every time
  std::vector<std::vector<Action>> lists;
  for (const char* text : {"F0 SA0 RG0 B0 U0 F1 SA1 RG1 B1 U1 F2 SA2 RG2 B2 U2",
                           "RA0 F0 RA1 F1 RA2 F2 B0 SG0 U0 B1 SG1 U1 B2 SG2 U2"})
    lists.push_back(parse_actions(text));
  shape.weights = WeightRule::kPaci;
  CHECK(check_lists(lists, shape, {0, 3}, true).problem ==
        "rank 1  stage 1 replica 0, action 12 'B2': 2 updates since its forward, expected at most 1");
  shape.weights = WeightRule::kStash;
  CHECK_THAT(check_lists(lists, shape, {0, 3}, true).problem, Catch::Contains("deadlock"));
}

TEST_CASE("forward only: one in flight at a time, no versions but the first") {
  const ScheduleCheck check = check_schedule("forward", {{2, 1}, {1, 1}}, {3, 5});
  REQUIRE(check.completes);
  for (const RankCheck& rank : check.ranks) {
    CHECK(rank.peak_in_flight == 1);
    CHECK(rank.peak_versions == 1);
    CHECK(rank.updates == 0);
  }
  CHECK(check.ranks[0].minibatches == std::vector<int64_t>{4, 6});
}

ScheduleCheck check_texts(const std::vector<std::string>& texts, const PipelineShape& shape, Span span,
                          bool trains = true) {
  std::vector<std::vector<Action>> lists;
  for (const std::string& text : texts) lists.push_back(parse_actions(text));
  return check_lists(lists, shape, span, trains);
}

TEST_CASE("a deadlock is reported as the grid of all ranks with the waiting actions marked") {
  // Why depths are cut: the second stage wants a second forward first, the first stage admits one minibatch
  // at a time.
  const ScheduleCheck check = check_texts(
      {"F0 SA0 RG0 B0 U0 F1 SA1 RG1 B1 U1", "RA0 F0 RA1 F1 B0 SG0 U0 B1 SG1 U1"}, {{1, 1}, {1, 2}}, {0, 2});
  CHECK_FALSE(check.completes);
  CHECK(check.problem ==
        "deadlock: 2 of 2 ranks wait for ever\n"
        "rank 0  stage 0 replica 0 | F0 SA0 RG0 <-- waits for gradient 0 from stage 1 replica 0; B0 U0 F1 "
        "SA1 RG1 B1 (1 "
        "more)\n"
        "rank 1  stage 1 replica 0 | RA0 F0 RA1 <-- waits for activation 1 from stage 0 replica 0; F1 B0 SG0 "
        "U0 B1 SG1 "
        "(1 more)");
}

TEST_CASE("replicas that wait for each other across stages are found") {
  // Rank 0 reduces round 0 only after the forward of round 1, which rank 1 sends only after round 0 is
  // reduced.
  const ScheduleCheck check =
      check_texts({"F0 SA0 RG0 B0 AR0 U0 F2 SA2 RG2 B2 AR1 U1", "F1 SA1 RG1 B1 AR0 U0 AR1 U1",
                   "RA0 F0 RA1 F1 RA2 F2 B0 SG0 U0 B1 SG1 U1 B2 SG2 U2"},
                  {{2, 1}, {1, 3}}, {0, 3});
  CHECK_FALSE(check.completes);
  CHECK_THAT(check.problem, Catch::StartsWith("deadlock: 3 of 3 ranks"));
  CHECK_THAT(check.problem, Catch::Contains("RA2 <-- waits for activation 2 from stage 0 replica 0;"));
}

TEST_CASE("a wrong list is named with the place and what was expected") {
  const PipelineShape one{{1}, {1}}, two{{2}, {1}}, pair{{1, 1}, {2, 1}};
  const auto problem = [](const std::vector<std::string>& texts, const PipelineShape& shape, Span span) {
    const ScheduleCheck check = check_texts(texts, shape, span);
    CHECK_FALSE(check.completes);
    return check.problem;
  };
  const std::string rank0 = "rank 0  stage 0 replica 0, ";
  CHECK(problem({"F0 B0 U0 F2"}, one, {0, 2}) == rank0 + "action 3 'F2': the minibatch is not in the span");
  CHECK(problem({"F1 B1 AR0 U0", "F0"}, two, {0, 2}) ==
        rank0 + "action 0 'F1': the minibatch belongs to replica 1");
  CHECK(problem({"F0 F0 B0 U0"}, one, {0, 1}) ==
        rank0 + "action 1 'F0': expected 'B0' next for this minibatch");
  CHECK(problem({"B0 U0"}, one, {0, 1}) == rank0 + "action 0 'B0': expected 'F0' next for this minibatch");
  CHECK(problem({"F0 F1 B0 U0 B1 U1"}, one, {0, 2}) ==
        rank0 + "action 1 'F1': 2 minibatches in flight, expected at most 1");
  CHECK(problem({"F0 B0 F1"}, one, {0, 2}) == rank0 + "ends before 'B1'");
  CHECK(problem({"F0 B0"}, one, {0, 1}) == rank0 + "ends before 'U0'");
  CHECK(problem({""}, one, {0, 1}) == rank0 + "ends before 'F0'");
  CHECK(problem({"F0 B0 F1 B1"}, one, {0, 2}) == rank0 + "action 3 'B1': round 0 has no update yet");
  CHECK(problem({"F0 U0 B0"}, one, {0, 1}) == rank0 + "action 1 'U0': expected 'B0' first");
  CHECK(problem({"F0 B0 U0 U1"}, one, {0, 1}) == rank0 + "action 3 'U1': all rounds of the span are done");
  CHECK(problem({"F0 B0 U0", ""}, two, {0, 2}) == rank0 + "action 2 'U0': expected 'AR0' next");
  CHECK(problem({"F0 B0 U0 F0"}, one, {0, 1}) == rank0 + "action 3 'F0': the minibatch is already done here");
  // The gradient goes upstream before the reduce of its round.
  CHECK(problem({"F0 SA0 F1 SA1 RG0 B0 U0 RG1 B1 U1", "RA0 F0 B0 AR0 SG0 U0", "RA1 F1 B1 SG1 AR0 U0"},
                {{1, 2}, {2, 1}},
                {0, 2}) == "rank 1  stage 1 replica 0, action 3 'AR0': expected 'SG0' first");
  CHECK(problem({"F0 RG0 B0 U0", "RA0 F0 B0 SG0 U0"}, pair, {0, 1}) ==
        rank0 + "action 1 'RG0': expected 'SA0' next for this minibatch");
  CHECK(check_texts({"F0 B0"}, one, {0, 1}, false).problem ==
        rank0 + "action 1 'B0': the minibatch is already done here");
}

TEST_CASE("bad shapes, spans and names are errors, not crashes") {
  CHECK_THROWS_AS(check_schedule("1f1b", {{}, {}}, {0, 1}), PlanError);
  CHECK_THROWS_AS(check_schedule("1f1b", {{1, 0}, {1, 1}}, {0, 1}), PlanError);
  CHECK_THROWS_AS(check_schedule("1f1b", {{1}, {1}}, {0, -1}), PlanError);
  CHECK_THROWS_AS(check_schedule("2f2b", {{1}, {1}}, {0, 1}), InputError);
}

}  // namespace
}  // namespace pipewright
