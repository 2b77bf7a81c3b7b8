// Plans as a whole: what make_plan promises.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "graph/document.h"
#include "graph/strategies.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/evaluator.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/neighbours.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/replan.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/check.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/error_of.h"
#include "tests/support/long.h"

namespace pipewright {
namespace {

using testing::pick;

Topology random_topology(std::mt19937& random) {
  const double bandwidths[] = {1e5, 1e6, 1e7, 1e9};
  return flat_topology(pick(random, 1, 6), bandwidths[pick(random, 0, 3)], pick(random, 0, 1) == 0 ? 0 : 1e-4,
                       0);
}

void check_promises(const Plan& plan, const Profile& profile, const Topology& topology,
                    const PlanRequest& request) {
  plan.validate("plan");
  CHECK(plan.world_size <= topology.device_count());
  int64_t next = 0;
  std::vector<int64_t> replicas;
  std::vector<int64_t> depths;
  for (const Stage& stage : plan.stages) {
    for (const int64_t rank : stage.ranks) CHECK(rank == next++);
    replicas.push_back(static_cast<int64_t>(stage.ranks.size()));
    depths.push_back(stage.in_flight);
    CHECK_FALSE(stage.nodes.empty());
    CHECK(std::set<std::string>(stage.layers.begin(), stage.layers.end()).size() == stage.layers.size());
  }
  CHECK(check_schedule(plan.schedule, {replicas, depths}, {0, 40}).completes);
  const bool replicated = *std::max_element(replicas.begin(), replicas.end()) > 1;
  if (request.strategy == "straight" && topology.device_count() > 1)
    CHECK((plan.stages.size() > 1 && !replicated));
  if (request.strategy == "hybrid") CHECK((plan.stages.size() > 1 && replicated));
  if (request.strategy == "dp")
    CHECK((plan.stages.size() == 1 && plan.world_size == topology.device_count()));
  if (request.strategy == "model-parallel") CHECK((plan.schedule == "model-parallel" && !replicated));

  REQUIRE(plan.predicted.has_value());
  const Prediction& claimed = *plan.predicted;
  const Prediction again = evaluate_plan(plan, profile, topology, request);
  CHECK(claimed.minibatch_seconds == Approx(again.minibatch_seconds).epsilon(1e-9).margin(1e-15));
  CHECK(claimed.bottleneck == again.bottleneck);
  CHECK(claimed.lower_bound_seconds <= claimed.minibatch_seconds);
  CHECK(claimed.lower_bound_seconds >= again.lower_bound_seconds * (1 - 1e-8) *
                                               static_cast<double>(plan.world_size) /
                                               static_cast<double>(topology.device_count()) -
                                           1e-15);
  REQUIRE(claimed.stages.size() == again.stages.size());
  for (size_t s = 0; s < again.stages.size(); ++s) {
    CHECK(claimed.stages[s].compute_seconds == Approx(again.stages[s].compute_seconds).margin(1e-15));
    CHECK(claimed.stages[s].memory.total_bytes() == again.stages[s].memory.total_bytes());
    if (topology.memory_bytes > 0) CHECK(claimed.stages[s].memory.total_bytes() <= topology.memory_bytes);
  }
}

TEST_CASE("Random plans keep every promise, with and without memory limits") {
  std::mt19937 random(11);
  int64_t plans = 0;
  int64_t infeasible = 0;
  for (int c = 0; c < 400; ++c) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 1, 7)), c % 2 == 0, 50);
    Topology topology = random_topology(random);
    PlanRequest request;
    request.optimizer_slots = pick(random, 0, 2);
    for (const StrategyFacts& strategy : searched_strategies()) {
      request.strategy = strategy.name;
      request.use_all_devices = pick(random, 0, 3) == 0;
      topology.memory_bytes = pick(random, 0, 1) == 0 ? 0 : pick(random, 5, 60) * 1000;
      INFO("case " << c << " " << request.strategy << ", memory " << topology.memory_bytes << ", devices "
                   << topology.device_count());
      try {
        PlanNotes notes;
        const Plan plan = make_plan(profile, topology, request, &notes);
        ++plans;
        CHECK(notes.exact);
        check_promises(plan, profile, topology, request);
      } catch (const InfeasibleError&) {
        ++infeasible;
      }
    }
  }
  CHECK(plans > 1000);
  CHECK(infeasible > 100);
}

