// The interpreter against direct calls of the same operators.
#include "models/run/interpreter.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "models/memory/memory_meter.h"
#include "tests/models/hand_graph.h"
#include "tests/support/long.h"

namespace pipewright::testing {
namespace {

std::vector<at::Tensor> gradients(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  return torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
}

TEST_CASE("forward and gradients are those of direct calls, bit for bit") {
  const Graph graph =
      graph_of({"x", "y"}, {{"a.weight", {16, 12}}, {"a.bias", {16}}, {"b.weight", {5, 16}}},
               {node("a", "aten::linear",
                     {{"input", tensor("x")}, {"weight", tensor("a.weight")}, {"bias", tensor("a.bias")}}),
                node("r", "aten::gelu", {{"self", tensor("a")}, {"approximate", std::string("tanh")}}),
                node("b", "aten::linear", {{"input", tensor("r")}, {"weight", tensor("b.weight")}}),
                node("loss", "aten::cross_entropy_loss",
                     {{"self", tensor("b")}, {"target", tensor("y")}, {"label_smoothing", 0.1}})},
               {"loss", "b"});
  Tensors t;
  for (const auto& p : graph.parameters) t[p.name] = at::randn(p.type.shape).requires_grad_();
  t["x"] = at::randn({8, 12});
  t["y"] = at::randint(5, {8}, at::kLong);

  const Segment whole(graph, all_nodes(graph), graph.outputs);
  CHECK(whole.inputs() == std::vector<std::string>{"x", "y"});
  CHECK(whole.parameters() == std::vector<std::string>{"a.weight", "a.bias", "b.weight"});
  CHECK(whole.buffers().empty());
  const auto results = run(whole, t);

  const auto scores =
      at::linear(at::gelu(at::linear(t["x"], t["a.weight"], t["a.bias"]), "tanh"), t["b.weight"]);
  const auto loss = at::cross_entropy_loss(scores, t["y"], {}, at::Reduction::Mean, -100, 0.1);
  CHECK(same_bits(results[0], loss));
  CHECK(same_bits(results[1], scores));
  const auto leaves = pick(t, whole.parameters());
  const auto expected = gradients(loss, leaves);
  const auto got = gradients(results[0], leaves);
  for (size_t i = 0; i < leaves.size(); ++i) CHECK(same_bits(got[i], expected[i]));
}

TEST_CASE("literals become what the schema wants") {
  Tensors t{{"x", at::arange(24, at::kFloat).reshape({2, 3, 4})}, {"i", at::tensor({1, 0}, at::kLong)}};
  const auto one = [&](const Node& n, const std::vector<std::string>& inputs = {"x"}) {
    const Graph graph = graph_of(inputs, {}, {n}, n.outputs);
    return run(Segment(graph, {0}, n.outputs), t);
  };
  const at::Tensor& x = t["x"];
  using Ints = std::vector<int64_t>;

  SECTION("an integer where a Scalar or a float is wanted, and a number for a Scalar") {
    CHECK(same_bits(one(node("n", "aten::add", {{"self", tensor("x")}, {"other", int64_t{2}}}, "Scalar"))[0],
                    x + 2));
    CHECK(same_bits(one(node("n", "aten::mul", {{"self", tensor("x")}, {"other", 0.5}}, "Scalar"))[0],
                    x * 0.5));
    CHECK(
        same_bits(one(node("n", "aten::layer_norm",
                           {{"input", tensor("x")}, {"normalized_shape", Ints{4}}, {"eps", int64_t{1}}}))[0],
                  at::layer_norm(x, {4}, {}, {}, 1.0)));
    CHECK(same_bits(one(node("n", "aten::clamp",
                             {{"self", tensor("x")}, {"min", NoneArgument{}}, {"max", int64_t{5}}}))[0],
                    at::clamp(x, {}, 5)));
  }
  SECTION("dtypes, devices, memory formats") {
    CHECK(one(node("n", "aten::to", {{"self", tensor("x")}, {"dtype", DtypeArgument{"float64"}}}, "dtype"))[0]
              .scalar_type() == at::kDouble);
    CHECK(one(node("n", "aten::sum", {{"self", tensor("x")}, {"dtype", DtypeArgument{"int64"}}}))[0]
              .scalar_type() == at::kLong);
    CHECK(same_bits(one(node("n", "aten::zeros",
                             {{"size", Ints{2, 2}},
                              {"dtype", DtypeArgument{"bfloat16"}},
                              {"device", std::string("cpu")},
                              {"pin_memory", false}}),
                        {})[0],
                    at::zeros({2, 2}, at::kBFloat16)));
    CHECK(
        same_bits(one(node("n", "aten::clone",
                           {{"self", tensor("x")}, {"memory_format", std::string("contiguous_format")}}))[0],
                  x));
  }
  SECTION("lists: of integers, numbers, one number for all, empty") {
    CHECK(same_bits(one(node("n", "aten::permute", {{"self", tensor("x")}, {"dims", Ints{2, 0, 1}}}))[0],
                    x.permute({2, 0, 1})));
    CHECK(
        same_bits(one(node("n", "aten::avg_pool2d", {{"self", tensor("x")}, {"kernel_size", int64_t{2}}}))[0],
                  at::avg_pool2d(x, {2, 2})));
    CHECK(same_bits(
        one(node("n", "aten::avg_pool2d",
                 {{"self", tensor("x")}, {"kernel_size", Ints{2, 2}}, {"stride", std::vector<bool>{}}}))[0],
        at::avg_pool2d(x, {2, 2})));
    CHECK(same_bits(one(node("n", "aten::mean",
                             {{"self", tensor("x")}, {"dim", Ints{1, 2}}, {"keepdim", true}}, "dim"))[0],
                    x.mean({1, 2}, true)));
    CHECK(same_bits(one(node("n", "aten::upsample_nearest1d",
                             {{"input", tensor("x")},
                              {"output_size", NoneArgument{}},
                              {"scale_factors", std::vector<double>{2.0}}},
                             "vec"))[0],
                    at::upsample_nearest1d(x, at::OptionalIntArrayRef(), std::vector<double>{2.0})));
  }
  SECTION("lists of tensors, with gaps where the schema allows them") {
    CHECK(same_bits(
        one(node("n", "aten::cat", {{"tensors", TensorsArgument{{"x", "x"}}}, {"dim", int64_t{1}}}))[0],
        at::cat({x, x}, 1)));
    CHECK(same_bits(one(node("n", "aten::index",
                             {{"self", tensor("x")}, {"indices", TensorsArgument{{"", "i"}}}}, "Tensor"),
                        {"x", "i"})[0],
                    x.index_select(1, t["i"])));
  }
  SECTION("an operator that makes a list makes one value per element") {
    Node split = node("n", "aten::split",
                      {{"self", tensor("x")}, {"split_size", int64_t{2}}, {"dim", int64_t{2}}}, "Tensor");
    split.outputs = {"left", "right"};
    const auto parts = one(split);
    CHECK(same_bits(parts[0], x.slice(2, 0, 2)));
    CHECK(same_bits(parts[1], x.slice(2, 2, 4)));
  }
  SECTION("several outputs, some of them unread") {
    Node top = node("n", "aten::topk", {{"self", tensor("x")}, {"k", int64_t{2}}});
    top.outputs = {"values", "indices"};
    const Graph graph = graph_of({"x"}, {}, {top}, {"indices"});
    CHECK(same_bits(run(Segment(graph, {0}, {"indices"}), t)[0], std::get<1>(at::topk(x, 2))));
  }
}

TEST_CASE("a segment runs under the caller's grad mode") {
  const Graph graph = small_convnet();
  const Segment whole(graph, all_nodes(graph), graph.outputs);
  CHECK(run(whole, small_convnet_tensors())[0].requires_grad());
  const at::NoGradGuard guard;
  CHECK_FALSE(run(whole, small_convnet_tensors())[0].requires_grad());
}

TEST_CASE("inputs that a segment only relays are passed through, also those it reads and those named twice") {
  const Graph graph = small_convnet();
  const Tensors given = {{"relu", at::randn({2, 2})}, {"dropout", at::randn({1, 3, 4, 4})}};
  Tensors t = small_convnet_tensors();
  t.insert(given.begin(), given.end());
  const Segment segment(graph, {4}, {"relu", "conv2", "dropout", "relu"});
  CHECK(segment.inputs() == std::vector<std::string>{"relu", "dropout"});  // graph order
  const auto results = run(segment, t);
  CHECK(results[0].is_same(given.at("relu")));
  CHECK(results[2].is_same(given.at("dropout")));
  CHECK(results[3].is_same(given.at("relu")));
  CHECK(results[1].sizes() == at::IntArrayRef{1, 3, 4, 4});

  const Segment empty(graph, {}, {"relu"});
  CHECK(run(empty, t)[0].is_same(given.at("relu")));
}

TEST_CASE("values and inputs are dropped after their last use") {
  constexpr int64_t kBytes = 1 << 20;
  std::vector<Node> nodes;
  for (int i = 0; i < 8; ++i)
    nodes.push_back(node("v" + std::to_string(i), "aten::relu",
                         {{"self", tensor(i ? "v" + std::to_string(i - 1) : "x")}}));
  nodes.push_back(node("sum", "aten::sum", {{"self", tensor("v7")}}));
  const Graph graph = graph_of({"x"}, {}, nodes, {"sum"});
  const Segment segment(graph, all_nodes(graph), {"sum"});
  MemoryMeter meter;
  const MemoryMeter::Attached attached(meter);
  std::vector<at::Tensor> inputs = {at::ones({kBytes / 4})};
  std::vector<int64_t> live;
  NodeObserver observer;
  observer.after = [&](size_t) { live.push_back(meter.live_bytes()); };
  const at::NoGradGuard guard;
  const auto results = segment.forward(std::move(inputs), {}, {}, {}, &observer);
  CHECK(live.size() == nodes.size());
  for (size_t i = 0; i + 1 < live.size(); ++i) CHECK(live[i] == kBytes);  // each time only the newest
  CHECK(live.back() < 1024);
  CHECK(meter.peak_bytes() == 2 * kBytes);
  CHECK(results[0].item<float>() == kBytes / 4);
}

TEST_CASE("what is asked for is kept to the end, also when it is read on the way") {
  const Graph graph =
      graph_of({"x"}, {},
               {node("a", "aten::relu", {{"self", tensor("x")}}),
                node("b", "aten::add", {{"self", tensor("a")}, {"other", tensor("a")}}, "Tensor"),
                node("c", "aten::neg", {{"self", tensor("b")}})},
               {"c"});
  const Tensors t{{"x", at::randn({5})}};
  const auto results = run(Segment(graph, {0, 1, 2}, {"a", "c", "a"}), t);
  CHECK(same_bits(results[0], at::relu(t.at("x"))));
  CHECK(same_bits(results[1], -2 * at::relu(t.at("x"))));
  CHECK(results[2].is_same(results[0]));
}

/// Runs the graph as segments cut before the positions in `cuts`, as stages do it: what crosses is detached,
/// and the backward passes are chained by hand. Returns the loss, then the gradient of each parameter.
std::vector<at::Tensor> run_in_pieces(const Graph& graph, Tensors t, const std::vector<size_t>& cuts,
                                      RandomKey key) {
  std::vector<size_t> bounds = {0};
  bounds.insert(bounds.end(), cuts.begin(), cuts.end());
  bounds.push_back(graph.nodes.size());
  std::map<std::string, size_t> last_reader;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    for (const auto& [name, argument] : graph.nodes[i].arguments)
      if (const auto* one = std::get_if<TensorArgument>(&argument)) last_reader[one->name] = i;

  struct Piece {
    std::vector<std::string> inputs, outputs, parameters;
    std::vector<at::Tensor> input_tensors, output_tensors;
  };
  std::vector<Piece> pieces;
  Tensors values = t;
  std::set<std::string> crossing;
  for (size_t p = 0; p + 1 < bounds.size(); ++p) {
    for (size_t i = bounds[p]; i < bounds[p + 1]; ++i)
      for (const auto& name : graph.nodes[i].outputs) crossing.insert(name);
    std::vector<std::string> outputs;
    for (const auto& name : crossing)
      if (name == "loss" || last_reader[name] >= bounds[p + 1]) outputs.push_back(name);
    const Segment segment(graph, range(bounds[p], bounds[p + 1]), outputs);
    Piece piece{segment.inputs(), outputs, segment.parameters(), {}, {}};
    for (const auto& name : piece.inputs) {
      at::Tensor value = values.at(name).detach();
      if (!t.count(name)) value.requires_grad_();
      piece.input_tensors.push_back(value);
    }
    piece.output_tensors =
        segment.forward(piece.input_tensors, pick(t, piece.parameters), pick(t, segment.buffers()), key);
    for (size_t i = 0; i < outputs.size(); ++i) values[outputs[i]] = piece.output_tensors[i];
    pieces.push_back(std::move(piece));
    crossing = std::set<std::string>(outputs.begin(), outputs.end());
  }

  Tensors gradient_of, parameter_gradients;
  for (size_t p = pieces.size(); p-- > 0;) {
    Piece& piece = pieces[p];
    std::vector<at::Tensor> roots, root_gradients, leaves;
    std::vector<std::string> names;
    for (size_t i = 0; i < piece.outputs.size(); ++i) {
      if (piece.outputs[i] != "loss" && !gradient_of.count(piece.outputs[i])) continue;
      roots.push_back(piece.output_tensors[i]);
      root_gradients.push_back(piece.outputs[i] == "loss" ? at::Tensor() : gradient_of.at(piece.outputs[i]));
    }
    for (size_t i = 0; i < piece.inputs.size(); ++i)
      if (piece.input_tensors[i].requires_grad())
        names.push_back(piece.inputs[i]), leaves.push_back(piece.input_tensors[i]);
    for (const auto& name : piece.parameters) names.push_back(name), leaves.push_back(t.at(name));
    if (leaves.empty()) continue;
    const auto found = torch::autograd::grad(roots, leaves, root_gradients, std::nullopt, false, true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (t.count(names[i]))
        parameter_gradients[names[i]] = found[i];
      else
        gradient_of[names[i]] = found[i];
    }
  }
  std::vector<at::Tensor> results = {values.at("loss").detach()};
  for (const auto& parameter : graph.parameters) results.push_back(parameter_gradients.at(parameter.name));
  return results;
}

TEST_CASE("a graph cut anywhere gives the loss, gradients and buffers of the whole, bit for bit") {
  const Graph graph = small_convnet();
  const RandomKey key{3, 11};
  const Tensors reference = small_convnet_tensors();
  const auto expected = run_in_pieces(graph, reference, {}, key);

  const Tensors again = small_convnet_tensors();
  const auto loss = run(Segment(graph, all_nodes(graph), graph.outputs), again, key)[0];
  CHECK(same_bits(loss.detach(), expected[0]));

  std::vector<std::vector<size_t>> cuttings;
  for (size_t cut = 1; cut < graph.nodes.size(); ++cut) cuttings.push_back({cut});
  std::mt19937 random(5);
  for (int i = 0; i < (testing::is_long() ? 200 : 60); ++i) {
    std::vector<size_t> cuts;
    for (size_t cut = 1; cut < graph.nodes.size(); ++cut)
      if (random() % 3 == 0) cuts.push_back(cut);
    cuttings.push_back(cuts);
  }
  for (const auto& cuts : cuttings) {
    const Tensors t = small_convnet_tensors();
    const auto got = run_in_pieces(graph, t, cuts, key);
    CAPTURE(cuts);
    for (size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(got[i], expected[i]));
    CHECK(same_bits(t.at("norm.running_mean"), reference.at("norm.running_mean")));
  }
}

TEST_CASE("an observer sees every node once, in order") {
  const Graph graph = small_convnet();
  const Segment segment(graph, {0, 1, 2}, {"relu"});
  CHECK(segment.nodes() == std::vector<size_t>{0, 1, 2});
  std::string seen;
  NodeObserver observer;
  observer.before = [&](size_t i) { seen += "<" + std::to_string(i); };
  observer.after = [&](size_t i) { seen += ">" + std::to_string(i); };
  const Tensors t = small_convnet_tensors();
  segment.forward(pick(t, segment.inputs()), pick(t, segment.parameters()), pick(t, segment.buffers()), {},
                  &observer);
  CHECK(seen == "<0>0<1>1<2>2");
}

}  // namespace
}  // namespace pipewright::testing
