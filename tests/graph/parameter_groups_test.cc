#include "graph/parameter_groups.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "graph/run.h"
#include "graph/update_rules.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::error_of;

std::string invalid(const OptimizerSettings& optimizer) {
  Run run = testing::sample_run();
  run.optimizer = optimizer;
  return error_of<InputError>([&] { run.validate("run.json"); });
}

TEST_CASE("groups on the command line: the last colon ends the expression") {
  const ParameterGroup group =
      parse_parameter_group("^(?:head|top)[.]:learning_rate_scale=0.1,weight_decay=0");
  CHECK(group.parameters == "^(?:head|top)[.]");
  CHECK(group.learning_rate_scale == 0.1);
  CHECK(group.weight_decay == 0.0);
  CHECK_FALSE(parse_parameter_group("bias:weight_decay=1e-4").learning_rate_scale.has_value());
  CHECK(parse_parameter_group("embed|head:matrix=no").matrix == false);
  CHECK_FALSE(group.matrix.has_value());
  const auto refused = [](const std::string& text) {
    return error_of<InputError>([&] { parse_parameter_group(text); });
  };
  CHECK_THAT(refused("bias"), Catch::Contains("expected EXPRESSION:key=value,key=value"));
  CHECK_THAT(refused(":weight_decay=0"), Catch::Contains("expected EXPRESSION:key=value,key=value"));
  CHECK_THAT(refused("bias:"), Catch::Contains("an option is empty"));
  CHECK_THAT(refused("bias:weight_decai=0"), Catch::Contains("did you mean 'weight_decay'?"));
  CHECK_THAT(refused("bias:weight_decay=lots"), Catch::Contains("expected a number in 0..1e+06"));
  CHECK_THAT(refused("bias:learning_rate_scale=-1"), Catch::Contains("expected a number in 0..1e+06"));
}

TEST_CASE("a parameter takes what its groups say: the later one, and no_decay before all") {
  OptimizerSettings optimizer;
  optimizer.weight_decay = 0.5;
  optimizer.parameter_groups = {{"head", 10, 0.25}, {"weight$", {}, 0.125}, {"^head[.]w", 2, {}}};
  optimizer.no_decay = "bias|norm";
  const auto settings = parameter_settings(
      optimizer, {"head.weight", "head.bias", "body.weight", "body.norm.weight", "body.x"});
  const auto is = [&](size_t i, double scale, double decay) {
    return settings[i].learning_rate_scale == scale && settings[i].weight_decay == decay;
  };
  CHECK(is(0, 2, 0.125));
  CHECK(is(1, 10, 0));
  CHECK(is(2, 1, 0.125));
  CHECK(is(3, 1, 0));
  CHECK(is(4, 1, 0.5));
  CHECK(parameter_settings(optimizer, {}).empty());
}

TEST_CASE("expressions are checked when the run is read, whatever they are") {
  OptimizerSettings optimizer;
  optimizer.no_decay = "bias|(norm";
  CHECK_THAT(invalid(optimizer),
             Catch::Contains("run.json: optimizer.no_decay: \"bias|(norm\" is no regular"));
  optimizer.no_decay = "(a)\\1";
  CHECK_THAT(invalid(optimizer), Catch::Contains("back-reference"));
  optimizer.no_decay = std::string(5000, '(');
  CHECK_THAT(invalid(optimizer), Catch::Contains("5000 characters, at most 1000"));
  optimizer.no_decay = "(a{1000}){1000}";
  CHECK_THAT(invalid(optimizer), Catch::Contains("is no regular expression"));
  optimizer.no_decay = "";
  optimizer.parameter_groups = {{"", 1, {}}};
  CHECK_THAT(invalid(optimizer), Catch::Contains("optimizer.parameter_groups[0].parameters: empty"));
  optimizer.parameter_groups = {{"bias", {}, {}}};
  CHECK_THAT(invalid(optimizer), Catch::Contains("optimizer.parameter_groups[0]: sets nothing"));
  optimizer.parameter_groups = {{"bias", {}, {}}, {"head", -1, {}}};
  optimizer.parameter_groups[0].weight_decay = 0;
  CHECK_THAT(invalid(optimizer), Catch::Contains("parameter_groups[1].learning_rate_scale: -1.0 is not in"));
}

