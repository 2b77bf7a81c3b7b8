// Norms over a minibatch, and what they take a variance of.
#include "models/definition/variances.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "models/definition/frozen.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

using Catch::Matchers::Contains;

std::string refusal(const Graph& graph) {
  try {
    check_variances(graph);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Graph norm(const std::string& op, const std::string& flag, bool trains, std::vector<int64_t> shape) {
  Graph graph;
  graph.name = "mine.pt2";
  graph.inputs = {"x"};
  graph.values = {{"x", {"float32", shape}}, {"y", {"float32", shape}}};
  Node node;
  node.name = "y";
  node.op = "aten::" + op;
  node.arguments = {{"input", TensorArgument{"x"}}, {flag, trains}};
  node.outputs = {"y"};
  node.layer = "features.bn";
  graph.nodes = {node};
  return graph;
}

TEST_CASE("a batch norm over one value per channel is refused, not made into NaN") {
  const auto graph = [](const char* spec, int64_t samples) { return build_model(spec, samples).graph; };
  const std::string why = refusal(graph("resnet18:image=32", 1));
  CHECK_THAT(why, Contains("layer4.0.bn1") && Contains("one value per channel, of shape (1, 512, 1, 1)"));
  CHECK(refusal(graph("resnet18:image=32", 2)).empty());
  CHECK(refusal(graph("resnet18:image=33", 1)).empty());
  // What only runs forward, or is frozen, reads running statistics.
  CHECK(refusal(evaluation_graph(graph("resnet18:image=32", 1))).empty());

  CHECK_THAT(
      refusal(norm("batch_norm", "training", true, {1, 8})),
      Contains("mine.pt2: features.bn: batch_norm: one value per channel, of shape (1, 8), has no variance"));
  CHECK(refusal(norm("batch_norm", "training", true, {2, 8})).empty());
  CHECK(refusal(norm("batch_norm", "training", true, {1, 8, 2})).empty());
  CHECK(refusal(norm("batch_norm", "training", false, {1, 8})).empty());
}

TEST_CASE("an instance norm needs more than one value of each channel of a sample") {
  CHECK_THAT(refusal(norm("instance_norm", "use_input_stats", true, {4, 8, 1, 1})),
             Contains("instance_norm"));
  CHECK(refusal(norm("instance_norm", "use_input_stats", true, {1, 8, 2, 1})).empty());
  CHECK(refusal(norm("instance_norm", "use_input_stats", false, {4, 8, 1, 1})).empty());
}

}  // namespace
}  // namespace pipewright
