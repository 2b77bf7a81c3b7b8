#include "graph/plan.h"

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/plan_as_run.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using testing::error_of;
using testing::sample_graph;
using testing::sample_plan;

template <typename Edit>
std::string invalid(const Edit& edit) {
  Plan plan = sample_plan();
  edit(plan);
  return error_of<InputError>([&] { plan.validate("p"); });
}

template <typename Edit>
std::string misfit(const Edit& edit) {
  Plan plan = sample_plan();
  Graph graph = sample_graph();
  edit(plan, graph);
  return error_of<PlanError>([&] { check_plan_for_graph(plan, graph); });
}

TEST_CASE("a plan places each rank and node once") {
  CHECK_NOTHROW(sample_plan().validate("p"));
  CHECK(sample_plan().shape_text() == "2-1");
  CHECK(invalid([](Plan& p) { p.stages.clear(); }) == "p: stages: empty; expected at least one stage");
  CHECK(invalid([](Plan& p) { p.stages[1].ranks.clear(); }) ==
        "p: stages[1].ranks: empty; expected at least one rank");
  CHECK(invalid([](Plan& p) { p.stages[1].nodes.clear(); }) ==
        "p: stages[1].nodes: empty; expected at least one node");
  CHECK(invalid([](Plan& p) { p.stages[1].ranks = {1}; }) ==
        "p: stages[1].ranks[0]: rank 1 is in stage 0 already");
  CHECK(invalid([](Plan& p) { p.stages[1].ranks = {3}; }) == "p: stages[1].ranks[0]: 3 is not in 0..2");
  CHECK(invalid([](Plan& p) { p.stages[0].ranks = {0}; }) ==
        "p: world_size: is 3, but rank 1 is in no stage");
  CHECK(invalid([](Plan& p) { p.stages[1].nodes.push_back("relu"); }) ==
        "p: stages[1].nodes[2]: \"relu\" is in stage 0 already");
  CHECK(invalid([](Plan& p) { p.stages[0].in_flight = 0; }) == "p: stages[0].in_flight: 0 is not in 1..1024");
  CHECK(invalid([](Plan& p) { p.world_size = 0; }) == "p: world_size: 0 is not in 1..1048576");
  CHECK(invalid([](Plan& p) { p.predicted->stages.pop_back(); }) ==
        "p: predicted.stages: got 1, expected one for each of 2 stages");
}

TEST_CASE("a prediction is taken from the plan that it is of") {
  const testing::TemporaryFolder folder;
  const auto file = folder / "plan.json";
  Plan plan = testing::sample_plan();
  plan.predicted.emplace();
  plan.predicted->minibatch_seconds = 0.5;
  plan.predicted->bottleneck = "stage 0: compute";
  plan.predicted->stages.resize(plan.stages.size());
  const Json written = plan.to_json();
  const auto is_taken = [&](const auto& change) {
    Json json = written;
    json["schema"] = Plan::kSchema;
    change(json);
    write_file(file, json.dump());
    const bool taken = read_document<Plan>(file).predicted.has_value();
    CHECK(outdated_text(file).empty() == (taken || !json.contains("predicted")));
    // A run hands on what it was given.
    const auto handed_on = folder / "run.json";
    write_file(handed_on, plan_text_as_given(read_document<Plan>(file), file));
    CHECK(outdated_text(handed_on).empty() == outdated_text(file).empty());
    CHECK(document_text(read_document<Plan>(handed_on)) == document_text(read_document<Plan>(file)));
    return taken;
  };
  CHECK(is_taken([](Json&) {}));
  CHECK(is_taken([](Json& json) { json["strategy"] = "manual"; }));
  CHECK(is_taken([](Json& json) { json["stages"][0]["layers"] = {"other"}; }));
  CHECK_FALSE(is_taken([](Json& json) { json["stages"][0]["in_flight"] = 77; }));
  CHECK_FALSE(is_taken([](Json& json) { json["microbatches"] = 77; }));
  CHECK_FALSE(is_taken([](Json& json) { json.erase("predicted"); }));
  // Of a plan that does not say of what its prediction is.
  CHECK(is_taken([](Json& json) {
    json["predicted"].erase("plan_digest");
    json["stages"][0]["in_flight"] = 77;
  }));
}

