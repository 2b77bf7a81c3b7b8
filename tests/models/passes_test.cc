// Graph passes: what they take away, what they leave, and that no number changes.
#include "models/run/passes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/error.h"
#include "models/exported/storage_groups.h"
#include "models/load.h"
#include "models/zoo/registry.h"
#include "test_paths.h"
#include "tests/models/hand_graph.h"
#include "tests/support/error_of.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

const std::string kFolder = std::string(PIPEWRIGHT_SOURCE_DIR) + "/tests/models/pt2/";

std::vector<std::string> names(const std::vector<Node>& nodes) {
  std::vector<std::string> result;
  for (const Node& node : nodes) result.push_back(node.name);
  return result;
}

template <typename Tensor>
std::vector<std::string> names_of(const std::vector<Tensor>& tensors) {
  std::vector<std::string> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.name);
  return result;
}

using Names = std::vector<std::string>;

/// Types for hand_graph.h's graphs, whose passes look at the sizes.
void give_types(Graph& graph, const std::string& dtype, std::vector<int64_t> shape) {
  for (auto& [name, type] : graph.values) {
    if (type.shape.empty()) type = {dtype, shape};
  }
}

Node relu(const std::string& name, const std::string& of) {
  return node(name, "aten::relu", {{"self", tensor(of)}});
}
Node add(const std::string& name, const std::string& a, const std::string& b) {
  return node(name, "aten::add", {{"self", tensor(a)}, {"other", tensor(b)}}, "Tensor");
}
Node scaled(const std::string& name, const std::string& a, const std::string& b) {
  return node(name, "aten::mul", {{"self", tensor(a)}, {"other", tensor(b)}}, "Tensor");
}

}  // namespace

TEST_CASE("what nothing depends on goes, with its parameters and inputs") {
  Graph graph = graph_of({"x", "unused"}, {{"w", {2}}, {"dead.w", {2}}},
                         {scaled("a", "x", "w"), scaled("b", "a", "dead.w"), relu("c", "b"),
                          relu("d", "unused"), relu("loss", "a")},
                         {"loss"});
  graph.buffers = {{"dead.buffer", {"float32", {2}}}};
  const Graph live = without_dead_nodes(graph);
  CHECK(names(live.nodes) == Names{"a", "loss"});
  CHECK(names_of(live.parameters) == Names{"w"});
  CHECK(live.buffers.empty());
  CHECK(live.inputs == Names{"x"});
  CHECK(live.values.size() == 3);
}

TEST_CASE("what writes memory that somebody reads is not dead, and neither is what writes a buffer") {
  // v is a view of a; filling v changes what the loss reads, although nobody reads `filled` itself.
  Graph graph = graph_of(
      {"x"}, {},
      {relu("a", "x"), node("v", "aten::view", {{"self", tensor("a")}, {"size", std::vector<int64_t>{-1}}}),
       node("filled", "aten::fill_", {{"self", tensor("v")}, {"value", 1.0}}, "Scalar"), relu("alone", "x"),
       node("filled_alone", "aten::fill_", {{"self", tensor("alone")}, {"value", 1.0}}, "Scalar"),
       node("counted", "aten::add_", {{"self", tensor("count")}, {"other", int64_t{1}}}, "Tensor"),
       relu("loss", "a")},
      {"loss"});
  graph.nodes[5].overload = "Scalar";
  graph.buffers = {{"count", {"int64", {}}}};
  CHECK(names(without_dead_nodes(graph).nodes) == Names{"a", "v", "filled", "counted", "loss"});
}

TEST_CASE("the built-in models have no dead nodes") {
  for (const ModelRow& row : model_rows()) {
    CAPTURE(row.name);
    const Graph graph = build_model(row.name, 2).graph;
    CHECK(without_dead_nodes(graph).nodes.size() == graph.nodes.size());
  }
}

TEST_CASE(
    "masks, positions and tables are computed everywhere, but nothing that is drawn, learned or written") {
  Graph graph = graph_of(
      {"tokens", "images"}, {{"w", {4}}},
      {
          node("positions", "aten::arange", {{"end", int64_t{4}}}),
          scaled("angles", "positions", "frequencies"),  // of a buffer that nobody writes
          scaled("mask", "tokens", "angles"),
          scaled("counted", "tokens", "count"),  // of a buffer that is written
          node("noise", "aten::rand_like", {{"self", tensor("angles")}}),
          scaled("noisy", "noise", "noise"),
          relu("pixels", "images"),  // of data that is dear to load
          scaled("x", "w", "mask"),
          scaled("y", "x", "mask"),
          add("z", "y", "counted"),
          add("zz", "z", "counted"),
          add("n", "zz", "noisy"),
          add("nn", "n", "noisy"),
          add("p", "nn", "pixels"),
          add("pp", "p", "pixels"),
          node("once", "aten::arange", {{"end", int64_t{4}}}),  // one reader: nothing to send
          add("q", "pp", "once"),
          node("counting", "aten::add_", {{"self", tensor("count")}, {"other", int64_t{1}}}, "Scalar"),
          relu("loss", "q"),
      },
      {"loss"});
  graph.buffers = {{"frequencies", {"float32", {4}}}, {"count", {"float32", {4}}}};
  graph.values["tokens"] = {"int64", {4}};
  graph.values["positions"] = graph.values["once"] = {"int64", {4}};
  give_types(graph, "float32", {64});
  graph.values["angles"] = graph.values["mask"] = {"float32", {4}};
  const Graph passed = with_nodes_everywhere(with_storage_groups(graph));
  CHECK(passed.everywhere == Names{"positions", "angles", "mask"});
  CHECK_NOTHROW(passed.validate("here"));

  SECTION("but not what would be much to compute again and again") {
    graph.values["mask"] = {"float32", {1024}};
    CHECK(with_nodes_everywhere(with_storage_groups(graph)).everywhere.empty());
  }
}

