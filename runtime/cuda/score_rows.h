// The cross entropy of rows of scores, a block a row. Each thread of each block calls sum_share() and
// gradient_share(); so does a test, on the host, for all of them one after the other.
#pragma once

#include <c10/util/BFloat16.h>

#include <type_traits>

#include "models/device/cross_entropy_arithmetic.h"
#include "runtime/cuda/chunks.h"

namespace pipewright {

/// Rows of `classes` scores, each with the number of a class.
template <typename S>
struct ScoreRows {
  const S* scores;
  int64_t stride;  ///< from row to row
  int64_t classes;
  const int64_t* labels;
  int64_t ignored;  ///< the label of rows that ask nothing

  PIPEWRIGHT_ANYWHERE const S* row(int64_t i) const { return scores + i * stride; }
  PIPEWRIGHT_ANYWHERE bool asks(int64_t i) const { return labels[i] != ignored; }
  PIPEWRIGHT_ANYWHERE bool label_exists(int64_t i) const { return 0 <= labels[i] && labels[i] < classes; }
};

/// Packs that a thread asks for before it computes with the first: what is under way then hides how long it
/// takes to come.
constexpr int kPacksAhead = 4;

/// What thread `thread` of `threads` does of a row of `count` numbers, wherever it begins: packs(i, n) for n
/// packs at i, i + step, ... (n a constant, step = threads * the pack), one(i) for what lies before and
/// behind whole packs.
template <typename S, typename PackStep, typename OneStep>
PIPEWRIGHT_ANYWHERE void for_my_scores(const S* row, int64_t count, int thread, int threads,
                                       const PackStep& packs, const OneStep& one) {
  const auto off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kPackBytes / sizeof(S));
  const int64_t before = off == 0 ? 0 : Pack<S>::kCount - off;
  const int64_t first = before < count ? before : count;
  const int64_t many = int64_t{threads} * Pack<S>::kCount * kPacksAhead;
  const int64_t rest = first + (count - first) / many * many;
  for_my_share<S>(0, first, thread, threads, false, one, one);
  for (int64_t i = first + thread * Pack<S>::kCount; i < rest; i += many)
    packs(i, std::integral_constant<int, kPacksAhead>());
  for_my_share<S>(
      rest, count, thread, threads, true, [&](int64_t i) { packs(i, std::integral_constant<int, 1>()); },
      one);
}

/// Reads n packs at `from`, `from + step`, ... before any is used, as floats.
template <int kPacks, typename S>
PIPEWRIGHT_ANYWHERE void read_packs(const S* from, int64_t step, float (&numbers)[kPacks * Pack<S>::kCount]) {
  Pack<S> packs[kPacks];
  for (int p = 0; p < kPacks; ++p) packs[p] = *reinterpret_cast<const Pack<S>*>(from + p * step);
  for (int p = 0; p < kPacks; ++p)
    for (int j = 0; j < Pack<S>::kCount; ++j)
      numbers[p * Pack<S>::kCount + j] = static_cast<float>(packs[p].values[j]);
}

/// Of the scores that are this thread's.
template <typename S>
PIPEWRIGHT_ANYWHERE ExponentialSum sum_share(const ScoreRows<S>& rows, int64_t i, int thread, int threads) {
  const S* const row = rows.row(i);
  ExponentialSum mine;
  for_my_scores(
      row, rows.classes, thread, threads,
      [&](int64_t at, auto count) {
        float scores[count.value * Pack<S>::kCount];
        read_packs<count.value>(row + at, int64_t{threads} * Pack<S>::kCount, scores);
        add(mine, scores);
      },
      [&](int64_t at) {
        const float score[1] = {static_cast<float>(row[at])};
        add(mine, score);
      });
  return mine;
}

/// The loss of a row that asks. A label that is no class has none, and nothing is read for it.
template <typename S>
PIPEWRIGHT_ANYWHERE float row_loss(const ScoreRows<S>& rows, int64_t i, float log_sum) {
  return rows.label_exists(i) ? log_sum - static_cast<float>(rows.row(i)[rows.labels[i]]) : NAN;
}

/// Writes this thread's part of the gradient of row `i` to `to`; `factor`: the gradient of the row's loss.
template <typename S>
PIPEWRIGHT_ANYWHERE void gradient_share(const ScoreRows<S>& rows, int64_t i, float log_sum, float factor,
                                        S* to, int thread, int threads) {
  constexpr int kCount = Pack<S>::kCount;
  const S* const row = rows.row(i);
  const int64_t label = rows.labels[i];
  const int64_t step = int64_t{threads} * kCount;
  const auto one = [&](int64_t at) {
    to[at] = static_cast<S>(score_gradient(static_cast<float>(row[at]), log_sum, at == label, factor));
  };
  // Packs of the row and of its gradient begin at the same numbers, or there are none.
  const bool alike =
      reinterpret_cast<uintptr_t>(row) % kPackBytes == reinterpret_cast<uintptr_t>(to) % kPackBytes;
  if (!alike) return for_my_share<S>(0, rows.classes, thread, threads, false, one, one);
  for_my_scores(
      row, rows.classes, thread, threads,
      [&](int64_t at, auto count) {
        float scores[count.value * kCount];
        read_packs<count.value>(row + at, step, scores);
        for (int p = 0; p < count.value; ++p) {
          Pack<S> pack;
          for (int j = 0; j < kCount; ++j)
            pack.values[j] = static_cast<S>(
                score_gradient(scores[p * kCount + j], log_sum, at + p * step + j == label, factor));
          *reinterpret_cast<Pack<S>*>(to + at + p * step) = pack;
        }
      },
      one);
}

/// Zeros: the gradient of a row that asks nothing, and what is behind that of one that does.
template <typename S>
PIPEWRIGHT_ANYWHERE void zero_share(S* to, int64_t count, int thread, int threads) {
  constexpr int kCount = Pack<S>::kCount;
  for_my_scores(
      to, count, thread, threads,
      [&](int64_t at, auto packs) {
        for (int p = 0; p < packs.value; ++p)
          *reinterpret_cast<Pack<S>*>(to + at + p * int64_t{threads} * kCount) = Pack<S>{};
      },
      [&](int64_t at) { to[at] = S(0.0F); });
}

}  // namespace pipewright
