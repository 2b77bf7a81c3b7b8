#include "models/definition/gradient_flow.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <set>

#include "models/zoo/registry.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

// loss = f(w, u): the parameters that stay trainable.
std::set<std::string> trained(const std::vector<Node>& nodes,
                              const std::vector<std::vector<std::string>>& together = {},
                              const std::set<std::string>& whole_numbers = {}) {
  Graph graph = graph_of({"x"}, {{"w", {3}}, {"u", {3}}}, nodes, {nodes.back().outputs[0]});
  for (const std::string& name : whole_numbers) graph.values[name].dtype = "int64";
  graph.together = together;
  std::set<std::string> names;
  for (const Parameter& parameter : with_reached_parameters(graph).parameters)
    if (parameter.trainable) names.insert(parameter.name);
  return names;
}

Node binary(const std::string& name, const std::string& op, const std::string& a, const std::string& b) {
  return node(name, "aten::" + op, {{"self", tensor(a)}, {"other", tensor(b)}}, "Tensor");
}
Node unary(const std::string& name, const std::string& op, const std::string& a) {
  return node(name, "aten::" + op, {{"self", tensor(a)}});
}

const std::set<std::string> kBoth = {"u", "w"}, kFirst = {"w"};

}  // namespace

TEST_CASE("parameters that no gradient reaches are not trained") {
  const Node student = binary("s", "mul", "x", "w");
  Node teacher = binary("t", "mul", "x", "u");
  const Node loss = binary("loss", "mse_loss", "s", "t");
  CHECK(trained({student, teacher, loss}) == kBoth);
  teacher.gradient = false;
  CHECK(trained({student, teacher, loss}) == kFirst);
  teacher.gradient = true;
  for (const char* op : {"detach", "zeros_like", "new_zeros", "special_bessel_j0"}) {
    CAPTURE(op);
    CHECK(trained({student, teacher, unary("cut", op, "t"), binary("loss", "mse_loss", "s", "cut")}) ==
          kFirst);
  }
  for (const char* op : {"floor", "sign", "clone"}) {  // zeros are a gradient
    CAPTURE(op);
    CHECK(trained({student, teacher, unary("kept", op, "t"), binary("loss", "mse_loss", "s", "kept")}) ==
          kBoth);
  }
  // Whole numbers have none; of some arguments only the shape counts.
  CHECK(trained({student, teacher, unary("place", "argmax", "t"), binary("loss", "mul", "s", "place")}, {},
                {"place"}) == kFirst);
  CHECK(trained({student, teacher, binary("loss", "expand_as", "s", "t")}) == kFirst);
  // What the loss does not read.
  CHECK(trained({teacher, student}) == kFirst);
  // Of a graph whose loss reaches none nothing is changed: PyTorch says so of itself.
  CHECK(trained({student, teacher, unary("loss", "detach", "s")}) == kBoth);
}

TEST_CASE("what is written in place is read by the names that it had") {
  const Node s = binary("s", "mul", "x", "w");
  const Node added = binary("added", "add_", "s", "u");
  const Node loss = unary("loss", "sum", "s");  // `s` after the addition
  CHECK(trained({s, added, loss}, {{"s", "added", "loss"}}) == kBoth);
  // Behind a detach() the memory is the same, and no gradient comes back.
  const Node teacher = binary("t", "mul", "x", "u");
  const Node cut = unary("cut", "detach", "t");
  const Node scaled = node("scaled", "aten::mul_", {{"self", tensor("cut")}, {"other", 2.0}}, "Scalar");
  const Node distance = binary("loss", "mse_loss", "s", "cut");
  CHECK(trained({s, teacher, cut, scaled, distance}, {{"t", "cut", "scaled", "loss"}}) == kFirst);
}

TEST_CASE("all parameters of the zoo are reached") {
  for (const ModelRow& row : model_rows()) {
    CAPTURE(row.name);
    for (const Parameter& parameter : with_reached_parameters(build_model(row.name, 2).graph).parameters) {
      CAPTURE(parameter.name);
      CHECK(parameter.trainable);
    }
  }
}

}  // namespace pipewright::testing