TEST_CASE("a graph's `everywhere` is checked and round-trips") {
  Graph graph = graph_of({"x"}, {{"w", {2}}},
                         {scaled("a", "x", "x"), scaled("b", "a", "w"), relu("loss", "b")}, {"loss"});
  give_types(graph, "float32", {2});
  graph.everywhere = {"a"};
  graph.validate("here");
  CHECK(parse_document<Graph>(document_text(graph), "here").everywhere == graph.everywhere);
  const auto failing = [&](Names everywhere) {
    graph.everywhere = std::move(everywhere);
    return error_of<InputError>([&] { graph.validate("here"); });
  };
  CHECK_THAT(failing({"b"}), Catch::Contains("everywhere[0]") && Catch::Contains("node \"b\" reads \"a\""));
  CHECK_THAT(failing({"a", "b"}),
             Catch::Contains("everywhere[1]") && Catch::Contains("node \"b\" reads \"w\""));
  CHECK_THAT(failing({"a", "a"}), Catch::Contains("everywhere[1]: \"a\" stands there twice"));
  CHECK_THAT(failing({"A"}), Catch::Contains("everywhere[0]: there is no node \"A\""));
}

TEST_CASE("what depends on nothing runs once, and its readers see the same numbers") {
  Graph graph = graph_of({"x"}, {},
                         {node("base", "aten::arange", {{"end", int64_t{3}}}),
                          node("half", "aten::mul", {{"self", tensor("base")}, {"other", 0.5}}, "Scalar"),
                          node("noise", "aten::rand_like", {{"self", tensor("half")}}), add("y", "x", "half"),
                          add("z", "y", "noise")},
                         {"z", "half"});
  std::vector<int> ran(graph.nodes.size(), 0);
  const at::Tensor x = at::arange(3, at::kFloat);
  const auto forward = [&](const Segment& segment) {
    NodeObserver observer;
    observer.made = [&](size_t i, size_t, const at::Tensor&) { ++ran[i]; };
    return segment.forward({x}, {}, {}, {1, 2}, &observer);
  };
  const Segment folding(graph, all_nodes(graph), graph.outputs);
  const auto first = forward(folding);
  const auto second = forward(folding);
  CHECK(ran == std::vector<int>{1, 2, 2, 2, 2});  // `base` is read by a constant only, and not kept
  CHECK(second[1].data_ptr() == first[1].data_ptr());
  CHECK(same_bits(first[0], second[0]));

  graph.fold_constants = false;
  const Segment running(graph, all_nodes(graph), graph.outputs);
  CHECK(same_bits(forward(running)[0], first[0]));
  CHECK(forward(running)[1].data_ptr() != forward(running)[1].data_ptr());
}

TEST_CASE("what somebody writes is no constant, wherever it is written") {
  Graph graph =
      graph_of({"x"}, {},
               {node("zeros", "aten::zeros", {{"size", std::vector<int64_t>{2}}}),
                node("sum", "aten::add_", {{"self", tensor("zeros")}, {"other", tensor("x")}}, "Tensor"),
                node("ones", "aten::ones", {{"size", std::vector<int64_t>{2}}}), add("z", "sum", "ones")},
               {"z"});
  graph = with_storage_groups(std::move(graph));
  CHECK(constant_nodes(graph, all_nodes(graph)) == std::vector<bool>{false, false, true, false});
  const Segment segment(graph, all_nodes(graph), graph.outputs);
  for (int i = 0; i < 3; ++i)
    CHECK(segment.forward({at::full({2}, 4.0)}, {}, {}, {})[0][0].item<double>() == 5);
}

TEST_CASE("an exported program is rid of its unused head, and its SPEC can keep it") {
  const auto graph_with = [](const std::string& options) {
    return load_model(kFolder + "shared_mask.pt2" + options, 4).graph;
  };
  const auto has = [](const auto& tensors, const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.name == name; });
  };
  const Graph graph = graph_with("");
  CHECK_FALSE(has(graph.parameters, "unused.weight"));
  CHECK(has(graph_with(":dead_nodes=keep").parameters, "unused.weight"));
  CHECK(has(graph.buffers, "frequencies"));
  // cos, sin and the mask, and what they are made from
  CHECK(graph.everywhere.size() >= 6);
  CHECK(graph_with(":shared_values=send").everywhere.empty());
  CHECK(graph.fold_constants);
  CHECK_FALSE(graph_with(":constants=run").fold_constants);
  CHECK_THROWS_AS(graph_with(":dead_nodes=no"), InputError);
}
