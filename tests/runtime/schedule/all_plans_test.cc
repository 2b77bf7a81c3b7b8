// Every schedule on every small plan: the dry run completes, in flight and versions are what
// docs/schedules.md and docs/semantics.md say. PIPEWRIGHT_ALL_PLANS=6 takes all plans of up to six stages
// (minutes) instead of up to three.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/split_messages.h"
#include "runtime/schedule/versions.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::all_replica_counts;
using testing::dashed;
using Numbers = std::vector<int64_t>;

int64_t most_stages() {
  const char* stages = std::getenv("PIPEWRIGHT_ALL_PLANS");
  return stages ? std::atoll(stages) : 3;
}

const std::vector<Span> kSpans = {{0, 0}, {0, 1}, {0, 2}, {0, 7}, {0, 24}, {1, 1}, {3, 10}, {11, 29}};

std::string words(const std::string& schedule, const PipelineShape& shape, Span span) {
  std::string text =
      schedule + " " + dashed(shape.replicas) + " depths " + dashed(shape.in_flight) + " weights " +
      to_text(shape.weights) + " microbatches " + std::to_string(shape.microbatches) + " accumulation " +
      std::to_string(shape.accumulation) + " stages a rank " + std::to_string(shape.stages_per_rank) +
      " span " + std::to_string(span.first) + "+" + std::to_string(span.count);
  for (const Numbers& shares : shape.shares) text += " shares " + dashed(shares);
  for (const Numbers& split : shape.split) text += " split " + dashed(split);
  return text;
}

struct Tally {
  int64_t runs = 0, deadlocks = 0;
};

// What check_schedule itself does not promise. "" or what is wrong.
std::string broken(const std::string& schedule, const PipelineShape& shape, Span span, Tally* tally) {
  ++tally->runs;
  const ScheduleCheck check = check_schedule(schedule, shape, span);
  if (!check.completes) {
    ++tally->deadlocks;
    return check.problem;
  }
  const Numbers depths = schedule_named(schedule).depths(shape);
  const bool trains = schedule_named(schedule).trains();
  for (const RankCheck& rank : check.ranks) {
    const int64_t stage = rank.placement.stage;
    const StageTurns turns(shape, stage);
    const auto at = " at stage " + std::to_string(stage);
    if (rank.updates != (trains ? turns.rounds_of(span).count : 0)) return "updates" + at;
    if (rank.minibatches != turns.minibatches_of(rank.placement.replica, span)) return "minibatches" + at;
    if (rank.peak_in_flight > depths[stage]) return "in flight" + at;
    if (!trains) {
      if (rank.peak_versions > 1) return "versions" + at;
      continue;
    }
    const int64_t length = turns.round_length(), ahead = turns.run_ahead(depths[stage]);
    // A long span shows the depth itself, where every replica gets what the first gets.
    const bool tight = shape.shares.empty() && (shape.stages_per_rank == 1 || shape.replicas[stage] == 1);
    if (tight && span.first == 0 && span.count >= ahead + turns.cycle_length() && span.count >= length &&
        length % turns.cycle_length() == 0 && rank.peak_in_flight < depths[stage])
      return "less in flight than the depth" + at;
    const int64_t first_ahead = StageTurns(shape, 0).run_ahead(depths[0]);
    const auto versions = [&](int64_t lag) { return 1 + (lag + length - 1) / length; };
    const int64_t most = shape.weights == WeightRule::kFlush         ? 1
                         : shape.weights == WeightRule::kTwoVersions ? 2
                         : shape.weights == WeightRule::kPaci        ? 1
                         : shape.weights == WeightRule::kPredict     ? 2
                         : shape.weights == WeightRule::kStash       ? versions(ahead)
                                                                     : versions(first_ahead);
    if (rank.peak_versions > most) return "versions" + at;
    const int64_t first_round = span.first / length;
    for (size_t i = 0; i < rank.minibatches.size(); ++i) {
      const int64_t k = rank.minibatches[i];
      const auto ended = [&](int64_t lag) {
        int64_t rounds = 0;  // counted one by one
        while ((first_round + rounds + 1) * length + lag <= k) ++rounds;
        return rounds;
      };
      const int64_t version = shape.weights == WeightRule::kFlush ? k / length - first_round
                              : shape.weights == WeightRule::kTwoVersions
                                  ? std::max<int64_t>(0, k / length - first_round - 1)
                              : shape.weights == WeightRule::kVertical ? ended(first_ahead)
                                                                       : ended(ahead);
      if (rank.forward_version[i] != version) return "version of " + std::to_string(k) + at;
    }
  }
  return "";
}

