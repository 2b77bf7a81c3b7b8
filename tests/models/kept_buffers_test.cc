// Nodes that keep buffers as they are: evaluation's, and those of frozen layers.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

Argument number(double value) { return value; }

// A program that writes buffers `a` (4) and `b` (3, 4), through views of them or not, and also memory of its
// own; and what it gives when the writes into buffers are left out.
class WritingProgram {
 public:
  explicit WritingProgram(uint32_t seed) : random_(seed) {
    const auto options = at::TensorOptions(at::kFloat);
    tensors = {
        {"x", at::randn({4}, options)}, {"a", at::randn({4}, options)}, {"b", at::randn({3, 4}, options)}};
    rows_ = {"x", "a"};
    buffer_rows_ = {"a"};
    add("b_row", "aten::select", {{"self", tensor("b")}, {"dim", int64_t{0}}, {"index", int64_t{1}}}, "int");
    buffer_rows_.push_back("b_row");
    rows_.push_back("b_row");
    add("halves", "aten::view", {{"self", tensor("a")}, {"size", std::vector<int64_t>{2, 2}}});
    add("flat", "aten::reshape", {{"self", tensor("halves")}, {"shape", std::vector<int64_t>{4}}});
    buffer_rows_.push_back("flat");
    rows_.push_back("flat");
    for (int i = 0; i < 12; ++i) step("v" + std::to_string(i));
    std::vector<std::string> outputs(rows_.begin() + 2, rows_.end());
    graph = graph_of({"x"}, {}, nodes_, outputs);
    graph.buffers = {{"a", {"float32", {4}}}, {"b", {"float32", {3, 4}}}};
  }

  Graph graph;
  Tensors tensors;                          // inputs and buffers
  std::map<std::string, std::string> same;  // outputs of writes that are left out: what they are instead
  int64_t left_out = 0;

 private:
  void add(const std::string& name, const std::string& op, Arguments arguments,
           const std::string& overload = "") {
    nodes_.push_back(node(name, op, std::move(arguments), overload));
  }
  std::string any(const std::vector<std::string>& of) { return of[random_() % of.size()]; }

  void step(const std::string& name) {
    const std::string other = any(rows_);
    if (random_() % 4 == 0) {  // memory of its own, which is written all the same
      add(name + "_new", "aten::add", {{"self", tensor(any(rows_))}, {"other", tensor(other)}}, "Tensor");
      add(name, "aten::mul_", {{"self", tensor(name + "_new")}, {"other", number(1.5)}}, "Scalar");
      rows_.push_back(name);
      return;
    }
    const std::string written = any(buffer_rows_);
    ++left_out;
    same[name] = written;
    switch (random_() % 7) {
      case 0:
        add(name, "aten::mul_", {{"self", tensor(written)}, {"other", tensor(other)}}, "Tensor");
        break;
      case 1:
        add(name, "aten::add_", {{"self", tensor(written)}, {"other", tensor(other)}, {"alpha", number(0.1)}},
            "Tensor");
        break;
      case 2:
        add(name, "aten::copy_", {{"self", tensor(written)}, {"src", tensor(other)}});
        break;
      case 3:
        add(name, "aten::lerp_", {{"self", tensor(written)}, {"end", tensor(other)}, {"weight", number(0.1)}},
            "Scalar");
        break;
      case 4:
        add(name, "aten::zero_", {{"self", tensor(written)}});
        break;
      case 5:
        add(name, "aten::fill_", {{"self", tensor(written)}, {"value", number(0.5)}}, "Scalar");
        break;
      default:
        add(name + "_where", "aten::arange", {{"end", int64_t{4}}});
        add(name, "aten::index_put_",
            {{"self", tensor(written)},
             {"indices", TensorsArgument{{name + "_where"}}},
             {"values", tensor(other)}});
    }
    rows_.push_back(name);
    buffer_rows_.push_back(name);
  }

