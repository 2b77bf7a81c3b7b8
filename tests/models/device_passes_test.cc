// The operators of device passes against LibTorch's, one by one.
#include "models/run/device_passes.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"
#include "models/run/cross_entropy.h"
#include "models/run/layer_norm.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

using Gradients = std::vector<at::Tensor>;

at::Tensor linear_by_pass(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("pipewright::linear_aligned", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&)>();
  return op.call(input, weight, bias);
}

class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() { at::autocast::set_autocast_enabled(at::kCPU, false); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).to(at::kDouble).norm().item<double>() / (1e-6 + b.to(at::kDouble).norm().item<double>());
}

TEST_CASE("a linear in aligned rows is LibTorch's, twice differentiable, whatever the shapes") {
  at::manual_seed(1);
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{6}, {5, 6}, {1, 6}, {0, 6}, {2, 3, 6}, {2, 1, 3, 6}}) {
    for (const bool with_bias : {false, true}) {
      CAPTURE(sizes, with_bias);
      const at::Tensor input = at::randn(sizes, at::kDouble).requires_grad_();
      const at::Tensor weight = at::randn({13, 6}, at::kDouble).requires_grad_();
      std::optional<at::Tensor> bias;
      if (with_bias) bias = at::randn({13}, at::kDouble).requires_grad_();
      Gradients inputs = {input, weight};
      if (bias) inputs.push_back(*bias);
      const auto results = [&](const at::Tensor& output) {
        Gradients made = torch::autograd::grad({output.sin().sum()}, inputs, {}, true, true);
        const auto again = torch::autograd::grad({made[0].square().sum() + made[1].square().sum()}, inputs);
        made.insert(made.end(), again.begin(), again.end());
        made.push_back(output);
        return made;
      };
      const at::Tensor output = linear_by_pass(input, weight, bias);
      if (output.numel() > 13) CHECK(output.stride(-2) % 8 == 0);
      const Gradients with = results(output), without = results(at::linear(input, weight, bias));
      for (size_t i = 0; i < with.size(); ++i) {
        CHECK(with[i].sizes() == without[i].sizes());
        CHECK(at::allclose(with[i], without[i], 1e-10, 1e-12));
      }
    }
  }
}

TEST_CASE("a linear in aligned rows takes a gradient in such rows as it lies, and any other") {
  at::manual_seed(2);
  const Autocast autocast;
  const at::Tensor input = at::randn({2, 3, 16}).requires_grad_(),
                   weight = at::randn({13, 16}).requires_grad_();
  const at::Tensor output = linear_by_pass(input, weight, {}), expected = at::linear(input, weight);
  REQUIRE(output.scalar_type() == at::kBFloat16);
  CHECK(output.strides() == at::IntArrayRef({48, 16, 1}));
  CHECK(output.contiguous().equal(expected));
  // Finite numbers between the rows have no part in it.
  const at::Tensor wide = at::full({2, 3, 16}, 5, at::kBFloat16);
  const at::Tensor dense = at::randn({2, 3, 13}).to(at::kBFloat16);
  wide.narrow(-1, 0, 13).copy_(dense);
  for (const at::Tensor& gradient :
       {wide.narrow(-1, 0, 13), wide.narrow(0, 1, 1).narrow(-1, 0, 13).expand({2, 3, 13}), dense,
        dense.transpose(0, 1).contiguous().transpose(0, 1),
        at::ones({1}, at::kBFloat16).expand({2, 3, 13})}) {
    const auto with = torch::autograd::grad({output}, {input, weight}, {gradient}, true);
    const auto without = torch::autograd::grad({expected}, {input, weight}, {gradient}, true);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(with[i].scalar_type() == at::kFloat);
      CHECK(apart(with[i], without[i]) < 1e-2);
    }
  }
  const at::NoGradGuard no_grad;
  CHECK_FALSE(linear_by_pass(input, weight, {}).requires_grad());
  CHECK_THROWS(linear_by_pass(input, at::randn({13, 15}), {}));
  CHECK_THROWS(linear_by_pass(at::randn({}), weight, {}));
  CHECK_THROWS(linear_by_pass(input, weight, at::randn({12})));
}

