// The zoo against what is known of torchvision's models: names, shapes, counts, initialisation.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "graph/document.h"
#include "models/definition/variances.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

using Shape = std::vector<int64_t>;
using Named = std::pair<std::string, Shape>;

std::vector<Named> parameters(const Model& model) {
  std::vector<Named> result;
  for (const Parameter& parameter : model.graph.parameters) {
    CHECK(parameter.trainable);
    CHECK(parameter.type.dtype == "float32");
    result.emplace_back(parameter.name, parameter.type.shape);
  }
  return result;
}

Initialiser start_of(const Model& model, const std::string& name) {
  for (size_t i = 0; i < model.graph.parameters.size(); ++i) {
    if (model.graph.parameters[i].name == name) return model.parameter_initialisers[i];
  }
  for (size_t i = 0; i < model.graph.buffers.size(); ++i) {
    if (model.graph.buffers[i].name == name) return model.buffer_initialisers[i];
  }
  FAIL("no parameter or buffer " << name);
  return {};
}

Shape value_shape(const Model& model, const std::string& name) {
  INFO("value " << name);
  REQUIRE(model.graph.values.count(name) == 1);
  return model.graph.values.at(name).shape;
}

const Node& node(const Model& model, const std::string& name) {
  for (const Node& node : model.graph.nodes) {
    if (node.name == name) return node;
  }
  throw std::runtime_error("no node " + name);
}

/// Small enough to build at once, for properties of every model.
std::vector<std::string> all_models() {
  std::vector<std::string> names;
  for (const ModelRow& row : model_rows()) names.push_back(row.name);
  return names;
}

TEST_CASE("parameter counts are torchvision's") {
  const std::map<std::string, std::pair<int64_t, size_t>> known = {
      {"alexnet", {61'100'840, 16}},          {"vgg11", {132'863'336, 22}},
      {"vgg13", {133'047'848, 26}},           {"vgg16", {138'357'544, 32}},
      {"vgg19", {143'667'240, 38}},           {"resnet18", {11'689'512, 62}},
      {"resnet34", {21'797'672, 110}},        {"resnet50", {25'557'032, 161}},
      {"resnet101", {44'549'160, 314}},       {"resnet152", {60'192'808, 467}},
      {"resnext50_32x4d", {25'028'904, 161}}, {"squeezenet1_0", {1'248'424, 52}},
      {"mobilenet_v2", {3'504'872, 158}},     {"densenet121", {7'978'856, 364}},
      {"inception_v3", {27'161'264, 292}},    {"vit_b_16", {86'567'656, 152}},
      {"vit_ti_16", {5'717'416, 152}},        {"vit_s_16", {22'050'664, 152}},
      {"vit_b_32", {88'224'232, 152}},        {"vit_l_16", {304'326'632, 296}},
      {"vit_l_32", {306'535'400, 296}},
  };
  for (const auto& [name, counts] : known) {
    INFO(name);
    const Model model = build_model(name, 2);
    CHECK(parameter_count(model.graph) == counts.first);
    CHECK(model.graph.parameters.size() == counts.second);
    CHECK(value_shape(model, model.graph.outputs[1]) == Shape{2, 1000});
  }
  // 53 and 20 batch norms with two buffers each; num_batches_tracked is left out.
  CHECK(build_model("resnet18", 1).graph.buffers.size() == 40);
  CHECK(build_model("resnet50", 1).graph.buffers.size() == 106);
}

TEST_CASE("the small forms have the parameters of DDLBench's models") {
  // MNIST (28 x 28 x 1), CIFAR-10 (32 x 32 x 3), ImageNet and highres (224 or 512, torchvision's).
  const std::map<std::string, std::array<int64_t, 3>> known = {
      {"resnet18", {11'172'810, 11'173'962, 11'689'512}},
      {"resnet50", {23'519'690, 23'520'842, 25'557'032}},
      {"resnet152", {58'155'466, 58'156'618, 60'192'808}},
      {"vgg11", {9'224'458, 9'225'610, 132'863'336}},
      {"vgg16", {14'718'666, 14'719'818, 138'357'544}},
      {"mobilenet_v2", {2'296'346, 2'296'922, 3'504'872}},
  };
  for (const auto& [name, counts] : known) {
    const std::array<std::string, 4> specs = {name + ":small=yes,image=28,channels=1,classes=10",
                                              name + ":small=yes", name, name + ":image=512"};
    for (size_t i = 0; i < specs.size(); ++i) {
      INFO(specs[i]);
      const Model model = build_model(specs[i], 2);
      CHECK(parameter_count(model.graph) == counts[std::min<size_t>(i, 2)]);
      CHECK(value_shape(model, model.graph.outputs[1]) == Shape{2, i < 2 ? 10 : 1000});
    }
  }
  CHECK(parameter_count(build_model("resnet18:small=no", 1).graph) == 11'689'512);
}

