// Random numbers belong to (seed, minibatch, node), not to the order of execution.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <thread>

#include "models/run/random_key.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

Node dropout(const std::string& name, const std::string& input) {
  return node(name, "aten::dropout", {{"input", tensor(input)}, {"p", 0.5}, {"train", true}});
}

TEST_CASE("equal keys draw equal numbers, another seed, minibatch or node draws others") {
  const Graph graph = graph_of({"x"}, {}, {dropout("a", "x"), dropout("b", "x")}, {"a", "b"});
  const Tensors t{{"x", at::ones({4096})}};
  const Segment both(graph, {0, 1}, {"a", "b"});
  const auto first = run(both, t, {1, 5});
  CHECK_FALSE(same_bits(first[0], first[1]));
  at::rand({3});  // somebody else draws in between
  const auto again = run(both, t, {1, 5});
  CHECK(same_bits(first[0], again[0]));
  CHECK(same_bits(first[1], again[1]));
  CHECK_FALSE(same_bits(first[0], run(both, t, {1, 6})[0]));
  CHECK_FALSE(same_bits(first[0], run(both, t, {2, 5})[0]));
  CHECK(same_bits(first[1], run(Segment(graph, {1}, {"b"}), t, {1, 5})[0]));

  const int64_t threads = at::get_num_threads();
  at::set_num_threads(2);
  CHECK(same_bits(first[0], run(both, t, {1, 5})[0]));
  at::set_num_threads(static_cast<int>(threads));
  // Half of the elements survive: the mask is no artefact of seeding.
  const double kept = (first[0] != 0).sum().item<double>() / 4096;
  CHECK(kept == Approx(0.5).margin(0.05));
}

TEST_CASE("in-place and library-wide random operators are keyed too") {
  const Graph graph = graph_of(
      {"x"}, {},
      {node("e", "aten::empty_like", {{"self", tensor("x")}}),
       node("m", "aten::bernoulli_", {{"self", tensor("e")}, {"p", 0.25}}, "float"),
       node("r", "aten::rand_like", {{"self", tensor("x")}}),
       node("s", "aten::scaled_dot_product_attention",
            {{"query", tensor("x")}, {"key", tensor("x")}, {"value", tensor("x")}, {"dropout_p", 0.5}}),
       node("l", "aten::rrelu", {{"self", tensor("x")}, {"training", true}})},
      {"m", "r", "s", "l"});
  const Segment segment(graph, all_nodes(graph), graph.outputs);
  const Tensors t{{"x", -at::ones({1, 2, 16, 8})}};
  const auto first = run(segment, t, {9, 1});
  at::rand({17});
  const auto again = run(segment, t, {9, 1});
  const auto other = run(segment, t, {9, 2});
  for (size_t i = 0; i < first.size(); ++i) {
    CAPTURE(graph.outputs[i]);
    CHECK(same_bits(first[i], again[i]));
    CHECK_FALSE(same_bits(first[i], other[i]));
  }
}

TEST_CASE("operators that draw nothing leave the generator alone") {
  const Graph graph =
      graph_of({"x"}, {},
               {node("a", "aten::dropout", {{"input", tensor("x")}, {"p", 0.5}, {"train", false}}),
                node("b", "aten::scaled_dot_product_attention",
                     {{"query", tensor("a")}, {"key", tensor("a")}, {"value", tensor("a")}})},
               {"b"});
  const Segment segment(graph, {0, 1}, {"b"});
  at::Generator(at::detail::getDefaultCPUGenerator()).set_current_seed(12345);
  const at::Tensor expected = at::rand({4});
  at::Generator(at::detail::getDefaultCPUGenerator()).set_current_seed(12345);
  run(segment, {{"x", at::ones({1, 1, 4, 8})}}, {1, 1});
  CHECK(same_bits(at::rand({4}), expected));
}

TEST_CASE("ranks that are threads of one process do not disturb each other's streams") {
  const Graph graph = graph_of({"x"}, {}, {dropout("a", "x"), dropout("b", "a"), dropout("c", "b")}, {"c"});
  const Tensors t{{"x", at::ones({512})}};
  const Segment reference(graph, all_nodes(graph), {"c"});
  std::vector<at::Tensor> expected;
  for (int64_t k = 0; k < 50; ++k) expected.push_back(run(reference, t, {1, k})[0]);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const Segment mine(graph, all_nodes(graph), {"c"});
      for (int64_t k = 0; k < 50; ++k) wrong[rank] += !same_bits(run(mine, t, {1, k})[0], expected[k]);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("stream keys depend on each of their parts") {
  const uint64_t key = stream_key(1, 2, name_hash("a"));
  CHECK(key == stream_key(1, 2, name_hash("a")));
  CHECK(key != stream_key(2, 2, name_hash("a")));
  CHECK(key != stream_key(1, 3, name_hash("a")));
  CHECK(key != stream_key(1, 2, name_hash("b")));
}

}  // namespace
}  // namespace pipewright::testing
