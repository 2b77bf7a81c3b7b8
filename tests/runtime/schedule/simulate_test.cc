// The simulator against what can be worked out by hand, and properties over random pipelines.
#include "runtime/schedule/simulate.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/check.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::dashed;

StageTimes compute(double forward, double backward) { return {forward, backward, 0, 0, 0, 0}; }

// Times that make every stage take one second per minibatch, whatever its replicas.
std::vector<StageTimes> balanced(const std::vector<int64_t>& replicas) {
  std::vector<StageTimes> times;
  for (const int64_t r : replicas)
    times.push_back(compute(static_cast<double>(r) / 3, static_cast<double>(r) * 2 / 3));
  return times;
}

TEST_CASE("one stage, one rank: the sum of its times") {
  const Simulation simulation = simulate("1f1b", {{1}, {1}}, {{1, 2, 100, 0.5, 100, 100}}, 10);
  CHECK(simulation.total_seconds == Approx(35));  // no reduce and no sends: there is nobody
  CHECK(simulation.steady_minibatch_seconds == Approx(3.5));
  CHECK(simulation.ranks.at(0).busy_seconds == Approx(35));
  CHECK(simulation.ranks.at(0).receive_wait_seconds == 0);
}

TEST_CASE("data parallel: a round costs compute, reduce and step") {
  const Simulation simulation = simulate("1f1b", {{4}, {1}}, {{1, 2, 0.75, 0.25, 0, 0}}, 40);
  CHECK(simulation.total_seconds == Approx(40));
  CHECK(simulation.steady_minibatch_seconds == Approx(1));
  CHECK(simulation.ranks.at(3).reduce_seconds == Approx(7.5));
  // 41 minibatches: the last round has one, and the other replicas wait for it.
  const Simulation uneven = simulate("1f1b", {{4}, {1}}, {{1, 2, 0.75, 0.25, 0, 0}}, 41);
  CHECK(uneven.total_seconds == Approx(44));
  CHECK(uneven.ranks.at(3).reduce_seconds == Approx(7.5 + 3.75));
}

TEST_CASE("equal stages: fill and drain cost stages - 1 minibatches") {
  for (int64_t stages = 1; stages <= 6; ++stages)
    for (const int64_t minibatches : {1, 2, 7, 40}) {
      const std::vector<int64_t> replicas(stages, 1);
      const Simulation simulation = simulate("1f1b", {replicas, pipedream_in_flight(replicas)},
                                             std::vector<StageTimes>(stages, compute(1, 2)), minibatches);
      CAPTURE(stages, minibatches);
      CHECK(simulation.total_seconds == Approx(3.0 * static_cast<double>(minibatches + stages - 1)));
      CHECK(simulation.ranks.at(0).peak_in_flight == std::min(stages, minibatches));
    }
}

TEST_CASE("depth 1 starves: the sum of all times per minibatch, so does model-parallel at any depth") {
  const std::vector<StageTimes> times = {
      {1, 2, 0, 0, 0.25, 9}, {3, 1, 0, 0, 0.5, 0.125}, {2, 2, 0, 0, 9, 0.125}};
  const double sum = 3 + 4 + 4 + 0.25 + 0.5 + 0.125 + 0.125;
  const Simulation one = simulate("1f1b", {{1, 1, 1}, {1, 1, 1}}, times, 20);
  CHECK(one.total_seconds == Approx(20 * sum));
  CHECK(one.steady_minibatch_seconds == Approx(sum));
  const Simulation sequential = simulate("model-parallel", {{1, 1, 1}, {5, 5, 5}}, times, 20);
  CHECK(sequential.total_seconds == Approx(20 * sum));
  for (const SimulatedRank& rank : sequential.ranks) CHECK(rank.peak_in_flight == 1);
}

TEST_CASE("starved by depth: round trip divided by depth") {
  // A minibatch is away from the first stage for 1 + 4 + 1 + 1 + 4 + 1 seconds.
  const std::vector<StageTimes> times = {{1, 1, 0, 0, 4, 0}, {1, 1, 0, 0, 0, 4}};
  for (const auto& [depth, seconds] :
       std::vector<std::pair<int64_t, double>>{{1, 12}, {2, 6}, {3, 4}, {4, 4}}) {
    CAPTURE(depth);
    CHECK(simulate("1f1b", {{1, 1}, {depth, 1}}, times, 200).steady_minibatch_seconds ==
          Approx(seconds).epsilon(0.01));
  }
}