/// Some are slower than others, some have a limit.
Topology with_devices_that_differ(std::mt19937& random, Topology topology) {
  topology.devices.resize(static_cast<size_t>(topology.device_count()));
  for (TopologyDevice& device : topology.devices) {
    device.host = "host";
    device.relative_speed = pick(random, 0, 1) == 0 ? 1 : 0.5;
    device.memory_bytes = pick(random, 0, 2) == 0 ? 0 : pick(random, 10, 120) * 1000;
  }
  return topology;
}

TEST_CASE("Plans fit devices, also where some have a limit and others none, under every schedule") {
  std::mt19937 random(13);
  std::map<std::string, int64_t> limited;
  for (int c = 0; c < 400; ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 4, 9)), true, 50);
    Topology topology = random_topology(random);
    if (pick(random, 0, 1) == 0)
      topology = with_devices_that_differ(random, topology);
    else
      topology.memory_bytes = pick(random, 10, 120) * 1000;
    PlanRequest request;
    request.schedule = std::vector{"1f1b", "gpipe", "1f1b-flush", "interleaved", "zb-h1"}[c % 5];
    CAPTURE(c, request.schedule);
    try {
      const Plan plan = make_plan(profile, topology, request);
      const Prediction again = evaluate_plan(plan, profile, topology, request);
      CHECK(memory_deficits(plan, again, again, topology).empty());
      for (const Stage& stage : plan.stages)
        if (memory_limit_bytes(topology, stage) > 0) ++limited[plan.schedule];
    } catch (const InfeasibleError&) {
    }
  }
  CHECK(limited.size() == 5);
  for (const auto& [schedule, stages] : limited) {
    CAPTURE(schedule);
    CHECK(stages > 5);
  }
}

TEST_CASE("On devices that differ the best is no slower than any strategy by name") {
  std::mt19937 random(14);
  int64_t compared = 0;
  for (int c = 0; c < (testing::is_long() ? 6000 : 150); ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 3, 8)), true, 50);
    const Topology topology = with_devices_that_differ(random, random_topology(random));
    PlanRequest request;
    request.schedule = std::vector{"1f1b", "gpipe", "1f1b-flush", "zb-h1"}[c % 4];
    const auto seconds = [&](const char* strategy) {
      request.strategy = strategy;
      try {
        return make_plan(profile, topology, request).predicted->minibatch_seconds;
      } catch (const InfeasibleError&) {
        return std::numeric_limits<double>::infinity();
      }
    };
    const double best = seconds("best");
    for (const char* strategy : {"dp", "straight", "hybrid"}) {
      CAPTURE(c, request.schedule, strategy);
      const double other = seconds(strategy);
      if (other < std::numeric_limits<double>::infinity()) ++compared;
      CHECK(best <= kEquallyFast * other);
    }
  }
  CHECK(compared > 150);
}

/// Every chain of stages on the first devices, however they stand.
class EveryChain {
 public:
  EveryChain(const Problem& problem, const PlanRequest& request)
      : q_(problem), evaluator_(problem, request) {}

  double fastest() {
    extend(0, q_.devices);
    return fastest_;
  }

 private:
  void extend(int from, int64_t left) {
    if (from == q_.states->last()) return place();
    for (const int to : q_.states->after(from))
      for (int64_t m = 1; m <= left; ++m) {
        chain_.stages.push_back({from, to, m});
        extend(to, left - m);
        chain_.stages.pop_back();
      }
  }