TEST_CASE("the small forms have the names and the order of the modules that DDLBench trains") {
  const auto layers = [](const std::string& spec, size_t first, size_t count) {
    std::string text;
    const Model model = build_model(spec, 2);
    const size_t begin = first > model.graph.nodes.size() ? model.graph.nodes.size() - count : first;
    for (size_t i = begin; i < begin + count; ++i) text += model.graph.nodes[i].name + " ";
    return text;
  };
  constexpr size_t kEnd = 1'000'000;
  CHECK(layers("resnet18:small=yes", 0, 4) == "conv1.conv2d bn1.batch_norm relu.relu layer1.0.conv1.conv2d ");
  CHECK(layers("resnet18:small=yes", kEnd, 4) ==
        "avgpool.avg_pool2d flatten.flatten linear.linear loss.cross_entropy_loss ");
  CHECK(layers("vgg11:small=yes,image=28,channels=1", kEnd, 6) ==
        "features.18.conv2d features.19.relu features.20.avg_pool2d flatten.flatten classifier.linear "
        "loss.cross_entropy_loss ");
  CHECK(layers("vgg11:small=yes", kEnd, 5) ==
        "features.20.max_pool2d features.21.avg_pool2d flatten.flatten classifier.linear "
        "loss.cross_entropy_loss ");
  CHECK(layers("mobilenet_v2:small=yes", 3, 11) ==
        "layers.0.conv1.conv2d layers.0.bn1.batch_norm layers.0.relu1.relu layers.0.conv2.conv2d "
        "layers.0.bn2.batch_norm layers.0.relu2.relu layers.0.conv3.conv2d layers.0.bn3.batch_norm "
        "layers.0.shortcut.0.conv2d layers.0.shortcut.1.batch_norm layers.0.add.add ");
  CHECK(node(build_model("resnet50:small=yes", 2), "layer2.0.shortcut.0.conv2d").layer ==
        "layer2.0.shortcut.0");
}

TEST_CASE("inception_v3 without its auxiliary classifier lacks that classifier's parameters") {
  CHECK(parameter_count(build_model("inception_v3:auxiliary=no", 1).graph) == 23'834'568);
}

TEST_CASE("bert has the parameters of BERT-base, and those of the head once more if it is not tied") {
  const Model tied = build_model("bert", 1);
  CHECK(parameter_count(tied.graph) == 109'514'298);
  CHECK(parameter_count(build_model("bert:head=separate", 1).graph) == 109'514'298 + 30522 * 768);
  CHECK(parameter_count(build_model("bert:tokens=512,dropout=0", 1).graph) == 109'514'298);
  CHECK(parameters(tied).front() == Named{"bert.embeddings.word_embeddings.weight", {30522, 768}});
}

TEST_CASE("bert's heads have the parameters of transformers, behind the same encoder") {
  const Model bert = build_model("bert", 1);
  const Model classifier = build_model("bert-classifier:classes=3", 1), span = build_model("bert-span", 1);
  CHECK(parameter_count(classifier.graph) == 109'484'547);
  CHECK(parameter_count(span.graph) == 108'893'186);
  const auto encoder = static_cast<int64_t>(parameters(span).size()) - 2;
  const auto shared = parameters(bert), classifying = parameters(classifier), spanning = parameters(span);
  CHECK(std::equal(spanning.begin(), spanning.begin() + encoder, shared.begin()));
  CHECK(std::equal(classifying.begin(), classifying.begin() + encoder, shared.begin()));
  CHECK(std::vector<Named>(spanning.begin() + encoder, spanning.end()) ==
        std::vector<Named>{{"qa_outputs.weight", {2, 768}}, {"qa_outputs.bias", {2}}});
  CHECK(std::vector<Named>(classifying.begin() + encoder, classifying.end()) ==
        std::vector<Named>{{"bert.pooler.dense.weight", {768, 768}},
                           {"bert.pooler.dense.bias", {768}},
                           {"classifier.weight", {3, 768}},
                           {"classifier.bias", {3}}});
  CHECK(value_shape(span, span.graph.outputs[1]) == Shape{1, 2, 384});
  // The mask is made where it is read: no cut carries it.
  const std::vector<std::string> mask = {"bert.attention_mask.ne", "bert.attention_mask.reshape"};
  CHECK(span.graph.everywhere == mask);
  CHECK(classifier.graph.everywhere == mask);
  CHECK(bert.graph.everywhere.empty());
}