TEST_CASE("deeper is not always faster: a stage runs its warm-up whether or not backwards are due") {
  const std::vector<StageTimes> times(4, compute(1, 2));
  CHECK(simulate("1f1b", {{1, 1, 1, 1}, {4, 3, 2, 1}}, times, 200).steady_minibatch_seconds == Approx(3));
  CHECK(simulate("1f1b", {{1, 1, 1, 1}, {4, 4, 4, 1}}, times, 200).steady_minibatch_seconds > 4);
}

TEST_CASE("enough in flight: the slowest stage, divided by its replicas, sets the pace") {
  const std::vector<StageTimes> times = {compute(1, 2), compute(4, 6), compute(1, 1)};
  const std::vector<int64_t> replicas = {1, 2, 1};
  CHECK(bottleneck_seconds({replicas, replicas}, times) == Approx(5));
  const std::vector<int64_t> depths = choose_in_flight(replicas, times);
  CHECK(simulate("1f1b", {replicas, depths}, times, 400).steady_minibatch_seconds == Approx(5));
}

TEST_CASE("a slow link sets the pace") {
  std::vector<StageTimes> times(2, compute(1, 1));
  times[0].send_activation_seconds = 5;
  CHECK(simulate("1f1b", {{1, 1}, {9, 1}}, times, 200).steady_minibatch_seconds == Approx(5));
  times[1].send_gradient_seconds = 7;
  CHECK(simulate("1f1b", {{1, 1}, {9, 1}}, times, 200).steady_minibatch_seconds == Approx(7));
  CHECK(bottleneck_seconds({{1, 1}, {1, 1}}, times) == Approx(7));
  // Two senders have two links.
  CHECK(simulate("1f1b", {{1, 2}, {9, 1}}, times, 200).steady_minibatch_seconds == Approx(5));
}

TEST_CASE("forward only: the slowest stage sets the pace") {
  const Simulation simulation =
      simulate("forward", {{1, 2, 1}, {1, 1, 1}}, {compute(1, 99), compute(6, 99), compute(2, 99)}, 100);
  CHECK(simulation.steady_minibatch_seconds == Approx(3));
  // Replica 1 begins second and ends last; the minibatch before its last is then still at the last stage for
  // a second.
  CHECK(simulation.total_seconds == Approx(2 + 50 * 6 + 1 + 2));
}

TEST_CASE("PipeDream's depths starve replicated plans by known factors, chosen depths do not") {
  struct Row {
    std::vector<int64_t> replicas;
    double pipedream;
    std::vector<int64_t> chosen;
  };
  for (const Row& row :
       {Row{{2, 1, 1}, 1.5, {3, 2, 1}}, Row{{1, 3}, 4.0 / 3, {6, 1}}, Row{{1, 2, 1}, 1.5, {6, 2, 1}},
        Row{{4, 2, 2}, 1.5, {3, 2, 1}}, Row{{9, 5, 1, 1}, 2.02, {4, 3, 2, 1}},
        Row{{1, 3, 1}, 7.0 / 3, {9, 2, 1}}, Row{{3, 1}, 1, {2, 1}}, Row{{2, 2}, 1, {2, 1}},
        Row{{1, 1, 1, 1}, 1, {4, 3, 2, 1}}, Row{{15, 1}, 1, {2, 1}}}) {
    CAPTURE(dashed(row.replicas));
    const std::vector<StageTimes> times = balanced(row.replicas);
    const auto steady = [&](const std::vector<int64_t>& depths) {
      return simulate("1f1b", {row.replicas, depths}, times, 1500).steady_minibatch_seconds;
    };
    CHECK(steady(pipedream_in_flight(row.replicas)) == Approx(row.pipedream).epsilon(0.005));
    CHECK(choose_in_flight(row.replicas, times) == row.chosen);
    CHECK(steady(row.chosen) == Approx(1).epsilon(0.001));
  }
}

struct Case {
  std::vector<int64_t> replicas;
  std::vector<StageTimes> times;
};

Case random_case(std::mt19937_64& random, int64_t most_stages, int64_t most_replicas) {
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Case out;
  out.replicas.resize(1 + random() % most_stages);
  const bool links = random() % 2, equal = random() % 3 == 0;
  for (int64_t& r : out.replicas) {
    r = 1 + static_cast<int64_t>(random() % most_replicas);
    const double scale = static_cast<double>(r);
    StageTimes t = compute(equal ? scale : number(0, 1) * scale, equal ? 2 * scale : number(0, 2) * scale);
    if (links)
      t.send_activation_seconds = number(0, 0.8) * scale, t.send_gradient_seconds = number(0, 0.8) * scale;
    if (random() % 2) t.reduce_seconds = number(0, 0.5), t.step_seconds = number(0, 0.2);
    out.times.push_back(t);
  }
  return out;
}

