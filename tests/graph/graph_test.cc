#include "graph/graph.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "graph/document.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::error_of;
using testing::sample_graph;

template <typename Edit>
std::string error_after(const Edit& edit) {
  Graph graph = sample_graph();
  edit(graph);
  return error_of<InputError>([&] { graph.validate("g"); });
}

template <typename Edit>
std::string json_error_after(const Edit& edit) {
  Json json = parse_json(document_text(sample_graph()), "x.json");
  edit(json);
  return error_of<InputError>([&] { parse_document<Graph>(json_text(json), "g"); });
}

TEST_CASE("dtypes") {
  CHECK(dtype_bytes("float32") == 4);
  CHECK(dtype_bytes("bool") == 1);
  CHECK(dtype_is_floating("bfloat16"));
  CHECK(!dtype_is_floating("int64"));
  CHECK(error_of<InputError>([] { dtype_bytes("flaot32"); }) ==
        "unknown dtype \"flaot32\"; did you mean 'float32'?");
  CHECK(TensorType{"float64", {2, 3}}.bytes() == 48);
  CHECK(TensorType{"float32", {}}.elements() == 1);
  CHECK(TensorType{"float32", {5, 0}}.bytes() == 0);
}

TEST_CASE("reads are in argument order, each once") {
  Node node;
  node.arguments = {{"b", TensorArgument{"y"}},
                    {"n", NoneArgument{}},
                    {"l", TensorsArgument{{"x", "y", "z", "x"}}},
                    {"s", std::string("no tensor")}};
  CHECK(node.reads() == std::vector<std::string>{"y", "x", "z"});
}

TEST_CASE("a graph defines each name once and before it is read") {
  CHECK_NOTHROW(sample_graph().validate("g"));
  CHECK(error_after([](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }) ==
        "g: nodes[0]: node \"relu\" reads \"hidden\" before node \"linear\" makes it");
  CHECK(error_after([](Graph& g) { g.nodes[1].arguments[0].second = TensorArgument{"hiden"}; }) ==
        "g: nodes[1]: node \"relu\" reads \"hiden\", which nothing defines; did you mean 'hidden'?");
  CHECK(error_after([](Graph& g) { g.nodes[1].arguments[0].second = TensorArgument{"active"}; }) ==
        "g: nodes[1]: node \"relu\" reads \"active\" before node \"relu\" makes it");
  CHECK(error_after([](Graph& g) { g.nodes[1].name = "linear"; }) ==
        "g: nodes[1].name: there is another node \"linear\"");
  CHECK(error_after([](Graph& g) { g.nodes[1].outputs = {"hidden"}; }) ==
        "g: nodes[1].outputs: \"hidden\" is defined already, in nodes[0].outputs");
  CHECK(error_after([](Graph& g) { g.parameters[1].name = "images"; }) ==
        "g: parameters[1]: \"images\" is defined already, in inputs[0]");
  CHECK(error_after([](Graph& g) { g.values.erase("hidden"); }) ==
        "g: nodes[0].outputs: \"hidden\" is not in `values`");
  CHECK(error_after([](Graph& g) { g.values["stray"] = {}; }) ==
        "g: values[\"stray\"]: neither an input nor the output of a node");
  CHECK(error_after([](Graph& g) { g.values["fc1.bias"] = {}; }) ==
        "g: values[\"fc1.bias\"]: neither an input nor the output of a node");
  CHECK(error_after([](Graph& g) { g.outputs = {}; }) == "g: outputs: empty; expected the loss");
  CHECK(error_after([](Graph& g) { g.outputs = {"lss"}; }) == "g: outputs[0]: \"lss\" is not in `values`");
  CHECK(error_after([](Graph& g) { g.nodes[1].outputs = {}; }) ==
        "g: nodes[1].outputs: node \"relu\" makes no value");
  CHECK(error_after([](Graph& g) { g.values["hidden"].dtype = "flot32"; }) ==
        "g: values[\"hidden\"]: unknown dtype \"flot32\"; did you mean 'float32'?");
  CHECK(error_after([](Graph& g) {
          g.values["hidden"].shape = {int64_t{1} << 40, int64_t{1} << 40};
        }) == "g: values[\"hidden\"]: a negative extent, or more than 2^53 bytes");
  CHECK(error_after([](Graph& g) { g.values["hidden"].shape = {-1}; }) ==
        "g: values[\"hidden\"]: a negative extent, or more than 2^53 bytes");
  CHECK(error_after([](Graph& g) { g.nodes[0].arguments.push_back(g.nodes[0].arguments[0]); }) ==
        "g: nodes[0].arguments: node \"linear\": the argument \"input\" is there twice");
  CHECK(error_after([](Graph& g) { g.name = ""; }) == "g: name: empty");
}

