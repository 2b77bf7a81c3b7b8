// Plans as schedules of PyTorch and back. That PyTorch itself reads and writes the same is tested with it
// (tests/python/torch_schedules_test.py).
#include "runtime/schedule/torch_csv.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

using Numbers = std::vector<int64_t>;

/// Stages of a node each, on ranks as the shape has them.
Plan plan_by(const std::string& schedule, const PipelineShape& shape) {
  Plan plan;
  plan.model = "some";
  plan.strategy = "manual";
  plan.schedule = schedule;
  plan.weights = "flush";
  plan.microbatches = shape.microbatches;
  plan.world_size = shape.ranks();
  const Numbers first = first_ranks(shape);
  for (int64_t s = 0; s < shape.stages(); ++s) {
    Stage stage;
    stage.nodes = {"node" + std::to_string(s)};
    for (int64_t q = 0; q < shape.replicas[static_cast<size_t>(s)]; ++q)
      stage.ranks.push_back(first[static_cast<size_t>(s)] + q);
    stage.in_flight = schedule == "1f1b-flush" ? shape.stages() - s
                      : schedule == "zb-h1"    ? shape.stages()
                                               : 64;
    plan.stages.push_back(stage);
  }
  plan.validate("plan");
  return with_used_depths(plan);
}

Plan plan_by(const std::string& schedule, int64_t ranks, int64_t microbatches, int64_t replicas = 1) {
  const ScheduleFacts& facts = schedule_facts(schedule);
  PipelineShape shape;
  shape.stages_per_rank = facts.several_stages ? 2 : 1;
  shape.v_shaped = facts.v_shaped;
  shape.replicas.assign(static_cast<size_t>(ranks * shape.stages_per_rank), replicas);
  shape.in_flight.assign(shape.replicas.size(), 64);
  shape.weights = WeightRule::kFlush;
  shape.microbatches = microbatches;
  return plan_by(schedule, shape);
}

std::string round_trip(const std::string& text, const Plan& stages) {
  return torch_csv_text(plan_of_torch_csv(text, "schedule.csv", stages));
}