TEST_CASE("what is no matrix to muon is said by a group, and of no other rule") {
  OptimizerSettings optimizer;
  optimizer.parameter_groups = {{"embed|head", {}, {}, false}};
  CHECK_THAT(invalid(optimizer),
             Catch::Contains("optimizer.parameter_groups[0].matrix: of optimizer muon only, not of sgd"));
  optimizer.name = "muon";
  CHECK_THAT(invalid(optimizer), Catch::Contains("optimizer.momentum: muon needs a momentum above 0"));
  optimizer.momentum = 0.95;
  CHECK(invalid(optimizer) == "<no exception>");
  const auto shape = [&](size_t slot, const char* parameter, std::vector<int64_t> of) {
    return slot_shape(optimizer, slot, parameter, std::move(of));
  };
  CHECK(shape(0, "layer.weight", {3, 4}) == std::vector<int64_t>{3, 4});
  CHECK(shape(1, "layer.weight", {3, 4}) == std::vector<int64_t>{0});
  CHECK(shape(1, "layer.bias", {3}) == std::vector<int64_t>{3});
  optimizer.name = "adafactor";
  CHECK_THAT(invalid(optimizer), Catch::Contains("of optimizer muon only, not of adafactor"));
  // Rows and columns, also of each matrix of a stack; vectors as they are.
  CHECK(shape(0, "layer.weight", {3, 4}) == std::vector<int64_t>{7});
  CHECK(shape(0, "layer.weight", {5, 3, 4}) == std::vector<int64_t>{5, 7});
  CHECK(shape(0, "layer.bias", {3}) == std::vector<int64_t>{3});
  CHECK(shape(0, "scale", {}).empty());
  // Never more than the parameter has itself.
  CHECK(shape(0, "layer.weight", {5, 1, 1}) == std::vector<int64_t>{5, 1, 1});
  CHECK(shape(0, "layer.weight", {1, 4}) == std::vector<int64_t>{1, 4});
  optimizer.name = "muon";
  CHECK(shape(1, "layer.weight", {3, 4, 1, 1}) == std::vector<int64_t>{3, 4, 1, 1});
  CHECK(shape(1, "head.weight", {3, 4}) == std::vector<int64_t>{3, 4});
  optimizer.name = "adamw";
  CHECK(shape(1, "layer.weight", {3, 4}) == std::vector<int64_t>{3, 4});
}

TEST_CASE("no expression is slow, however long the name") {
  OptimizerSettings optimizer;
  for (const char* expression : {"(a+)+$", "(a|aa)*b", "(.*)*x", "a*a*a*a*a*a*b"}) {
    optimizer.no_decay = expression;
    CHECK(parameter_settings(optimizer, {std::string(4'000, 'a') + "!"}).size() == 1);
  }
}

TEST_CASE("a group that no parameter is in was meant for another model") {
  OptimizerSettings optimizer;
  optimizer.no_decay = "bias";
  optimizer.parameter_groups = {{"haed", 10, {}}};
  const std::string said = error_of<InputError>([&] {
    demand_parameters_of_groups(optimizer, {"head.weight", "head.bias"});
  });
  CHECK(said == "parameter group \"haed\": matches no trainable parameter of the model");
  CHECK_THROWS_AS(demand_parameters_of_groups(optimizer, {}), InputError);
  optimizer.parameter_groups[0].parameters = "head";
  CHECK_NOTHROW(demand_parameters_of_groups(optimizer, {"head.weight", "head.bias"}));
}

}  // namespace
}  // namespace pipewright
