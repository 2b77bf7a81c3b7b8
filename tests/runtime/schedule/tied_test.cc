// Stages with copies of tied parameters wait for each other before an update; ranks are called what the plan
// calls them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>
#include <regex>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/plan.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/meetings.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/simulate.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

struct TiedCase {
  std::string schedule;
  PipelineShape shape;
  std::vector<StageTimes> times;
};

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  TiedCase next() {
    TiedCase made;
    const std::vector<std::string> schedules = {"1f1b", "gpipe", "1f1b-flush", "interleaved", "zb-h1"};
    made.schedule = schedules[static_cast<size_t>(between(0, 4))];
    const bool several = made.schedule == "interleaved";
    const int64_t groups = between(2, several ? 3 : 5);
    const int64_t each = several ? 2 : 1;
    PipelineShape& shape = made.shape;
    for (int64_t s = 0; s < groups; ++s) shape.replicas.push_back(between(1, 3));
    for (int64_t s = 0; s < groups * (each - 1); ++s) shape.replicas.push_back(shape.replicas[s]);
    shape.stages_per_rank = each;
    shape.weights = made.schedule == "1f1b" ? WeightRule::kTwoVersions : WeightRule::kFlush;
    shape.microbatches = between(1, 9);
    shape.in_flight.assign(shape.replicas.size(), made.schedule == "1f1b" ? between(1, 4) : 64);
    for (int64_t n = between(1, 2); n > 0; --n) {
      std::vector<int64_t> stages;
      for (int64_t s = 0; s < shape.stages(); ++s)
        if (between(0, 1) == 0) stages.push_back(s);
      if (stages.size() > 1) shape.tied.push_back(stages);
    }
    if (made.schedule == "1f1b") {
      shape.in_flight = usable_in_flight(shape);
      shape.microbatches = std::max(shape.microbatches, StageTurns(shape, 0).run_ahead(shape.in_flight[0]));
    }
    for (int64_t s = 0; s < shape.stages(); ++s) {
      StageTimes t;
      t.forward_seconds = static_cast<double>(between(1, 4));
      t.backward_seconds = static_cast<double>(between(1, 8));
      t.backward_weight_seconds = t.backward_seconds / 2;
      t.reduce_seconds = static_cast<double>(between(0, 3));
      t.step_seconds = static_cast<double>(between(0, 2));
      t.send_activation_seconds = static_cast<double>(between(0, 3));
      t.send_gradient_seconds = static_cast<double>(between(0, 3));
      t.tied_seconds = static_cast<double>(between(0, 4));
      made.times.push_back(t);
    }
    return made;
  }

 private:
  std::mt19937_64 random_;
};

TEST_CASE("tied copies: an update takes what was exchanged, after the last of the stages is there") {
  // One round: stage 1 is done at 2 F + 2 B - B = 4, stage 0 at 6; then 3 for the exchange and 0.5 for the
  // update.
  PipelineShape shape{{1, 1}, {1, 1}};
  shape.weights = WeightRule::kFlush;
  shape.tied = {{0, 1}};
  StageTimes t;
  t.forward_seconds = 1;
  t.backward_seconds = 2;
  t.step_seconds = 0.5;
  t.tied_seconds = 3;
  CHECK(simulate("1f1b-flush", shape, {t, t}, 1).total_seconds == 9.5);
  CHECK(settled_minibatch_seconds("1f1b-flush", shape, {t, t}) == 9.5);
  shape.tied.clear();
  CHECK(simulate("1f1b-flush", shape, {t, t}, 1).total_seconds == 6.5);
  shape.tied = {{0, 1}};
  shape.weights = WeightRule::kStash;
  CHECK_THAT(testing::error_of<PlanError>([&] { check_shape(shape); }),
             Catch::Contains("hold copies of a tied parameter"));
}

TEST_CASE("tied copies: random shapes under every rule that allows them finish, and stages really meet") {
  int64_t met = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const TiedCase c = Random(seed).next();
    CAPTURE(seed, c.schedule);
    const Span span{0, 3 * c.shape.microbatches};
    const ScheduleCheck check = check_schedule(c.schedule, c.shape, span);
    CHECK(check.problem.empty());
    REQUIRE(check.completes);
    // Both engines, to rounding.
    const Simulation swept = simulate(c.schedule, c.shape, c.times, span);
    SimulationOptions queues;
    queues.send_queue = 1 << 20;
    const Simulation events = simulate(c.schedule, c.shape, c.times, span, queues);
    CHECK(events.total_seconds == Approx(swept.total_seconds));
    CHECK(events.steady_minibatch_seconds == Approx(swept.steady_minibatch_seconds));
    // The exchange begins when the last rank has its gradients, and no update before it has ended.
    Meetings meetings(c.shape);
    std::map<std::pair<int64_t, int64_t>, double> ready, last_update;  // by meeting and round
    std::vector<double> end(swept.ranks.size(), 0);
    std::map<std::pair<int64_t, int64_t>, int64_t> updates;
    for (const SimulatedAction& a : swept.actions) {
      if (a.action.kind == ActionKind::kSendActivation || a.action.kind == ActionKind::kSendGradient)
        continue;
      const int64_t meeting = meetings.of_rank(a.rank);
      const int64_t stages = swept.ranks[static_cast<size_t>(a.rank)].placement.stages;
      if (meeting >= 0 && a.action.kind == ActionKind::kUpdate &&
          ++updates[{a.rank, a.action.index}] == stages) {
        double& first = ready[{meeting, a.action.index}];
        first = std::max(first, end[static_cast<size_t>(a.rank)]);
        const auto [at, fresh] = last_update.try_emplace({meeting, a.action.index}, a.begin_seconds);
        CHECK(at->second == Approx(a.begin_seconds));  // all at once
        ++met;
      }
      end[static_cast<size_t>(a.rank)] = std::max(end[static_cast<size_t>(a.rank)], a.end_seconds);
    }
    for (const auto& [at, seconds] : ready) {
      double exchange = 0;
      std::map<int64_t, double> group;
      for (const int64_t stage : meetings.stages(at.first))
        group[c.shape.group_of(stage)] += c.times[static_cast<size_t>(stage)].tied_seconds;
      for (const auto& [number, own] : group) exchange = std::max(exchange, own);
      CHECK(last_update.at(at) == Approx(seconds + exchange));
    }
    PipelineShape free = c.shape;
    free.tied.clear();
    CHECK(simulate(c.schedule, free, c.times, span).total_seconds <= swept.total_seconds + 1e-9);
  }
  CHECK(met > 1000);
}

