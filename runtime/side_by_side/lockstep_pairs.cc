#include "runtime/side_by_side/lockstep_pairs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/error.h"
#include "graph/random.h"
#include "runtime/schedule/side_by_side.h"

namespace pipewright {

std::vector<int64_t> LockstepPairs::drawn(int64_t round) const {
  std::vector<int64_t> order(static_cast<size_t>(pipelines));
  std::iota(order.begin(), order.end(), int64_t{0});
  constexpr uint64_t kPairs = 0x7061697273;  // "pairs": no other draw of the run begins so
  KeyedRandom random({kPairs, seed, static_cast<uint64_t>(round)});
  for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

std::vector<int64_t> LockstepPairs::group_of(int64_t pipeline, int64_t round, Span span) const {
  const std::vector<int64_t> order = drawn(round);
  const auto place = static_cast<size_t>(std::find(order.begin(), order.end(), pipeline) - order.begin());
  PW_CHECK_LT(place, order.size());
  const size_t beside = place ^ 1;
  if (beside >= order.size()) return {pipeline};
  const int64_t partner = order[beside];
  const Span own = PipelineTurn{partner, pipelines}.own(span);
  const bool updates = std::max(own.first, round * interval) < std::min(own.end(), (round + 1) * interval);
  if (!updates) return {pipeline};
  return {std::min(pipeline, partner), std::max(pipeline, partner)};
}

}  // namespace pipewright
