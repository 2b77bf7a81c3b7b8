// The zoo against PyTorch: tests/models/zoo/losses.json is what torchvision's and transformers' models say of
// the weights and the minibatch that filled() makes here and in make_losses.py.
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>

#include "graph/json.h"
#include "graph/spec.h"
#include "models/initialise.h"
#include "models/run/interpreter.h"
#include "models/zoo/registry.h"
#include "test_paths.h"
#include "tests/support/long.h"

namespace pipewright {
namespace {

constexpr int64_t kSamples = 3;
constexpr double kRate = 0.001;

/// SplitMix64 from the FNV-1a hash of the name, a number for each element.
class Bits {
 public:
  explicit Bits(const std::string& name) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

at::Tensor filled(const std::string& name, const std::vector<int64_t>& shape, double centre, double scale) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  Bits bits(name);
  auto* out = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double u = static_cast<double>(bits.next() >> 11) * 0x1p-53;
    out[i] = static_cast<float>(centre + scale * (2 * u - 1));
  }
  return tensor;
}

at::Tensor weight(const std::string& name, const std::vector<int64_t>& shape) {
  if (shape.size() <= 1) return filled(name, shape, name.ends_with("weight") ? 1.0 : 0.0, 0.1);
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return filled(name, shape, 0.0, std::sqrt(6.0 / static_cast<double>(elements / shape[0])));
}

at::Tensor numbers(const std::string& name, const std::vector<int64_t>& shape, uint64_t bound) {
  at::Tensor tensor = at::empty(shape, at::kLong);
  Bits bits(name);
  auto* out = tensor.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tensor.numel(); ++i) out[i] = static_cast<int64_t>(bits.next() % bound);
  return tensor;
}

/// Sentences of 1 to all tokens, filled up with 0.
at::Tensor sentences(const std::string& name, const std::vector<int64_t>& shape, uint64_t bound) {
  const at::Tensor used = numbers(name + ".lengths", {shape[0]}, static_cast<uint64_t>(shape[1])) + 1;
  const at::Tensor inside = at::arange(shape[1]).lt(used.unsqueeze(1));
  return at::where(inside, numbers(name, shape, bound - 1) + 1, 0);
}

std::vector<at::Tensor> minibatch(const Graph& graph, const Segment& segment, const std::string& model) {
  std::vector<at::Tensor> fields;
  for (const std::string& name : segment.inputs()) {
    const std::vector<int64_t>& shape = graph.values.at(name).shape;
    if (name == "images") {
      fields.push_back(filled(name, shape, 0, 1));
    } else if (model == "bert" && (name == "tokens" || name == "labels")) {
      const at::Tensor drawn = numbers(name, shape, 50);
      fields.push_back(name == "tokens" ? drawn : at::where(drawn.remainder(3).eq(0), drawn, -100));
    } else if (model.starts_with("bert")) {
      // Of 1 to 7 tokens the rest is padding.
      const at::Tensor places = at::arange(7).unsqueeze(0);
      const bool two = name == "segments" || name == "next_sentence_labels";
      if (name == "mask") {
        fields.push_back(places.le(numbers("lengths", {kSamples, 1}, 7)).to(at::kLong));
      } else {
        fields.push_back(numbers(name, shape, name == "tokens" ? 50 : two ? 2 : 3));
      }
    } else if (model == "gnmt") {
      const at::Tensor target = sentences("target", shape, 30);
      fields.push_back(name == "labels" ? at::where(target.eq(0), -100, numbers(name, shape, 30))
                                        : sentences(name, shape, 30));
    } else {
      fields.push_back(numbers(name, shape, 10));
    }
  }
  return fields;
}

Graph without_dropout(Graph graph) {
  for (Node& node : graph.nodes) {
    if (node.op != "aten::dropout") continue;
    for (auto& [name, value] : node.arguments)
      if (name == "train") value = false;
  }
  return graph;
}

/// The loss, and if `second`, that after one step, too: three quarters of the time.
std::vector<double> losses_of(const std::string& spec, bool second) {
  const Graph graph = without_dropout(build_model(spec, kSamples).graph);
  std::vector<size_t> nodes(graph.nodes.size());
  std::iota(nodes.begin(), nodes.end(), size_t{0});
  const Segment segment(graph, nodes, {graph.outputs[0]});
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : graph.parameters) shapes[parameter.name] = parameter.type.shape;
  std::vector<at::Tensor> parameters, buffers;
  for (const std::string& name : segment.parameters())
    parameters.push_back(weight(name, shapes.at(name)).to(at::kDouble).requires_grad_());
  const Model initial = build_model(spec, kSamples);
  for (const std::string& name : segment.buffers())
    buffers.push_back(initial_buffer(initial, name).to(at::kDouble));
  std::vector<at::Tensor> fields = minibatch(graph, segment, parse_spec(spec, "model").name);
  for (at::Tensor& field : fields)
    if (field.is_floating_point()) field = field.to(at::kDouble);

  const auto loss = [&](int64_t step) { return segment.forward(fields, parameters, buffers, {1, step})[0]; };
  const at::Tensor first = loss(0);
  if (!second) return {first.item<double>()};
  const auto gradients = torch::autograd::grad({first}, parameters);
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(gradients[i], kRate);
  return {first.item<double>(), loss(1).item<double>()};
}