  void place() {
    std::vector<int64_t> order(static_cast<size_t>(chain_.devices()));
    std::iota(order.begin(), order.end(), int64_t{0});
    do {
      Chain placed = chain_;
      auto next = order.begin();
      bool ascending = true;  // within each stage
      for (FoundStage& stage : placed.stages) {
        stage.ranks.assign(next, next + stage.replicas);
        next += stage.replicas;
        ascending = ascending && std::is_sorted(stage.ranks.begin(), stage.ranks.end());
      }
      if (!ascending || evaluator_.floor(&placed).floor_seconds >= fastest_) continue;
      if (const auto price = evaluator_.price(placed, 0, kInfeasible))
        fastest_ = std::min(fastest_, price->seconds);
    } while (std::next_permutation(order.begin(), order.end()));
  }

  const Problem& q_;
  Evaluator evaluator_;
  Chain chain_;
  double fastest_ = kInfeasible;
};

/// Stages along random cuts, with random replicas, on devices in a random order.
Chain random_chain(std::mt19937& random, const Problem& q) {
  Chain chain;
  std::vector<int64_t> order(static_cast<size_t>(q.devices));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::shuffle(order.begin(), order.end(), random);
  auto next = order.begin();
  for (int from = 0; from != q.states->last();) {
    const auto left = static_cast<int64_t>(order.end() - next);
    const auto& after = q.states->after(from);
    const bool ends = left == 1 || pick(random, 0, 3) == 0;
    const int to =
        ends ? q.states->last() : after[static_cast<size_t>(pick(random, 0, std::ssize(after) - 1))];
    FoundStage stage{from, to, pick(random, 1, to == q.states->last() ? left : left - 1)};
    if (q.inputs.placed()) stage.ranks.assign(next, next + stage.replicas);
    std::sort(stage.ranks.begin(), stage.ranks.end());
    next += stage.replicas;
    chain.stages.push_back(std::move(stage));
    from = to;
  }
  return chain;
}

TEST_CASE("No chain is priced below its floor, with little memory, on equal devices and on others") {
  struct Kind {
    const char *schedule, *weights;
  };
  constexpr Kind kKinds[] = {
      {"1f1b", "stash"}, {"1f1b", "2bw"}, {"1f1b-flush", ""}, {"gpipe", ""}, {"zb-h1", ""}};
  std::mt19937 random(45);
  int64_t priced = 0, uneven = 0;
  for (int c = 0; c < (testing::is_long() ? 4000 : 200); ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 3, 6)), true, 50);
    Topology topology = random_topology(random);
    if (c % 2 == 1) topology = with_devices_that_differ(random, topology);
    PlanRequest request;
    request.schedule = kKinds[c % 5].schedule;
    request.weights = kKinds[c % 5].weights;
    const PlanRequest rules = with_run_rules(request, topology.device_count());
    const Dataflow flow(profile, {}, ties_of(rules));
    const States states = enumerate_states(flow, true);
    Problem problem;
    problem.states = &states;
    problem.inputs = requested_cost_inputs(profile, topology, rules);
    problem.devices = topology.device_count();
    problem.recompute = Recompute::kWhereNeeded;
    search_by_rules(rules, &problem);
    // Room for some minibatches of a part of the model.
    StageLoad all = load_between(states, 0, states.last());
    all.workspace = workspace_between(states, 0, states.last());
    problem.memory_bytes = stage_memory(all, 1, 1, problem.inputs).total_bytes() * pick(random, 3, 30) / 10;
    for (int64_t& memory : problem.inputs.memories)
      if (memory > 0) memory = problem.memory_bytes;
    Evaluator evaluator(problem, rules);
    for (int i = 0; i < 20; ++i) {
      std::vector<Chain> ways = evaluator.recomputing(random_chain(random, problem));
      if (ways.empty()) continue;
      Chain chain = ways[static_cast<size_t>(pick(random, 0, std::ssize(ways) - 1))];
      const double floor = evaluator.floor(&chain).floor_seconds;
      const auto price = evaluator.price(chain, 0, kInfeasible);
      if (!price) continue;
      ++priced;
      for (const FoundStage& stage : chain.stages) uneven += stage.shares.empty() ? 0 : 1;
      CAPTURE(c, i, request.schedule, request.weights, chain.stages.size());
      CHECK(floor <= price->seconds * (1 + 1e-9));
      // What moves lead to is such a chain again, whatever shares it had.
      for (Chain& moved : with_devices_moved(problem, chain))
        for (Chain& way : evaluator.recomputing(std::move(moved)))
          CHECK(std::all_of(way.stages.begin(), way.stages.end(),
                            [](const FoundStage& stage) { return stage.shares.empty(); }));
    }
  }
  CHECK(priced > 1000);
  CHECK(uneven > 50);
}

