// bfloat16 autocast in segments: which values change, and that losses and gradients stay close to float32.
#include "models/run/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/error.h"
#include "models/initialise.h"
#include "models/run/device_passes.h"
#include "models/run/interpreter.h"
#include "models/run/scalar_types.h"
#include "models/run/weight_copies.h"
#include "models/zoo/builder.h"
#include "models/zoo/registry.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

struct Result {
  double loss;
  std::vector<at::Tensor> gradients;
  int64_t casts;  ///< of the forward and the backward
};

// Of this thread, while it lives.
class CastCounter {
 public:
  CastCounter() {
    count_ = 0;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                                  -> std::unique_ptr<at::ObserverContext> {
                                     if (std::string(function.name()) == "aten::_to_copy") ++count_;
                                     return nullptr;
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CastCounter() { at::removeCallback(handle_); }
  CastCounter(const CastCounter&) = delete;
  CastCounter& operator=(const CastCounter&) = delete;
  int64_t count() const { return count_; }

 private:
  at::CallbackHandle handle_;
  static inline thread_local int64_t count_ = 0;
};

// `copies`: of the weights of Segment::copied().
Result train_once(const Model& model, bool copies = false) {
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
  std::vector<at::Tensor> copied(copies ? parameters.size() : 0);
  for (const size_t i : copies ? segment.copied() : std::vector<size_t>())
    copied[i] = room_for_copy(parameters[i]);
  cast_to_copies(parameters, copied);
  const CastCounter casts;
  const at::Tensor loss = segment.forward(inputs, parameters, buffers, {1, 0}, nullptr, copied)[0];
  return {loss.item<double>(),
          torch::autograd::grad({loss}, parameters, {}, std::nullopt, false, /*allow_unused=*/true),
          casts.count()};
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

TEST_CASE("weights cast once: the weights of products and convolutions are, and bits stay the same") {
  const auto [spec, all] = GENERATE(table<std::string, bool>(
      {{"mlp:layers=3,width=64", true},
       {"resnet18:classes=10,image=32", false},
       {"gpt:layers=2,width=32,heads=2,tokens=16,vocabulary=50,dropout=0.2", false},
       {"bert:layers=1,width=64,heads=2,tokens=8,positions=8,vocabulary=50", false}}));
  CAPTURE(spec);
  Model model = build_model(spec, 8);
  model.graph = with_precision(model, "bfloat16");
  const auto copied = [&] {
    const Segment segment(model.graph, all_nodes(model.graph), {model.graph.outputs[0]});
    std::set<std::string> names;
    for (const size_t i : segment.copied()) names.insert(segment.parameters()[i]);
    return names;
  };
  CHECK(copied().empty());
  const Result without = train_once(model);
  model.graph = with_device_passes(model.graph, "weights-cast-once", "bfloat16", at::kCPU);
  std::set<std::string> products;
  int64_t reads = 0;
  for (const Node& node : model.graph.nodes) {
    if (node.op != "aten::linear" && node.op != "aten::conv2d" && node.op != "aten::matmul") continue;
    for (const std::string& name : node.reads())
      for (const Parameter& parameter : model.graph.parameters)
        if (parameter.name == name) products.insert(name), ++reads;
  }
  CHECK(copied() == products);
  CHECK(products.size() > 3);
  CHECK((products.size() == model.graph.parameters.size()) == all);  // norms and tables are read as they are
  for (const bool copies : {false, true}) {
    const Result with = train_once(model, copies);
    CHECK(with.loss == without.loss);
    CHECK(with.casts == without.casts - (copies ? reads : 0));
    for (size_t i = 0; i < with.gradients.size(); ++i) {
      REQUIRE(with.gradients[i].defined() == without.gradients[i].defined());
      if (!with.gradients[i].defined()) continue;
      CHECK(with.gradients[i].scalar_type() == at::kFloat);
      CHECK(with.gradients[i].equal(without.gradients[i]));
    }
  }
  // Without autocast there is nothing to cast.
  model.graph.autocast.reset();
  CHECK(copied().empty());
}

TEST_CASE("weights cast once: nodes that are not autocast's read the weight itself, read by read") {
  ModelBuilder builder("shared", 10);
  std::string x = builder.input("images", "float32", {10});
  const std::string weight = builder.parameter("weight", {10, 10}, Initialiser::uniform(0.4));
  const auto node = [&](const std::string& op, const std::string& left, const std::string& right) {
    return builder.call(op, "", {{"input", TensorArgument{left}}, {"weight", TensorArgument{right}}},
                        {builder.type(x)})[0];
  };
  x = node("linear", x, weight);
  x = builder.call("matmul", "", {{"self", TensorArgument{x}}, {"other", TensorArgument{weight}}},
                   {builder.type(x)})[0];
  x = builder.call("mul", "Tensor", {{"self", TensorArgument{x}}, {"other", TensorArgument{weight}}},
                   {{"float32", {10, 10}}})[0];
  x = builder.gelu(node("linear", x, weight));  // with autocast off
  x = node("linear", x, weight);
  Model model = builder.finish_classification(x);
  model.graph.nodes[3].autocast = "off";
  model.graph = with_precision(model, "bfloat16");
  const Result without = train_once(model);
  model.graph = with_device_passes(model.graph, "weights-cast-once", "bfloat16", at::kCPU);
  const Result with = train_once(model, true);
  CHECK(with.loss == without.loss);
  CHECK(with.gradients[0].equal(without.gradients[0]));
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