TEST_CASE("a linear whose rows a view joins or divides is left as it is") {
  const auto passes_on = [](const std::string& op, std::vector<int64_t> shape) {
    Graph graph = graph_of({"x"}, {{"w", {1029, 1024}}},
                           {node("y", "aten::linear", {{"input", tensor("x")}, {"weight", tensor("w")}}),
                            node("t", "aten::transpose",
                                 {{"self", tensor("y")}, {"dim0", int64_t{0}}, {"dim1", int64_t{1}}}, "int"),
                            node("v", op, {{"self", tensor("t")}, {"size", shape}})},
                           {"v"});
    if (op == "aten::as_strided") graph.nodes[2].arguments.emplace_back("stride", std::vector<int64_t>{1});
    if (op == "aten::reshape") graph.nodes[2].arguments[1].first = "shape";
    graph.values["v"].shape = shape;
    graph = with_device_passes(graph, "aligned-products", "float32", at::kCPU);
    return OperatorsByPasses(graph).operator_for(graph.nodes[0]).has_value();
  };
  const bool passes =
      with_device_passes(Graph(), "aligned-products", "float32", at::kCPU).device_passes.size() == 1;
  REQUIRE(passes);
  CHECK(passes_on("aten::view", {6, 1029}));
  CHECK(passes_on("aten::view", {3, 2, 1, 1029}));
  CHECK_FALSE(passes_on("aten::view", {6 * 1029}));
  CHECK_FALSE(passes_on("aten::view", {6, 3, 343}));
  CHECK_FALSE(passes_on("aten::as_strided", {6174}));
  CHECK(passes_on("aten::reshape", {6 * 1029}));  // copies where it has to
}

TEST_CASE("a linear of transposed rows is one product of their copy, LibTorch's up to rounding") {
  at::manual_seed(4);
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("pipewright::linear_contiguous", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&)>();
  for (const bool casts : {false, true}) {
    const std::optional<Autocast> autocast = casts ? std::make_optional<Autocast>() : std::nullopt;
    const at::Tensor rows = at::randn({3, 5, 16}).requires_grad_(),
                     weight = at::randn({7, 16}).requires_grad_(), bias = at::randn({7}).requires_grad_();
    for (const at::Tensor& input : {rows, rows.transpose(0, 1), rows.permute({1, 0, 2}).narrow(0, 1, 2)}) {
      CAPTURE(casts, input.sizes(), input.strides());
      const at::Tensor output = op.call(input, weight, bias), expected = at::linear(input, weight, bias);
      CHECK(output.is_contiguous());
      CHECK(output.scalar_type() == expected.scalar_type());
      CHECK(apart(output, expected) < (casts ? 1e-2 : 1e-6));
      const at::Tensor gradient = at::randn_like(output);
      const auto with = torch::autograd::grad({output}, {rows, weight, bias}, {gradient}, true);
      const auto without = torch::autograd::grad({expected}, {rows, weight, bias}, {gradient}, true);
      for (size_t i = 0; i < with.size(); ++i) CHECK(apart(with[i], without[i]) < (casts ? 1e-2 : 1e-6));
    }
  }
}

