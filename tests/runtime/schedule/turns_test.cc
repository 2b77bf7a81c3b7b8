// Who processes a minibatch and which minibatches make one update.
#include "runtime/schedule/turns.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "graph/error.h"

namespace pipewright {
namespace {

using Numbers = std::vector<int64_t>;

PipelineShape with_shares(const Numbers& shares) {
  PipelineShape shape{{static_cast<int64_t>(shares.size())}, {1}};
  shape.shares = {shares};
  return shape;
}

Numbers random_shares(std::mt19937_64& random, int64_t most_replicas, int64_t most) {
  Numbers shares(1 + random() % most_replicas);
  for (int64_t& share : shares) share = 1 + static_cast<int64_t>(random() % most);
  return shares;
}

TEST_CASE("shares: smooth weighted round robin, by example") {
  CHECK(shares_cycle({1, 1, 1}) == Numbers{0, 1, 2});
  CHECK(shares_cycle({2, 1}) == Numbers{0, 1, 0});
  CHECK(shares_cycle({1, 2}) == Numbers{1, 0, 1});
  CHECK(shares_cycle({3, 1}) == Numbers{0, 0, 1, 0});
  CHECK(shares_cycle({5, 1, 1}) == Numbers{0, 0, 1, 0, 2, 0, 0});  // the example of nginx, its first user
  CHECK(shares_cycle({2, 2}) == Numbers{0, 1, 0, 1});
  CHECK(shares_cycle({4}) == Numbers{0, 0, 0, 0});
}

TEST_CASE("shares: every replica gets its share of a cycle, at most one off on the way") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const Numbers shares = random_shares(random, 6, 9);
    const Numbers cycle = shares_cycle(shares);
    const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    REQUIRE(static_cast<int64_t>(cycle.size()) == sum);
    Numbers got(shares.size(), 0);
    const auto replicas = static_cast<double>(shares.size());
    for (int64_t done = 1; done <= sum; ++done) {
      ++got[cycle[done - 1]];
      for (size_t replica = 0; replica < shares.size(); ++replica) {
        const double due = static_cast<double>(done * shares[replica]) / static_cast<double>(sum);
        CHECK(std::abs(static_cast<double>(got[replica]) - due) < std::max(1.0, replicas / 2));
      }
    }
    CHECK(got == shares);
  }
}

TEST_CASE("turns: with paci no round is shorter than a stage runs ahead, and all end together soon") {
  std::mt19937_64 random(14);
  for (int round = 0; round < 300; ++round) {
    PipelineShape shape = with_shares(random_shares(random, 6, 3));
    shape.accumulation = 1 + static_cast<int64_t>(random() % 3);
    shape.weights = WeightRule::kPaci;
    for (int64_t& depth : shape.in_flight) depth = 1 + static_cast<int64_t>(random() % 9);
    for (int64_t stage = 0; stage < shape.stages(); ++stage) {
      const StageTurns turns(shape, stage);
      const int64_t turn = shape.accumulation * turns.cycle_length();
      const int64_t ahead = turns.run_ahead(usable_in_flight(shape)[static_cast<size_t>(stage)]);
      CHECK(turns.round_length() >= ahead);
      CHECK(turns.round_length() % turn == 0);
      const int64_t times = turns.round_length() / turn;
      CHECK((times & (times - 1)) == 0);
      CHECK((times == 1 || turns.round_length() / 2 < ahead));
    }
  }
}

TEST_CASE("turns: every minibatch of a span belongs to one replica and one round") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    PipelineShape shape = with_shares(random_shares(random, 4, 4));
    shape.accumulation = 1 + static_cast<int64_t>(random() % 3);
    shape.microbatches = 1 + static_cast<int64_t>(random() % 9);
    shape.weights = static_cast<WeightRule>(random() % 4);
    const StageTurns turns(shape, 0);
    const bool intervals = shape.weights == WeightRule::kFlush || shape.weights == WeightRule::kTwoVersions;
    CHECK(turns.round_length() ==
          (intervals ? shape.microbatches : shape.accumulation * turns.cycle_length()));
    const Span span{static_cast<int64_t>(random() % 20), static_cast<int64_t>(random() % 40)};
    Numbers all;
    for (int64_t replica = 0; replica < turns.replicas(); ++replica) {
      const Numbers own = turns.minibatches_of(replica, span);
      CHECK(std::is_sorted(own.begin(), own.end()));
      for (size_t i = 0; i < own.size(); ++i) {
        CHECK(replica_of(shape, 0, own[i]) == replica);
        const bool last = i + 1 == own.size() || turns.round_of(own[i + 1]) != turns.round_of(own[i]);
        CHECK(turns.is_last_of_round(own[i], span) == last);
      }
      all.insert(all.end(), own.begin(), own.end());
    }
    std::sort(all.begin(), all.end());
    Numbers expected(span.count);
    std::iota(expected.begin(), expected.end(), span.first);
    CHECK(all == expected);
    const Rounds rounds = turns.rounds_of(span);
    int64_t sum = 0, next = span.first;
    for (int64_t j = rounds.first; j < rounds.end(); ++j) {
      const int64_t size = round_size(shape, 0, j, span);
      CHECK(size >= 1);
      CHECK(turns.round_begin(j, span) == next);
      CHECK(round_of(shape, 0, next) == j);
      CHECK(round_of(shape, 0, next + size - 1) == j);
      sum += size;
      next += size;
    }
    CHECK(sum == span.count);
    CHECK(turns.round_size(rounds.first - 1, span) == 0);
    CHECK(turns.round_size(rounds.end(), span) == 0);
  }
}

