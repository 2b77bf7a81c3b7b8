// What the kernels of the cross entropy do, thread by thread, on the host: the very functions that the device
// runs, against the softmax in float64.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>

#include "runtime/cuda/score_rows.h"

using namespace pipewright;

namespace {

// As a block adds it up.
template <typename S>
ExponentialSum sum_of_row(const ScoreRows<S>& rows, int64_t i) {
  std::vector<ExponentialSum> sums;
  for (int thread = 0; thread < kBlockThreads; ++thread)
    sums.push_back(sum_share(rows, i, thread, kBlockThreads));
  for (size_t step = sums.size() / 2; step > 0; step /= 2)
    for (size_t thread = 0; thread < step; ++thread) sums[thread] = both(sums[thread], sums[thread + step]);
  return sums[0];
}

// Rows in a matrix that is wider, beginning anywhere, filled with what nobody may read.
at::Tensor rows_within(const at::Tensor& numbers, int64_t before, int64_t behind, at::ScalarType dtype) {
  const at::Tensor wide = at::full({numbers.size(0), before + numbers.size(1) + behind}, NAN, dtype);
  wide.narrow(1, before, numbers.size(1)).copy_(numbers);
  return wide.narrow(1, before, numbers.size(1));
}

template <typename S>
void check_rows(uint64_t seed) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<S>::value;
  std::mt19937_64 draw(seed);
  at::manual_seed(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(draw() % static_cast<uint64_t>(limit));
  };
  const int64_t many = int64_t{kBlockThreads} * Pack<S>::kCount * kPacksAhead;
  const int64_t most[] = {20, 3000, 3 * many};
  const int64_t classes = 1 + below(most[below(3)]), count = 1 + below(3);
  const int64_t before = below(9), behind = below(9), gap = below(2) == 0 ? before + behind : below(9);
  CAPTURE(seed, classes, before, behind, gap);
  const at::Tensor numbers = at::randn({count, classes}) * (1 + below(20));
  if (below(3) == 0) numbers.masked_fill_(at::rand({count, classes}) < 0.3, -INFINITY);
  const at::Tensor scores = rows_within(numbers, before, behind, kType);
  at::Tensor labels = at::randint(classes, {count}, at::kLong);
  const ScoreRows<S> rows{scores.const_data_ptr<S>(), scores.stride(0), classes,
                          labels.const_data_ptr<int64_t>(), -100};
  const at::Tensor exact = scores.to(at::kDouble);
  const at::Tensor log_sums = exact.logsumexp(1);
  // The gradient begins `before` numbers behind an aligned address too, or elsewhere.
  const at::Tensor gradient =
      rows_within(at::zeros({count, classes}), below(2) == 0 ? before : 0, gap, kType);
  for (int64_t i = 0; i < count; ++i) {
    const float found = log_sum(sum_of_row(rows, i));
    const double expected = log_sums[i].item<double>();
    if (!std::isfinite(expected)) continue;
    CHECK(found == Approx(expected).epsilon(1e-6).margin(1e-5));
    const double loss = expected - exact[i][labels[i]].item<double>();
    if (std::isfinite(loss)) CHECK(row_loss(rows, i, found) == Approx(loss).epsilon(1e-5).margin(1e-4));
    const auto factor = static_cast<float>(below(3) - 1) + 0.5F;
    S* const to = gradient.data_ptr<S>() + i * gradient.stride(0);
    for (int thread = 0; thread < kBlockThreads; ++thread)
      gradient_share(rows, i, found, factor, to, thread, kBlockThreads);
    at::Tensor wanted = exact[i].softmax(0);
    wanted[labels[i]] -= 1;
    // Of a probability near 1 the difference is left.
    const double rounding = sizeof(S) == 2 ? 1e-2 : 1e-4;
    CHECK(at::allclose(gradient[i].to(at::kDouble), wanted * static_cast<double>(factor), rounding, 3e-5));
    for (int thread = 0; thread < kBlockThreads; ++thread)
      zero_share(to, classes + gap, thread, kBlockThreads);
    CHECK(gradient[i].eq(0).all().template item<bool>());
    CHECK(at::from_blob(to, {classes + gap}, at::TensorOptions(kType)).eq(0).all().template item<bool>());
  }
}

}  // namespace

TEST_CASE("cross entropy kernels: the threads of a block make the softmax's numbers, wherever rows begin") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    check_rows<float>(seed);
    check_rows<c10::BFloat16>(seed);
  }
}

TEST_CASE("cross entropy kernels: what is not finite stays so, and a label that is no class reads nothing") {
  const float inf = INFINITY;
  const auto sum_of = [](std::vector<float> scores) {
    const int64_t label = 0;
    const ScoreRows<float> rows{scores.data(), 0, static_cast<int64_t>(scores.size()), &label, -100};
    return log_sum(sum_of_row(rows, 0));
  };
  CHECK(sum_of({-inf, -inf}) == -inf);
  CHECK(sum_of({-inf, 2}) == 2);
  CHECK(std::isnan(sum_of({1, inf, 2})));
  CHECK(std::isnan(sum_of({-inf, NAN, 2})));
  CHECK(sum_of({1e38F, -1e38F}) == 1e38F);
  const float score = 3;
  for (const int64_t label : {int64_t{-1}, int64_t{1}, std::numeric_limits<int64_t>::max()}) {
    const ScoreRows<float> rows{&score, 0, 1, &label, -100};
    CHECK(rows.asks(0));
    CHECK_FALSE(rows.label_exists(0));
    CHECK(std::isnan(row_loss(rows, 0, 3)));
  }
}