TEST_CASE("a sum of a transposed and a contiguous tensor is contiguous, with the bits of LibTorch's") {
  at::manual_seed(5);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("pipewright::add_contiguous", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>();
  const at::Tensor rows = at::randn({4, 3, 5}), others = at::randn({3, 4, 5}).to(at::kBFloat16);
  const at::Tensor transposed = others.transpose(0, 1), images = at::randn({2, 3, 4, 5});
  CHECK_FALSE(at::add(transposed, rows).is_contiguous());  // which is why
  CHECK(op.call(transposed, rows, 1).is_contiguous());
  CHECK(op.call(transposed, rows, 1).equal(at::add(transposed, rows)));
  CHECK(op.call(transposed, rows, 2).equal(at::add(transposed, rows, 2)));
  CHECK(op.call(transposed, at::randn({5}), 1).strides() == transposed.strides());
  // Images stay as convolutions want them.
  const at::Tensor innermost = images.contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(op.call(innermost, images, 1).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("a view of what a pass lays otherwise is a copy where it has to be, unless somebody writes it") {
  at::manual_seed(6);
  const std::vector<Node> nodes = {
      node("c", "aten::conv2d", {{"input", tensor("x")}, {"weight", tensor("w")}}),
      node("r", "aten::relu", {{"self", tensor("c")}}),
      node("v", "aten::view", {{"self", tensor("r")}, {"size", std::vector<int64_t>{2, -1}}}),
      node("s", "aten::sum", {{"self", tensor("v")}, {"dim", std::vector<int64_t>{0}}}, "dim_IntList")};
  Graph graph = graph_of({"x"}, {{"w", {4, 3, 3, 3}}}, nodes, {"s"});
  const Tensors tensors = {{"x", at::randn({2, 3, 8, 8})}, {"w", at::randn({4, 3, 3, 3})}};
  const auto made = [&](const Graph& of) { return run(Segment(of, all_nodes(of), of.outputs), tensors)[0]; };
  const Graph passed = with_device_passes(graph, "channels-last", "float32", at::kCPU);
  CHECK(at::allclose(made(passed), made(graph), 1e-4, 1e-5));
  // Written before it is one: a copy of that. Afterwards it may be none.
  Graph earlier = graph, later = graph;
  earlier.nodes.insert(earlier.nodes.begin() + 2, node("z", "aten::neg_", {{"self", tensor("r")}}));
  later.nodes.insert(later.nodes.begin() + 3, node("z", "aten::neg_", {{"self", tensor("r")}}));
  for (Graph* of : {&earlier, &later}) of->values["z"] = {};
  const Graph passes = with_device_passes(earlier, "channels-last", "float32", at::kCPU);
  CHECK(at::allclose(made(passes), made(earlier), 1e-4, 1e-5));
  CHECK_THROWS_WITH(with_device_passes(later, "contiguous-operands", "float32", at::kCPU),
                    Catch::Contains("'v' (layer_v, aten::view) is a view of what node 'z'"));
  CHECK(with_device_passes(later, "auto", "tf32", at::Device(at::kCUDA, 0)).device_passes.empty());
}

TEST_CASE("a graph that says how its numbers lie in memory keeps them so") {
  Graph graph = graph_of(
      {"x"}, {},
      {node("y", "aten::as_strided",
            {{"self", tensor("x")}, {"size", std::vector<int64_t>{2}}, {"stride", std::vector<int64_t>{1}}})},
      {"y"});
  const std::set<std::string> left = {"aligned-products", "fused-cross-entropy", "two-stage-layer-norm",
                                      "weights-cast-once"};
  CHECK(with_device_passes(graph, "auto", "bfloat16", at::Device(at::kCUDA, 0)).device_passes == left);
  CHECK(with_device_passes(graph, "auto", "tf32", at::Device(at::kCUDA, 0)).device_passes.empty());
  CHECK_THROWS_WITH(with_device_passes(graph, "fused-cross-entropy,channels-last", "bfloat16", at::kCPU),
                    Catch::Contains("'y' (layer_y, aten::as_strided) says how its numbers lie"));
  CHECK(with_device_passes(graph, "fused-cross-entropy", "bfloat16", at::kCPU).device_passes.size() == 1);
}

// Rows of a matrix with more columns, wherever they begin.
at::Tensor drawn_scores(std::mt19937_64& draw, int64_t rows, int64_t classes, at::ScalarType dtype) {
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(draw() % limit); };
  const int64_t before = below(3), behind = below(9);
  const at::Tensor wide = at::full({rows, before + classes + behind}, NAN, dtype);
  const at::Tensor scores = wide.narrow(1, before, classes);
  scores.copy_(at::randn({rows, classes}) * 4);
  if (below(4) == 0) scores.select(1, below(static_cast<uint64_t>(classes))).fill_(-INFINITY);
  if (below(8) == 0) return scores.t().contiguous().t();  // not row by row
  if (below(8) == 0) return scores.select(0, 0).expand({rows, classes});
  return scores;
}

TEST_CASE("a fused cross entropy is LibTorch's of scores in more bits, whatever shapes, strides and labels") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 draw(seed);
    at::manual_seed(seed);
    const auto below = [&](uint64_t limit) { return static_cast<int64_t>(draw() % limit); };
    const bool half = below(2) == 0;
    const int64_t rows = 1 + below(9), classes = 1 + below(below(2) == 0 ? 300 : 12);
    const at::Tensor scores =
        drawn_scores(draw, rows, classes, half ? at::kBFloat16 : at::kFloat).detach().requires_grad_();
    const at::Tensor labels = at::randint(classes, {rows}, at::kLong);
    const int64_t ignored = below(3) == 0 ? below(static_cast<uint64_t>(classes)) : -100;
    if (ignored == -100 && below(2) == 0) labels[below(static_cast<uint64_t>(rows))] = -100;
    const int64_t reduction = below(3);
    CAPTURE(half, rows, classes, ignored, reduction);
    const std::optional<Autocast> autocast = half ? std::make_optional<Autocast>() : std::nullopt;
    const at::Tensor loss = cross_entropy_fused(scores, labels, {}, reduction, ignored, 0);
    const at::Tensor exact = scores.detach().to(at::kDouble).requires_grad_();
    const at::Tensor expected = at::cross_entropy_loss(exact, labels, {}, reduction, ignored, 0);
    CHECK(loss.scalar_type() == at::kFloat);
    CHECK(loss.sizes() == expected.sizes());
    CHECK(at::allclose(loss.to(at::kDouble), expected, 1e-5, 1e-5, /*equal_nan=*/true));
    const at::Tensor factor = at::randn(loss.sizes());
    const at::Tensor gradient = torch::autograd::grad({loss}, {scores}, {factor})[0];
    const at::Tensor their_gradient = torch::autograd::grad({expected}, {exact}, {factor.to(at::kDouble)})[0];
    CHECK(gradient.scalar_type() == scores.scalar_type());
    const int64_t behind = scores.stride(0) - classes;
    if (scores.stride(1) == 1 && 0 <= behind && behind < 8) {
      // As the scores lie, and zeros between.
      REQUIRE(gradient.stride(0) == classes + behind);
      if (behind > 0)
        CHECK(gradient.as_strided({rows, behind}, {classes + behind, 1}, classes).eq(0).all().item<bool>());
    }
    // Rows of -inf alone, and a label whose score is -inf, have no gradient that means anything.
    if (loss.isfinite().all().item<bool>() && at::logsumexp(exact, {1}).isfinite().all().item<bool>())
      CHECK(at::allclose(gradient.to(at::kDouble), their_gradient, half ? 1e-2 : 1e-4, half ? 1e-3 : 1e-6));
  }
}

