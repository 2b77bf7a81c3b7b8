// bfloat16 autocast in segments: which values change, and that losses and gradients stay close to float32.
#include "models/run/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/error.h"
#include "models/initialise.h"
#include "models/run/device_passes.h"
#include "models/run/interpreter.h"
#include "models/run/scalar_types.h"
#include "models/zoo/registry.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

struct Result {
  double loss;
  std::vector<at::Tensor> gradients;
};

Result train_once(const Model& model) {
  const Segment segment(model.graph, all_nodes(model.graph), {model.graph.outputs[0]});
  std::vector<at::Tensor> inputs, parameters, buffers;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  for (const auto& name : segment.inputs()) {
    const TensorType& type = model.graph.values.at(name);
    inputs.push_back(type.dtype == "int64" ? at::randint(10, type.shape, generator, at::kLong)
                                           : at::randn(type.shape, generator, at::TensorOptions()));
  }
  for (const auto& name : segment.parameters()) {
    parameters.push_back(initial_parameter(model, name, 1).requires_grad_());
  }
  for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(model, name));
  const at::Tensor loss = segment.forward(inputs, parameters, buffers, {1, 0})[0];
  return {loss.item<double>(),
          torch::autograd::grad({loss}, parameters, {}, std::nullopt, false, /*allow_unused=*/true)};
}

TEST_CASE("passes of devices give the numbers of the graph without, to rounding, and can be left out") {
  const auto [spec, pass, rounding] = GENERATE(table<std::string, std::string, double>(
      {{"convnet", "channels-last", 1e-4},
       {"gpt:layers=1,width=64,heads=2,tokens=8,vocabulary=16387", "aligned-products", 1e-5},
       {"mlp:layers=2,width=1030", "aligned-products", 1e-5},
       {"bert:layers=1,width=64,heads=2,tokens=8,positions=8,vocabulary=50", "contiguous-operands", 1e-5},
       {"gpt:layers=1,width=64,heads=2,tokens=8,vocabulary=50", "fused-cross-entropy", 1e-5},
       {"gpt:layers=1,width=64,heads=2,tokens=8,vocabulary=50", "two-stage-layer-norm", 1e-5},
       {"bert:layers=1,width=64,heads=2,tokens=8,positions=8,vocabulary=16387",
        "aligned-products,fused-cross-entropy", 1e-5}}));
  const std::string precision = GENERATE("float32", "bfloat16");
  CAPTURE(spec, pass, precision);
  Model model = build_model(spec, 8);
  model.graph = with_precision(model, precision);
  const std::string digest = document_digest(model.graph);
  const Result without = train_once(model);
  model.graph = with_device_passes(model.graph, pass, precision, at::kCPU);
  CHECK(document_digest(model.graph) == digest);
  size_t changed = 0;
  OperatorsByPasses operators(model.graph);
  for (const Node& node : model.graph.nodes) changed += operators.operator_for(node) ? 1 : 0;
  CHECK(changed > 0);
  const Result with = train_once(model);
  const double allowed = precision == "float32" ? rounding : 2e-2;
  CHECK(with.loss == Approx(without.loss).epsilon(allowed));
  for (size_t i = 0; i < with.gradients.size(); ++i) {
    REQUIRE(with.gradients[i].defined());
    CHECK(with.gradients[i].sizes() == without.gradients[i].sizes());
    const double apart = (with.gradients[i] - without.gradients[i]).norm().item<double>();
    CHECK(apart <= 10 * allowed * (1e-3 + without.gradients[i].norm().item<double>()));
  }
  CHECK(with_device_passes(model.graph, "none", precision, at::kCPU).device_passes.empty());
  CHECK(with_device_passes(model.graph, "auto", precision, at::kCPU).device_passes.empty());
  CHECK(with_device_passes(model.graph, "auto", "bfloat16", at::Device(at::kCUDA, 0)).device_passes ==
        std::set<std::string>(known_device_passes().begin(), known_device_passes().end()));
  CHECK_THROWS_WITH(with_device_passes(model.graph, "chanels-last", precision, at::kCPU),
                    Catch::Contains("did you mean 'channels-last'"));
}

TEST_CASE("bfloat16: losses and gradients close to float32's, weights and gradients stay float32") {
  const std::string spec = GENERATE("mlp:layers=3,width=64", "convnet", "resnet18:classes=10,image=32",
                                    "gpt:layers=2,width=32,heads=2,tokens=16,vocabulary=50");
  CAPTURE(spec);
  Model model = build_model(spec, 8);
  const std::string digest = document_digest(model.graph);
  const Result exact = train_once(model);
  model.graph = with_precision(model, "bfloat16");
  CHECK(document_digest(model.graph) == digest);
  REQUIRE(model.graph.autocast);
  CHECK_FALSE(model.graph.autocast->empty());
  const Result rounded = train_once(model);
  CHECK(rounded.loss != exact.loss);
  CHECK(rounded.loss == Approx(exact.loss).epsilon(0.02));
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    if (!exact.gradients[i].defined()) continue;
    CHECK(rounded.gradients[i].scalar_type() == at::kFloat);
    difference += (rounded.gradients[i] - exact.gradients[i]).square().sum().item<double>();
    norm += exact.gradients[i].square().sum().item<double>();
  }
  // Batch norms over a handful of numbers magnify roundings: there the loss has to do.
  if (model.graph.buffers.empty()) CHECK(difference < 0.1 * 0.1 * norm);
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("bfloat16: the computed types are those that the nodes make") {
  Model model = build_model("convnet", 4);
  const Graph plain = with_precision(model, "float32");
  CHECK_FALSE(plain.autocast);
  model.graph = with_precision(model, "bfloat16");
  const Segment segment(model.graph, all_nodes(model.graph), {model.graph.outputs[0]});
  NodeObserver observer;
  int64_t bfloat16s = 0;
  observer.made = [&](size_t node, size_t output, const at::Tensor& tensor) {
    const std::string& name = model.graph.nodes[node].outputs[output];
    CHECK(dtype_name_of(tensor.scalar_type()) == model.graph.computed_type(name).dtype);
    bfloat16s += tensor.scalar_type() == at::kBFloat16;
  };
  std::vector<at::Tensor> inputs, parameters, buffers;
  for (const auto& name : segment.inputs()) {
    const TensorType& type = model.graph.values.at(name);
    inputs.push_back(at::zeros(type.shape, at::TensorOptions(scalar_type_of(type.dtype))));
  }
  for (const auto& name : segment.parameters()) parameters.push_back(initial_parameter(model, name, 1));
  for (const auto& name : segment.buffers()) buffers.push_back(initial_buffer(model, name));
  segment.forward(inputs, parameters, buffers, {}, &observer);
  CHECK(bfloat16s > 3);
  CHECK_THROWS_AS(with_precision(model, "bfloat61"), InputError);
  CHECK_THROWS_AS(with_precision(model, "tf32"), InputError);
}

}  // namespace
}  // namespace pipewright::testing