TEST_CASE("On devices that differ the plan is as fast as the fastest of all") {
  std::mt19937 random(16);
  int64_t cases = 0, slower = 0;
  double worst = 1;
  for (int c = 0; c < (testing::is_long() ? 2000 : 150); ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 2, 5)), true, 50);
    Topology topology = with_devices_that_differ(random, random_topology(random));
    if (topology.device_count() > 4 || topology.devices.empty()) continue;
    PlanRequest request;
    request.recompute = "never";
    request.schedule = std::vector{"1f1b", "gpipe", "1f1b-flush"}[c % 3];
    const PlanRequest rules = with_run_rules(request, topology.device_count());
    const Dataflow flow(profile, {}, ties_of(rules));
    const States states = enumerate_states(flow, true);
    Problem problem;
    problem.states = &states;
    problem.inputs = requested_cost_inputs(profile, topology, rules);
    problem.devices = topology.device_count();
    problem.memory_bytes = memory_limit_bytes(topology);
    search_by_rules(rules, &problem);
    if (!problem.inputs.devices_differ()) continue;
    const double fastest = EveryChain(problem, rules).fastest();
    double found = kInfeasible;
    try {
      found = make_plan(profile, topology, request).predicted->minibatch_seconds;
    } catch (const InfeasibleError&) {
    }
    CAPTURE(c, request.schedule, topology.to_json().dump(), fastest, found);
    CHECK((found < kInfeasible) == (fastest < kInfeasible));
    if (found == kInfeasible || fastest == kInfeasible) continue;
    ++cases;
    worst = std::max(worst, found / fastest);
    if (found > 1.01 * fastest) ++slower;
    CHECK(found <= 1.05 * fastest);
  }
  INFO(cases << " cases, " << slower << " slower by more than 1 %, worst " << worst);
  CHECK(cases > 40);
  CHECK(slower <= cases / 50);
}

TEST_CASE("The memory that an InfeasibleError names is enough, and a byte less is not") {
  std::mt19937 random(12);
  int64_t seen = 0;
  for (int c = 0; c < 200; ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 2, 6)), true, 50);
    Topology topology = random_topology(random);
    PlanRequest request;
    request.strategy = searched_strategies()[c % searched_strategies().size()].name;
    // Planning with no limit tells what is surely enough; halving from there meets the border.
    const auto possible = [&](int64_t memory) {
      topology.memory_bytes = memory;
      try {
        const Plan plan = make_plan(profile, topology, request);
        for (const StagePrediction& stage : plan.predicted->stages)
          CHECK(stage.memory.total_bytes() <= memory);
        return true;
      } catch (const InfeasibleError&) {
        return false;
      }
    };
    if (!possible(10000000)) continue;
    int64_t enough = 10000000;
    int64_t too_little = 0;
    while (enough - too_little > 1) {
      const int64_t middle = too_little + (enough - too_little) / 2;
      (possible(middle) ? enough : too_little) = middle;
    }
    if (too_little == 0) continue;
    ++seen;
    topology.memory_bytes = too_little;
    const std::string message =
        testing::error_of<InfeasibleError>([&] { make_plan(profile, topology, request); });
    INFO(message << " enough: " << enough);
    CHECK_THAT(message, Catch::Contains("the smallest that fits one is"));
    CHECK_THAT(message, Catch::Contains("stage "));
  }
  CHECK(seen > 100);
}