// "" or the first law that the simulation breaks.
std::string broken_law(const Simulation& simulation, const PipelineShape& shape,
                       const std::vector<StageTimes>& times, bool trains) {
  constexpr double kSlack = 1e-9;
  enum Row { kCompute, kActivations, kGradients };
  std::map<std::pair<int64_t, int>, double> row_end;          // rank, row
  std::map<std::tuple<int64_t, int, int64_t>, double> ended;  // stage, kind, index
  std::map<std::pair<int64_t, int64_t>, int64_t> arrived;     // stage, round: replicas
  double last_begin = 0, last_end = 0;
  for (const SimulatedAction& a : simulation.actions) {
    if (a.begin_seconds < last_begin) return "order of begin";
    last_begin = a.begin_seconds;
    last_end = std::max(last_end, a.end_seconds);
    if (a.end_seconds < a.begin_seconds) return "negative duration";
    const int row = a.action.kind == ActionKind::kSendActivation ? kActivations
                    : a.action.kind == ActionKind::kSendGradient ? kGradients
                                                                 : kCompute;
    double& end = row_end[{a.rank, row}];
    if (a.begin_seconds < end - kSlack) return "overlap at " + to_text(a.action);
    end = a.end_seconds;
    ended[{simulation.ranks[a.rank].placement.stage, static_cast<int>(a.action.kind), a.action.index}] =
        a.end_seconds;
  }
  if (std::abs(last_end - simulation.total_seconds) > kSlack) return "total";
  for (const SimulatedAction& a : simulation.actions) {
    const int64_t stage = simulation.ranks[a.rank].placement.stage;
    const auto after = [&](ActionKind kind, int64_t at) {
      const auto found = ended.find({at, static_cast<int>(kind), a.action.index});
      return found != ended.end() && a.end_seconds >= found->second - kSlack;
    };
    const StageTimes& t = times[stage];
    const double seconds = a.end_seconds - a.begin_seconds;
    const auto lasts = [&](double expected) { return std::abs(seconds - expected) < kSlack; };
    bool good = true;
    switch (a.action.kind) {
      case ActionKind::kReceiveActivation:
        good = after(ActionKind::kSendActivation, stage - 1);
        break;
      case ActionKind::kForward:
        good = lasts(t.forward_seconds) && (stage == 0 || after(ActionKind::kReceiveActivation, stage));
        break;
      case ActionKind::kSendActivation:
        good = lasts(t.send_activation_seconds) && after(ActionKind::kForward, stage);
        break;
      case ActionKind::kReceiveGradient:
        good = after(ActionKind::kSendGradient, stage + 1);
        break;
      case ActionKind::kBackward:
        good = lasts(t.backward_seconds) && after(ActionKind::kForward, stage);
        break;
      case ActionKind::kBackwardInput:
        good = lasts(t.backward_seconds - t.backward_weight_seconds) && after(ActionKind::kForward, stage);
        break;
      case ActionKind::kBackwardWeight:
        good = lasts(t.backward_weight_seconds) && after(ActionKind::kBackwardInput, stage);
        break;
      case ActionKind::kSendGradient:
        good = lasts(t.send_gradient_seconds) &&
               (after(ActionKind::kBackward, stage) || after(ActionKind::kBackwardInput, stage));
        break;
      case ActionKind::kReduce:
        good = lasts(t.reduce_seconds);
        break;
      case ActionKind::kUpdate:
        good = lasts(t.step_seconds) && (shape.replicas[stage] == 1 || after(ActionKind::kReduce, stage));
        break;
      case ActionKind::kAverage:
        good = false;  // Only a worker adds it; the simulator knows nothing of it.
        break;
    }
    if (!good) return "causality of " + to_text(a.action) + " at stage " + std::to_string(stage);
  }
  for (const SimulatedRank& rank : simulation.ranks) {
    if (rank.busy_seconds + rank.receive_wait_seconds + rank.reduce_seconds >
        simulation.total_seconds + kSlack)
      return "more than the total on a rank";
    if (trains && rank.peak_in_flight > shape.in_flight[rank.placement.stage]) return "depth";
  }
  return "";
}

