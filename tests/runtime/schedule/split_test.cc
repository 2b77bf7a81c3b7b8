// Stages whose replicas split each minibatch: who meets whom, what that takes, what is refused.
#include <catch2/catch.hpp>

#include "graph/error.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/memory.h"
#include "runtime/schedule/one_for_all.h"
#include "runtime/schedule/split_messages.h"

namespace pipewright {
namespace {

using Numbers = std::vector<int64_t>;

PipelineShape split_shape(const std::vector<Numbers>& weights, const Numbers& depths) {
  PipelineShape shape;
  for (const Numbers& each : weights) {
    shape.replicas.push_back(static_cast<int64_t>(each.size()));
    shape.split.push_back(each);
  }
  shape.in_flight = depths;
  return shape;
}

StageTimes times_of(double forward, double backward) {
  StageTimes times;
  times.forward_seconds = forward;
  times.backward_seconds = backward;
  times.send_activation_seconds = 0.125;
  times.send_gradient_seconds = 0.25;
  times.reduce_seconds = 0.5;
  times.step_seconds = 0.0625;
  return times;
}

TEST_CASE("split: each replica meets those of the neighbour that have samples of its own") {
  const PipelineShape shape = split_shape({{1, 1, 1}, {2, 1}, {5}}, {1, 1, 1});
  const auto met = [&](int64_t stage, int64_t replica, int64_t other) {
    const ReplicaRange range = parts_met(shape, stage, replica, other);
    return std::pair(range.first, range.first + range.count);
  };
  using Met = std::pair<int64_t, int64_t>;
  CHECK(met(0, 0, 1) == Met(0, 1));  // thirds against two thirds and a third
  CHECK(met(0, 1, 1) == Met(0, 1));
  CHECK(met(0, 2, 1) == Met(1, 2));
  CHECK(met(1, 0, 0) == Met(0, 2));
  CHECK(met(1, 1, 0) == Met(2, 3));
  CHECK(met(1, 1, 2) == Met(0, 1));  // of one replica
  CHECK(met(2, 0, 1) == Met(0, 2));
}

TEST_CASE("split: every replica has an action for every minibatch, and updates with the others") {
  const PipelineShape shape = split_shape({{1}, {1, 2}}, {2, 1});
  CHECK(to_text(schedule_of_rank("1f1b", shape, 0, 0, {0, 2})) == "F0 SA0 F1 SA1 RG0 B0 U0 RG1 B1 U1");
  for (const int64_t replica : {0, 1})
    CHECK(to_text(schedule_of_rank("1f1b", shape, 1, replica, {0, 2})) ==
          "RA0 F0 B0 SG0 AR0 U0 RA1 F1 B1 SG1 AR1 U1");
  const ScheduleCheck check = check_schedule("1f1b", shape, {0, 9});
  CHECK(check.problem == "");
  CHECK(check.completes);
  CHECK(usable_in_flight(split_shape({{1, 1}, {1, 1, 1}}, {2, 9})) == Numbers{2, 2});
}

TEST_CASE(
    "split: with equal parts a pipeline takes what one of single replicas does whose updates exchange") {
  const PipelineShape shape = split_shape({{1, 1}, {1}, {3, 3, 3}}, {3, 2, 1});
  const std::vector<StageTimes> times = {times_of(1, 2), times_of(1.5, 1.5), times_of(0.75, 2)};
  const OneForAll one = one_for_all(shape, times);
  CHECK(one.shape.replicas == Numbers{1, 1, 1});
  const Simulation all = simulate("1f1b", shape, times, 40);
  const Simulation alone = simulate("1f1b", one.shape, one.times, 40);
  CHECK(all.total_seconds == Approx(alone.total_seconds));
  CHECK(settled_minibatch_seconds("1f1b", shape, times) ==
        Approx(settled_minibatch_seconds("1f1b", one.shape, one.times)));
  CHECK(bottleneck_seconds(shape, times) == Approx(1 + 2 + 0.5 + 0.0625));
  CHECK(all.ranks.size() == 6);
}

TEST_CASE("split: who has a smaller part computes as much less, and the largest part decides") {
  const PipelineShape shape = split_shape({{3, 1}}, {1});
  const std::vector<StageTimes> times = {times_of(3, 6)};
  const Simulation simulation = simulate("1f1b", shape, times, 10);
  CHECK(simulation.total_seconds == Approx(10 * (9 + 0.5 + 0.0625)));
  CHECK(simulation.ranks[0].busy_seconds == Approx(10 * (9 + 0.0625)));
  CHECK(simulation.ranks[1].busy_seconds == Approx(10 * (3 + 0.0625)));
  CHECK(simulation.ranks[1].reduce_seconds == Approx(10 * (6 + 0.5)));
}

TEST_CASE("split: depths are chosen, and memory is followed to nothing in flight") {
  PipelineShape shape = split_shape({{2, 1}, {1}, {1, 1}}, {9, 9, 9});
  const std::vector<StageTimes> times = {times_of(1, 2), times_of(1, 2), times_of(1, 2)};
  shape.in_flight = choose_in_flight("1f1b", shape, times);
  CHECK(shape.in_flight.back() == 1);
  CHECK(usable_in_flight(shape) == shape.in_flight);
  const Simulation simulation = simulate("1f1b", shape, times, 12);
  StageBytes first, second, last;
  first.activation_bytes = 20;  // two thirds of 30
  second.gradient_bytes = second.activation_bytes = 30;
  last.gradient_bytes = 15;
  for (StageBytes* bytes : {&first, &second, &last}) {
    bytes->fixed_bytes = 1000;
    bytes->saved_bytes = 100;
  }
  const auto memory = memory_over_time(simulation, "1f1b", shape, {0, 12}, {first, second, last});
  for (const RankMemory& rank : memory) {
    CHECK(rank.points.back().bytes == 1000);
    CHECK(rank.peak_bytes >= 1100);
  }
}

TEST_CASE("split: evaluation takes turns by the weights") {
  const PipelineShape shape = evaluation_shape(split_shape({{2, 1}, {1}}, {1, 1}));
  CHECK_FALSE(shape.any_splits());
  CHECK(shape.shares[0] == Numbers{2, 1});
  CHECK(check_schedule("forward", shape, {0, 7}).completes);
}

TEST_CASE("split: what does not go together is refused") {
  PipelineShape shape = split_shape({{1, 1}, {1}}, {2, 1});
  shape.shares = {{1, 1}, {}};
  CHECK_THROWS_WITH(check_shape(shape),
                    "pipeline, stage 0: shares beside split weights, expected one of them");
  shape.shares.clear();
  shape.split[0] = {1, 1, 1};
  CHECK_THROWS_WITH(check_shape(shape),
                    "pipeline, stage 0: 3 split weights for 2 replicas, expected one each");
  shape.split[0] = {1, 0};
  CHECK_THROWS_WITH(check_shape(shape), "pipeline, stage 0: a split weight of 0, expected at least 1");
  shape = split_shape({{1, 1}, {1}}, {2, 1});
  shape.weights = WeightRule::kVertical;
  CHECK_NOTHROW(check_shape(shape));  // one minibatch a cycle, everywhere
  shape = split_shape({{1, 1}, {1, 1}}, {2, 2});
  shape.split[1].clear();
  shape.weights = WeightRule::kVertical;
  CHECK_THROWS_AS(check_shape(shape), PlanError);
}

}  // namespace
}  // namespace pipewright
