#include "profiler/synthetic_inputs.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "models/zoo/registry.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

TEST_CASE("synthetic labels and tokens are in range, and cover it") {
  for (const char* spec : {"convnet:classes=3", "mlp:classes=3,layers=1,width=8"}) {
    CAPTURE(spec);
    const Graph graph = build_model(spec, 256).graph;
    const auto inputs = synthetic_inputs(graph, 1);
    REQUIRE(inputs.size() == 2);
    for (size_t i = 0; i < inputs.size(); ++i)
      CHECK(inputs[i].sizes() == at::IntArrayRef(graph.values.at(graph.inputs[i]).shape));
    CHECK(inputs[0].std().item<double>() == Approx(1).margin(0.05));
    CHECK(inputs[1].scalar_type() == at::kLong);
    CHECK(inputs[1].min().item<int64_t>() == 0);
    CHECK(inputs[1].max().item<int64_t>() == 2);
  }
  const Graph gpt = build_model("gpt:layers=1,width=8,heads=1,tokens=64,vocabulary=17", 32).graph;
  for (const auto& input : synthetic_inputs(gpt, 1)) {
    CHECK(input.min().item<int64_t>() == 0);
    CHECK(input.max().item<int64_t>() == 16);
  }
}

TEST_CASE("equal seeds give equal inputs") {
  const Graph graph = build_model("convnet", 4).graph;
  CHECK(same_bits(synthetic_inputs(graph, 1)[0], synthetic_inputs(graph, 1)[0]));
  CHECK_FALSE(same_bits(synthetic_inputs(graph, 1)[0], synthetic_inputs(graph, 2)[0]));
}

}  // namespace
}  // namespace pipewright::testing