TEST_CASE("random pipelines obey the laws: no overlap, causality, sums, and nothing beats the bottleneck") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 400; ++round) {
    const Case random_one = random_case(random, 4, 4);
    std::vector<int64_t> depths(random_one.replicas.size());
    for (int64_t& depth : depths) depth = 1 + static_cast<int64_t>(random() % 6);
    PipelineShape shape{random_one.replicas, depths};
    const std::vector<ScheduleRow> rows = testing::schedules_of_any_shape();
    const ScheduleRow& row = rows[random() % rows.size()];
    const bool asynchronous =
        !row.trains() || row.name == std::string("1f1b") || row.name == std::string("model-parallel");
    if (!asynchronous) shape.weights = WeightRule::kFlush;
    shape.microbatches = 1 + static_cast<int64_t>(random() % 12);
    const std::vector<int64_t> needed = row.depths(shape);
    for (size_t stage = 0; stage < needed.size(); ++stage)
      shape.in_flight[stage] = std::max(shape.in_flight[stage], needed[stage]);
    const Span span{static_cast<int64_t>(random() % 7), static_cast<int64_t>(random() % 40)};
    CAPTURE(row.name, dashed(shape.replicas), dashed(depths), span.first, span.count);
    const Simulation simulation = simulate(row.name, shape, random_one.times, span);
    CHECK(broken_law(simulation, shape, random_one.times, row.trains()) == "");
    const ScheduleCheck check = check_schedule(row.name, shape, span);
    for (size_t rank = 0; rank < check.ranks.size(); ++rank)
      CHECK(check.ranks[rank].peak_in_flight == simulation.ranks[rank].peak_in_flight);
    CHECK(steady_minibatch_seconds(row.name, shape, random_one.times, span) ==
          simulation.steady_minibatch_seconds);
    if (row.trains() && asynchronous) {
      const double steady = steady_minibatch_seconds(row.name, shape, random_one.times, {0, 480});
      CHECK(steady >= bottleneck_seconds(shape, random_one.times) * (1 - 1e-3));
    }
  }
}

TEST_CASE("a simulation of nothing, of less than a round, of a late span") {
  const std::vector<StageTimes> times(2, compute(1, 2));
  const Simulation nothing = simulate("1f1b", {{2, 3}, {2, 1}}, times, 0);
  CHECK(nothing.total_seconds == 0);
  CHECK(nothing.steady_minibatch_seconds == 0);
  CHECK(nothing.actions.empty());
  const Simulation one = simulate("1f1b", {{2, 3}, {2, 1}}, times, 1);
  CHECK(one.total_seconds == Approx(6));
  CHECK(one.steady_minibatch_seconds == Approx(6));
  CHECK(simulate("1f1b", {{2, 3}, {2, 1}}, times, Span{7, 5}).total_seconds > 0);
}

TEST_CASE("times that cannot be are found") {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(simulate("1f1b", {{1, 1}, {1, 1}}, {compute(1, 1)}, 4), CheckError);
  for (const double bad : {nan, infinity, -1.0}) {
    CHECK_THROWS_AS(simulate("1f1b", {{1}, {1}}, {compute(bad, 1)}, 4), CheckError);
    CHECK_THROWS_AS(choose_in_flight({1}, {compute(1, bad)}, {1}), CheckError);
    CHECK_THROWS_AS(bottleneck_seconds({{1}, {1}}, {compute(1, bad)}), CheckError);
  }
  CHECK_THROWS_AS(simulate("1f1b", {{0}, {1}}, {compute(1, 1)}, 4), PlanError);
  CHECK_THROWS_AS(simulate("2f", {{1}, {1}}, {compute(1, 1)}, 4), InputError);
  CHECK_THROWS_AS(simulate("1f1b", {{1}, {1}}, {compute(1, 1)}, -4), PlanError);
  CHECK_THROWS_AS(choose_in_flight({1, 1}, {compute(1, 1), compute(1, 1)}, {1, 0}), PlanError);
  CHECK_THROWS_AS(choose_in_flight("1f1b", {{}, {}}, {}), PlanError);
}

// All depths within the bounds that 1f1b uses as they are.
std::vector<std::vector<int64_t>> all_depths(const std::vector<int64_t>& replicas,
                                             const std::vector<int64_t>& most) {
  std::vector<std::vector<int64_t>> all, shorter = {{}};
  for (const int64_t bound : most) {
    std::vector<std::vector<int64_t>> longer;
    for (const std::vector<int64_t>& depths : shorter)
      for (int64_t depth = 1; depth <= bound; ++depth) {
        longer.push_back(depths);
        longer.back().push_back(depth);
      }
    shorter = longer;
  }
  for (const std::vector<int64_t>& depths : shorter)
    if (usable_in_flight({replicas, depths}) == depths) all.push_back(depths);
  return all;
}

