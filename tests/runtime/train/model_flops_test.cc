#include "runtime/train/model_flops.h"

#include <catch2/catch.hpp>
#include <random>

#include "graph/model_layers.h"
#include "models/definition/frozen.h"
#include "models/zoo/builder.h"
#include "models/zoo/registry.h"

using namespace pipewright;

namespace {

// A graph of one node whose tensors are inputs or parameters.
class OneCall {
 public:
  explicit OneCall(const std::string& op) { node_.op = "aten::" + op; }
  OneCall& input(const std::string& name, std::vector<int64_t> shape) {
    graph_.inputs.push_back(name);
    graph_.values[name] = {"float32", std::move(shape)};
    node_.arguments.emplace_back(name, TensorArgument{name});
    return *this;
  }
  OneCall& parameter(const std::string& name, std::vector<int64_t> shape, bool trainable) {
    graph_.parameters.push_back({name, {"float32", std::move(shape)}, trainable});
    node_.arguments.emplace_back(name, TensorArgument{name});
    return *this;
  }
  OneCall& operand(const std::string& name, std::vector<int64_t> shape, int64_t kind) {
    return kind == 0 ? input(name, std::move(shape)) : parameter(name, std::move(shape), kind == 1);
  }
  OneCall& argument(const std::string& name, Argument value) {
    node_.arguments.emplace_back(name, std::move(value));
    return *this;
  }
  ModelFlops flops(std::vector<int64_t> output) {
    node_.name = "call";
    node_.outputs = {"made"};
    graph_.values["made"] = {"float32", std::move(output)};
    graph_.nodes = {node_};
    return count_flops(graph_);
  }

 private:
  Graph graph_;
  Node node_;
};

class Sizes {
 public:
  explicit Sizes(uint64_t seed) : random_(seed) {}
  int64_t up_to(int64_t most) { return 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(most)); }
  int64_t below(int64_t end) { return up_to(end) - 1; }

 private:
  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("flops: a product counts each element's sum, and once more for each operand with a gradient") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Sizes sizes(seed);
    const int64_t b = sizes.up_to(5), m = sizes.up_to(9), k = sizes.up_to(9), n = sizes.up_to(9);
    struct Product {
      const char *op, *left, *right;
      std::vector<int64_t> of_left, of_right, made;
    };
    const std::vector<Product> products = {
        {"linear", "input", "weight", {b, m, k}, {n, k}, {b, m, n}},
        {"matmul", "self", "other", {b, m, k}, {b, k, n}, {b, m, n}},
        {"matmul", "self", "other", {m, k}, {k}, {m}},
        {"mm", "self", "mat2", {m, k}, {k, n}, {m, n}},
        {"bmm", "self", "mat2", {b, m, k}, {b, k, n}, {b, m, n}},
        {"mv", "self", "vec", {m, k}, {k}, {m}},
        {"dot", "self", "tensor", {k}, {k}, {}},
        {"addmm", "mat1", "mat2", {m, k}, {k, n}, {m, n}},
        {"baddbmm", "batch1", "batch2", {b, m, k}, {b, k, n}, {b, m, n}},
    };
    for (const Product& product : products) {
      CAPTURE(product.op);
      int64_t multiplications = k;
      for (const int64_t size : product.made) multiplications *= size;
      const int64_t left = sizes.below(3), right = sizes.below(3);  // input, trained, not trained
      const ModelFlops flops = OneCall(product.op)
                                   .operand(product.left, product.of_left, left)
                                   .operand(product.right, product.of_right, right)
                                   .flops(product.made);
      CHECK(flops.forward == 2.0 * static_cast<double>(multiplications));
      CHECK(flops.training == flops.forward * (1 + (left == 1) + (right == 1)));
    }
  }
}

TEST_CASE("flops: a convolution counts each tap of its filter, in one to three dimensions, either way") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Sizes sizes(seed);
    const bool transposed = seed % 2 == 1;
    const auto dimensions = static_cast<int64_t>(1 + seed / 2 % 3);
    const int64_t samples = sizes.up_to(4), groups = sizes.up_to(3), in = sizes.up_to(4),
                  out = sizes.up_to(4);
    std::vector<int64_t> input = {samples, groups * in}, output = {samples, groups * out};
    std::vector<int64_t> weight =
        transposed ? std::vector<int64_t>{groups * in, out} : std::vector<int64_t>{groups * out, in};
    // Each place of the smaller side's channels meets each tap once, padding and stride or not.
    int64_t multiplications = samples * groups * in * out;
    for (int64_t d = 0; d < dimensions; ++d) {
      input.push_back(sizes.up_to(7)), output.push_back(sizes.up_to(7)), weight.push_back(sizes.up_to(3));
      multiplications *= (transposed ? input : output).back() * weight.back();
    }
    const bool general = sizes.below(2) == 1;
    const std::string op =
        general ? "convolution" : (transposed ? "conv_transpose" : "conv") + std::to_string(dimensions) + "d";
    CAPTURE(op);
    OneCall call(op);
    call.input("input", input).parameter("weight", weight, true).argument("groups", groups);
    if (general) call.argument("transposed", transposed);
    const ModelFlops flops = call.flops(output);
    CHECK(flops.forward == 2.0 * static_cast<double>(multiplications));
    CHECK(flops.training == 2 * flops.forward);  // no gradient goes back to the input
  }
}

