#include "graph/sample_ranges.h"

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/recomputed_part.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

std::string invalid_split(const std::function<void(Plan&)>& edit) {
  Plan plan = sample_plan();
  edit(plan);
  return error_of<InputError>([&] { plan.validate("p"); });
}

TEST_CASE("sample ranges lie one after the other, in proportion to the weights") {
  using Ranges = std::vector<SampleRange>;
  CHECK(sample_ranges(8, {}) == Ranges{{0, 8}});
  CHECK(sample_ranges(8, {1, 1}) == Ranges{{0, 4}, {4, 8}});
  CHECK(sample_ranges(8, {3, 1}) == Ranges{{0, 6}, {6, 8}});
  CHECK(sample_ranges(7, {1, 1, 1}) == Ranges{{0, 2}, {2, 4}, {4, 7}});
  CHECK(sample_ranges(2, {1, 1, 1}) == Ranges{{0, 0}, {0, 1}, {1, 2}});
  CHECK(overlap({0, 4}, {2, 9}) == SampleRange{2, 4});
  CHECK(overlap({0, 4}, {5, 9}).size() == 0);
  for (int64_t samples = 1; samples < 40; ++samples) {
    int64_t end = 0;
    for (const SampleRange& range : sample_ranges(samples, {3, 1, 7, 2})) {
      CHECK(range.begin == end);
      end = range.end;
    }
    CHECK(end == samples);
  }
}

TEST_CASE("a plan says how replicas split a minibatch") {
  Plan plan = sample_plan();
  plan.stages[0].split = {2, 1};
  plan.validate("p");
  CHECK(document_text(plan).find("\"split\": [2, 1]") != std::string::npos);
  const Plan again = parse_document<Plan>(document_text(plan), "p");
  CHECK(again.stages[0].split == plan.stages[0].split);
  CHECK(largest_part(again.stages[0]) == Approx(2.0 / 3));
  CHECK(largest_part(again.stages[1]) == 1);
  CHECK(invalid_split([](Plan& p) { p.stages[0].split = {2}; }) ==
        "p: stages[0].split: got 1, expected one for each of 2 ranks");
  CHECK(invalid_split([](Plan& p) {
          p.stages[0].split = {2, 0};
        }) == "p: stages[0].split[1]: 0 is not in 1..1024");
  CHECK(invalid_split([](Plan& p) {
          p.stages[0].split = {2, 1};
          p.stages[0].shares = {2, 1};
        }) == "p: stages[0].split: stands beside `shares`");
  CHECK(invalid_split([](Plan& p) {
          p.schedule = "interleaved";
          p.stages[0].split = {2, 1};
        }) == "p: stages[0].split: does not go with schedule \"interleaved\"");
}

TEST_CASE("a plan splits minibatches of enough samples, and nothing that mixes them") {
  Plan plan = sample_plan();
  Graph graph = sample_graph();
  plan.stages[0].split = {1, 1000};
  const auto refused = [&] { return error_of<PlanError>([&] { check_split_stages(plan, graph); }); };
  CHECK(refused().find("plan: stage 0 has `split`, and of a minibatch of ") == 0);
  CHECK(refused().find("replica 0 gets none") != std::string::npos);
  plan.stages[0].split = {1, 1};
  CHECK_NOTHROW(check_split_stages(plan, graph));
  Node& node = graph.nodes[0];
  node.op = "aten::batch_norm";
  node.arguments.emplace_back("training", true);
  CHECK(refused().find("takes statistics of the whole minibatch") != std::string::npos);
  node.arguments.back().second = false;
  CHECK_NOTHROW(check_split_stages(plan, graph));
}

TEST_CASE("a plan says which part of a stage is recomputed: the last of its nodes") {
  Plan plan = sample_plan();
  Stage& stage = plan.stages[0];
  stage.nodes = {"a", "b", "c", "d", "e"};
  CHECK(first_recomputed(stage, {}) == 5);
  stage.recompute = true;
  CHECK(first_recomputed(stage, {}) == 0);
  stage.recompute_ratio = 0.5;
  CHECK(first_recomputed(stage, {}) == 2);  // 2.5 are 3
  stage.recompute_ratio = 0.4;
  CHECK(first_recomputed(stage, {}) == 3);
  stage.recompute_ratio = 0.05;
  CHECK(first_recomputed(stage, {}) == 5);  // none
  stage.recompute_ratio = 0.4;
  CHECK(first_recomputed(stage, {{"c", "d"}}) == 2);
  CHECK(first_recomputed(stage, {{"c", "d"}, {"a", "c"}, {"x", "y"}}) == 0);
  CHECK(first_recomputed(stage, {{"a", "b"}, {"d", "e"}}) == 3);

  plan = sample_plan();
  plan.stages[0].recompute = true;
  CHECK(document_text(plan).find("\"recompute\": true") != std::string::npos);
  plan.stages[0].recompute_ratio = 0.5;
  std::string text = document_text(plan);
  CHECK(text.find("\"recompute_ratio\": 0.5") != std::string::npos);
  CHECK(text.find("\"recompute\":") == std::string::npos);
  CHECK(parse_document<Plan>(text, "p").stages[0].recompute_ratio == 0.5);
  const auto with = [&](const std::string& words) {
    return std::string(text).replace(text.find("\"recompute_ratio\": 0.5"), 22, words);
  };
  CHECK_FALSE(parse_document<Plan>(with("\"recompute_ratio\": 0"), "p").stages[0].recompute);
  CHECK(parse_document<Plan>(with("\"recompute_ratio\": 1"), "p").stages[0].recompute_ratio == 1);
  CHECK(error_of<InputError>([&] {
          parse_document<Plan>(with("\"recompute\": true, \"recompute_ratio\": 0.5"), "p");
        }) == "p: stages[0].recompute_ratio: stands beside `recompute`");
  CHECK(error_of<InputError>([&] {
          parse_document<Plan>(with("\"recompute_ratio\": 1.5"), "p");
        }).find("stages[0].recompute_ratio") != std::string::npos);
}

}  // namespace
}  // namespace pipewright::testing