TEST_CASE("what a plan predicts is of an update after each round, by replicas that are held equal") {
  Plan plan = testing::sample_plan();
  plan.predicted.emplace();
  plan.stages[0].ranks = {0, 1};
  Run run;
  CHECK(plan_as_run(plan, run).predicted);
  run.gradient_accumulation = 2;
  CHECK_FALSE(plan_as_run(plan, run).predicted);
  run.gradient_accumulation = 1;
  run.sync = "partial-reduce";
  CHECK_FALSE(plan_as_run(plan, run).predicted);
  plan.stages[0].ranks = {0};
  CHECK(plan_as_run(plan, run).predicted);
}

TEST_CASE("frozen stages are a prefix of a plan that has frozen layers") {
  Plan plan = sample_plan();
  CHECK(plan.frozen_stages() == 0);
  plan.frozen_layers = 1;
  CHECK_NOTHROW(plan.validate("p"));  // part of a stage
  plan.stages[0].frozen = true;
  CHECK_NOTHROW(plan.validate("p"));
  CHECK(plan.frozen_stages() == 1);
  const Plan again = parse_document<Plan>(document_text(plan), "p");
  CHECK(again.frozen_layers == 1);
  CHECK(again.stages[0].frozen);
  CHECK(!again.stages[1].frozen);
  CHECK(document_text(sample_plan()).find("frozen") == std::string::npos);

  CHECK(invalid([](Plan& p) { p.stages[0].frozen = true; }) ==
        "p: stages[0].frozen: is true, but frozen_layers is 0");
  CHECK(invalid([](Plan& p) { p.frozen_layers = -1; }) == "p: frozen_layers: -1 is not in 0..1048576");
  CHECK(invalid([](Plan& p) {
          p.frozen_layers = 2;
          p.stages[1].frozen = true;
        }) == "p: stages[1].frozen: is true behind stage 0, which is trained");
  CHECK(invalid([](Plan& p) {
          p.frozen_layers = 2;
          p.stages[0].frozen = p.stages[1].frozen = true;
        }) == "p: stages[1].frozen: is true of the last stage, so nothing is trained");
}

TEST_CASE("optional keys of a plan may be left out") {
  const std::string text =
      R"({"schema": "pipewright.plan/1", "model": "mlp", "strategy": "manual", "schedule": "1f1b",
    "weights": "stash", "world_size": 1, "stages": [{"nodes": ["a"], "ranks": [0], "in_flight": 1}]})";
  const Plan plan = parse_document<Plan>(text, "p");
  CHECK(plan.graph_digest.empty());
  CHECK(plan.microbatches == 1);
  CHECK(!plan.predicted);
  CHECK(plan.stages[0].layers.empty());
  const std::string again = document_text(plan);
  CHECK(document_text(parse_document<Plan>(again, "p")) == again);
}

TEST_CASE("nodes that share memory which one of them writes stay in one stage") {
  const auto misfit_together = [](std::vector<std::string> set) {
    return misfit([&](Plan&, Graph& graph) { graph.together = {std::move(set)}; });
  };
  const Plan plan = sample_plan();
  const std::string first = plan.stages[0].nodes[0];
  const std::string second = plan.stages[0].nodes[1];
  const std::string later = plan.stages[1].nodes[0];
  Graph graph = sample_graph();
  graph.together = {{first, second}};
  CHECK_NOTHROW(graph.validate("g"));
  Plan undigested = plan;
  undigested.graph_digest.clear();
  CHECK_NOTHROW(check_plan_for_graph(undigested, graph));
  CHECK(
      misfit_together({first, later}) ==
      "plan: nodes \"" + first + "\" of stage 0 and \"" + later +
          "\" of stage 1 share memory that is written in place: a cut between them would change the result");

  graph.together = {{first}};
  CHECK(error_of<InputError>([&] { graph.validate("g"); }) == "g: together[0]: expected two nodes or more");
  graph.together = {{first, second}, {second, later}};
  CHECK(error_of<InputError>([&] { graph.validate("g"); }) ==
        "g: together[1]: \"" + second + "\" stands there twice");
  graph.together = {{first, first + "x"}};
  CHECK(error_of<InputError>([&] { graph.validate("g"); }) ==
        "g: together[0]: there is no node \"" + first + "x\"; did you mean '" + first + "'?");
}