TEST_CASE("PyTorch's CSV: what a plan becomes") {
  CHECK(torch_csv_text(plan_by("1f1b-flush", 2, 3)) ==
        "0F0,0F1,0B0,0F2,0B1,0B2\n"
        "1F0,1B0,1F1,1B1,1F2,1B2\n");
  CHECK(torch_csv_text(plan_by("zb-h1", 2, 2)) ==
        "0F0,0F1,0I0,0W0,0I1,0W1\n"
        "1F0,1I0,1F1,1I1,1W0,1W1\n");
  CHECK(torch_csv_text(plan_by("interleaved", 2, 2)) ==
        "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
        "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
}

TEST_CASE("PyTorch's CSV: of replicas that are alike the pipeline of one, its ranks in their order") {
  CHECK(torch_csv_text(plan_by("1f1b-flush", 2, 6, 2)) == torch_csv_text(plan_by("1f1b-flush", 2, 3)));
  Plan turned = plan_by("1f1b-flush", 2, 3);
  std::swap(turned.stages[0].ranks, turned.stages[1].ranks);
  CHECK(torch_csv_text(turned) ==
        "1F0,1B0,1F1,1B1,1F2,1B2\n"
        "0F0,0F1,0B0,0F2,0B1,0B2\n");
  Plan crossed = plan_by("1f1b-flush", 2, 4, 2);
  std::swap(crossed.stages[0].ranks[1], crossed.stages[1].ranks[1]);
  CHECK_THROWS_WITH(torch_csv_text(crossed), Catch::Contains("cannot hold replica 1"));
}

TEST_CASE("PyTorch's CSV: a plan comes back as it runs, under every schedule that drains") {
  for (const ScheduleFacts& facts : schedule_table()) {
    if (!facts.drains() || facts.kind == ScheduleKind::kCustom) continue;
    for (const int64_t ranks : {2, 3, 4})
      for (const int64_t microbatches : {1, 2, 5, 8, 12}) {
        CAPTURE(facts.name, ranks, microbatches);
        const Plan plan = plan_by(facts.name, ranks, microbatches);
        const std::string text = torch_csv_text(plan);
        CHECK(looks_like_torch_csv(text));
        const Plan back = plan_of_torch_csv(text, "schedule.csv", plan);
        CHECK(back.schedule == "custom");
        CHECK(back.microbatches == microbatches);
        CHECK(torch_csv_text(back) == text);
        for (size_t s = 0; s < plan.stages.size(); ++s) {
          CHECK(back.stages[s].ranks == plan.stages[s].ranks);
          CHECK(back.stages[s].in_flight <= plan.stages[s].in_flight);
        }
        // So it takes as long, also where spans cut updates short.
        const PipelineShape was = shape_of(plan), is = shape_of(back);
        const std::vector<StageTimes> times(plan.stages.size(), StageTimes{1, 2, 0, 0, 0.1, 0.2, 0, 1});
        for (const Span span : {Span{0, 3 * microbatches}, Span{1, 2 * microbatches + 1}}) {
          const Simulation simulated = simulate("custom", is, times, span);
          CHECK(simulated.total_seconds == Approx(simulate(plan.schedule, was, times, span).total_seconds));
          CHECK(check_schedule("custom", is, span).completes);
        }
      }
  }
}

TEST_CASE("PyTorch's CSV: idle time, messages, and two actions at once") {
  const Plan two = plan_by("1f1b-flush", 2, 2);
  CHECK(round_trip("0F0,0UNSHARD,0F1,0SEND_F0,,,0B0, ,0B1,0REDUCE_GRAD\r\n,1RECV_F0,1F0,1B0,1F1,1B1\r\n",
                   two) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  CHECK(round_trip("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1I1,1W1\n\n", two) ==
        "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n");
}

TEST_CASE("PyTorch's CSV: ranks in any order, stages s and s + p or s and 2p - 1 - s") {
  const Plan four = plan_by("interleaved", 2, 1);
  const std::string v = "1F0,2F0,2B0,1B0\n0F0,3F0,3B0,0B0\n";
  const Plan plan = plan_of_torch_csv(v, "schedule.csv", four);
  CHECK(plan.v_shaped());
  CHECK(plan.stages[0].ranks == Numbers{1});
  CHECK(plan.order == std::vector<std::string>{"0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"});
  CHECK(torch_csv_text(plan) == v);
  CHECK_THROWS_WITH(plan_of_torch_csv("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n", "s.csv", four),
                    Catch::Contains("s.csv: stage 1 is on line 1"));
  CHECK_THROWS_WITH(plan_of_torch_csv("0F0,0B0\n1F0,2F0,3F0,3B0,2B0,1B0\n", "s.csv", four),
                    Catch::Contains("s.csv: stage 2 is on line 2"));
}

TEST_CASE("PyTorch's CSV: what is wrong is said with line and cell, what waits for ever is drawn") {
  const Plan two = plan_by("1f1b-flush", 2, 2);
  const auto wrong = [&](const std::string& text, const std::string& expected) {
    CAPTURE(text);
    CHECK_THROWS_WITH(plan_of_torch_csv(text, "s.csv", two), Catch::Contains(expected));
  };
  wrong("", "no ranks");
  wrong("0F0,0B0\n1F0,1X0\n", "s.csv: line 2, cell 2: got '1X0', expected STAGE, one of F B I W");
  wrong("0F0,0F\n", "line 1, cell 2");
  wrong("0F0,(0F1;0B0\n", "cell 2");
  wrong("0F0,((0F1)OVERLAP_F_B\n", "cell 2");
  wrong("0F99999999999999999999\n", "cell 1");
  wrong("0F1024\n", "expected microbatches 0..1023");
  wrong("9999999F0\n", "expected stages 0..");
  wrong("0F0,0B0\n,,\n", "line 2: a rank that computes nothing");
  wrong("0F0,0B0\n0F1,1F0,1B0\n", "stage 0 is on lines 1 and 2");
  wrong("0F0,0B0\n2F0,2B0\n", "has stage 2 and no stage 1");
  wrong("0F0,0B0\n", "a schedule of 1 stages; the plan has 2");
  wrong("0F0,0B0\n1F0\n", "order[1]: stage 1 runs 1 forwards, 0 backwards");
  wrong("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1B1,1W0\n", "order[1], 'B1': expected microbatch 0 next");
  wrong("0F0,0F1,0B0,0B1\n1F0,1B0\n", "stage 1 runs 1 forwards");
  wrong("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n", "order[1], 'F1': expected microbatch 0 next");
  wrong("0F0,0F0,0B0,0B1\n1F0,1F1,1B0,1B1\n", "order[0], 'F0': expected microbatch 1 next");
  wrong("0F0,0W0,0I0\n1F0,1B0\n", "its BI comes later");
  wrong("0F0,0I0\n1F0,1B0\n", "1 backwards and the weights' part of 0, expected 1 each");
  wrong("0B0,0F0\n1F0,1B0\n", "expected 'F");  // by the dry run
  wrong("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock");
  const Plan four = plan_by("interleaved", 2, 1);
  CHECK_THROWS_WITH(plan_of_torch_csv("0F0,3F0,3B0,0B0\n2F0,1F0,2B0,1B0\n", "s.csv", four),
                    Catch::Contains("expected '1F1' first"));
  CHECK_THROWS_WITH(plan_of_torch_csv("0F0,3F0,3B0,0B0\n1F0,2F0,1B0,2B0\n", "s.csv", four),
                    Catch::Contains("expected '2B1' first"));
}

TEST_CASE("PyTorch's CSV: a damaged one is refused, or is another that comes back") {
  std::mt19937_64 random(5);
  const Plan plan = plan_by("zbv", 2, 2);
  const std::string whole = torch_csv_text(plan);
  const std::string letters = "0123456789FBIW,;()\n \r-";
  int64_t read = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = whole;
    for (auto damages = 1 + random() % 3; damages > 0; --damages) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text.erase(at, 1 + random() % 5);
          break;
        case 1:
          text.insert(at, 1, letters[random() % letters.size()]);
          break;
        default:
          text[at] = letters[random() % letters.size()];
      }
    }
    CAPTURE(text);
    try {
      const Plan made = plan_of_torch_csv(text, "s.csv", plan);
      CHECK(round_trip(torch_csv_text(made), plan) == torch_csv_text(made));
      ++read;
    } catch (const Error& error) {
      CHECK(!std::string(error.what()).empty());
      ++refused;
    }
  }
  CHECK(read > 20);
  CHECK(refused > 1000);
}