TEST_CASE(
    "bert with a next-sentence loss has the parameters of BertForPreTraining, and reads segments and mask") {
  const Model model = build_model("bert:next_sentence=yes", 1);
  CHECK(parameter_count(model.graph) == 109'514'298 + 768 * 768 + 768 + 768 * 2 + 2);
  const auto has = [&](const Named& one) {
    const auto all = parameters(model);
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  CHECK(has({"bert.pooler.dense.weight", {768, 768}}));
  CHECK(has({"cls.seq_relationship.weight", {2, 768}}));
  CHECK(model.graph.inputs ==
        std::vector<std::string>{"tokens", "mask", "segments", "labels", "next_sentence_labels"});
  CHECK(value_shape(model, model.graph.outputs[1]) == Shape{1, 128, 30522});
}

TEST_CASE("gnmt has the parameters that its LSTMs, its attention and its tables make") {
  const auto lstm = [](int64_t in) { return 4 * 1024 * (in + 1024) + 2 * 4 * 1024; };
  const int64_t table = 32320 * 1024;
  const auto count = [&](int64_t half, int64_t tables) {
    const int64_t encoder = 2 * lstm(1024) + lstm(2048) + (half - 2) * lstm(1024);
    const int64_t decoder = lstm(1024) + (half - 1) * lstm(2048);
    return encoder + decoder + 2 * 1024 * 1024 + 2 * 1024 + 1 + tables * table + table + 32320;
  };
  CHECK(parameter_count(build_model("gnmt", 1).graph) == count(4, 2));
  CHECK(parameter_count(build_model("gnmt:layers=16", 1).graph) == count(8, 2));
  CHECK(parameter_count(build_model("gnmt:embedding=shared", 1).graph) == count(4, 1));
}

TEST_CASE("classes, channels and hidden change the counts as they should") {
  const int64_t full = parameter_count(build_model("resnet50", 1).graph);
  CHECK(parameter_count(build_model("resnet50:classes=10", 1).graph) == full - 990 * 2049);
  CHECK(parameter_count(build_model("resnet50:channels=1", 1).graph) == full - 2 * 64 * 49);
  CHECK(parameter_count(build_model("resnet50:image=64", 1).graph) == full);
  const int64_t vgg_features = parameter_count(build_model("vgg16", 1).graph) - (25088 * 4096 + 4096) -
                               (4096 * 4096 + 4096) - (4096 * 1000 + 1000);
  CHECK(vgg_features == 14'714'688);
  CHECK(parameter_count(build_model("vgg16:hidden=8,classes=10", 1).graph) ==
        vgg_features + (25088 * 8 + 8) + (8 * 8 + 8) + (8 * 10 + 10));
}

TEST_CASE("dropout=0 leaves dropout out, and everything else as it is") {
  for (const std::string model : {"alexnet", "vgg11", "squeezenet1_0", "mobilenet_v2"}) {
    CAPTURE(model);
    const Graph with = build_model(model, 2).graph, without = build_model(model + ":dropout=0", 2).graph;
    const auto drops = [](const Graph& graph) {
      return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                           [](const Node& node) { return node.op == "aten::dropout"; });
    };
    CHECK(drops(with) > 0);
    CHECK(drops(without) == 0);
    CHECK(with.nodes.size() == without.nodes.size() + static_cast<size_t>(drops(with)));
    REQUIRE(with.parameters.size() == without.parameters.size());
    for (size_t i = 0; i < with.parameters.size(); ++i)
      CHECK(with.parameters[i].name == without.parameters[i].name);
  }
  for (const std::string small : {"vgg11:small=yes,dropout=0", "mobilenet_v2:small=yes,dropout=0"})
    CHECK_THROWS_AS(build_model(small, 2), InputError);
}