TEST_CASE("graph documents check what they repeat") {
  CHECK(json_error_after([](Json& j) { j["values"]["hidden"]["bytes"] = 255; }) ==
        "g: values.hidden.bytes: got 255, but dtype and shape make 256");
  CHECK(json_error_after([](Json& j) {
          j["values"]["hidden"]["shape"] = {1LL << 40, 1LL << 40};
        }) == "g: values.hidden.shape: more than 2^53 bytes");
  CHECK(json_error_after([](Json& j) {
          j["values"]["hidden"]["dtype"] = "half";
        }).rfind("g: values.hidden.dtype: ", 0) == 0);
  CHECK(json_error_after([](Json& j) { j["nodes"][0]["arguments"]["input"] = Json::object(); }) ==
        "g: nodes[0].arguments.input: has no value; expected one of none, tensor, tensors, dtype, bool, int, "
        "float, "
        "string, ints, floats, bools");
  CHECK(json_error_after([](Json& j) { j["nodes"][0]["arguments"]["input"]["int"] = 1; }) ==
        "g: nodes[0].arguments.input: has both 'tensor' and 'int', expected one kind of value");
  CHECK(json_error_after([](Json& j) {
          j["nodes"][0]["arguments"]["input"] = {{"tensro", "images"}};
        }) == "g: nodes[0].arguments.input.tensro: unknown key; did you mean 'tensor'?");
  CHECK(json_error_after([](Json& j) { j["nodes"][2]["arguments"]["bias"]["none"] = false; }) ==
        "g: nodes[2].arguments.bias.none: got false, expected true");
  CHECK(json_error_after([](Json& j) {
          j["nodes"][2]["arguments"]["bias"] = {{"bools", {true, 1}}};
        }) == "g: nodes[2].arguments.bias.bools[1]: got 1, expected true or false");
  CHECK(json_error_after([](Json& j) {
          j["nodes"][2]["arguments"]["bias"] = {{"floats", {1.5, "infinite"}}};
        }) ==
        "g: nodes[2].arguments.bias.floats[1]: got the string \"infinite\", expected a number, \"inf\", "
        "\"-inf\" or "
        "\"nan\"");
}

TEST_CASE("every kind of argument has its spelling and round-trips") {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<Argument, std::string>> rows = {
      {NoneArgument{}, R"({"none": true})"},
      {TensorArgument{"images"}, R"({"tensor": "images"})"},
      {TensorsArgument{{"images", "labels"}}, R"({"tensors": ["images", "labels"]})"},
      {DtypeArgument{"float32"}, R"({"dtype": "float32"})"},
      {true, R"({"bool": true})"},
      {int64_t{3}, R"({"int": 3})"},
      {3.0, R"({"float": 3.0})"},
      {-infinity, R"({"float": "-inf"})"},
      {std::string("mean"), R"({"string": "mean"})"},
      {std::vector<int64_t>{1, -1}, R"({"ints": [1, -1]})"},
      {std::vector<double>{0.5, infinity}, R"({"floats": [0.5, "inf"]})"},
      {std::vector<bool>{true, false}, R"({"bools": [true, false]})"},
      {std::vector<int64_t>{}, R"({"ints": []})"},
  };
  for (const auto& [argument, spelling] : rows) {
    CAPTURE(spelling);
    Graph graph = sample_graph();
    graph.nodes[1].arguments.emplace_back("extra", argument);
    const std::string text = document_text(graph);
    CHECK(text.find("\"extra\": " + spelling) != std::string::npos);
    const Graph again = parse_document<Graph>(text, "g");
    CHECK(again.nodes[1].arguments.back().second == argument);
    CHECK(document_text(again) == text);
  }
}

}  // namespace
}  // namespace pipewright
