#include "models/initialise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "graph/error.h"
#include "models/run/scalar_types.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

using Kind = Initialiser::Kind;

Model model_of(const std::vector<std::pair<std::string, TensorType>>& parameters, Initialiser initialiser) {
  Model model;
  for (const auto& [name, type] : parameters) {
    model.graph.parameters.push_back({name, type, true});
    model.parameter_initialisers.push_back(initialiser);
  }
  return model;
}

TEST_CASE("a first value depends on seed and name only") {
  const TensorType type{"float32", {33, 7}};
  const Model small = model_of({{"a", type}}, {Kind::kUniform, -1, 1});
  const Model large = model_of({{"z", type}, {"b", type}, {"a", type}}, {Kind::kUniform, -1, 1});
  const at::Tensor a = initial_parameter(small, "a", 1);
  CHECK(same_bits(a, initial_parameter(large, "a", 1)));
  CHECK_FALSE(same_bits(a, initial_parameter(large, "b", 1)));
  CHECK_FALSE(same_bits(a, initial_parameter(small, "a", 2)));
  CHECK(a.is_contiguous());
  CHECK_FALSE(a.requires_grad());
  CHECK(a.sizes() == at::IntArrayRef{33, 7});
}

TEST_CASE("the thread count does not matter, nor does the size") {
  const Model model = model_of({{"w", {"float32", {300001}}}}, {Kind::kNormal, 0, 1});
  const Model shorter = model_of({{"w", {"float32", {1001}}}}, {Kind::kNormal, 0, 1});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = initial_parameter(model, "w", 3);
  at::set_num_threads(3);
  const at::Tensor three = initial_parameter(model, "w", 3);
  at::set_num_threads(threads);
  CHECK(same_bits(one, three));
  CHECK(same_bits(one.slice(0, 0, 1001), initial_parameter(shorter, "w", 3)));
}

TEST_CASE("first values have the distribution asked for") {
  const int64_t n = 1 << 20;
  SECTION("normal") {
    const at::Tensor w =
        initial_parameter(model_of({{"w", {"float32", {n}}}}, {Kind::kNormal, 2, 0.5}), "w", 1);
    const at::Tensor z = (w.to(at::kDouble) - 2) / 0.5;
    CHECK(z.mean().item<double>() == Approx(0).margin(0.005));
    CHECK(z.std().item<double>() == Approx(1).margin(0.005));
    // The share below each quantile, by the error function: an oracle that the generator does not use.
    for (const double x : {-3.5, -2.0, -1.0, -0.3, 0.0, 0.7, 1.5, 2.5, 4.0}) {
      const double share = (z < x).sum().item<double>() / n;
      CHECK(share == Approx(0.5 * std::erfc(-x / std::sqrt(2.0))).margin(0.002));
    }
    CHECK(z.abs().max().item<double>() > 4.0);
    CHECK(z.abs().max().item<double>() < 6.5);
  }
  SECTION("uniform") {
    const at::Tensor w =
        initial_parameter(model_of({{"w", {"float64", {n}}}}, {Kind::kUniform, -3, 1}), "w", 1);
    CHECK(w.min().item<double>() > -3);
    CHECK(w.max().item<double>() < 1);
    CHECK(w.mean().item<double>() == Approx(-1).margin(0.01));
    CHECK(w.std().item<double>() == Approx(4 / std::sqrt(12.0)).margin(0.01));
    // Neighbours know nothing of each other.
    const at::Tensor c = w + 1;
    CHECK((c.slice(0, 1) * c.slice(0, 0, -1)).mean().item<double>() == Approx(0).margin(0.01));
  }
  SECTION("constant, in any type") {
    for (const char* dtype : {"float32", "bfloat16", "int64", "bool"}) {
      const at::Tensor w =
          initial_parameter(model_of({{"w", {dtype, {3}}}}, {Kind::kConstant, 1, 0}), "w", 1);
      CHECK(dtype_name_of(w.scalar_type()) == dtype);
      CHECK(w.to(at::kDouble).sum().item<double>() == 3);
    }
  }
}

TEST_CASE("buffers start without a seed") {
  Model model;
  model.graph.buffers = {{"norm.running_var", {"float32", {4}}}};
  model.buffer_initialisers = {{Kind::kConstant, 1, 0}};
  CHECK(same_bits(initial_buffer(model, "norm.running_var"), at::ones({4})));
}

TEST_CASE("unknown names and dtypes are said with the nearest") {
  const Model model = model_of({{"features.0.weight", {"float32", {1}}}}, {});
  CHECK_THROWS_WITH(initial_parameter(model, "feature.0.weight", 1),
                    Catch::Contains("no parameter 'feature.0.weight'; did you mean 'features.0.weight'?"));
  CHECK_THROWS_AS(initial_buffer(model, "x"), InputError);
  CHECK_THROWS_WITH(scalar_type_of("float23"), Catch::Contains("'float32'"));
  CHECK(scalar_type_of("bfloat16") == at::kBFloat16);
  CHECK(dtype_name_of(at::kByte) == "uint8");
  CHECK_THROWS_AS(dtype_name_of(at::kComplexDouble), InputError);
}

}  // namespace
}  // namespace pipewright::testing