TEST_CASE("turns: most of one replica, and run ahead within the depth, against counting") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const Numbers shares = random_shares(random, 4, 5);
    const StageTurns turns(with_shares(shares), 0);
    const auto counted = [&](int64_t consecutive) {
      int64_t most = 0;
      for (int64_t begin = 0; begin < turns.cycle_length(); ++begin)
        for (int64_t replica = 0; replica < turns.replicas(); ++replica)
          most = std::max(most,
                          static_cast<int64_t>(turns.minibatches_of(replica, {begin, consecutive}).size()));
      return most;
    };
    for (const int64_t consecutive : {0, 1, 2, 3, 5, 8, 13, 21, 34})
      CHECK(turns.most_of_one_replica(consecutive) == counted(consecutive));
    const int64_t largest = *std::max_element(shares.begin(), shares.end());
    int64_t before = -1;
    for (int64_t depth = 1; depth <= 12; ++depth) {
      const int64_t ahead = turns.run_ahead(depth);
      CHECK(counted(ahead + 1) <= depth);
      CHECK(ahead <= (depth - 1) * turns.cycle_length() / largest);
      if (ahead < (depth - 1) * turns.cycle_length() / largest) CHECK(counted(ahead + 2) > depth);
      CHECK(ahead >= before);
      before = ahead;
      const int64_t least = turns.depth_that_runs_ahead(ahead, 100);
      CHECK(turns.run_ahead(least) <= ahead);
      CHECK(turns.run_ahead(least + 1) > ahead);
      CHECK(turns.depth_that_runs_ahead(ahead, 3) <= 3);
    }
  }
  const StageTurns even(PipelineShape{{3}, {1}}, 0);
  CHECK(even.run_ahead(4) == 9);
  CHECK(even.longest_turn() == 3);
  CHECK(StageTurns(with_shares({3, 1}), 0).longest_turn() == 4);
}

TEST_CASE("shapes that cannot be are refused") {
  PipelineShape shape{{2, 1}, {1, 1}};
  shape.shares = {{1, 2}, {}};
  CHECK_NOTHROW(check_shape(shape));
  shape.shares = {{1, 2}};
  CHECK_THROWS_AS(check_shape(shape), PlanError);
  shape.shares = {{1, 2, 3}, {}};
  CHECK_THROWS_WITH(check_shape(shape), "pipeline, stage 0: 3 shares for 2 replicas, expected one each");
  shape.shares = {{1, 0}, {}};
  CHECK_THROWS_AS(check_shape(shape), PlanError);
  shape.shares = {};
  shape.microbatches = 0;
  CHECK_THROWS_AS(check_shape(shape), PlanError);
  shape.microbatches = 1;
  shape.accumulation = 0;
  CHECK_THROWS_AS(check_shape(shape), PlanError);
  shape.accumulation = 1;
  shape.weights = WeightRule::kVertical;
  CHECK_THROWS_WITH(check_shape(shape),
                    Catch::Contains("stage 1: updates after every 1 minibatches, stage 0 after every 2"));
  shape.shares = {{}, {2}};
  CHECK_NOTHROW(check_shape(shape));

  PipelineShape frozen{{1, 2, 1}, {1, 1, 1}};
  frozen.frozen_stages = 2;
  CHECK_NOTHROW(check_shape(frozen));
  frozen.frozen_stages = 3;
  CHECK_THROWS_WITH(check_shape(frozen),
                    "pipeline: 3 frozen stages of 3, expected at least one that is trained");

  PipelineShape several{{1, 2, 1, 2}, {1, 1, 1, 1}};
  several.stages_per_rank = 2;
  CHECK_NOTHROW(check_shape(several));
  CHECK(several.ranks() == 3);
  CHECK(first_ranks(several) == Numbers{0, 1, 0, 1});
  CHECK(rank_label(2, placements(several)[2]) == "rank 2  stages 1,3 replica 1");
  several.stages_per_rank = 4;
  CHECK_THROWS_WITH(check_shape(several), Catch::Contains("all 4 stages on the same ranks"));
  several.stages_per_rank = 3;
  CHECK_THROWS_AS(check_shape(several), PlanError);
  several.stages_per_rank = 2;
  several.replicas = {1, 2, 2, 2};
  CHECK_THROWS_WITH(check_shape(several), Catch::Contains("stage 2: other replicas or shares than stage 0"));
  CHECK(weight_rule_named("2bw") == WeightRule::kTwoVersions);
  CHECK_THROWS_WITH(weight_rule_named("stach"), Catch::Contains("'stash'"));
}

}  // namespace
}  // namespace pipewright
