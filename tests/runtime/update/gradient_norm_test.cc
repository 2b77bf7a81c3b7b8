// Norms of gradients, clipping, and the check for numbers that are not finite.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <thread>

#include "runtime/sync/gradient_exchange.h"
#include "runtime/transport/local.h"
#include "runtime/update/gradient_norm.h"
#include "runtime/update/update_rule.h"

using namespace pipewright;

TEST_CASE("the sum of squares is that of all numbers, whatever the dtype and the strides") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  std::vector<at::Tensor> gradients;
  double expected = 0;
  for (const int64_t size : {0, 1, 7, 16, 33, 1000, 100'003}) {
    gradients.push_back(at::randn({size}).to(type));
    expected += gradients.back().to(at::kDouble).square().sum().item<double>();
  }
  gradients.push_back(at::randn({30, 20}).to(type).t());
  expected += gradients.back().to(at::kDouble).square().sum().item<double>();
  CHECK(square_sum(gradients) == Approx(expected).epsilon(1e-12));
  CHECK(square_sum(gradients) == square_sum(gradients));
  CHECK(square_sum({}) == 0);
}

TEST_CASE("clipping scales to the norm, and only larger ones, shared memory is scaled once") {
  const at::Tensor shared = at::full({4}, 3.0);
  std::vector<at::Tensor> gradients = {shared, shared};
  const double norm = std::sqrt(8 * 9.0);
  CHECK(clipping_factor(square_sum(gradients), 100) == 1);
  scale(gradients, clipping_factor(square_sum(gradients), 1));
  CHECK(std::sqrt(square_sum(gradients)) == Approx(1).epsilon(1e-5));
  CHECK(gradients[0].allclose(at::full({4}, 3.0 / norm)));
  CHECK(gradients[1].equal(gradients[0]));
  CHECK(shared.equal(at::full({4}, 3.0)));
}

TEST_CASE("the sum over a model adds the stages in their order, the same on all ranks") {
  // Stage 0 on ranks 0 and 1, stage 1 on rank 2, stage 2 on ranks 3 and 4: replica 0 of each gives its sum.
  const std::vector<double> of_stage = {0.1, 1e17, -0.0 + 3.7};
  const std::vector<std::vector<double>> given = {
      {of_stage[0], 0, 0}, {0, 0, 0}, {0, of_stage[1], 0}, {0, 0, of_stage[2]}, {0, 0, 0}};
  auto transports = make_local_world(5);
  std::vector<double> sums(5);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 5; ++rank) {
    ranks.emplace_back([&, rank] {
      const at::Tensor by_stage = at::tensor(given[rank], at::kDouble);
      sums[rank] = square_sum_of_model(*transports[rank], {0, 1, 2, 3, 4}, 100, by_stage).item<double>();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const double sum : sums) CHECK(sum == (of_stage[0] + of_stage[1]) + of_stage[2]);
}

TEST_CASE("numbers that are not finite are found, in every dtype and place") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);
  const double bad =
      GENERATE(std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
               std::numeric_limits<double>::quiet_NaN());
  for (const int64_t place : {0, 5, 16, 99}) {
    at::Tensor tensor = at::randn({100}).to(type);
    CHECK(all_finite(tensor));
    tensor[place] = bad;
    CHECK_FALSE(all_finite(tensor));
    CHECK(last_not_finite({at::ones(3), tensor, at::ones(2)}) == std::optional<size_t>(1));
  }
  CHECK(all_finite(at::arange(5)));
  CHECK_FALSE(last_not_finite({at::ones(3)}));
}

TEST_CASE("a step tells which gradient was not finite") {
  OptimizerSettings settings;
  settings.name = GENERATE("sgd", "adam");
  const auto rule = make_update_rule(settings);
  const std::vector<at::Tensor> weights = {at::ones({40}), at::ones({300'000}), at::ones({3})};
  std::vector<at::Tensor> gradients = {at::ones({40}), at::ones({300'000}), at::ones({3})};
  rule->step(weights, gradients, 0.1);
  CHECK_FALSE(rule->not_finite());
  gradients[0][7] = std::nan("");
  gradients[1][299'999] = std::numeric_limits<float>::infinity();
  rule->step(weights, gradients, 0.1);
  REQUIRE(rule->not_finite());
  CHECK(*rule->not_finite() == 1);
  rule->step(weights, {at::ones({40}), at::ones({300'000}), at::ones({3})}, 0.1);
  CHECK_FALSE(rule->not_finite());
}
