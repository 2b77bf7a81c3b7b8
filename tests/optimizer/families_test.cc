// What a plan promises of others: bounds hold for every plan of the family that they speak of, and no device
// is given to a stage that hardly computes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "optimizer/cost/stage_times.h"
#include "optimizer/cost/tied.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/plan_check.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

using testing::pick;

struct Kind {
  const char* schedule;
  const char* weights;
};
constexpr Kind kKinds[] = {
    {"1f1b", "stash"}, {"1f1b", "2bw"}, {"gpipe", "flush"}, {"1f1b-flush", "flush"}, {"zb-h1", "flush"}};

Topology random_topology(std::mt19937& random) {
  const double rates[] = {3e5, 1e6, 1e7, 1e9};
  const auto rate = [&] { return rates[pick(random, 0, 3)]; };
  const double latency = pick(random, 0, 1) == 0 ? 1e-4 : 0;
  Topology topology = flat_topology(pick(random, 2, 5), rate(), latency, 0);
  const int64_t form = pick(random, 0, 2);
  if (form == 1) topology.levels[0].shared = true;
  if (form == 2) {
    topology.levels[0].count = 2;
    topology.levels.push_back({pick(random, 2, 3), rate(), 2 * latency, pick(random, 0, 2) == 0});
  }
  return topology;
}

/// A plan that `check` takes, or none: random cuts, replicas, ranks, depths, recomputing.
std::optional<Plan> random_plan(std::mt19937& random, const Profile& profile, const Topology& topology,
                                const PlanRequest& request, const States& states) {
  Plan plan;
  plan.model = profile.model;
  plan.strategy = "manual";
  plan.schedule = request.schedule;
  plan.weights = request.weights;
  plan.microbatches = std::max<int64_t>(1, request.microbatches);
  std::vector<NodeSet> nodes_of_stages;
  int64_t left = topology.device_count();
  for (int at = 0; at != states.last();) {
    const StateNumbers next = states.after(at);
    const int to = left == 1 ? states.last() : next[static_cast<int>(pick(random, 0, next.size() - 1))];
    const NodeSet nodes =
        states.states[static_cast<size_t>(to)].done - states.states[static_cast<size_t>(at)].done;
    Stage stage;
    for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v))
      stage.nodes.push_back(profile.nodes[v].name);
    for (int64_t q = pick(random, 1, to == states.last() ? left : std::max<int64_t>(1, left - 1)); q > 0; --q)
      stage.ranks.push_back(plan.world_size++);
    left = topology.device_count() - plan.world_size;
    stage.in_flight = pick(random, 1, 6);
    stage.recompute = pick(random, 0, 3) == 0;
    plan.stages.push_back(stage);
    nodes_of_stages.push_back(nodes);
    at = to;
    if (left == 0 && at != states.last()) return std::nullopt;
  }
  plan.tied_parameters = tied_parameters(split_groups(states.ties, nodes_of_stages));
  std::vector<int64_t> number(static_cast<size_t>(plan.world_size));
  std::iota(number.begin(), number.end(), 0);
  std::shuffle(number.begin(), number.end(), random);
  for (Stage& stage : plan.stages)
    for (int64_t& rank : stage.ranks) rank = number[static_cast<size_t>(rank)];
  if (plan.schedule == "gpipe" || plan.schedule == "zb-h1")
    for (Stage& stage : plan.stages) stage.in_flight = plan.microbatches;
  plan.validate("random plan");
  try {
    check_plan_runs(plan);
    const Prediction prediction = evaluate_plan(plan, profile, topology, request);
    check_plan_memory(plan, prediction, prediction, topology);
  } catch (const PlanError&) {
    return std::nullopt;
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
  return plan;
}