TEST_CASE("ranks are called what the plan calls them: text, SVG, trace, messages of the check") {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    Plan plan;
    plan.schedule = round % 3 == 0 ? "interleaved" : "1f1b";
    plan.weights = round % 3 == 0 ? "flush" : "stash";
    plan.microbatches = 4;
    const int64_t groups = random.between(2, 4);
    for (int64_t s = 0; s < groups; ++s) {
      Stage stage;
      stage.in_flight = 4;
      for (int64_t q = random.between(1, 2); q > 0; --q) stage.ranks.push_back(plan.world_size++);
      plan.stages.push_back(stage);
    }
    std::vector<int64_t> number(static_cast<size_t>(plan.world_size));
    std::iota(number.begin(), number.end(), 0);
    std::shuffle(number.begin(), number.end(), std::mt19937_64(static_cast<uint64_t>(round)));
    for (Stage& stage : plan.stages)
      for (int64_t& rank : stage.ranks) rank = number[static_cast<size_t>(rank)];
    if (round % 3 == 0)
      for (int64_t s = 0; s < groups; ++s) plan.stages.push_back(plan.stages[static_cast<size_t>(s)]);
    const PipelineShape shape = shape_of(plan);
    StageTimes slot;
    slot.forward_seconds = slot.backward_seconds = 1;
    const Simulation run =
        simulate(plan.schedule, shape, std::vector<StageTimes>(plan.stages.size(), slot), 8);

    const auto stage_of = [&](int64_t rank) { return first_stage_of(plan, rank); };
    const auto replica_of_rank = [&](int64_t rank) {
      const auto& ranks = plan.stages[static_cast<size_t>(stage_of(rank))].ranks;
      return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    };
    // Every label says a rank, its first stage and its replica, as the plan has them; each rank has one.
    const auto check_labels = [&](const std::string& text) {
      std::map<int64_t, int64_t> seen;
      const std::regex label("rank (\\d+) +stages? (\\d+)[0-9,]* replica (\\d+)");
      for (auto at = std::sregex_iterator(text.begin(), text.end(), label); at != std::sregex_iterator();
           ++at) {
        const int64_t rank = std::stoll((*at)[1]);
        REQUIRE(rank < plan.world_size);
        CHECK(std::stoll((*at)[2]) == stage_of(rank));
        CHECK(std::stoll((*at)[3]) == replica_of_rank(rank));
        ++seen[rank];
      }
      CHECK(static_cast<int64_t>(seen.size()) == plan.world_size);
    };
    CAPTURE(round);
    check_labels(draw_text(run, 1));
    check_labels(draw_svg(run, "ranks").file());
    const std::string trace = trace_json(run);
    check_labels(trace);
    // A forward of minibatch k at stage 0 stands under the rank that the plan gives it to.
    const Json events = parse_json(trace, "trace");
    std::map<int64_t, std::string> name_of;
    for (const Json& event : events["traceEvents"]) {
      if (event["ph"] == "M" && event["name"] == "process_name")
        name_of[event["pid"].get<int64_t>()] = event["args"]["name"].get<std::string>();
    }
    CHECK(static_cast<int64_t>(name_of.size()) == plan.world_size);
    for (const auto& [pid, name] : name_of) CHECK(name.rfind("rank " + std::to_string(pid) + " ", 0) == 0);
    for (const Json& event : events["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] != "forward" || plan.schedule == "interleaved") continue;
      const auto rank = event["pid"].get<int64_t>();
      const auto k = event["args"]["minibatch"].get<int64_t>();
      CHECK(rank_of_minibatch(plan, shape, stage_of(rank), k) == rank);
    }
    // A list that is wrong is told by the plan's number.
    auto lists = schedule_of_all(plan.schedule, shape, {0, 8});
    const auto wrong = static_cast<size_t>(random.between(0, plan.world_size - 1));
    lists[wrong].pop_back();
    const ScheduleCheck check = check_lists(lists, shape, {0, 8}, true, plan.schedule);
    CHECK(check.problem.rfind("rank " + std::to_string(shape.number_of(static_cast<int64_t>(wrong))) + " ",
                              0) == 0);
  }
}

}  // namespace
}  // namespace pipewright