TEST_CASE("a plan has to fit its graph") {
  CHECK_NOTHROW(check_plan_for_graph(sample_plan(), sample_graph()));
  CHECK(misfit([](Plan& p, Graph&) { p.stages[0].nodes[1] = "relv"; }) ==
        "plan: stage 0 has node \"relv\", which the graph of \"mlp:layers=2\" has not; did you mean 'relu'?");
  CHECK(misfit([](Plan& p, Graph&) { p.stages[0].nodes.pop_back(); }) ==
        "plan: layer \"relu\" is new: its node \"relu\" is in no stage");
  CHECK(misfit([](Plan& p, Graph&) { p.stages[1].nodes.push_back("relu"); }) ==
        "plan: node \"relu\" is in stage 0 and in stage 1");
  CHECK(misfit([](Plan& p, Graph&) { std::swap(p.stages[0].nodes[0], p.stages[0].nodes[1]); }) ==
        "plan: stage 0 has node \"linear\" after \"relu\", against the order of the graph");
  CHECK(misfit([](Plan& p, Graph&) {
          p.stages[0].nodes = {"linear", "linear_1"};
          p.stages[1].nodes = {"relu", "cross_entropy"};
        }) ==
        "plan: node \"linear_1\" of stage 0 reads \"active\", which node \"relu\" of stage 1 makes: a value "
        "would flow "
        "backwards");
}

TEST_CASE("a parameter belongs to one stage, or to those that the plan says") {
  const auto tie = [](Plan& p, Graph& g) {
    p.graph_digest.clear();
    g.nodes[2].arguments[1].second = TensorArgument{"fc1.weight"};
  };
  CHECK(misfit(tie) ==
        "plan: parameter \"fc1.weight\" is read by stages 0, 1, but `tied_parameters` does not name it");
  CHECK(misfit([&](Plan& p, Graph& g) {
          tie(p, g);
          p.stages[0].nodes = {"linear", "relu", "linear_1"};
          p.stages[1].nodes = {"cross_entropy"};
        }) == "<no exception>");
}

TEST_CASE("tied parameters are exactly those that several stages read") {
  const auto tie = [](Plan& p, Graph& g) {
    p.graph_digest.clear();
    g.nodes[2].arguments[1].second = TensorArgument{"fc1.weight"};
    p.tied_parameters = {{"fc1.weight", {0, 1}}};
  };
  CHECK(misfit(tie) == "<no exception>");
  CHECK(misfit([&](Plan& p, Graph& g) {
          tie(p, g);
          p.stages[0].nodes = {"linear", "relu", "linear_1"};
          p.stages[1].nodes = {"cross_entropy"};
        }) ==
        "plan: `tied_parameters` says that \"fc1.weight\" is read by stages 0, 1; it is read by stages 0");
  CHECK(misfit([](Plan& p, Graph&) {
          p.tied_parameters = {{"fc1.wieght", {0, 1}}};
        }) == "plan: `tied_parameters` names \"fc1.wieght\", which no node reads as a parameter");
  CHECK(invalid([](Plan& p) {
          p.tied_parameters = {{"w", {0}}};
        }) == "p: tied_parameters[0].stages: expected two stages or more");
  CHECK(invalid([](Plan& p) {
          p.tied_parameters = {{"w", {1, 0}}};
        }) == "p: tied_parameters[0].stages: not ascending");
  CHECK(invalid([](Plan& p) {
          p.tied_parameters = {{"w", {0, 2}}};
        }) == "p: tied_parameters[0].stages[1]: 2 is not in 0..1");
}

TEST_CASE("one share for each replica") {
  CHECK_NOTHROW([] {
    Plan p = sample_plan();
    p.stages[0].shares = {2, 1};
    p.validate("p");
  }());
  CHECK(invalid([](Plan& p) { p.stages[0].shares = {2}; }) ==
        "p: stages[0].shares: got 1, expected one for each of 2 ranks");
  CHECK(invalid([](Plan& p) {
          p.stages[0].shares = {2, 0};
        }) == "p: stages[0].shares[1]: 0 is not in 1..1024");
}