TEST_CASE("vgg16 and alexnet number their layers as torchvision's Sequentials") {
  const auto vgg = parameters(build_model("vgg16", 1));
  std::vector<Named> expected;
  int64_t in = 3;
  const std::vector<std::pair<int, int64_t>> convolutions = {
      {0, 64},   {2, 64},   {5, 128},  {7, 128},  {10, 256}, {12, 256}, {14, 256},
      {17, 512}, {19, 512}, {21, 512}, {24, 512}, {26, 512}, {28, 512}};
  for (const auto& [position, out] : convolutions) {
    const std::string layer = "features." + std::to_string(position);
    expected.emplace_back(layer + ".weight", Shape{out, in, 3, 3});
    expected.emplace_back(layer + ".bias", Shape{out});
    in = out;
  }
  const std::vector<std::pair<int, Shape>> linears = {
      {0, {4096, 25088}}, {3, {4096, 4096}}, {6, {1000, 4096}}};
  for (const auto& [position, shape] : linears) {
    const std::string layer = "classifier." + std::to_string(position);
    expected.emplace_back(layer + ".weight", shape);
    expected.emplace_back(layer + ".bias", Shape{shape[0]});
  }
  CHECK(vgg == expected);

  const auto alexnet = parameters(build_model("alexnet", 1));
  CHECK(alexnet == std::vector<Named>{{"features.0.weight", {64, 3, 11, 11}},
                                      {"features.0.bias", {64}},
                                      {"features.3.weight", {192, 64, 5, 5}},
                                      {"features.3.bias", {192}},
                                      {"features.6.weight", {384, 192, 3, 3}},
                                      {"features.6.bias", {384}},
                                      {"features.8.weight", {256, 384, 3, 3}},
                                      {"features.8.bias", {256}},
                                      {"features.10.weight", {256, 256, 3, 3}},
                                      {"features.10.bias", {256}},
                                      {"classifier.1.weight", {4096, 9216}},
                                      {"classifier.1.bias", {4096}},
                                      {"classifier.4.weight", {4096, 4096}},
                                      {"classifier.4.bias", {4096}},
                                      {"classifier.6.weight", {1000, 4096}},
                                      {"classifier.6.bias", {1000}}});
}

void expect_convolution(std::vector<Named>& expected, const std::string& block,
                        const std::string& convolution, const std::string& norm, const Shape& shape) {
  expected.emplace_back(block + convolution + ".weight", shape);
  expected.emplace_back(block + norm + ".weight", Shape{shape[0]});
  expected.emplace_back(block + norm + ".bias", Shape{shape[0]});
}

TEST_CASE("resnet18 and resnet50 name their parameters as torchvision's state_dict, in its order") {
  std::vector<Named> small, large;
  for (auto* expected : {&small, &large}) expect_convolution(*expected, "", "conv1", "bn1", {64, 3, 7, 7});
  const std::vector<int> large_blocks = {3, 4, 6, 3};
  for (int group = 1; group <= 4; ++group) {
    const int64_t width = 32 << group;
    for (int i = 0; i < 2; ++i) {
      const std::string block = "layer" + std::to_string(group) + "." + std::to_string(i) + ".";
      const int64_t in = group > 1 && i == 0 ? width / 2 : width;
      expect_convolution(small, block, "conv1", "bn1", {width, in, 3, 3});
      expect_convolution(small, block, "conv2", "bn2", {width, width, 3, 3});
      if (in != width) expect_convolution(small, block, "downsample.0", "downsample.1", {width, in, 1, 1});
    }
    for (int i = 0; i < large_blocks[static_cast<size_t>(group - 1)]; ++i) {
      const std::string block = "layer" + std::to_string(group) + "." + std::to_string(i) + ".";
      const int64_t in = i > 0 ? 4 * width : group == 1 ? 64 : 2 * width;
      expect_convolution(large, block, "conv1", "bn1", {width, in, 1, 1});
      expect_convolution(large, block, "conv2", "bn2", {width, width, 3, 3});
      expect_convolution(large, block, "conv3", "bn3", {4 * width, width, 1, 1});
      if (i == 0) expect_convolution(large, block, "downsample.0", "downsample.1", {4 * width, in, 1, 1});
    }
  }
  small.emplace_back("fc.weight", Shape{1000, 512});
  large.emplace_back("fc.weight", Shape{1000, 2048});
  for (auto* expected : {&small, &large}) expected->emplace_back("fc.bias", Shape{1000});
  const Model resnet18 = build_model("resnet18", 1);
  CHECK(parameters(resnet18) == small);
  CHECK(parameters(build_model("resnet50", 1)) == large);
  CHECK(resnet18.graph.buffers[0].name == "bn1.running_mean");
  CHECK(resnet18.graph.buffers[1].name == "bn1.running_var");
  CHECK(resnet18.graph.buffers.back().name == "layer4.1.bn2.running_var");
}

