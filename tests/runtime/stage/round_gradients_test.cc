// Gradients of a round: taken where nobody else has their memory, copied otherwise; sums, and places.
#include "runtime/stage/round_gradients.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

namespace pipewright::testing {
namespace {

TEST_CASE(
    "round gradients: a view of a view is taken where nobody else has its memory, and copied otherwise") {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = {at::zeros({3, 4})};
  at::Tensor product = at::rand({3, 4});
  const at::Tensor numbers = product.clone();
  at::Tensor gradient = product.t().t();  // as autograd hands out that of a weight which was read transposed
  const void* const memory = product.data_ptr();

  RoundGradients shared(weights);
  shared.add(0, gradient);  // the product and our view are still there
  CHECK(shared.all()[0].data_ptr() != memory);
  CHECK(at::equal(shared.all()[0], numbers));

  product.reset();
  RoundGradients alone(weights);
  alone.add(0, std::move(gradient));
  CHECK(alone.all()[0].data_ptr() == memory);
  CHECK(at::equal(alone.all()[0], numbers));
  alone.add(0, at::ones({3, 4}));
  CHECK(at::equal(alone.all()[0], numbers + 1));
  alone.divide(2);
  CHECK(at::equal(alone.all()[0], (numbers + 1) / 2));

  RoundGradients spread(weights);
  spread.add(0, at::ones({1, 1}).expand({3, 4}));
  CHECK(spread.all()[0].is_contiguous());
  CHECK(at::equal(spread.all()[0], at::ones({3, 4})));
}

}  // namespace
}  // namespace pipewright::testing
