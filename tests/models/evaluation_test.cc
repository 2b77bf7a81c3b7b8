#include <catch2/catch.hpp>

#include "graph/document.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

Graph one_node(Node node) {
  Graph graph;
  graph.nodes.push_back(std::move(node));
  return graph;
}

TEST_CASE("evaluation turns dropout and batch norm's statistics off, and changes nothing else") {
  for (const ModelRow& row : model_rows()) {
    INFO(row.name);
    const Graph training = build_model(row.name, 2).graph;
    const Graph evaluation = evaluation_graph(training);
    REQUIRE(evaluation.nodes.size() == training.nodes.size());
    Graph restored = evaluation;
    size_t changed = 0;
    for (size_t i = 0; i < training.nodes.size(); ++i) {
      const Node& node = training.nodes[i];
      if (evaluation.nodes[i].arguments == node.arguments) {
        CHECK(node.op != "aten::dropout");
        CHECK(node.op != "aten::batch_norm");
        continue;
      }
      ++changed;
      // Dropout in attention, and the weight of an auxiliary loss, are numbers that become 0.
      const bool number = node.op == "aten::scaled_dot_product_attention" || node.op == "aten::add";
      const std::string argument = node.op == "aten::add"                                  ? "alpha"
                                   : number                                                ? "dropout_p"
                                   : node.op == "aten::dropout" || node.op == "aten::lstm" ? "train"
                                                                                           : "training";
      for (size_t j = 0; j < node.arguments.size(); ++j) {
        const auto& [name, value] = evaluation.nodes[i].arguments[j];
        CHECK(name == node.arguments[j].first);
        if (name == argument) {
          if (number) {
            CHECK(std::get<double>(node.arguments[j].second) > 0);
            CHECK(std::get<double>(value) == 0);
            continue;
          }
          CHECK(std::get<bool>(node.arguments[j].second));
          CHECK(!std::get<bool>(value));
        } else {
          CHECK(value == node.arguments[j].second);
        }
      }
      restored.nodes[i].arguments = node.arguments;
    }
    CHECK(document_text(restored) == document_text(training));
    const std::string name = row.name;
    if (name == "resnet18") CHECK(changed == 20);
    if (name == "vgg16" || name == "alexnet") CHECK(changed == 2);
    if (name == "mlp" || name == "gpt") CHECK(changed == 0);
  }
}

TEST_CASE("evaluation turns attention's dropout off") {
  const Graph evaluation = evaluation_graph(build_model("gpt:dropout=0.25,layers=1", 2).graph);
  int seen = 0;
  for (const Node& node : evaluation.nodes) {
    for (const auto& [name, value] : node.arguments) {
      if (name == "dropout_p") {
        CHECK(std::get<double>(value) == 0);
        ++seen;
      }
    }
  }
  CHECK(seen == 1);
}

TEST_CASE("a norm without running statistics keeps using its input's") {
  const Node with = {"a",   "aten::instance_norm",
                     "",    {{"running_mean", TensorArgument{"m"}}, {"use_input_stats", true}},
                     {"a"}, ""};
  const Node without = {"a",   "aten::instance_norm",
                        "",    {{"running_mean", NoneArgument{}}, {"use_input_stats", true}},
                        {"a"}, ""};
  CHECK(!std::get<bool>(evaluation_graph(one_node(with)).nodes[0].arguments[1].second));
  CHECK(std::get<bool>(evaluation_graph(one_node(without)).nodes[0].arguments[1].second));
}

TEST_CASE("evaluating twice is evaluating once") {
  const Graph once = evaluation_graph(build_model("convnet", 2).graph);
  CHECK(document_text(evaluation_graph(once)) == document_text(once));
}

}  // namespace
}  // namespace pipewright