TEST_CASE("activations have the shapes that the papers and torchvision give") {
  const Model resnet50 = build_model("resnet50", 4);
  CHECK(value_shape(resnet50, "images") == Shape{4, 3, 224, 224});
  CHECK(value_shape(resnet50, "conv1.conv2d") == Shape{4, 64, 112, 112});
  CHECK(value_shape(resnet50, "maxpool.max_pool2d") == Shape{4, 64, 56, 56});
  CHECK(value_shape(resnet50, "layer1.2.relu3.relu") == Shape{4, 256, 56, 56});
  CHECK(value_shape(resnet50, "layer2.0.conv1.conv2d") == Shape{4, 128, 56, 56});  // the stride is in conv2
  CHECK(value_shape(resnet50, "layer2.0.conv2.conv2d") == Shape{4, 128, 28, 28});
  CHECK(value_shape(resnet50, "layer4.2.relu3.relu") == Shape{4, 2048, 7, 7});
  CHECK(value_shape(resnet50, "flatten.flatten") == Shape{4, 2048});
  CHECK(value_shape(resnet50, "fc.linear") == Shape{4, 1000});
  CHECK(value_shape(resnet50, "labels") == Shape{4});
  CHECK(value_shape(resnet50, "loss.cross_entropy_loss").empty());

  const Model vgg16 = build_model("vgg16", 3);
  CHECK(value_shape(vgg16, "features.30.max_pool2d") == Shape{3, 512, 7, 7});
  const Model alexnet = build_model("alexnet", 3);
  CHECK(value_shape(alexnet, "features.0.conv2d") == Shape{3, 64, 55, 55});
  CHECK(value_shape(alexnet, "features.12.max_pool2d") == Shape{3, 256, 6, 6});
  const Model convnet = build_model("convnet", 5);
  CHECK(value_shape(convnet, "images") == Shape{5, 1, 28, 28});
  CHECK(value_shape(convnet, "flatten.flatten") == Shape{5, 64 * 3 * 3});
  CHECK(value_shape(convnet, convnet.graph.outputs[1]) == Shape{5, 10});

  const Model gpt = build_model("gpt:layers=2,width=12,heads=3,tokens=5,vocabulary=7", 4);
  CHECK(value_shape(gpt, "tokens") == Shape{4, 5});
  CHECK(gpt.graph.values.at("tokens").dtype == "int64");
  CHECK(value_shape(gpt, "labels") == Shape{4, 5});
  CHECK(value_shape(gpt, "transformer.h.1.attn.scaled_dot_product_attention") == Shape{4, 3, 5, 4});
  CHECK(value_shape(gpt, "lm_head.linear") == Shape{4, 5, 7});
  CHECK(value_shape(gpt, "loss.reshape") == Shape{20, 7});
}

TEST_CASE("mlp is the stack that benchmarks name") {
  const Model model = build_model("mlp:layers=8,width=1024", 64);
  CHECK(parameter_count(model.graph) == 8 * (1024 * 1024 + 1024) + 1024 * 10 + 10);
  CHECK(value_shape(model, "images") == Shape{64, 1, 32, 32});
  CHECK(value_shape(model, "flatten.flatten") == Shape{64, 1024});
  CHECK(model.graph.nodes.size() == 1 + 2 * 8 + 1 + 1);
  CHECK(parameters(model).front() == Named{"layers.0.weight", {1024, 1024}});
  CHECK(parameters(model).back() == Named{"layers.16.bias", {10}});
  CHECK(parameters(build_model("mlp:image=28", 1)).front() == Named{"layers.0.weight", {1024, 784}});
  CHECK(parameters(build_model("mlp:channels=3,image=2,layers=1,width=7", 1)).front() ==
        Named{"layers.0.weight", {7, 12}});
  CHECK(build_model("mlp:layers=0", 1).graph.parameters.size() == 2);
}

