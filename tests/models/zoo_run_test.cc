// The zoo through LibTorch: its operators take the arguments as written, and make values of the types that
// the builder worked out.
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>

#include "models/initialise.h"
#include "models/run/interpreter.h"
#include "models/run/scalar_types.h"
#include "models/zoo/registry.h"

namespace pipewright {
namespace {

struct Case {
  std::string spec;
  int64_t classes;
  double first_loss_error;  ///< of |loss - log(classes)| with the first weights
};

/// Small, but every operator of every family (deeper ones of a family are more of the same). A head of small
/// weights gives log(classes) closely; a resnet's does not.
std::vector<Case> cases() {
  return {
      {"mlp:layers=3,width=32,image=4,classes=5", 5, 0.3},
      {"mlp:layers=0,channels=3,image=4,classes=5", 5, 1.0},
      {"convnet:width=4,image=12", 10, 1.0},
      {"gpt:layers=2,width=16,heads=2,tokens=6,vocabulary=20", 20, 0.1},
      {"gpt:layers=1,width=12,heads=3,tokens=4,vocabulary=9,dropout=0.2", 9, 0.1},
      {"alexnet:image=63,classes=10,hidden=32", 10, 0.3},
      {"vgg11:image=32,classes=10,hidden=16", 10, 0.1},
      {"resnet18:image=33,classes=10", 10, 1.5},
      {"resnet50:image=33,classes=10", 10, 1.5},
      {"vgg11:small=yes,image=16,channels=1", 10, 0.1},
      {"resnet18:small=yes,image=25", 10, 1.5},
      {"mobilenet_v2:small=yes,image=25,channels=1", 10, 1.5},
      {"resnext50_32x4d:image=33,classes=10", 10, 1.5},
      {"squeezenet1_0:image=29,classes=10", 10, 1.0},
      {"mobilenet_v2:image=33,classes=10", 10, 0.3},
      {"densenet121:image=33,classes=10", 10, 1.5},
      {"inception_v3:auxiliary=no,image=75,classes=10", 10, 30},
      {"vit_b_16:image=32,layers=2,width=24,heads=3,classes=10", 10, 1e-5},
      {"vit", 10, 1e-5},
      {"vit:patch=4,image=12,channels=3,layers=2,width=24,heads=3,dropout=0.1", 10, 1e-5},
      {"bert:layers=2,width=24,heads=3,tokens=6,positions=8,vocabulary=20", 20, 0.1},
      {"bert:layers=1,width=24,heads=3,tokens=6,positions=6,vocabulary=20,dropout=0,head=separate", 20, 0.1},
      {"bert:layers=1,width=24,heads=3,tokens=6,positions=8,vocabulary=20,next_sentence=yes", 20, 0.8},
      {"bert-classifier:classes=5,layers=2,width=24,heads=3,tokens=6,positions=8,vocabulary=20", 5, 0.1},
      {"bert-span:layers=2,width=24,heads=3,tokens=6,positions=8,vocabulary=20,dropout=0", 6, 0.1},
      {"gnmt:layers=8,width=12,source=7,target=5,vocabulary=20", 20, 0.1},
      {"gnmt:layers=4,width=12,source=4,target=6,vocabulary=20,dropout=0,embedding=shared", 20, 0.1}};
}

struct Tensors {
  std::vector<at::Tensor> parameters, buffers;
};

Tensors first_tensors(const Model& model, const Segment& segment) {
  Tensors tensors;
  for (const std::string& name : segment.parameters()) {
    tensors.parameters.push_back(initial_parameter(model, name, 1).requires_grad_());
  }
  for (const std::string& name : segment.buffers()) tensors.buffers.push_back(initial_buffer(model, name));
  return tensors;
}

/// One minibatch of `samples` for the fields that the segment reads.
std::vector<at::Tensor> minibatch(const Graph& graph, const Segment& segment, int64_t samples,
                                  int64_t classes) {
  at::manual_seed(7);
  std::vector<at::Tensor> fields;
  for (const std::string& name : segment.inputs()) {
    std::vector<int64_t> shape = graph.values.at(name).shape;
    shape[0] = samples;
    if (name == "mask" || name == "segments") {
      fields.push_back(at::arange(shape[1]).ge(4).expand(shape).eq(name == "segments").to(at::kLong));
      continue;
    }
    // Of this one there are two, which the loss says too.
    const int64_t most = name == "next_sentence_labels" ? 2 : classes;
    fields.push_back(graph.values.at(name).dtype == "int64" ? at::randint(most, shape, at::kLong)
                                                            : at::randn(shape));
  }
  return fields;
}

Segment whole(const Graph& graph, const std::vector<std::string>& outputs) {
  std::vector<size_t> nodes(graph.nodes.size());
  std::iota(nodes.begin(), nodes.end(), size_t{0});
  return Segment(graph, nodes, outputs);
}

TEST_CASE("every model runs forward and backward, all values have the types that the graph says") {
  for (const Case& c : cases()) {
    INFO(c.spec);
    const Model model = build_model(c.spec, 3);
    std::vector<std::string> outputs = {model.graph.outputs[0]};
    for (const Node& node : model.graph.nodes)
      outputs.insert(outputs.end(), node.outputs.begin(), node.outputs.end());
    const Segment segment = whole(model.graph, outputs);
    const Tensors tensors = first_tensors(model, segment);
    CHECK(segment.parameters().size() == model.graph.parameters.size());
    CHECK(segment.buffers().size() == model.graph.buffers.size());

    const auto values = segment.forward(minibatch(model.graph, segment, 3, c.classes), tensors.parameters,
                                        tensors.buffers, {1, 0});
    for (size_t i = 0; i < outputs.size(); ++i) {
      INFO(outputs[i]);
      CHECK(values[i].sizes().vec() == model.graph.values.at(outputs[i]).shape);
      CHECK(dtype_name_of(values[i].scalar_type()) == model.graph.values.at(outputs[i]).dtype);
    }
    const double loss = values[0].item<double>();
    CHECK(std::isfinite(loss));
    CHECK(std::abs(loss - std::log(static_cast<double>(c.classes))) < c.first_loss_error);

    const auto gradients = torch::autograd::grad({values[0]}, tensors.parameters);
    for (size_t i = 0; i < gradients.size(); ++i) {
      INFO(segment.parameters()[i]);
      CHECK(std::isfinite(gradients[i].sum().item<double>()));
      CHECK(gradients[i].sizes() == tensors.parameters[i].sizes());
    }
  }
}

TEST_CASE("evaluation takes a shorter minibatch, draws nothing and leaves the running statistics alone") {
  const at::NoGradGuard no_gradients;
  for (const Case& c : cases()) {
    if (c.spec.starts_with("vgg16") || c.spec.starts_with("resnet50"))
      continue;  // their siblings show it sooner
    INFO(c.spec);
    const Model model = build_model(c.spec, 5);
    const Graph graph = evaluation_graph(model.graph);
    const Segment segment = whole(graph, graph.outputs);
    const Tensors tensors = first_tensors(model, segment);
    std::vector<at::Tensor> before;
    for (const at::Tensor& buffer : tensors.buffers) before.push_back(buffer.clone());

    const auto fields = minibatch(graph, segment, 2, c.classes);
    const auto first = segment.forward(fields, tensors.parameters, tensors.buffers, {1, 0});
    const auto second = segment.forward(fields, tensors.parameters, tensors.buffers, {2, 9});
    CHECK(first[1].size(0) == 2);
    CHECK(std::isfinite(first[0].item<double>()));
    CHECK(at::equal(first[1], second[1]));
    for (size_t i = 0; i < before.size(); ++i) CHECK(at::equal(before[i], tensors.buffers[i]));

    // The score of a sample does not depend on its neighbours.
    std::vector<at::Tensor> one;
    for (const at::Tensor& field : fields) one.push_back(field.narrow(0, 1, 1));
    const auto alone = segment.forward(one, tensors.parameters, tensors.buffers, {1, 0});
    CHECK(at::allclose(alone[1], first[1].narrow(0, 1, 1), 1e-4, 1e-5));
  }
}

TEST_CASE("a token's scores depend on no later token") {
  const at::NoGradGuard no_gradients;
  const Model model = build_model("gpt:layers=2,width=16,heads=2,tokens=6,vocabulary=20", 2);
  const Segment segment = whole(model.graph, {model.graph.outputs[1]});
  const Tensors tensors = first_tensors(model, segment);
  REQUIRE(segment.inputs() == std::vector<std::string>{"tokens", "labels"});
  auto fields = minibatch(model.graph, segment, 2, 20);
  const at::Tensor before = segment.forward(fields, tensors.parameters, tensors.buffers, {1, 0})[0];
  fields[0] = fields[0].clone();
  fields[0].select(1, 3).add_(1).remainder_(20);
  const at::Tensor after = segment.forward(fields, tensors.parameters, tensors.buffers, {1, 0})[0];
  CHECK(at::allclose(before.narrow(1, 0, 3), after.narrow(1, 0, 3)));
  CHECK(!at::allclose(before.select(1, 3), after.select(1, 3)));
  CHECK(!at::allclose(before.select(1, 5), after.select(1, 5)));
}

// By name, for a segment of another model.
std::vector<at::Tensor> in_order(const std::vector<std::string>& names,
                                 const std::map<std::string, at::Tensor>& values) {
  std::vector<at::Tensor> ordered;
  for (const std::string& name : names) ordered.push_back(values.at(name));
  return ordered;
}

TEST_CASE("padding changes no score of what stands before it, whatever fills it and however long it is") {
  const at::NoGradGuard no_gradients;
  const std::string options = "layers=2,width=24,heads=3,positions=12,vocabulary=20,dropout=0,tokens=";
  for (const std::string name : {"bert-classifier:", "bert-span:"}) {
    const Model model = build_model(name + options + "7", 3), longer = build_model(name + options + "12", 3);
    const Segment segment = whole(model.graph, {model.graph.outputs[1]});
    const Segment longer_segment = whole(longer.graph, {longer.graph.outputs[1]});
    const Tensors tensors = first_tensors(model, segment), same = first_tensors(longer, longer_segment);
    for (int64_t seed = 0; seed < 100; ++seed) {
      CAPTURE(name, seed);
      at::manual_seed(static_cast<uint64_t>(seed));
      const at::Tensor lengths = at::randint(1, 8, {3, 1}, at::kLong);
      const at::Tensor mask = at::arange(12).lt(lengths).to(at::kLong);
      const auto scores = [&](const Segment& of, const Tensors& with, const at::Tensor& tokens,
                              int64_t count) {
        const at::Tensor cut = mask.narrow(1, 0, count);
        const at::Tensor label = at::zeros({3}, at::kLong);  // the loss is made, too
        const std::map<std::string, at::Tensor> fields = {{"labels", label},
                                                          {"starts", label},
                                                          {"ends", label},
                                                          {"tokens", tokens.narrow(1, 0, count).contiguous()},
                                                          {"mask", cut.contiguous()},
                                                          {"segments", at::zeros_like(cut)}};
        const at::Tensor made = of.forward(in_order(of.inputs(), fields), with.parameters, {}, {1, 0})[0];
        // Of spans those of what is there.
        return made.dim() == 2 ? made : made.masked_fill(cut.eq(0).unsqueeze(1), 0).narrow(2, 0, 7);
      };
      const at::Tensor tokens = at::randint(20, {3, 12}, at::kLong);
      const at::Tensor other = at::where(mask.ne(0), tokens, at::randint(20, {3, 12}, at::kLong));
      const at::Tensor first = scores(segment, tensors, tokens, 7);
      CHECK(at::equal(first, scores(segment, tensors, other, 7)));
      CHECK(at::allclose(first, scores(longer_segment, same, tokens, 12), 1e-4, 1e-5));
    }
  }
}

TEST_CASE("an untrained convnet learns a few images by heart") {
  const Model model = build_model("convnet:width=4,image=16", 8);
  const Segment segment = whole(model.graph, model.graph.outputs);
  Tensors tensors = first_tensors(model, segment);
  const auto fields = minibatch(model.graph, segment, 8, 10);
  double first = 0, last = 0;
  for (int64_t step = 0; step < 30; ++step) {
    const auto outputs = segment.forward(fields, tensors.parameters, tensors.buffers, {1, step});
    last = outputs[0].item<double>();
    if (step == 0) first = last;
    const auto gradients = torch::autograd::grad({outputs[0]}, tensors.parameters);
    for (size_t i = 0; i < gradients.size(); ++i) {
      tensors.parameters[i] = (tensors.parameters[i].detach() - 0.1 * gradients[i]).requires_grad_();
    }
  }
  CHECK(last < 0.2 * first);
}

}  // namespace
}  // namespace pipewright