TEST_CASE("a fused cross entropy leaves to LibTorch what it does not know, errors among it") {
  at::manual_seed(3);
  const at::Tensor scores = at::randn({4, 5}), labels = at::randint(5, {4}, at::kLong);
  const at::Tensor shares = at::rand({4, 5}), weights = at::rand({5});
  constexpr int64_t kMean = at::Reduction::Mean;
  const auto same = [](const at::Tensor& loss, const at::Tensor& expected) {
    return loss.scalar_type() == expected.scalar_type() && loss.equal(expected);
  };
  CHECK(same(cross_entropy_fused(scores, labels, weights, kMean, -100, 0),
             at::cross_entropy_loss(scores, labels, weights)));
  CHECK(same(cross_entropy_fused(scores, labels, {}, kMean, -100, 0.1),
             at::cross_entropy_loss(scores, labels, {}, kMean, -100, 0.1)));
  CHECK(
      same(cross_entropy_fused(scores, shares, {}, kMean, -100, 0), at::cross_entropy_loss(scores, shares)));
  CHECK(same(cross_entropy_fused(scores.to(at::kBFloat16), labels, {}, kMean, -100, 0),
             at::cross_entropy_loss(scores.to(at::kBFloat16), labels)));
  const at::Tensor images = at::randn({2, 5, 3, 3}), pixels = at::randint(5, {2, 3, 3}, at::kLong);
  CHECK(
      same(cross_entropy_fused(images, pixels, {}, kMean, -100, 0), at::cross_entropy_loss(images, pixels)));
  CHECK(std::isnan(
      cross_entropy_fused(scores, at::full({4}, -100, at::kLong), {}, kMean, -100, 0).item<float>()));
  const at::Tensor outside = at::full({4}, 5, at::kLong);
  CHECK_THROWS_WITH(cross_entropy_fused(scores, outside, {}, kMean, -100, 0),
                    Catch::Contains("Target 5 is out of bounds"));
  CHECK_THROWS(cross_entropy_fused(scores, labels.narrow(0, 0, 3), {}, kMean, -100, 0));
  const at::Tensor leaf = at::randn({4, 5}).requires_grad_();
  const at::Tensor loss = cross_entropy_fused(leaf, labels, {}, kMean, -100, 0);
  CHECK_THROWS_WITH(torch::autograd::grad({loss}, {leaf}, {}, true, /*create_graph=*/true),
                    Catch::Contains("no gradient of its gradient"));
}

at::Tensor their_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(input, weight.sizes(), weight, bias, 1e-4);
}
at::Tensor our_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return layer_norm_two_stage(input, weight.sizes(), weight, bias, 1e-4, true);
}
bool is_two_stage(const at::Tensor& output) {
  return output.requires_grad() && output.grad_fn()->name().find("LayerNormFunction") != std::string::npos;
}