TEST_CASE("interleaved stages share ranks, in turn") {
  const auto plan = [](std::vector<std::vector<int64_t>> ranks) {
    Plan p = sample_plan();
    p.predicted.reset();
    p.schedule = "interleaved";
    p.weights = "flush";
    p.stages.clear();
    for (size_t s = 0; s < ranks.size(); ++s)
      p.stages.push_back({{}, {"node" + std::to_string(s)}, ranks[s], 1, {}, {}, false});
    return error_of<InputError>([&] { p.validate("p"); });
  };
  CHECK(plan({{0}, {1, 2}, {0}, {1, 2}}) == "<no exception>");
  CHECK(plan({{0}, {1, 2}}) == "<no exception>");
  CHECK(plan({{0}, {1, 2}, {0}}) ==
        "p: stages: got 3, expected a multiple of 2, the stages with ranks of their own");
  CHECK(plan({{0}, {1, 2}, {1, 2}, {0}}) ==
        "p: stages[2].ranks: differ from those of stage 0 (ranks or shares)");
  CHECK(plan({{0}, {0}, {1, 2}}) == "p: stages[2].ranks: new ranks after stage 1 has repeated earlier ones");
}

TEST_CASE("schedules and version rules that go together") {
  const auto refused = [](const std::string& schedule, const std::string& weights) {
    Plan p = sample_plan();
    p.schedule = schedule;
    p.weights = weights;
    return error_of<PlanError>([&] { check_schedule_and_weights(p); });
  };
  CHECK(refused("1f1b", "2bw") == "<no exception>");
  CHECK(refused("zb-h1", "flush") == "<no exception>");
  CHECK(refused("gpipe", "stash") == "plan: schedule 'gpipe' does not go with weights 'stash'");
  CHECK(refused("1f1b-flsh", "flush") ==
        "plan: schedule \"1f1b-flsh\" does not train; did you mean '1f1b-flush'?");
  CHECK(refused("1f1b", "paci") == "<no exception>");
  CHECK(refused("gpipe", "paci") == "plan: schedule 'gpipe' does not go with weights 'paci'");
  Plan again = sample_plan();
  again.weights = "paci";
  again.stages[1].recompute = true;
  CHECK(error_of<PlanError>([&] { check_schedule_and_weights(again); }) ==
        "plan, stage 1: recomputes, and with weights 'paci' its second forward would read newer weights than "
        "the first");
  Plan tied = sample_plan();
  tied.tied_parameters = {{"fc1.weight", {0, 1}}};
  CHECK(error_of<PlanError>([&] { check_schedule_and_weights(tied); }) ==
        "plan: parameter \"fc1.weight\" is tied across stages, and with weights 'stash' stages update at "
        "different times");
}

TEST_CASE("a plan knows the graph it was made for") {
  const auto change = [](Plan&, Graph& g) { g.values["hidden"].shape = {8, 16}; };
  CHECK(misfit(change) ==
        "plan: made for the same nodes as those of \"mlp:layers=2\", but with other shapes or arguments");
  const auto resize = [](Plan&, Graph& g) {
    for (auto& [name, type] : g.values)
      if (!type.shape.empty() && type.shape[0] == 4) type.shape[0] = 2;
  };
  CHECK(misfit(resize) == "plan: made for minibatches of 4 samples, got 2");
  CHECK(misfit([&](Plan& p, Graph& g) {
          resize(p, g);
          p.predicted.reset();
        }) ==
        "plan: made for the same nodes as those of \"mlp:layers=2\", but with other shapes or arguments");
  // What it is called does not matter.
  CHECK(misfit([](Plan&, Graph& g) { g.name = "/somewhere/else/lm.pt2"; }) == "<no exception>");
  CHECK(misfit([&](Plan& p, Graph& g) {
          g.name = "/somewhere/else/lm.pt2";
          change(p, g);
        }) != "<no exception>");
  CHECK(misfit([&](Plan& p, Graph& g) {
          change(p, g);
          p.graph_digest.clear();
        }) == "<no exception>");
}

TEST_CASE("one stage for everything") {
  const Graph graph = sample_graph();
  const Plan plan = single_stage_plan(graph, 3);
  CHECK_NOTHROW(plan.validate("p"));
  CHECK_NOTHROW(check_plan_for_graph(plan, graph));
  CHECK(plan.shape_text() == "3");
  CHECK(plan.stages[0].layers == std::vector<std::string>{"fc1", "relu", "fc2", "loss"});
  CHECK(document_text(parse_document<Plan>(document_text(plan), "p")) == document_text(plan));
}

}  // namespace
}  // namespace pipewright