void check_all_spans(const std::string& schedule, const PipelineShape& shape, Tally* tally) {
  for (const Span span : kSpans) {
    const std::string problem = broken(schedule, shape, span, tally);
    if (!problem.empty()) FAIL(words(schedule, shape, span) << ": " << problem);
  }
}

std::vector<Numbers> depth_choices(const Numbers& replicas) {
  const size_t stages = replicas.size();
  Numbers growing(stages);  // deeper downstream: must be cut
  for (size_t stage = 0; stage < stages; ++stage) growing[stage] = static_cast<int64_t>(stage) + 2;
  return {Numbers(stages, 1), pipedream_in_flight(replicas), growing,
          Numbers(stages, static_cast<int64_t>(stages)), Numbers(stages, 1000)};
}

// As deep as the schedule wants where it does not take less.
PipelineShape deepened(const std::string& schedule, PipelineShape shape) {
  const Numbers depths = schedule_named(schedule).depths(shape);
  for (size_t stage = 0; stage < depths.size(); ++stage)
    shape.in_flight[stage] = std::max(shape.in_flight[stage], depths[stage]);
  return shape;
}

void check_asynchronous(PipelineShape shape, Tally* tally) {
  check_all_spans("1f1b", shape, tally);
  shape.accumulation = 3;
  check_all_spans("1f1b", shape, tally);
  shape.accumulation = 1;
  shape.weights = WeightRule::kTwoVersions;
  const int64_t least = std::max<int64_t>(1, StageTurns(shape, 0).run_ahead(usable_in_flight(shape)[0]));
  for (const int64_t more : {0, 1, 5}) {
    shape.microbatches = least + more;
    check_all_spans("1f1b", shape, tally);
  }
  shape.microbatches = 1;
  for (const WeightRule in_place : {WeightRule::kPaci, WeightRule::kPredict}) {
    shape.weights = in_place;
    for (const int64_t accumulation : {1, 3}) {
      shape.accumulation = accumulation;
      check_all_spans("1f1b", shape, tally);
    }
  }
  shape.weights = WeightRule::kVertical;
  try {
    check_shape(shape);
  } catch (const PlanError&) {
    return;  // different rounds
  }
  for (const int64_t accumulation : {1, 2}) {
    shape.accumulation = accumulation;
    check_all_spans("1f1b", shape, tally);
  }
}

TEST_CASE("all plans: asynchronous schedules, with stash, vertical and 2bw") {
  Tally tally;
  for (const Numbers& replicas : all_replica_counts(most_stages(), 4)) {
    for (const Numbers& depths : depth_choices(replicas)) check_asynchronous({replicas, depths}, &tally);
    PipelineShape one{replicas, Numbers(replicas.size(), 1)};
    for (const char* schedule : {"model-parallel", "forward"}) check_all_spans(schedule, one, &tally);
    one.accumulation = 2;
    check_all_spans("model-parallel", one, &tally);
  }
  CHECK(tally.deadlocks == 0);
  if (std::getenv("PIPEWRIGHT_ALL_PLANS")) std::cerr << "asynchronous: " << tally.runs << " runs\n";
}

TEST_CASE("all plans: schedules with a flush") {
  Tally tally;
  for (const Numbers& replicas : all_replica_counts(most_stages(), 4)) {
    PipelineShape shape{replicas, {}};
    shape.weights = WeightRule::kFlush;
    for (const int64_t microbatches : {1, 2, 3, 8, 13}) {
      shape.microbatches = microbatches;
      shape.in_flight = Numbers(replicas.size(), 1);
      check_all_spans("gpipe", deepened("gpipe", shape), &tally);
      for (const Numbers& depths : depth_choices(replicas)) {
        shape.in_flight = depths;
        check_all_spans("1f1b-flush", shape, &tally);
        check_all_spans("zb-h1", shape, &tally);
      }
    }
  }
  CHECK(tally.deadlocks == 0);
  if (std::getenv("PIPEWRIGHT_ALL_PLANS")) std::cerr << "flush: " << tally.runs << " runs\n";
}