TEST_CASE("a two-stage layer norm is LibTorch's, whatever shapes, and whoever needs gradients") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 draw(seed);
    at::manual_seed(seed);
    const auto below = [&](uint64_t limit) { return static_cast<int64_t>(draw() % limit); };
    std::vector<int64_t> sizes(static_cast<size_t>(below(4)));
    for (int64_t& size : sizes) size = 1 + below(6);
    sizes.push_back(1 + below(70));
    const at::Tensor input = (at::randn(sizes) * 3 + 1).requires_grad_(below(2) == 0);
    const at::Tensor weight = at::randn({sizes.back()}).requires_grad_(below(3) != 0);
    const at::Tensor bias = at::randn({sizes.back()}).requires_grad_(below(3) != 0);
    const std::optional<Autocast> autocast = below(2) == 0 ? std::make_optional<Autocast>() : std::nullopt;
    const at::Tensor output = our_norm(input, weight, bias), expected = their_norm(input, weight, bias);
    CHECK(output.equal(expected));
    CHECK(is_two_stage(output) == (weight.requires_grad() || bias.requires_grad()));
    Gradients inputs;
    for (const at::Tensor& one : {input, weight, bias})
      if (one.requires_grad()) inputs.push_back(one);
    if (inputs.empty()) continue;
    const at::Tensor factor = below(3) == 0 ? at::randn({1}).expand(sizes) : at::randn(sizes);
    const auto with = torch::autograd::grad({output}, inputs, {factor}, true);
    const auto without = torch::autograd::grad({expected}, inputs, {factor}, true);
    for (size_t i = 0; i < inputs.size(); ++i) {
      CHECK(with[i].sizes() == inputs[i].sizes());
      CHECK(at::allclose(with[i], without[i], 1e-5, 1e-5));
      // One after the other, as a backward in two parts asks.
      CHECK(torch::autograd::grad({output}, {inputs[i]}, {factor}, true)[0].equal(with[i]));
    }
  }
}

TEST_CASE("a two-stage layer norm leaves to LibTorch what it does not know, errors among it") {
  at::manual_seed(4);
  const at::Tensor input = at::randn({3, 4, 6}), weight = at::randn({6}).requires_grad_(),
                   bias = at::randn({6}).requires_grad_();
  REQUIRE(is_two_stage(our_norm(input, weight, bias)));
  const auto theirs = [](const at::Tensor& output, const at::Tensor& expected) {
    return !is_two_stage(output) && output.scalar_type() == expected.scalar_type() && output.equal(expected);
  };
  const at::Tensor across = input.transpose(0, 1), none = at::empty({0, 6});
  CHECK(theirs(our_norm(across, weight, bias), their_norm(across, weight, bias)));
  CHECK(theirs(our_norm(none, weight, bias), their_norm(none, weight, bias)));
  CHECK(theirs(layer_norm_two_stage(input, {6}, weight, {}, 1e-4, true),
               at::layer_norm(input, {6}, weight, {}, 1e-4)));
  CHECK(theirs(layer_norm_two_stage(input, {6}, {}, bias, 1e-4, true),
               at::layer_norm(input, {6}, {}, bias, 1e-4)));
  const at::Tensor wide = at::randn({4, 6}).requires_grad_();
  CHECK(theirs(our_norm(input, wide, wide), their_norm(input, wide, wide)));
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const at::Tensor cast = input.to(dtype), w = weight.detach().to(dtype).requires_grad_();
    CHECK(theirs(our_norm(cast, w, w), their_norm(cast, w, w)));
  }
  {
    const Autocast autocast;  // a CPU's leaves the numbers of a layer norm as they are
    const at::Tensor half = input.to(at::kBFloat16);
    CHECK(theirs(our_norm(half, weight, bias), their_norm(half, weight, bias)));
  }
  {
    const at::NoGradGuard no_grad;
    CHECK(theirs(our_norm(input, weight, bias), their_norm(input, weight, bias)));
  }
  {
    const c10::InferenceMode inference;
    CHECK(theirs(our_norm(input, weight, bias), their_norm(input, weight, bias)));
  }
  CHECK_THROWS_WITH(layer_norm_two_stage(input, {5}, weight, bias, 1e-4, true),
                    Catch::Contains("normalized_shape"));
  CHECK_THROWS(layer_norm_two_stage(at::randn({}), {6}, weight, bias, 1e-4, true));
  CHECK_THROWS_WITH(
      torch::autograd::grad({our_norm(input, weight, bias).sum()}, {weight}, {}, true, /*create_graph=*/true),
      Catch::Contains("no gradient of its gradient"));
}

}  // namespace
}  // namespace pipewright::testing
