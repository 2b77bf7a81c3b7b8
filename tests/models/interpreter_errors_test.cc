// What the interpreter says when a graph does not fit LibTorch.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

void prepare(const Node& n) { Segment(graph_of({"x"}, {}, {n}, n.outputs), {0}, n.outputs); }

TEST_CASE("errors of preparation name the node, what was got and what is known") {
  const auto message = [](const Node& n) -> std::string {
    try {
      prepare(n);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(message(node("n", "aten::rleu", {{"self", tensor("x")}})) ==
        "node 'n' (layer_n, aten::rleu): this LibTorch has no operator 'aten::rleu'; did you mean "
        "'aten::relu'?");
  CHECK_THAT(message(node("n", "aten::add", {{"self", tensor("x")}}, "Tenser")),
             Contains("node 'n'") && Contains("no overload 'Tenser'; did you mean 'Tensor'?"));
  CHECK_THAT(message(node("n", "aten::conv2d", {{"inptu", tensor("x")}})),
             Contains("node 'n'") && Contains("no argument 'inptu'; did you mean 'input'?"));
  CHECK_THAT(message(node("n", "aten::relu", {{"self", tensor("x")}, {"self", tensor("x")}})),
             Contains("'self' is given twice"));
  CHECK_THAT(message(node("n", "aten::linear", {{"input", tensor("x")}})),
             Contains("'weight' (Tensor) is missing"));
  CHECK_THAT(message(node("n", "aten::relu", {{"self", std::string("x")}})),
             Contains("'self' is text 'x'; expected Tensor"));
  CHECK_THAT(message(node("n", "aten::relu", {{"self", NoneArgument{}}})),
             Contains("'self' is none; expected Tensor"));
  CHECK_THAT(message(node("n", "aten::softmax", {{"self", tensor("x")}, {"dim", 1.5}}, "int")),
             Contains("'dim' is number 1.5") && Contains("expected int"));
  CHECK_THAT(message(node("n", "aten::permute", {{"self", tensor("x")}, {"dims", std::vector<double>{1.5}}})),
             Contains("'dims' is list of 1 numbers; expected"));
  CHECK_THAT(message(node("n", "aten::softmax", {{"self", tensor("x")}, {"dim", tensor("x")}}, "int")),
             Contains("'dim' is tensor 'x'"));
  CHECK_THAT(message(node("n", "aten::sum", {{"self", tensor("x")}, {"dtype", DtypeArgument{"flaot32"}}})),
             Contains("'flaot32'; did you mean 'float32'?"));
  CHECK_THAT(
      message(node("n", "aten::clone", {{"self", tensor("x")}, {"memory_format", std::string("odd")}})),
      Contains("'memory_format' is text 'odd'"));
  CHECK_THAT(message(node("n", "aten::zeros",
                          {{"size", std::vector<int64_t>{1}}, {"device", std::string("toaster")}})),
             Contains("'device' is text 'toaster'"));
  CHECK_THAT(message(node("n", "aten::relu", {{"self", tensor("z")}})), Contains("reads 'z', which nothing"));
  CHECK_THAT(message(node("n", "aten::topk", {{"self", tensor("x")}, {"k", int64_t{1}}})),
             Contains("names 1 outputs; the operator makes 2"));
  CHECK_THAT(message(node("n", "aten::size", {{"self", tensor("x")}, {"dim", int64_t{0}}}, "int")),
             Contains("only tensors can be values"));
}

TEST_CASE("an operator that fails is named with its layer and the shapes it was given, in one line") {
  const Graph graph =
      graph_of({"x"}, {{"weight", {3, 4}}},
               {node("a", "aten::relu", {{"self", tensor("x")}}),
                node("fc", "aten::linear", {{"input", tensor("a")}, {"weight", tensor("weight")}})},
               {"fc"});
  const Segment segment(graph, {0, 1}, {"fc"});
  const Tensors t{{"x", at::zeros({2, 5})}, {"weight", at::zeros({3, 4})}};
  std::string message;
  try {
    run(segment, t);
  } catch (const RunError& error) {
    message = error.what();
  }
  CHECK_THAT(message, Contains("node 'fc' (layer_fc, aten::linear) failed: ") && Contains("Float(2, 5)") &&
                          Contains("Float(3, 4)"));
  CHECK(message.find('\n') == std::string::npos);
  // A segment that has failed once works on.
  CHECK(run(segment, {{"x", at::zeros({2, 4})}, {"weight", at::zeros({3, 4})}})[0].sizes() ==
        at::IntArrayRef{2, 3});
}

TEST_CASE("the number of elements an operator made is checked where the schema cannot say it") {
  Node split = node("n", "aten::split", {{"self", tensor("x")}, {"split_size", int64_t{2}}}, "Tensor");
  split.outputs = {"a", "b", "c"};
  const Segment segment(graph_of({"x"}, {}, {split}, {"a"}), {0}, {"a"});
  CHECK_THROWS_WITH(run(segment, {{"x", at::zeros({4})}}), Contains("made 2 tensors; the graph names 3"));
}

TEST_CASE("an allocation that no memory can hold is an error with a remedy") {
  const Node big = node("n", "aten::zeros", {{"size", std::vector<int64_t>{int64_t{1} << 50}}});
  const Segment segment(graph_of({}, {}, {big}, {"n"}), {0}, {"n"});
  try {
    run(segment, {});
    FAIL("no error");
  } catch (const RunError& error) {
    CHECK_THAT(error.what(), Contains("node 'n'"));
    CHECK_THAT(error.remedy(), Contains("--batch-size"));
  }
}

}  // namespace
}  // namespace pipewright::testing