  std::mt19937 random_;
  std::vector<Node> nodes_;
  std::vector<std::string> rows_, buffer_rows_;
};

}  // namespace

TEST_CASE(
    "nodes that keep buffers write none of them, through views neither, and their readers read them as they "
    "were") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const WritingProgram program(seed);
    const Segment keeping(program.graph, all_nodes(program.graph), program.graph.outputs, at::kCPU,
                          program.graph.nodes.size());
    Tensors tensors = program.tensors;
    for (auto& [name, value] : tensors) value = value.clone();
    const auto made = run(keeping, tensors);
    for (const auto& [name, value] : tensors) CHECK(value.equal(program.tensors.at(name)));

    // The same program without these nodes.
    Graph rest = program.graph;
    std::erase_if(rest.nodes, [&](const Node& node) { return program.same.count(node.name) > 0; });
    const auto instead = [&](std::string name) {
      while (program.same.count(name) > 0) name = program.same.at(name);
      return name;
    };
    for (Node& node : rest.nodes)
      for (auto& [key, argument] : node.arguments)
        if (auto* named = std::get_if<TensorArgument>(&argument)) named->name = instead(named->name);
    std::vector<std::string> outputs;
    for (const std::string& name : program.graph.outputs) {
      const std::string now = instead(name);
      outputs.push_back(now == "a" ? "flat" : now);  // a buffer is no output; this is all of it
    }
    const auto expected = run(Segment(rest, all_nodes(rest), outputs), tensors);
    for (size_t i = 0; i < made.size(); ++i) CHECK(made[i].equal(expected[i]));
    CHECK(program.left_out > 0);
  }
}

TEST_CASE("a node that writes a buffer and makes something else writes a copy, which is thrown away") {
  const Node normed = {"norm",
                       "aten::batch_norm",
                       "",
                       {{"input", tensor("x")},
                        {"weight", NoneArgument{}},
                        {"bias", NoneArgument{}},
                        {"running_mean", tensor("mean")},
                        {"running_var", tensor("var")},
                        {"training", true},
                        {"momentum", 0.5},
                        {"eps", 1e-5},
                        {"cudnn_enabled", false}},
                       {"norm"},
                       ""};
  Graph graph = graph_of({"x"}, {}, {normed}, {"norm"});
  graph.buffers = {{"mean", {"float32", {3}}}, {"var", {"float32", {3}}}};
  const Tensors before = {{"x", at::randn({8, 3}, at::TensorOptions())},
                          {"mean", at::zeros({3}, at::TensorOptions())},
                          {"var", at::ones({3}, at::TensorOptions())}};
  Tensors kept, written;
  for (const auto& [name, value] : before) {
    kept[name] = value.clone();
    written[name] = value.clone();
  }
  const auto evaluated = run(Segment(graph, {0}, graph.outputs, at::kCPU, 1), kept);
  const auto trained = run(Segment(graph, {0}, graph.outputs), written);
  for (const auto& [name, value] : before) CHECK(kept.at(name).equal(value));
  CHECK(evaluated[0].equal(trained[0]));
  CHECK(!written.at("mean").equal(before.at("mean")));
}

TEST_CASE("only the nodes in front keep buffers") {
  const Node count =
      node("count", "aten::add_", {{"self", tensor("steps")}, {"other", int64_t{1}}}, "Scalar");
  Node again = count;
  again.name = again.outputs[0] = "again";
  Graph graph = graph_of({}, {}, {count, again}, {"again"});
  graph.buffers = {{"steps", {"int64", {}}}};
  for (const size_t keeping : {0, 1, 2}) {
    Tensors tensors = {{"steps", at::zeros({}, at::TensorOptions(at::kLong))}};
    run(Segment(graph, {0, 1}, graph.outputs, at::kCPU, keeping), tensors);
    CHECK(tensors.at("steps").item<int64_t>() == static_cast<int64_t>(2 - keeping));
  }
}

}  // namespace pipewright::testing