TEST_CASE("no plan that check accepts is below the bound of its family") {
  std::mt19937 random(29);
  int64_t plans = 0;
  for (int round = 0; round < 80; ++round) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 3, 6)), pick(random, 0, 1) == 0, 50);
    Topology topology = random_topology(random);
    PlanRequest request;
    const Kind& kind = kKinds[pick(random, 0, 4)];
    request.schedule = kind.schedule;
    request.weights = kind.weights;
    const bool intervals = request.weights != "stash";
    request.microbatches = intervals ? pick(random, 2, 8) : 0;
    if (pick(random, 0, 2) == 0) {
      const Plan free = make_plan(profile, topology, request);
      int64_t most = 0;
      for (const StagePrediction& stage : free.predicted->stages)
        most = std::max(most, stage.memory.total_bytes());
      topology.memory_bytes = most * pick(random, 40, 120) / 100 + 1;
    }
    Plan plan;
    try {
      plan = make_plan(profile, topology, request);
    } catch (const MemoryError&) {
      continue;
    }
    const Dataflow flow(profile, {}, ties_of(with_run_rules(request, topology.device_count())));
    const States states = enumerate_states(flow, true);
    const double bound = plan.predicted->lower_bound_seconds;
    CHECK(bound <= plan.predicted->minibatch_seconds * (1 + 1e-9));
    for (int i = 0; i < 25; ++i) {
      const std::optional<Plan> other = random_plan(random, profile, topology, request, states);
      if (!other) continue;
      const double seconds = evaluate_plan(*other, profile, topology, request).minibatch_seconds;
      CAPTURE(round, i, kind.schedule, kind.weights, other->shape_text(), seconds, bound);
      CHECK(seconds >= bound * (1 - 1e-6));
      ++plans;
    }
  }
  CHECK(plans > 500);
}

/// Blocks with a layer of no weight between each two.
Profile blocks_and_flattens(std::mt19937& random, int blocks) {
  Profile profile;
  profile.model = "blocks";
  profile.device = "none";
  profile.minibatch_samples = 8;
  std::string last;
  for (int b = 0; b < blocks; ++b) {
    for (const bool flatten : {false, true}) {
      ProfiledNode node;
      node.name = node.layer = (flatten ? "flatten" : "block") + std::to_string(b);
      if (!last.empty()) node.inputs = {last};
      last = node.name + ".out";
      node.outputs = {{last, 1000 * pick(random, 1, 40)}};
      if (flatten) {
        node.forward_seconds = 1e-6;
        node.backward_input_seconds = 1e-6;
      } else {
        node.forward_seconds = 1e-3 * static_cast<double>(pick(random, 5, 30));
        node.backward_input_seconds = node.backward_weight_seconds = node.forward_seconds;
        node.parameter_bytes = node.trainable_parameter_bytes = 1000 * pick(random, 1, 400);
        node.parameters = {node.name + ".weight"};
        node.saved_bytes = node.outputs[0].bytes;
      }
      profile.nodes.push_back(node);
    }
  }
  return profile;
}

/// Stages of the plan, as the search has them.
std::vector<FoundStage> stages_of(const Plan& plan, const States& states, const Profile& profile,
                                  bool placed) {
  std::vector<FoundStage> stages;
  NodeSet done(profile.nodes.size());
  int from = 0;
  for (const Stage& stage : plan.stages) {
    for (size_t v = 0; v < profile.nodes.size(); ++v)
      if (std::find(stage.nodes.begin(), stage.nodes.end(), profile.nodes[v].name) != stage.nodes.end())
        done.set(v);
    int to = 0;
    while (states.states[static_cast<size_t>(to)].done != done) ++to;
    FoundStage found{from, to, static_cast<int64_t>(stage.ranks.size())};
    if (placed) found.ranks = stage.ranks;
    found.recompute = stage.recompute;
    stages.push_back(found);
    from = to;
  }
  return stages;
}

/// Of one minibatch on the innermost links, messages one way.
bool computes_less_than_messages(const StageLoad& load, const CostInputs& inputs) {
  double messages = 0;
  if (!load.first) messages += message_seconds(static_cast<double>(load.in_bytes), inputs);
  if (!load.last) messages += message_seconds(static_cast<double>(load.out_bytes), inputs);
  return load.compute_seconds() < messages;
}