TEST_CASE("all plans: several stages on each rank") {
  Tally tally;
  const int64_t most_groups = most_stages();
  for (const Numbers& replicas : all_replica_counts(most_groups, 4)) {
    PipelineShape shape{{}, {}};
    shape.weights = WeightRule::kFlush;
    for (const int64_t several : {1, 2, 3}) {
      if (several > 1 && replicas.size() == 1) continue;
      shape.stages_per_rank = several;
      shape.replicas.insert(shape.replicas.end(), replicas.begin(), replicas.end());
      shape.in_flight = Numbers(shape.replicas.size(), 1);
      check_all_spans("forward", shape, &tally);
      // Fewer than ranks, as many, ragged, many.
      for (const int64_t microbatches : {1, 2, 3, 4, 6, 7, 13, 24}) {
        shape.microbatches = microbatches;
        shape.in_flight = Numbers(shape.replicas.size(), 1);
        check_all_spans("interleaved", deepened("interleaved", shape), &tally);
      }
    }
  }
  CHECK(tally.deadlocks == 0);
  if (std::getenv("PIPEWRIGHT_ALL_PLANS")) std::cerr << "several stages a rank: " << tally.runs << " runs\n";
}

TEST_CASE("all plans: two stages on each rank, V-shaped") {
  Tally tally;
  for (int64_t groups = 2; groups <= most_stages() + 2; ++groups) {
    for (const Numbers& shares : {Numbers{}, Numbers{1, 1}, Numbers{2, 1}, Numbers{1, 1, 1}}) {
      PipelineShape shape{Numbers(2 * groups, std::max<int64_t>(1, std::ssize(shares))), {}};
      if (shares == Numbers{2, 1}) shape.shares.assign(shape.replicas.size(), shares);
      shape.weights = WeightRule::kFlush;
      shape.stages_per_rank = 2;
      shape.v_shaped = true;
      shape.in_flight = Numbers(shape.replicas.size(), 1);
      check_all_spans("forward", shape, &tally);
      for (const int64_t microbatches : {1, 2, 3, 4, 6, 7, 13, 24}) {
        shape.microbatches = microbatches;
        shape.in_flight = Numbers(shape.replicas.size(), 1);
        for (const char* schedule : {"zbv", "dualpipev"})
          check_all_spans(schedule, deepened(schedule, shape), &tally);
      }
    }
  }
  CHECK(tally.deadlocks == 0);
  if (std::getenv("PIPEWRIGHT_ALL_PLANS")) std::cerr << "V-shaped: " << tally.runs << " runs\n";
}

TEST_CASE("random plans with uneven shares: every schedule") {
  std::mt19937_64 random(8);
  Tally tally;
  const int rounds = std::getenv("PIPEWRIGHT_ALL_PLANS") ? 20000 : 300;
  for (int round = 0; round < rounds; ++round) {
    const auto stages = 1 + random() % 5;
    PipelineShape shape;
    for (size_t stage = 0; stage < stages; ++stage) {
      Numbers shares(1 + random() % 4);
      for (int64_t& share : shares) share = 1 + static_cast<int64_t>(random() % 4);
      shape.replicas.push_back(static_cast<int64_t>(shares.size()));
      shape.shares.push_back(shares);
      shape.in_flight.push_back(1 + static_cast<int64_t>(random() % 8));
    }
    PipelineShape asynchronous = shape;
    check_asynchronous(asynchronous, &tally);
    check_all_spans("model-parallel", asynchronous, &tally);
    shape.weights = WeightRule::kFlush;
    shape.microbatches = 1 + static_cast<int64_t>(random() % 20);
    for (const char* schedule : {"gpipe", "1f1b-flush", "zb-h1", "interleaved"})
      check_all_spans(schedule, deepened(schedule, shape), &tally);
    if (stages == 1) continue;
    shape.stages_per_rank = 2;
    for (size_t stage = 0; stage < stages; ++stage) {
      shape.replicas.push_back(shape.replicas[stage]);
      shape.shares.push_back(shape.shares[stage]);
      shape.in_flight.push_back(1);
    }
    check_all_spans("interleaved", deepened("interleaved", shape), &tally);
    check_all_spans("forward", shape, &tally);
  }
  CHECK(tally.deadlocks == 0);
  if (std::getenv("PIPEWRIGHT_ALL_PLANS")) std::cerr << "uneven shares: " << tally.runs << " runs\n";
}

