// Tied parameters: where the weights allow it, cuts between their readers, with copies that cost what they
// cost.
#include "optimizer/cost/tied.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <map>
#include <random>

#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/plan_check.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::pick;

ProfiledNode node(const std::string& name, double seconds, int64_t parameter_bytes,
                  const std::vector<std::string>& parameters) {
  ProfiledNode made;
  made.name = made.layer = name;
  made.outputs = {{name + ".out", 1 << 20}};
  made.forward_seconds = seconds / 3;
  made.backward_input_seconds = made.backward_weight_seconds = seconds / 3;
  made.parameter_bytes = made.trainable_parameter_bytes = parameter_bytes;
  made.parameters = parameters;
  made.saved_bytes = 1 << 20;
  return made;
}

/// An embedding, blocks, and a head that reads the embedding's weight and a bias.
Profile language_model(int64_t embedding_bytes) {
  Profile profile;
  profile.model = "language model";
  profile.device = "none";
  profile.minibatch_samples = 16;
  profile.nodes.push_back(node("embed", 2e-3, embedding_bytes, {"embed.weight"}));
  for (int i = 0; i < 8; ++i) {
    const std::string name = "block" + std::to_string(i);
    profile.nodes.push_back(node(name, 12e-3, 4 << 20, {name + ".weight"}));
  }
  profile.nodes.push_back(node("head", 20e-3, embedding_bytes + 4096, {"embed.weight", "head.bias"}));
  for (size_t v = 1; v < profile.nodes.size(); ++v)
    profile.nodes[v].inputs = {profile.nodes[v - 1].outputs[0].name};
  profile.whole.step_seconds = 4e-3;
  profile.validate("language model");
  return profile;
}

/// With parameters that several nodes read, alone or beside their own.
Profile random_tied_profile(std::mt19937& random, int nodes) {
  Profile profile = testing::random_profile(random, nodes, pick(random, 0, 1) == 0, 40);
  for (int64_t group = pick(random, 1, 2); group > 0; --group) {
    const int64_t bytes = 1000 * pick(random, 1, 6);
    const std::string name = "shared" + std::to_string(group);
    for (ProfiledNode& at : profile.nodes) {
      if (pick(random, 0, 2) != 0) continue;
      if (at.parameter_bytes == 0) at.parameters.clear();
      at.parameters.push_back(name);
      at.parameter_bytes += bytes;
      at.trainable_parameter_bytes = at.parameter_bytes;
    }
    // One reader that reads nothing else, so that bytes are known.
    ProfiledNode table;
    table.name = table.layer = "table" + std::to_string(group);
    table.inputs = {"images"};
    table.outputs = {{table.name + ".out", 100}};
    table.forward_seconds = 1e-3;
    table.parameters = {name};
    table.parameter_bytes = table.trainable_parameter_bytes = bytes;
    profile.nodes.push_back(table);
  }
  return profile;
}

Plan plan_of_cuts(const Profile& profile, const States& states, const std::vector<int>& cuts,
                  const std::vector<int64_t>& replicas) {
  Plan plan;
  plan.model = profile.model;
  plan.strategy = "manual";
  std::vector<NodeSet> nodes_of_stages;
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    Stage stage;
    const NodeSet nodes = states.states[static_cast<size_t>(cuts[s + 1])].done -
                          states.states[static_cast<size_t>(cuts[s])].done;
    for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v))
      stage.nodes.push_back(profile.nodes[v].name);
    for (int64_t q = 0; q < replicas[s]; ++q) stage.ranks.push_back(plan.world_size++);
    nodes_of_stages.push_back(nodes);
    plan.stages.push_back(stage);
  }
  plan.tied_parameters = tied_parameters(split_groups(states.ties, nodes_of_stages));
  return plan;
}

TEST_CASE(
    "a tied parameter's bytes are those of the reader that reads nothing else, and count once a stage") {
  const Profile profile = language_model(40000);
  const Dataflow flow(profile);
  REQUIRE(flow.ties.size() == 1);
  CHECK(flow.ties[0].names == std::vector<std::string>{"embed.weight"});
  CHECK(flow.ties[0].readers == std::vector<int>{0, 9});
  CHECK(flow.ties[0].parameter_bytes == 40000);
  CHECK(flow.own_parameter_bytes[9] == 4096);  // the bias
  CHECK(flow.parameter_bytes[0] == 40000);
  CHECK(flow.parameter_bytes[9] == 4096);
  // Together they are one set that no cut separates; with copies there is none.
  CHECK(flow.tied.size() == 1);
  CHECK(Dataflow(profile, {}, Ties::kCopies).tied.empty());
  CHECK(enumerate_states(flow, false).size() == 2);
  CHECK(enumerate_states(Dataflow(profile, {}, Ties::kCopies), false).size() == 11);
}