TEST_CASE("More devices, bandwidth or memory, or leave to recompute, never make a plan worse") {
  std::mt19937 random(18);
  int64_t compared = 0;
  int64_t rescued = 0;
  for (int c = 0; c < 200; ++c) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 1, 6)), c % 2 == 0, 50);
    const int64_t devices = pick(random, 1, 5);
    const int64_t memory = pick(random, 8, 60) * 1000;
    const double bandwidth = pick(random, 0, 1) == 0 ? 1e6 : 1e7;
    bool thin = false;  // whether a stage of the last plan computes less than its messages take
    const auto period = [&](int64_t count, double bytes_per_second, int64_t bytes, const char* recompute) {
      PlanRequest request;
      request.recompute = recompute;
      try {
        // What the plan takes, and not the period of the search: where depths that keep the pipeline full do
        // not fit, that is of the least depths.
        const Plan plan = make_plan(profile, flat_topology(count, bytes_per_second, 1e-4, bytes), request);
        thin = false;
        for (const StagePrediction& stage : plan.predicted->stages)
          thin = thin || stage.compute_seconds < stage.send_seconds;
        return plan.predicted->minibatch_seconds;
      } catch (const InfeasibleError&) {
        return std::numeric_limits<double>::infinity();
      }
    };
    INFO("case " << c << ", " << devices << " devices, memory " << memory);
    for (const char* recompute : {"never", "auto", "always"}) {
      const double now = period(devices, bandwidth, memory, recompute);
      // One without thin stages, if it takes at most 2 % longer, is preferred to this.
      const double most = now * (1 + 1e-3 + (thin ? 0.02 : 0));
      CHECK(period(devices + 1, bandwidth, memory, recompute) <= most);
      CHECK(period(devices, 2 * bandwidth, memory, recompute) <= most);
      CHECK(period(devices, bandwidth, memory + 5000, recompute) <= most);
      const double free = period(devices, bandwidth, memory, "auto");
      CHECK(free <= most);
      compared += std::isfinite(now);
      rescued += std::isfinite(free) && !std::isfinite(now);
    }
  }
  CHECK(compared > 300);
  CHECK(rescued > 0);
}

TEST_CASE("Fifty plans from one problem are one plan") {
  std::mt19937 random(13);
  const Profile profile = testing::random_profile(random, 7, false, 40);
  const Topology topology = flat_topology(5, 1e6, 1e-4, 0);
  for (const StrategyFacts& strategy : searched_strategies()) {
    PlanRequest request;
    request.strategy = strategy.name;
    const std::string first = document_text(make_plan(profile, topology, request));
    for (int run = 1; run < 50; ++run) REQUIRE(document_text(make_plan(profile, topology, request)) == first);
  }
}

TEST_CASE("A plan reads back as it was written") {
  std::mt19937 random(14);
  const Profile profile = testing::random_profile(random, 6, true, 40);
  const std::string text = document_text(make_plan(profile, flat_topology(4, 1e7, 1e-4, 0), {}));
  CHECK(document_text(parse_document<Plan>(text, "text")) == text);
}

TEST_CASE("Unknown names say the nearest") {
  std::mt19937 random(15);
  const Profile profile = testing::random_profile(random, 3, true, 40);
  const Topology topology = flat_topology(2, 1e7, 0, 0);
  PlanRequest request;
  request.strategy = "hybird";
  CHECK_THAT(testing::error_of<InputError>([&] { make_plan(profile, topology, request); }),
             Catch::Contains("'hybrid'"));
}

TEST_CASE("Impossible strategies say why") {
  std::mt19937 random(16);
  Profile profile = testing::random_profile(random, 1, true, 40);
  PlanRequest request;
  request.strategy = "hybrid";
  const auto error = [&](int64_t devices) {
    return testing::error_of<InfeasibleError>(
        [&] { make_plan(profile, flat_topology(devices, 1e7, 0, 0), request); });
  };
  CHECK_THAT(error(4), Catch::Contains("cannot be cut"));
  profile = testing::random_profile(random, 5, true, 40);
  for (ProfiledNode& node : profile.nodes) {
    node.forward_seconds += 1;
    node.parameters.clear();
  }
  CHECK_THAT(error(2), Catch::Contains("impossible on 2 devices"));
  CHECK(error(3) == "<no exception>");
  request.strategy = "straight";
  CHECK(error(2) == "<no exception>");
}

}  // namespace
}  // namespace pipewright