TEST_CASE("flops: attention counts scores and their use, with queries and keys of other lengths and heads") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Sizes sizes(seed);
    const int64_t samples = sizes.up_to(4), shared = sizes.up_to(3), heads = shared * sizes.up_to(3);
    const int64_t queries = sizes.up_to(8), keys = sizes.up_to(8), width = sizes.up_to(6),
                  wide = sizes.up_to(6);
    const int64_t trained = sizes.below(3);
    OneCall call("scaled_dot_product_attention");
    call.operand("query", {samples, heads, queries, width}, trained)
        .input("key", {samples, shared, keys, width})
        .input("value", {samples, shared, keys, wide})
        .argument("enable_gqa", shared != heads);
    const ModelFlops flops = call.flops({samples, heads, queries, wide});
    CHECK(flops.forward == 2.0 * static_cast<double>(samples * heads * queries * keys * (width + wide)));
    CHECK(flops.training == flops.forward * (trained == 1 ? 3 : 1));
  }
}

TEST_CASE("flops: a recurrent layer applies each of its matrices to each position") {
  for (const char* op : {"lstm", "gru", "rnn_tanh", "rnn_relu"}) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      CAPTURE(op, seed);
      Sizes sizes(seed);
      const int64_t gates = std::string(op) == "lstm" ? 4 : std::string(op) == "gru" ? 3 : 1;
      const int64_t samples = sizes.up_to(4), tokens = sizes.up_to(6), features = sizes.up_to(6),
                    hidden = sizes.up_to(6), layers = sizes.up_to(3), directions = sizes.up_to(2);
      OneCall call(op);
      call.input("input", {samples, tokens, features});
      TensorsArgument params;
      int64_t multiplications = 0;
      for (int64_t n = 0; n < layers * directions; ++n) {
        const int64_t in = n < directions ? features : directions * hidden;
        const std::string name = std::to_string(n);
        call.parameter("ih" + name, {gates * hidden, in}, true);
        call.parameter("hh" + name, {gates * hidden, hidden}, true);
        call.parameter("bias" + name, {gates * hidden}, true);
        for (const char* each : {"ih", "hh", "bias", "bias"}) params.names.push_back(each + name);
        multiplications += gates * hidden * (in + hidden);
      }
      call.argument("params", params);
      const ModelFlops flops = call.flops({samples, tokens, directions * hidden});
      CHECK(flops.forward == 2.0 * static_cast<double>(samples * tokens * multiplications));
      CHECK(flops.training == 3 * flops.forward);
    }
  }
}

TEST_CASE("flops: they grow with the batch, and training's fall to the forward's as layers are frozen") {
  for (const char* spec : {"mlp:layers=4,width=16,image=8", "resnet18:image=32,classes=10,small=yes",
                           "alexnet", "gpt:layers=4,width=16,heads=2,tokens=8,vocabulary=20",
                           "bert:layers=3,width=16,heads=2,tokens=8,positions=8,vocabulary=20",
                           "vit_b_16:layers=3,width=16,heads=2,image=32,classes=10"}) {
    CAPTURE(spec);
    const ModelFlops one = count_flops(build_model(spec, 2).graph);
    const Model model = build_model(spec, 6);
    const ModelFlops all = count_flops(model.graph);
    CHECK(all.forward == 3 * one.forward);
    CHECK(all.training == 3 * one.training);
    CHECK(all.training <= 3 * all.forward);
    double before = all.training;
    for (size_t layers = 1; layers <= model_layers(model.graph).size(); ++layers) {
      const ModelFlops frozen = count_flops(frozen_graph(model.graph, static_cast<int64_t>(layers)));
      CHECK(frozen.forward == all.forward);
      CHECK(frozen.training < before);
      before = frozen.training;
    }
    CHECK(before >= all.forward);
  }
}

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