TEST_CASE("loads of a search and of a plan agree where copies are cut apart") {
  std::mt19937 random(3);
  int64_t split = 0;
  for (int round = 0; round < 400; ++round) {
    const Profile profile = random_tied_profile(random, static_cast<int>(pick(random, 3, 7)));
    const Dataflow flow(profile, {}, Ties::kCopies);
    const States states = enumerate_states(flow, true);
    std::vector<int> cuts = {0};
    while (cuts.back() != states.last()) {
      const StateNumbers next = states.after(cuts.back());
      cuts.push_back(next[static_cast<int>(pick(random, 0, next.size() - 1))]);
    }
    const std::vector<int64_t> replicas(cuts.size() - 1, 1);
    const Plan plan = plan_of_cuts(profile, states, cuts, replicas);
    const std::vector<StageLoad> loads = loads_of_plan(plan, flow);
    split += plan.tied_parameters.empty() ? 0 : 1;
    for (size_t s = 0; s < loads.size(); ++s) {
      const StageLoad found = load_between(states, cuts[s], cuts[s + 1]);
      CAPTURE(round, s);
      CHECK(found.parameter_bytes == loads[s].parameter_bytes);
      CHECK(found.trainable_bytes == loads[s].trainable_bytes);
      CHECK(found.buffer_bytes == loads[s].buffer_bytes);
      CHECK(found.compute_seconds() == Approx(loads[s].compute_seconds()).margin(1e-12));
      // A search counts one other copy of each: with more there is more to send.
      CHECK(found.tied_sent_bytes <= loads[s].tied_sent_bytes);
      CHECK(found.tied_held_bytes <= loads[s].tied_held_bytes);
      CHECK((found.tied_sent_bytes > 0) == (loads[s].tied_sent_bytes > 0));
    }
  }
  CHECK(split > 100);
}

TEST_CASE("what copies send and hold: a message to each rank that hears from one") {
  const Profile profile = language_model(1000);
  const Dataflow flow(profile, {}, Ties::kCopies);
  const States states = enumerate_states(flow, false);
  const auto loads = [&](const std::vector<int64_t>& replicas) {
    return loads_of_plan(plan_of_cuts(profile, states, {0, 4, 10}, replicas), flow);
  };
  const auto even = loads({1, 1});
  CHECK(even[0].tied_sent_bytes == 1000);
  CHECK(even[1].tied_sent_bytes == 1000);
  CHECK(even[0].tied_held_bytes == 2000);  // the other's, and the sum
  CHECK(even[1].tied_with == std::vector<int64_t>{0});
  const auto uneven = loads({1, 3});
  CHECK(uneven[0].tied_sent_bytes == 3000);  // all three replicas hear from the one
  CHECK(uneven[1].tied_sent_bytes == 1000);
  CostInputs inputs;
  inputs.bandwidth_bytes_per_second = 1e6;
  inputs.latency_seconds = 1e-3;
  CHECK(tied_seconds(uneven[0], inputs) == Approx(4e-3));
  CHECK(stage_times(uneven[0], 1, inputs).tied_seconds == Approx(4e-3));
  // In the period once an update, and in memory where the rest of an update leaves no room.
  inputs.minibatches_per_update = 4;
  inputs.weights = WeightRule::kFlush;
  StageLoad alone = uneven[0];
  alone.tied_sent_bytes = alone.tied_held_bytes = 0;
  CHECK(stage_period(uneven[0], 1, inputs).device_seconds() ==
        Approx(stage_period(alone, 1, inputs).device_seconds() + 1e-3));
  StageLoad small = uneven[0];
  small.saved_bytes = small.in_bytes = 0;
  small.trainable_bytes = 1000;
  small.workspace = {};
  alone = small;
  alone.tied_held_bytes = 0;
  CHECK(stage_memory(small, 1, 1, inputs).total_bytes() ==
        stage_memory(alone, 1, 1, inputs).total_bytes() + 1000);
}

TEST_CASE(
    "a tied language model is cut under flush and 2bw, and not where stages update at different times") {
  const Profile profile = language_model(8 << 20);
  const Topology topology = flat_topology(4, 1.25e9, 50e-6, 0);
  PlanRequest request;
  const Plan stash = make_plan(profile, topology, request);
  CHECK(stash.stages.size() == 1);
  for (const auto& [schedule, weights] : {std::pair<std::string, std::string>{"1f1b", "2bw"},
                                          {"1f1b-flush", "flush"},
                                          {"gpipe", "flush"},
                                          {"zb-h1", "flush"},
                                          {"interleaved", "flush"}}) {
    for (const std::string strategy : {"best", "straight"}) {
      if (schedule == "interleaved" && strategy != "best") continue;
      CAPTURE(schedule, strategy);
      PlanRequest cut;
      cut.schedule = schedule;
      cut.weights = weights;
      cut.strategy = strategy;
      const Plan plan = make_plan(profile, topology, cut);
      check_plan_runs(plan);
      const Prediction again = evaluate_plan(plan, profile, topology, cut);
      CHECK(again.minibatch_seconds == Approx(plan.predicted->minibatch_seconds).epsilon(2e-3));
      CHECK(plan.predicted->lower_bound_seconds <= plan.predicted->minibatch_seconds);
      if (plan.stages.size() < 2) continue;
      REQUIRE(plan.tied_parameters.size() == 1);
      CHECK(plan.tied_parameters[0].name == "embed.weight");
      CHECK(plan.tied_parameters[0].stages.front() == 0);
      CHECK(plan.tied_parameters[0].stages.back() == static_cast<int64_t>(plan.stages.size()) - 1);
      // Not for nothing: without waiting and exchange it would look faster.
      Plan free = plan;
      Profile apart = profile;
      apart.nodes.back().parameters[0] = "head.weight";
      free.tied_parameters.clear();
      CHECK(evaluate_plan(free, apart, topology, cut).minibatch_seconds < again.minibatch_seconds);
    }
  }
  PlanRequest straight;
  straight.strategy = "straight";
  CHECK_THAT(testing::error_of<InfeasibleError>([&] { make_plan(profile, topology, straight); }),
             Catch::Contains("cannot be cut into 2 stages"));
  try {
    make_plan(profile, topology, straight);
  } catch (const InfeasibleError& error) {
    CHECK_THAT(error.remedy(), Catch::Contains("'embed' and 'head'") && Catch::Contains("'embed.weight'") &&
                                   Catch::Contains("--weights 2bw or --schedule 1f1b-flush allows it"));
  }
}