enum class Form { kUsual, kSmall };

/// Of these no loss is looked at without PIPEWRIGHT_LONG, or only that before the step. Their siblings have
/// the same operators; in double precision, for which LibTorch has no fast convolutions, they take a minute.
size_t losses_to_compare(const std::string& name, Form form) {
  if (testing::is_long()) return 2;
  const std::set<std::string> siblings = {"inception_v3", "resnet34", "resnet101",
                                          "resnet152",    "vgg13",    "vgg19"};
  if (siblings.count(name) > 0) return form == Form::kUsual ? 1 : 0;
  return form == Form::kSmall && (name == "resnet50" || name == "vgg16") ? 1 : 2;
}

/// The second loss follows gradients through all layers, which grow small differences of the first: in float
/// rounding alone changes it by a third.
void compare(const std::vector<std::string>& names, size_t expected_cases, Form form = Form::kUsual) {
  std::ifstream file(PIPEWRIGHT_SOURCE_DIR "/tests/models/zoo/losses.json");
  size_t compared = 0;
  for (const Json& known : Json::parse(file)) {
    const std::string spec = known.at("model");
    Spec defaults = parse_spec(spec, "model");
    if (std::find(names.begin(), names.end(), defaults.name) == names.end()) continue;
    if ((spec.find("small=yes") != std::string::npos) != (form == Form::kSmall)) continue;
    INFO(spec);
    ++compared;
    // The other options leave the number of parameters as it is, or stand for a smaller model.
    std::erase_if(defaults.options, [&](const auto& option) {
      return option.first != "auxiliary" && option.first != "small" && option.first != "channels" &&
             option.first != "embedding" && option.first != "next_sentence" &&
             !(defaults.name == "bert-classifier" && option.first == "classes") &&
             !(defaults.name == "gnmt" && option.first == "layers");
    });
    CHECK(parameter_count(build_model(defaults.text(), 2).graph) == known.at("parameters").get<int64_t>());
    const size_t count = losses_to_compare(defaults.name, form);
    if (count == 0) continue;
    const std::vector<double> losses = losses_of(spec, count > 1);
    CHECK(losses[0] == Approx(known.at("losses").at(0).get<double>()).epsilon(1e-4));
    if (count > 1) CHECK(losses[1] == Approx(known.at("losses").at(1).get<double>()).epsilon(1e-3));
  }
  CHECK(compared == expected_cases);
}

// Cases of their own, for ctest to run side by side.
TEST_CASE("PyTorch's losses: alexnet and vgg") {
  compare({"alexnet", "vgg11", "vgg13", "vgg16", "vgg19"}, 5);
}
TEST_CASE("PyTorch's losses: resnet") { compare({"resnet18", "resnet34", "resnet50", "resnet101"}, 4); }
TEST_CASE("PyTorch's losses: resnet152 and resnext") { compare({"resnet152", "resnext50_32x4d"}, 2); }
TEST_CASE("PyTorch's losses: squeezenet, mobilenet, densenet") {
  compare({"squeezenet1_0", "mobilenet_v2", "densenet121"}, 3);
}
TEST_CASE("PyTorch's losses: small forms of resnet") {
  compare({"resnet18", "resnet34", "resnet50", "resnet101"}, 8, Form::kSmall);
}
TEST_CASE("PyTorch's losses: small forms of resnet152 and mobilenet") {
  compare({"resnet152", "mobilenet_v2"}, 4, Form::kSmall);
}
TEST_CASE("PyTorch's losses: small forms of vgg") {
  compare({"vgg11", "vgg13", "vgg16", "vgg19"}, 8, Form::kSmall);
}
TEST_CASE("PyTorch's losses: inception") { compare({"inception_v3"}, 2); }
TEST_CASE("PyTorch's losses: vit") { compare({"vit", "vit_b_16"}, 2); }
TEST_CASE("PyTorch's losses: bert and gnmt") { compare({"bert", "bert-classifier", "bert-span", "gnmt"}, 6); }

}  // namespace
}  // namespace pipewright
