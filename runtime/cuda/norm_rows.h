// The gradients of a layer norm's weight and bias, which are sums over all rows, in two stages: a block of
// the first adds a chunk of the rows in a stripe of columns, one of the second what the chunks of its stripe
// gave. Each thread of each block calls chunk_share() and total_share(); so does a test, on the host, for all
// of them one after the other.
#pragma once

#include "runtime/cuda/chunks.h"

namespace pipewright {

constexpr int kStripePacks = 8;  ///< threads side by side read 128 bytes of a row, a line of the cache
constexpr int kStripeColumns = kStripePacks * Pack<float>::kCount;
constexpr int kStripeRows = kBlockThreads / kStripePacks;  ///< that a block reads at once
/// That a thread asks for before it computes with the first.
constexpr int kRowsAhead = 4;
constexpr int kNormBlocksAtOnce = 4;  ///< of the first stage on a multiprocessor
/// Of the first stage, about: 132 multiprocessors have them all under way at a time.
constexpr int64_t kNormBlocks = 132 * kNormBlocksAtOnce;

/// How the first stage is divided: a block for each stripe of each chunk of rows.
struct NormGrid {
  int64_t stripes;
  int64_t chunks;
};

inline NormGrid norm_grid(int64_t rows, int64_t columns) {
  const int64_t stripes = (columns + kStripeColumns - 1) / kStripeColumns;
  const int64_t wanted = kNormBlocks / stripes, most = (rows + kStripeRows - 1) / kStripeRows;
  const int64_t chunks = wanted < most ? wanted : most;
  return {stripes, chunks < 1 ? 1 : chunks};
}

/// A layer norm of `rows` contiguous rows.
struct NormRows {
  const float* input;
  const float* gradient;  ///< of the output
  const float* means;
  const float* rstds;  ///< 1 / standard deviation of each row
  int64_t rows;
  int64_t columns;
};

/// Of some columns: sums for the weight and the bias. In the memory of a block: no constructors.
struct NormSums {
  Pack<float> weight;
  Pack<float> bias;
};

/// `count` rows of such sums each; one is the result.
struct NormTable {
  float* weight;
  float* bias;
  int64_t count;
  int64_t columns;
};

PIPEWRIGHT_ANYWHERE NormSums both(const NormSums& a, const NormSums& b) {
  NormSums all = a;
  for (int j = 0; j < Pack<float>::kCount; ++j) {
    all.weight.values[j] += b.weight.values[j];
    all.bias.values[j] += b.bias.values[j];
  }
  return all;
}

PIPEWRIGHT_ANYWHERE void add(NormSums& sums, const Pack<float>& gradient, const Pack<float>& input,
                             float mean, float rstd) {
  for (int j = 0; j < Pack<float>::kCount; ++j) {
    const float normalized = (input.values[j] - mean) * rstd;
    sums.weight.values[j] = fused(gradient.values[j], normalized, sums.weight.values[j]);
    sums.bias.values[j] += gradient.values[j];
  }
}

/// The first of the columns that are this thread's; they may lie behind the last.
PIPEWRIGHT_ANYWHERE int64_t column_of(int64_t stripe, int thread) {
  return stripe * kStripeColumns + int64_t{thread} % kStripePacks * Pack<float>::kCount;
}

/// Whether both begin with a pack, and so do all of their rows.
PIPEWRIGHT_ANYWHERE bool in_packs(const float* a, const float* b, int64_t columns) {
  return is_aligned(a) && is_aligned(b) && columns % Pack<float>::kCount == 0;
}

/// From a row of `columns` numbers; zeros behind the last.
template <bool kPacked>
PIPEWRIGHT_ANYWHERE Pack<float> read_columns(const float* row, int64_t column, int64_t columns) {
  if constexpr (kPacked) {
    return *reinterpret_cast<const Pack<float>*>(row + column);
  } else {
    Pack<float> pack{};
    for (int j = 0; j < Pack<float>::kCount; ++j)
      if (column + j < columns) pack.values[j] = row[column + j];
    return pack;
  }
}

template <bool kPacked>
PIPEWRIGHT_ANYWHERE NormSums chunk_share_of(const NormRows& of, int64_t column, int64_t begin, int64_t end) {
  NormSums sums{};
  for (int64_t first = begin; first < end; first += kRowsAhead * kStripeRows) {
    Pack<float> gradients[kRowsAhead]{};  // what is behind the last row adds zeros
    Pack<float> inputs[kRowsAhead]{};
    float means[kRowsAhead]{};
    float rstds[kRowsAhead]{};
    for (int a = 0; a < kRowsAhead; ++a) {
      const int64_t row = first + a * kStripeRows;
      if (row >= end) continue;
      gradients[a] = read_columns<kPacked>(of.gradient + row * of.columns, column, of.columns);
      inputs[a] = read_columns<kPacked>(of.input + row * of.columns, column, of.columns);
      means[a] = of.means[row];
      rstds[a] = of.rstds[row];
    }
    for (int a = 0; a < kRowsAhead; ++a) add(sums, gradients[a], inputs[a], means[a], rstds[a]);
  }
  return sums;
}

/// What `thread` adds of the `chunk`-th of `chunks` equal parts of the rows, in the columns of column_of().
PIPEWRIGHT_ANYWHERE NormSums chunk_share(const NormRows& of, int64_t stripe, int64_t chunk, int64_t chunks,
                                         int thread) {
  const int64_t column = column_of(stripe, thread);
  if (column >= of.columns) return {};
  const int64_t begin = of.rows * chunk / chunks + thread / kStripePacks;
  const int64_t end = of.rows * (chunk + 1) / chunks;
  return in_packs(of.gradient, of.input, of.columns) ? chunk_share_of<true>(of, column, begin, end)
                                                     : chunk_share_of<false>(of, column, begin, end);
}

template <bool kPacked>
PIPEWRIGHT_ANYWHERE NormSums total_share_of(const NormTable& of, int64_t column, int64_t begin) {
  NormSums sums{};
  for (int64_t i = begin; i < of.count; i += kStripeRows)
    sums = both(sums, {read_columns<kPacked>(of.weight + i * of.columns, column, of.columns),
                       read_columns<kPacked>(of.bias + i * of.columns, column, of.columns)});
  return sums;
}

/// What `thread` adds of the sums of all chunks, in the columns of column_of().
PIPEWRIGHT_ANYWHERE NormSums total_share(const NormTable& of, int64_t stripe, int thread) {
  const int64_t column = column_of(stripe, thread);
  if (column >= of.columns) return {};
  const int64_t begin = thread / kStripePacks;
  return in_packs(of.weight, of.bias, of.columns) ? total_share_of<true>(of, column, begin)
                                                  : total_share_of<false>(of, column, begin);
}

/// The sums of all threads with the same columns, as the first of them writes them.
PIPEWRIGHT_ANYWHERE void write_sums(const NormTable& to, int64_t i, int64_t column, const NormSums& sums) {
  for (int j = 0; j < Pack<float>::kCount; ++j) {
    if (column + j >= to.columns) return;
    to.weight[i * to.columns + column + j] = sums.weight.values[j];
    to.bias[i * to.columns + column + j] = sums.bias.values[j];
  }
}

}  // namespace pipewright
