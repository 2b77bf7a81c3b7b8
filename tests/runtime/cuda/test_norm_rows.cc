// What the kernels of the layer norm's gradients do, thread by thread, on the host: the very functions that
// the device runs, against sums in float64.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>

#include "runtime/cuda/norm_rows.h"

using namespace pipewright;

namespace {

// Row `i` of the table from what share(thread) gives, as a block adds it up.
template <typename Share>
void write_block(const NormTable& to, int64_t i, int64_t stripe, const Share& share) {
  std::vector<NormSums> sums;
  for (int thread = 0; thread < kBlockThreads; ++thread) sums.push_back(share(thread));
  for (size_t step = sums.size() / 2; step >= kStripePacks; step /= 2)
    for (size_t thread = 0; thread < step; ++thread) sums[thread] = both(sums[thread], sums[thread + step]);
  for (int thread = 0; thread < kStripePacks; ++thread)
    write_sums(to, i, column_of(stripe, thread), sums[static_cast<size_t>(thread)]);
}

// Contiguous rows that begin anywhere, between what nobody may read or write.
at::Tensor rows_amid(int64_t before, int64_t rows, int64_t columns, int64_t behind = 0) {
  const at::Tensor all = at::full({before + rows * columns + behind}, NAN);
  return all.narrow(0, before, rows * columns).view({rows, columns});
}

bool ends_where_it_should(const at::Tensor& rows) {
  const at::Tensor all = at::empty({0}).set_(rows.storage());
  return all.narrow(0, all.numel() - 8, 8).isnan().all().item<bool>();
}

// Gradients of weight and bias, as the two launches make them.
at::Tensor gradients_of(const NormRows& of, const NormGrid& grid) {
  const at::Tensor sums = rows_amid(0, 2 * grid.chunks, of.columns, 8), made = rows_amid(0, 2, of.columns, 8);
  auto* const first = sums.data_ptr<float>();
  auto* const result = made.data_ptr<float>();
  const NormTable chunks{first, first + grid.chunks * of.columns, grid.chunks, of.columns};
  const NormTable total{result, result + of.columns, 1, of.columns};
  for (int64_t stripe = 0; stripe < grid.stripes; ++stripe) {
    for (int64_t chunk = 0; chunk < grid.chunks; ++chunk)
      write_block(chunks, chunk, stripe,
                  [&](int thread) { return chunk_share(of, stripe, chunk, grid.chunks, thread); });
    write_block(total, 0, stripe, [&](int thread) { return total_share(chunks, stripe, thread); });
  }
  CHECK(ends_where_it_should(sums));
  CHECK(ends_where_it_should(made));
  return made;
}

void check_gradients(uint64_t seed) {
  std::mt19937_64 draw(seed);
  at::manual_seed(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(draw() % static_cast<uint64_t>(limit));
  };
  const int64_t most[] = {5, 200, 3000};
  const int64_t rows = 1 + below(most[below(3)]);
  const int64_t columns = below(2) == 0 ? 4 * (1 + below(24)) : 1 + below(100);
  const at::Tensor input = rows_amid(below(5), rows, columns).normal_(below(4), 2);
  const at::Tensor gradient = rows_amid(below(3) == 0 ? below(5) : 0, rows, columns).normal_();
  CAPTURE(seed, rows, columns, input.storage_offset(), gradient.storage_offset());
  const at::Tensor exact = input.to(at::kDouble), exact_gradient = gradient.to(at::kDouble);
  const at::Tensor mean = exact.mean(1).to(at::kFloat);
  const at::Tensor rstd = (exact.var(1, 0, false) + 1e-5).rsqrt().to(at::kFloat);
  NormGrid grid = norm_grid(rows, columns);
  if (below(2) == 0) grid.chunks = 1 + below(grid.chunks);
  const at::Tensor made =
      gradients_of({input.const_data_ptr<float>(), gradient.const_data_ptr<float>(),
                    mean.const_data_ptr<float>(), rstd.const_data_ptr<float>(), rows, columns},
                   grid);
  const at::Tensor normalized =
      (exact - mean.to(at::kDouble).unsqueeze(1)) * rstd.to(at::kDouble).unsqueeze(1);
  // Relative to what is added: sums may cancel.
  const at::Tensor allowed = (exact_gradient * normalized).abs().sum(0) * 1e-6 + 1e-6;
  const at::Tensor apart = (made[0].to(at::kDouble) - (exact_gradient * normalized).sum(0)).abs();
  CHECK(apart.le(allowed).all().item<bool>());
  const at::Tensor bias_apart = (made[1].to(at::kDouble) - exact_gradient.sum(0)).abs();
  CHECK(bias_apart.le(exact_gradient.abs().sum(0) * 1e-6 + 1e-6).all().item<bool>());
}

}  // namespace

TEST_CASE("layer norm kernels: the threads of all blocks make the sums over rows, wherever rows begin") {
  for (uint64_t seed = 0; seed < 150; ++seed) check_gradients(seed);
}

TEST_CASE("layer norm kernels: every chunk has rows, and the blocks of usual shapes fill a GPU") {
  for (int64_t rows = 1; rows < 4000; rows += 7) {
    for (const int64_t columns : {1, 31, 32, 33, 768, 5000, 100'000}) {
      const NormGrid grid = norm_grid(rows, columns);
      REQUIRE(grid.stripes * kStripeColumns >= columns);
      REQUIRE((1 <= grid.chunks && grid.chunks <= rows));
      REQUIRE((grid.chunks == 1 || grid.chunks * grid.stripes <= kNormBlocks));
    }
  }
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {8192, 768}, {12544, 768}, {12608, 768}, {1024, 512}, {8192, 1024}, {8192, 1600}, {8192, 4096}}) {
    const NormGrid grid = norm_grid(rows, columns);
    CAPTURE(rows, columns);
    CHECK(grid.chunks * grid.stripes > kNormBlocks * 94 / 100);
  }
  CHECK(norm_grid(8192, 768).chunks * norm_grid(8192, 768).stripes == kNormBlocks);
}

TEST_CASE("layer norm kernels: what is not finite reaches its columns only") {
  const at::Tensor input = at::ones({70, 40}), gradient = at::ones({70, 40});
  gradient[69][3] = NAN;
  gradient[2][39] = INFINITY;
  const at::Tensor mean = at::zeros({70}), rstd = at::ones({70});
  const at::Tensor made = gradients_of({input.const_data_ptr<float>(), gradient.const_data_ptr<float>(),
                                        mean.const_data_ptr<float>(), rstd.const_data_ptr<float>(), 70, 40},
                                       norm_grid(70, 40));
  for (const int64_t which : {0, 1}) {
    CHECK(std::isnan(made[which][3].item<float>()));
    CHECK(made[which][39].item<float>() == INFINITY);
    CHECK(made[which].isfinite().sum().item<int64_t>() == 38);
  }
}
