#include "graph/pipedream_configuration.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

const char* const kHybrid = R"({"module_to_stage_map": [0, 1, 1],
  "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}, "stage_to_depth_map": {"0": 1, "1": 0}})";

TEST_CASE("a configuration of PipeDream reads and round-trips") {
  CHECK(looks_like_pipedream_configuration(kHybrid));
  const PipedreamConfiguration read = parse_pipedream_configuration(kHybrid, "conf.json");
  CHECK(read.module_to_stage == std::vector<int64_t>{0, 1, 1});
  CHECK(read.stage_to_ranks == std::vector<std::vector<int64_t>>{{0, 1, 2}, {3}});
  CHECK(read.stage_to_depth == std::vector<int64_t>{1, 0});
  const std::string text = pipedream_configuration_text(read);
  CHECK(pipedream_configuration_text(parse_pipedream_configuration(text, "again")) == text);
}

TEST_CASE("plan to configuration and back") {
  Profile profile;
  profile.model = "three";
  std::map<std::string, int64_t> module_of;
  for (int v = 0; v < 3; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    profile.nodes.push_back(node);
    module_of[node.name] = v;
  }
  // Interleaved ranks: a placement.
  const std::string text =
      R"({"module_to_stage_map": [0, 0, 1, 1], "stage_to_rank_map": {"0": [0, 2], "1": [1]}})";
  const PipedreamConfiguration read = parse_pipedream_configuration(text, "conf.json");
  const Plan plan = plan_of_configuration(read, profile, module_of, "conf.json");
  CHECK(plan.stages[0].nodes == std::vector<std::string>{"n0", "n1"});
  CHECK(plan.stages[1].ranks == std::vector<int64_t>{1});
  const PipedreamConfiguration again = configuration_of(plan);
  CHECK(again.stage_to_ranks == read.stage_to_ranks);
  CHECK(again.module_to_stage == std::vector<int64_t>{0, 1, 1});
}

TEST_CASE("bad configurations name the place") {
  const auto refused = [](const std::string& text, const std::string& expected) {
    INFO(text);
    CHECK_THAT(testing::error_of<InputError>([&] { parse_pipedream_configuration(text, "conf.json"); }),
               Catch::Contains("conf.json") && Catch::Contains(expected));
  };
  const auto with = [](const std::string& modules, const std::string& ranks, const std::string& depths = "") {
    return "{\"module_to_stage_map\": " + modules + ", \"stage_to_rank_map\": " + ranks +
           (depths.empty() ? "" : ", \"stage_to_depth_map\": " + depths) + "}";
  };
  refused("{", "conf.json");
  refused("[]", "conf.json");
  refused(R"({"module_to_stage_map": [0]})", "stage_to_rank_map");
  refused(R"({"module_to_stage_mpa": [0]})", "module_to_stage_map");
  refused(with("[]", R"({"0": [0]})"), "begin");
  refused(with("[1, 2]", R"({"0": [0]})"), "begin");
  refused(with("[0, 2]", R"({"0": [0]})"), "after stage 0");
  refused(with("[0, 1, 0]", R"({"0": [0], "1": [1]})"), "after stage 1");
  refused(with("[0]", "[]"), "expected an object");
  refused(with("[0]", R"({"1": [0]})"), "\"0\"");
  refused(with("[0]", R"({"0": []})"), "ranks of a stage");
  refused(with("[0]", R"({"0": [0, 0]})"), "twice");
  refused(with("[0]", R"({"0": [1]})"), "count from 0");
  refused(with("[0]", R"({"0": [-1]})"), "an integer");
  refused(with("[0]", R"({"0": [0.5]})"), "an integer");
  refused(with("[0, 1]", R"({"0": [0]})"), "1 stages");
  refused(with("[0]", R"({"0": [0]})", R"({"0": 1, "1": 0})"), "expected 1");
  refused(with("[0]", R"({"0": [0]})", R"({"0": 5000})"), "0..1023");
}

}  // namespace
}  // namespace pipewright
