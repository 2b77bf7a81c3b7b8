#include "models/definition/frozen.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "graph/model_layers.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

/// The names and layers that a profile would have.
Profile profile_of(const Graph& graph) {
  std::map<std::string, TensorType> parameters;
  for (const Parameter& parameter : graph.parameters) parameters[parameter.name] = parameter.type;
  Profile profile;
  profile.together = graph.together;
  for (const Node& node : graph.nodes) {
    ProfiledNode profiled;
    profiled.name = node.name;
    profiled.layer = node.layer;
    for (const std::string& name : node.reads())
      if (parameters.count(name)) profiled.parameter_bytes += parameters.at(name).bytes();
    profile.nodes.push_back(profiled);
  }
  return profile;
}

TEST_CASE("layers are the numbered modules that have parameters, the head is none") {
  const auto names = [](const std::string& spec) {
    std::string text;
    for (const ModelLayer& layer : model_layers(build_model(spec, 2).graph))
      text += (text.empty() ? "" : " ") + layer.name;
    return text;
  };
  CHECK(names("mlp:layers=3") == "layers.0 layers.2 layers.4");
  CHECK(names("vit_b_16:layers=2,image=32") ==
        "encoder.layers.encoder_layer_0 encoder.layers.encoder_layer_1");
  CHECK(names("bert:layers=2") == "bert.encoder.layer.0 bert.encoder.layer.1");
  CHECK(names("gpt:layers=3") == "transformer.h.0 transformer.h.1 transformer.h.2");
  CHECK(names("resnet18") == "layer1.0 layer1.1 layer2.0 layer2.1 layer3.0 layer3.1 layer4.0 layer4.1");
  CHECK(names("alexnet") ==
        "features.0 features.3 features.6 features.8 features.10 classifier.1 classifier.4");
  CHECK(model_layers(build_model("vit_b_16", 2).graph).size() == 12);
  // No module of it is numbered.
  CHECK(names("densenet121:image=64").rfind("features.conv0 features.norm0 features.denseblock1 ", 0) == 0);
}

TEST_CASE("layers end in rising order before the last parameter, in a profile where they do in the graph") {
  for (const ModelRow& row : model_rows()) {
    INFO(row.name);
    const Graph graph = build_model(row.name, 2).graph;
    const auto layers = model_layers(graph);
    REQUIRE(layers.size() >= 2);
    size_t last = 0;
    for (const ModelLayer& layer : layers) {
      CHECK(layer.end > last);
      last = layer.end;
    }
    const Graph all = frozen_graph(graph, static_cast<int64_t>(layers.size()));
    CHECK(
        std::any_of(all.parameters.begin(), all.parameters.end(), [](const auto& p) { return p.trainable; }));
    const auto profiled = model_layers(profile_of(graph));
    REQUIRE(profiled.size() == layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      CHECK(profiled[i].end == layers[i].end);
      CHECK(profiled[i].name == layers[i].name);
    }
  }
}

TEST_CASE(
    "a frozen graph: what its first layers read is not trained, and they run as in evaluation, without "
    "autograd") {
  for (const ModelRow& row : model_rows()) {
    INFO(row.name);
    const Graph graph = build_model(row.name, 2).graph;
    const Graph evaluation = evaluation_graph(graph);
    const auto layers = model_layers(graph);
    size_t trained = graph.parameters.size();
    for (size_t count = 0; count <= layers.size(); ++count) {
      const Graph frozen = frozen_graph(graph, static_cast<int64_t>(count));
      const size_t end = count == 0 ? 0 : layers[count - 1].end;
      std::set<std::string> read;
      REQUIRE(frozen.nodes.size() == graph.nodes.size());
      for (size_t i = 0; i < graph.nodes.size(); ++i) {
        const Node& expected = i < end ? evaluation.nodes[i] : graph.nodes[i];
        CHECK(frozen.nodes[i].arguments == expected.arguments);
        CHECK(frozen.nodes[i].gradient == (i >= end && graph.nodes[i].gradient));
        if (i >= end) continue;
        for (const std::string& name : expected.reads()) read.insert(name);
      }
      size_t now = 0;
      for (size_t i = 0; i < graph.parameters.size(); ++i) {
        const Parameter& parameter = frozen.parameters[i];
        CHECK(parameter.trainable == (graph.parameters[i].trainable && !read.count(parameter.name)));
        now += parameter.trainable ? 1 : 0;
      }
      if (count > 0) CHECK(now < trained);
      trained = now;
    }
  }
}

TEST_CASE("more layers than there are cannot be frozen") {
  const Graph graph = build_model("mlp:layers=3", 2).graph;
  CHECK_THROWS_WITH(frozen_graph(graph, 4),
                    "model 'mlp:layers=3': 4 layers cannot be frozen: the model has 3, its head not counted");
}

}  // namespace
}  // namespace pipewright