TEST_CASE("a tied language model that fits no device whole fits in stages with copies") {
  const Profile profile = language_model(8 << 20);
  PlanRequest request;
  request.schedule = "1f1b-flush";
  const Plan whole = make_plan(profile, flat_topology(1, 1e9, 0, 0), request);
  const int64_t needs = whole.predicted->stages[0].memory.total_bytes();
  const Topology topology = flat_topology(4, 1.25e9, 50e-6, needs * 6 / 10);
  const Plan plan = make_plan(profile, topology, request);
  CHECK(plan.stages.size() > 1);
  check_plan_memory(plan, *plan.predicted, *plan.predicted, topology);
}

TEST_CASE("plans with copies are as fast as any shape of tiny models") {
  std::mt19937 random(17);
  struct Row {
    int64_t cases = 0, beaten = 0, far = 0;
    double worst = 1;
  };
  std::map<std::string, Row> rows;
  for (int round = 0; round < 120; ++round) {
    const Profile profile = random_tied_profile(random, static_cast<int>(pick(random, 2, 3)));
    const double rates[] = {1e6, 1e7, 1e9};
    const Topology topology = flat_topology(pick(random, 2, 4), rates[pick(random, 0, 2)], 1e-4, 0);
    PlanRequest request;
    const bool flush = pick(random, 0, 1) == 0;
    request.schedule = flush ? "1f1b-flush" : "1f1b";
    request.weights = flush ? "flush" : "2bw";
    request.microbatches = pick(random, 2, 8);
    const Plan plan = make_plan(profile, topology, request);
    double best = plan.predicted->minibatch_seconds;
    const Dataflow flow(profile, {}, Ties::kCopies);
    const States states = enumerate_states(flow, false);
    const PlanRequest rules = with_run_rules(request, topology.device_count());
    std::vector<int> cuts = {0};
    std::vector<int64_t> replicas;
    const std::function<void(int64_t)> extend = [&](int64_t left) {
      if (cuts.back() == states.last()) {
        Plan other = plan_of_cuts(profile, states, cuts, replicas);
        const CostInputs inputs = cost_inputs(profile, topology, request.optimizer_slots);
        const std::optional<Plan> priced = priced_plan(other, {&flow, inputs, rules_of(rules)});
        if (priced) best = std::min(best, priced->predicted->minibatch_seconds);
        return;
      }
      for (const int next : states.after(cuts.back())) {
        for (int64_t m = 1; m <= left; ++m) {
          cuts.push_back(next);
          replicas.push_back(m);
          extend(left - m);
          cuts.pop_back();
          replicas.pop_back();
        }
      }
    };
    extend(topology.device_count());
    Row& row = rows[request.weights];
    ++row.cases;
    const double ratio = best > 0 ? plan.predicted->minibatch_seconds / best : 1;
    row.worst = std::max(row.worst, ratio);
    row.beaten += ratio > 1.01 ? 1 : 0;
    row.far += ratio > 1.05 ? 1 : 0;
  }
  for (const auto& [weights, row] : rows) {
    std::printf("tied, %s: %lld cases, beaten by more than 1 %%: %lld, 5 %%: %lld, worst %.3f\n",
                weights.c_str(), static_cast<long long>(row.cases), static_cast<long long>(row.beaten),
                static_cast<long long>(row.far), row.worst);
  }
  for (const char* weights : {"2bw", "flush"}) {
    CHECK(rows[weights].far == 0);
    CHECK(rows[weights].beaten <= 1);
  }
}

TEST_CASE("which cuts tied parameters forbid is a sentence, and nothing where none are tied") {
  Profile profile = language_model(1000);
  CHECK_THAT(forbidden_cuts_text(profile), Catch::Contains("a cut between 'embed' and 'head'"));
  profile.nodes.back().parameters = {"head.weight", "head.bias"};
  CHECK(forbidden_cuts_text(profile).empty());
}

}  // namespace
}  // namespace pipewright
