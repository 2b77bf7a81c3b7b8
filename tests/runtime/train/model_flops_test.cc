#include "runtime/train/model_flops.h"

#include <catch2/catch.hpp>

#include "models/zoo/builder.h"
#include "models/zoo/registry.h"

using namespace pipewright;

TEST_CASE("flops of layers by hand") {
  const Model mlp = build_model("mlp:layers=2,width=64,image=28", 8);
  const double macs = 8.0 * (784 * 64 + 64 * 64 + 64 * 10);
  const ModelFlops flops = count_flops(mlp.graph);
  CHECK(flops.forward == 2 * macs);
  // No gradient goes back to the images.
  CHECK(flops.training == 3 * 2 * macs - 2 * 8.0 * 784 * 64);

  ModelBuilder model("conv", 2);
  std::string x = model.input("images", "float32", {6, 10, 12});
  {
    const auto layer = model.layer("conv");
    x = model.conv2d(x, {.channels = 8, .kernel = {3, 5}, .stride = 2, .groups = 2});
  }
  const auto made = static_cast<double>(model.type(x).elements());
  const auto head = model.layer("head");
  const Model conv = model.finish_classification(model.linear(model.flatten(x), {.features = 4}));
  CHECK(count_flops(conv.graph).forward == 2 * (made * 3 * 3 * 5 + made * 4));
}

TEST_CASE("flops of known networks") {
  // Multiplications and additions of one image of 224, as papers and libraries count them.
  const auto forward = [](const char* model) {
    return count_flops(build_model(model, 1).graph).forward / 2e9;
  };
  CHECK(forward("vgg16") == Approx(15.47).epsilon(0.01));
  CHECK(forward("resnet50") == Approx(4.09).epsilon(0.01));
  CHECK(forward("alexnet") == Approx(0.71).epsilon(0.02));
}

TEST_CASE("flops of attention and recurrent layers") {
  const Model gpt = build_model("gpt:layers=1,width=32,heads=4,tokens=16,vocabulary=50", 3);
  double matrices = 0;
  for (const Node& node : gpt.graph.nodes) {
    if (node.op != "aten::linear") continue;
    for (const std::string& name : node.reads())
      for (const Parameter& parameter : gpt.graph.parameters)
        if (parameter.name == name && parameter.type.shape.size() == 2)
          matrices += static_cast<double>(parameter.type.elements());
  }
  // Scores and their use: two products of 16 x 16 over the width, for each of 3 sequences.
  CHECK(count_flops(gpt.graph).forward == 2 * (3 * 16 * matrices + 3 * 2.0 * 16 * 16 * 32));

  Graph lstm;  // 5 positions of 2 sequences, one layer in two directions
  lstm.values = {{"x", {"float32", {2, 5, 7}}}, {"y", {"float32", {2, 5, 12}}}};
  lstm.parameters = {
      {"w_ih", {"float32", {24, 7}}}, {"w_hh", {"float32", {24, 6}}}, {"b", {"float32", {24}}}};
  Node node;
  node.op = "aten::lstm";
  node.arguments = {{"input", TensorArgument{"x"}},
                    {"params", TensorsArgument{{"w_ih", "w_hh", "b", "w_ih", "w_hh", "b"}}}};
  node.outputs = {"y"};
  lstm.nodes = {node};
  CHECK(count_flops(lstm).forward == 2 * 2.0 * 5 * 2 * (24 * 7 + 24 * 6));
  CHECK(count_flops(lstm).training == 3 * count_flops(lstm).forward);
}