/// The ways to join a stage that computes less than its messages take to a neighbour: on all devices of both
/// or, where devices are alike, on fewer.
std::vector<std::vector<FoundStage>> with_thin_stage_joined(const std::vector<FoundStage>& stages,
                                                            const Problem& q) {
  const auto thin = [&](const FoundStage& stage) {
    return computes_less_than_messages(load_between(*q.states, stage.from, stage.to), q.inputs);
  };
  std::vector<std::vector<FoundStage>> ways;
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    const FoundStage &first = stages[s], &second = stages[s + 1];
    if (!thin(first) && !thin(second)) continue;
    const int64_t all = first.replicas + second.replicas;
    std::set<int64_t> replicas = {all};
    if (first.ranks.empty()) replicas.insert({all - 1, std::max(first.replicas, second.replicas)});
    for (const int64_t count : replicas) {
      FoundStage joined{first.from, second.to, count};
      joined.recompute = first.recompute || second.recompute;
      joined.ranks = first.ranks;
      joined.ranks.insert(joined.ranks.end(), second.ranks.begin(), second.ranks.end());
      std::sort(joined.ranks.begin(), joined.ranks.end());
      std::vector<FoundStage> way(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(s));
      way.push_back(joined);
      way.insert(way.end(), stages.begin() + static_cast<std::ptrdiff_t>(s) + 2, stages.end());
      ways.push_back(std::move(way));
    }
  }
  return ways;
}

TEST_CASE("no stage computes less than its messages take where that can be had for nothing") {
  std::mt19937 random(31);
  int64_t thin = 0, plans = 0;
  for (int round = 0; round < 120; ++round) {
    const bool flattens = round % 2 == 0;
    const Profile profile =
        flattens ? blocks_and_flattens(random, static_cast<int>(pick(random, 2, 5)))
                 : testing::random_profile(random, static_cast<int>(pick(random, 3, 7)), true, 50);
    const Topology topology = random_topology(random);
    PlanRequest request;
    const Kind& kind = kKinds[pick(random, 0, 4)];
    request.schedule = kind.schedule;
    request.weights = kind.weights;
    const Plan plan = make_plan(profile, topology, request);
    ++plans;
    const PlanRequest rules = with_run_rules(request, topology.device_count());
    const Dataflow flow(profile, {}, ties_of(rules));
    const States states = enumerate_states(flow, false);
    Problem problem;
    problem.states = &states;
    problem.inputs = cost_inputs(profile, topology, 1);
    const std::vector<StageLoad> loads = loads_of_plan(plan, flow);
    const bool has =
        plan.stages.size() > 1 && std::any_of(loads.begin(), loads.end(), [&](const StageLoad& load) {
          return computes_less_than_messages(load, problem.inputs);
        });
    CAPTURE(round, kind.schedule, plan.shape_text());
    if (flattens) {
      for (const Stage& stage : plan.stages)
        CHECK_FALSE(std::all_of(stage.nodes.begin(), stage.nodes.end(),
                                [](const std::string& name) { return name.rfind("flatten", 0) == 0; }));
    }
    if (!has) continue;
    ++thin;
    // Then every way to be rid of it is slower.
    const std::vector<FoundStage> stages = stages_of(plan, states, profile, problem.inputs.placed());
    for (const std::vector<FoundStage>& way : with_thin_stage_joined(stages, problem)) {
      Plan other;
      std::vector<NodeSet> nodes_of_stages;
      for (const FoundStage& found : way) {
        Stage stage;
        nodes_of_stages.push_back(states.states[static_cast<size_t>(found.to)].done -
                                  states.states[static_cast<size_t>(found.from)].done);
        const NodeSet& nodes = nodes_of_stages.back();
        for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v))
          stage.nodes.push_back(profile.nodes[v].name);
        stage.ranks = found.ranks;
        for (int64_t q = 0; found.ranks.empty() && q < found.replicas; ++q)
          stage.ranks.push_back(other.world_size + q);
        other.world_size += found.replicas;
        other.stages.push_back(stage);
      }
      other.tied_parameters = tied_parameters(split_groups(states.ties, nodes_of_stages));
      const std::optional<Plan> joined = priced_plan(other, {&flow, problem.inputs, rules_of(rules)});
      if (!joined) continue;
      CHECK(joined->predicted->minibatch_seconds > plan.predicted->minibatch_seconds);
    }
  }
  std::printf("%lld of %lld plans keep a stage that computes less than its messages take\n",
              static_cast<long long>(thin), static_cast<long long>(plans));
}

TEST_CASE("a pipeline that is asked for is given, whatever its messages take") {
  std::mt19937 random(1);
  const Profile profile = blocks_and_flattens(random, 2);
  const Topology topology = flat_topology(2, 1e4, 0, 0);
  PlanRequest request;
  CHECK(make_plan(profile, topology, request).world_size == 1);
  request.strategy = "straight";
  CHECK(make_plan(profile, topology, request).stages.size() == 2);
}

}  // namespace
}  // namespace pipewright