TEST_CASE("random plans whose stages split minibatches, take turns or have shares: every schedule") {
  std::mt19937_64 random(9);
  Tally tally;
  const int rounds = std::getenv("PIPEWRIGHT_ALL_PLANS") ? 20000 : 300;
  for (int round = 0; round < rounds; ++round) {
    const auto stages = 1 + random() % 5;
    PipelineShape shape;
    for (size_t stage = 0; stage < stages; ++stage) {
      Numbers weights(1 + random() % 4);
      for (int64_t& weight : weights) weight = 1 + static_cast<int64_t>(random() % 4);
      shape.replicas.push_back(static_cast<int64_t>(weights.size()));
      const auto kind = random() % 4;  // half of them split
      shape.split.push_back(kind < 2 ? weights : Numbers());
      shape.shares.push_back(kind == 2 ? weights : Numbers());
      shape.in_flight.push_back(1 + static_cast<int64_t>(random() % 8));
    }
    check_asynchronous(shape, &tally);
    check_all_spans("model-parallel", shape, &tally);
    check_all_spans("forward", evaluation_shape(shape), &tally);
    shape.weights = WeightRule::kFlush;
    shape.microbatches = 1 + static_cast<int64_t>(random() % 20);
    for (const char* schedule : {"gpipe", "1f1b-flush", "zb-h1"})
      check_all_spans(schedule, deepened(schedule, shape), &tally);
  }
  CHECK(tally.deadlocks == 0);
  if (std::getenv("PIPEWRIGHT_ALL_PLANS")) std::cerr << "splits: " << tally.runs << " runs\n";
}

TEST_CASE("vertical: every stage reads what the first stage would, 2bw: an interval that is too short") {
  PipelineShape shape{{2, 2, 2}, {4, 3, 1}};
  const ScheduleCheck stash = check_schedule("1f1b", shape, {0, 40});
  shape.weights = WeightRule::kVertical;
  const ScheduleCheck vertical = check_schedule("1f1b", shape, {0, 40});
  REQUIRE(vertical.completes);
  for (const RankCheck& rank : vertical.ranks) {
    CHECK(rank.forward_version == stash.ranks[rank.placement.replica].forward_version);
    CHECK(rank.peak_versions == 4);
  }
  shape.weights = WeightRule::kTwoVersions;
  shape.microbatches = 5;
  CHECK_THROWS_AS(check_schedule("1f1b", shape, {0, 40}), PlanError);
  CHECK_THROWS_WITH(check_schedule("1f1b", shape, {0, 40}),
                    Catch::Contains("5 microbatches an update with weights '2bw', expected at least 6"));
  shape.microbatches = 6;
  const ScheduleCheck two = check_schedule("1f1b", shape, {0, 40});
  for (const RankCheck& rank : two.ranks) CHECK(rank.peak_versions == 2);
}

TEST_CASE("what does not go together is refused") {
  PipelineShape shape{{1, 1}, {2, 2}};
  shape.microbatches = 4;
  CHECK_THROWS_WITH(check_schedule("gpipe", shape, {0, 4}),
                    Catch::Contains("'gpipe' does not go with weights 'stash'"));
  shape.weights = WeightRule::kFlush;
  CHECK_THROWS_AS(check_schedule("1f1b", shape, {0, 4}), PlanError);
  CHECK_THROWS_WITH(check_schedule("gpipe", shape, {0, 4}),
                    "pipeline, stage 0: schedule 'gpipe' keeps 4 of 4 microbatches in flight on a rank, "
                    "in_flight is 2");
  shape.in_flight = {4, 4};
  CHECK(check_schedule("gpipe", shape, {0, 4}).completes);
  PipelineShape several{{1, 1, 1, 1}, {9, 9, 9, 9}};
  several.stages_per_rank = 2;
  several.weights = WeightRule::kFlush;
  CHECK_THROWS_WITH(check_schedule("1f1b-flush", several, {0, 4}),
                    Catch::Contains("'1f1b-flush' runs one stage on a rank, got 2"));
}

}  // namespace
}  // namespace pipewright