int64_t total_in_flight(const std::vector<int64_t>& replicas, const std::vector<int64_t>& depths) {
  int64_t sum = 0;
  for (size_t stage = 0; stage < depths.size(); ++stage) sum += depths[stage] * replicas[stage];
  return sum;
}

TEST_CASE(
    "chosen depths are within 1 % of the fastest of all within the bounds, and almost always the smallest "
    "such") {
  std::mt19937_64 random(5);
  constexpr Span kSpan{0, 600};
  int larger = 0;
  constexpr int kCases = 150;
  for (int round = 0; round < kCases; ++round) {
    const Case random_one = random_case(random, 3, 3);
    std::vector<int64_t> most(random_one.replicas.size());
    for (int64_t& bound : most) bound = 1 + static_cast<int64_t>(random() % 7);
    const std::vector<int64_t> chosen = choose_in_flight(random_one.replicas, random_one.times, most);
    CAPTURE(dashed(random_one.replicas), dashed(most), dashed(chosen));
    CHECK(choose_in_flight(random_one.replicas, random_one.times, most) == chosen);
    CHECK(usable_in_flight({random_one.replicas, chosen}) == chosen);
    for (size_t stage = 0; stage < most.size(); ++stage) CHECK(chosen[stage] <= most[stage]);
    const auto seconds = [&](const std::vector<int64_t>& depths) {
      return steady_minibatch_seconds("1f1b", {random_one.replicas, depths}, random_one.times, kSpan);
    };
    std::map<std::vector<int64_t>, double> all;
    double fastest = std::numeric_limits<double>::infinity();
    for (const std::vector<int64_t>& depths : all_depths(random_one.replicas, most))
      fastest = std::min(fastest, all[depths] = seconds(depths));
    const double enough =
        1.0101 * std::max(fastest, bottleneck_seconds({random_one.replicas, most}, random_one.times));
    CHECK(all.at(chosen) <= enough);
    int64_t smallest = std::numeric_limits<int64_t>::max();
    for (const auto& [depths, time] : all)
      if (time <= enough) smallest = std::min(smallest, total_in_flight(random_one.replicas, depths));
    larger += total_in_flight(random_one.replicas, chosen) > smallest;
  }
  CHECK(larger <= kCases / 50);
}

TEST_CASE(
    "every balanced plan of up to four stages and four replicas reaches the ideal time, with no depth to "
    "spare") {
  for (const std::vector<int64_t>& replicas : testing::all_replica_counts(4, 4)) {
    const std::vector<StageTimes> times = balanced(replicas);
    const std::vector<int64_t> chosen = choose_in_flight(replicas, times);
    const auto seconds = [&](const std::vector<int64_t>& depths) {
      return steady_minibatch_seconds("1f1b", {replicas, depths}, times, {0, 400});
    };
    CAPTURE(dashed(replicas), dashed(chosen));
    CHECK(seconds(chosen) <= 1.0101);
    CHECK(chosen.back() == 1);
    for (size_t stage = 0; stage < replicas.size(); ++stage)
      if (chosen[stage] > 1) {
        std::vector<int64_t> lower = chosen;
        --lower[stage];
        CHECK(seconds(lower) > 1.0005);
      }
  }
}

TEST_CASE("depths for times of zero and for many stages") {
  CHECK(choose_in_flight({2, 3}, {compute(0, 0), compute(0, 0)}) == std::vector<int64_t>{1, 1});
  const std::vector<int64_t> replicas(16, 1);
  std::vector<int64_t> expected(16);
  for (int64_t stage = 0; stage < 16; ++stage) expected[stage] = 16 - stage;
  CHECK(choose_in_flight(replicas, balanced(replicas)) == expected);
}

TEST_CASE("stages behind one with little room ran as far ahead as it and waited for its every minibatch") {
  const std::vector<int64_t> replicas(8, 1);
  // Room for no more than the last depths need, and for plenty before them.
  for (int64_t tight = 1; tight < 8; ++tight) {
    std::vector<int64_t> most;
    for (int64_t stage = 0; stage < 8; ++stage) most.push_back(stage < tight ? 30 : 8 - tight);
    for (const double aim_seconds : {std::numeric_limits<double>::infinity(), 1.2}) {
      DepthAim aim;
      aim.most_seconds = aim_seconds;
      choose_in_flight("1f1b", {replicas, most}, balanced(replicas), {}, &aim);
      CAPTURE(dashed(most), aim_seconds);
      CHECK(aim.seconds <= 1.0101);
    }
  }
}

}  // namespace
}  // namespace pipewright