TEST_CASE("gpt has GPT-2's parameters and an untied head") {
  const int64_t layers = 3, width = 8, tokens = 6, vocabulary = 11;
  const Model model = build_model("gpt:layers=3,width=8,heads=2,tokens=6,vocabulary=11", 2);
  CHECK(parameter_count(model.graph) ==
        2 * vocabulary * width + tokens * width + layers * (12 * width * width + 13 * width) + 2 * width);
  const auto names = parameters(model);
  CHECK(names[0] == Named{"transformer.wte.weight", {11, 8}});
  CHECK(names[1] == Named{"transformer.wpe.weight", {6, 8}});
  CHECK(names[4] == Named{"transformer.h.0.attn.c_attn.weight", {24, 8}});
  CHECK(names.back() == Named{"lm_head.weight", {11, 8}});
  CHECK(std::get<bool>(
      node(model, "transformer.h.0.attn.scaled_dot_product_attention").arguments.back().second));
  CHECK(start_of(model, "transformer.h.0.mlp.c_proj.weight") ==
        Initialiser::normal(0, 0.02 / std::sqrt(6.0)));
  const Model dropping = build_model("gpt:dropout=0.1", 2);
  CHECK(dropping.graph.nodes.size() == build_model("gpt", 2).graph.nodes.size() + 1 + 2 * 4);
}

TEST_CASE("parameters start as torchvision starts them") {
  const auto close = [](const Initialiser& a, const Initialiser& b) {
    return a.kind == b.kind && std::abs(a.a - b.a) < 1e-12 && std::abs(a.b - b.b) < 1e-12;
  };
  const Model resnet = build_model("resnet18", 1);
  CHECK(close(start_of(resnet, "conv1.weight"), Initialiser::normal(0, std::sqrt(2.0 / (64 * 49)))));
  CHECK(
      close(start_of(resnet, "layer2.0.downsample.0.weight"), Initialiser::normal(0, std::sqrt(2.0 / 128))));
  CHECK(start_of(resnet, "bn1.weight") == Initialiser::constant(1));
  CHECK(start_of(resnet, "bn1.bias") == Initialiser::constant(0));
  CHECK(start_of(resnet, "bn1.running_mean") == Initialiser::constant(0));
  CHECK(start_of(resnet, "bn1.running_var") == Initialiser::constant(1));
  CHECK(close(start_of(resnet, "fc.weight"), Initialiser::uniform(1 / std::sqrt(512.0))));
  CHECK(close(start_of(resnet, "fc.bias"), Initialiser::uniform(1 / std::sqrt(512.0))));

  const Model vgg = build_model("vgg11", 1);
  CHECK(close(start_of(vgg, "features.3.weight"), Initialiser::normal(0, std::sqrt(2.0 / (128 * 9)))));
  CHECK(start_of(vgg, "features.3.bias") == Initialiser::constant(0));
  CHECK(start_of(vgg, "classifier.6.weight") == Initialiser::normal(0, 0.01));
  CHECK(start_of(vgg, "classifier.6.bias") == Initialiser::constant(0));

  const Model alexnet = build_model("alexnet", 1);
  CHECK(close(start_of(alexnet, "features.3.bias"), Initialiser::uniform(1 / std::sqrt(64.0 * 25))));
  CHECK(close(start_of(alexnet, "classifier.1.weight"), Initialiser::uniform(1 / std::sqrt(9216.0))));
}

TEST_CASE("every model has an initialiser for each tensor, a loss, and labels") {
  for (const std::string& name : all_models()) {
    INFO(name);
    const Model model = build_model(name, 2);
    CHECK(model.graph.name == name);
    CHECK(model.parameter_initialisers.size() == model.graph.parameters.size());
    CHECK(model.buffer_initialisers.size() == model.graph.buffers.size());
    REQUIRE(model.graph.inputs.size() >= 2);
    CHECK(model.graph.inputs.back() == (name == "bert-span" ? "ends" : "labels"));
    REQUIRE(model.graph.outputs.size() == 2);
    CHECK(value_shape(model, model.graph.outputs[0]).empty());
    CHECK(model.graph.nodes.back().outputs[0] == model.graph.outputs[0]);
    CHECK(model.graph.nodes.back().layer.ends_with("loss"));
    std::set<std::string> nodes;
    for (const Node& node : model.graph.nodes) {
      CHECK(nodes.insert(node.name).second);
      CHECK(node.name.rfind(node.layer + ".", 0) == 0);
    }
  }
}