TEST_CASE("PyTorch's CSV: what it cannot hold is refused") {
  const auto refused = [](const std::function<void(Plan&)>& change, const std::string& expected) {
    Plan plan = plan_by("1f1b-flush", 2, 4, 2);
    change(plan);
    CHECK_THROWS_WITH(torch_csv_text(plan), Catch::Contains("PyTorch's schedule cannot hold " + expected));
  };
  refused([](Plan& plan) { plan.schedule = "1f1b", plan.weights = "stash"; }, "weights 'stash'");
  refused([](Plan& plan) { plan.schedule = "1f1b", plan.weights = "2bw"; }, "weights '2bw'");
  refused([](Plan& plan) { plan.stages[1].ranks = {2}; }, "1 replicas (stage 1) beside 2 of stage 0");
  refused([](Plan& plan) { plan.stages[1].shares = {2, 1}; }, "shares (stage 1)");
  refused([](Plan& plan) { plan.stages[1].split = {1, 1}; }, "split (stage 1)");
  refused([](Plan& plan) { plan.stages[0].frozen = true; }, "frozen stages (stage 0)");
  refused([](Plan& plan) { plan.stages[1].recompute = true; }, "recomputation (stage 1)");
  refused([](Plan& plan) { plan.microbatches = 3; }, "3 microbatches an update on 2 replicas");
  refused([](Plan& plan) { plan.tied_parameters = {{"weight", {0, 1}}}; }, "parameter 'weight'");
}

TEST_CASE("schedule custom: the order belongs to it, and to one replica") {
  Plan plan = plan_of_torch_csv("0F0,0B0\n1F0,1B0\n", "s.csv", plan_by("1f1b-flush", 2, 1));
  CHECK_NOTHROW(plan.validate("p"));
  Plan other = plan;
  other.order.clear();
  CHECK_THROWS_WITH(other.validate("p"), Catch::Contains("p: order: is missing"));
  other = plan;
  other.schedule = "gpipe";
  CHECK_THROWS_WITH(other.validate("p"), Catch::Contains("order: does not go with schedule \"gpipe\""));
  other = plan;
  other.order.pop_back();
  CHECK_THROWS_WITH(check_plan_runs(other), Catch::Contains("order has 1 lists, expected 2"));
  other = plan;
  other.order[0] = "F0 XX B0";
  CHECK_THROWS_WITH(check_plan_runs(other), Catch::Contains("order[0]: actions, word 2: got 'XX'"));
  other.order[0] = "F0 U0 B0";
  CHECK_THROWS_WITH(check_plan_runs(other), Catch::Contains("order[0], 'U0': expected F, B, BI or BW"));
  other.order[0] = "0F0 0B0";
  CHECK_THROWS_WITH(check_plan_runs(other), Catch::Contains("order[0], '0F0': expected no stage before it"));
  other = plan;
  other.stages[1].ranks = {1, 2};
  other.world_size = 3;
  CHECK_THROWS_WITH(check_plan_runs(other), Catch::Contains("2 replicas, and schedule 'custom'"));
}

}  // namespace
}  // namespace pipewright