TEST_CASE("every parameter and buffer is read by a node of the layer that owns it") {
  for (const std::string& name : all_models()) {
    const Model model = build_model(name, 2);
    std::map<std::string, std::vector<std::string>> readers;
    for (const Node& node : model.graph.nodes) {
      for (const std::string& read : node.reads()) readers[read].push_back(node.layer);
    }
    const auto check = [&](const std::string& tensor) {
      INFO(name << ": " << tensor);
      const size_t dot = tensor.rfind('.');
      const std::string owner = dot == std::string::npos ? "" : tensor.substr(0, dot);
      CHECK(std::any_of(readers[tensor].begin(), readers[tensor].end(), [&](const std::string& layer) {
        return owner.empty() || layer == owner || layer.starts_with(owner + ".");
      }));
    };
    for (const Parameter& parameter : model.graph.parameters) check(parameter.name);
    for (const Buffer& buffer : model.graph.buffers) check(buffer.name);
  }
}

/// Values that no cut can meet: made in a set of nodes that stays together, and read by no other.
std::set<std::string> confined(const Graph& graph) {
  std::map<std::string, size_t> set_of;
  for (size_t i = 0; i < graph.together.size(); ++i)
    for (const std::string& node : graph.together[i]) set_of[node] = i + 1;
  std::map<std::string, size_t> made_in;
  for (const Node& node : graph.nodes)
    for (const std::string& value : node.outputs) made_in[value] = set_of[node.name];
  for (const std::string& value : graph.outputs) made_in[value] = 0;
  for (const Node& node : graph.nodes)
    for (const std::string& read : node.reads())
      if (made_in[read] != set_of[node.name]) made_in[read] = 0;
  std::set<std::string> values;
  for (const auto& [value, set] : made_in)
    if (set != 0) values.insert(value);
  return values;
}

TEST_CASE("a graph does not depend on the batch size but for the shapes of its values") {
  for (const std::string& name : all_models()) {
    INFO(name);
    const Graph four = build_model(name, 4).graph;
    const Graph seven = build_model(name, 7).graph;
    Json a = four.to_json(), b = seven.to_json();
    a.erase("values");
    b.erase("values");
    CHECK(a == b);
    const std::set<std::string> inside = confined(four);
    for (const auto& [value, type] : four.values) {
      if (inside.count(value)) continue;
      Shape scaled = type.shape;
      if (!scaled.empty()) scaled[0] = scaled[0] / 4 * 7;
      INFO(value);
      CHECK(seven.values.at(value).shape == scaled);
    }
  }
}

TEST_CASE("with_batch_size is the model built for that many samples, wherever its batch stands") {
  for (const std::string& name : all_models()) {
    CAPTURE(name);
    const Model model = build_model(name, 6);
    for (const int64_t samples : {2, 4, 5, 6})
      CHECK(with_batch_size(model, samples).to_json() == build_model(name, samples).graph.to_json());
  }
}

TEST_CASE("one sample is left to evaluate, where a minibatch of one could not be trained") {
  const std::string spec = "convnet:image=8";
  CHECK_THROWS_WITH(check_variances(build_model(spec, 1).graph),
                    Catch::Contains("has no variance; expected a larger image or minibatch"));
  const Model model = build_model(spec, 3);
  const Graph one = evaluation_graph(with_batch_size(model, 1));
  for (const std::string& input : one.inputs) CHECK(one.values.at(input).shape[0] == 1);
  CHECK_NOTHROW(one.validate(spec));
}

TEST_CASE("every model's graph goes through its document and back") {
  for (const std::string& name : all_models()) {
    const Graph graph = build_model(name, 3).graph;
    const std::string text = document_text(graph);
    const Graph back = parse_document<Graph>(text, name + ".json");
    CHECK(document_text(back) == text);
    CHECK(back.nodes.size() == graph.nodes.size());
    CHECK(back.values == graph.values);
    CHECK(back.nodes.back().arguments == graph.nodes.back().arguments);
  }
}

TEST_CASE("building a model is quick: it makes no tensors") {
  using Clock = std::chrono::steady_clock;
  auto best = Clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    build_model("vgg16", 64);
    best = std::min(best, Clock::now() - begin);
  }
  CHECK(best < std::chrono::milliseconds(50));
}

}  // namespace
}  // namespace pipewright
