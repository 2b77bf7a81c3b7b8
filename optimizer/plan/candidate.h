// A plan that might be, for the pool of plans (pool.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/layouts.h"
#include "optimizer/plan/pool_seeds.h"
#include "optimizer/search/search.h"

namespace pipewright {

struct Candidate : Chain {
  /// Of those stages that recompute; without it those do that say so.
  std::optional<Room> room = Room::kPaced;
  /// What tells it from others, whose stages stand elsewhere, are others or are given to recompute.
  std::vector<int64_t> key(const std::vector<TopologyLevel>& levels) const;
};

/// Stages of a shape, on levels in every layout (layouts.h); nothing if the question does not allow them.
std::vector<Candidate> in_every_layout(const Question& question, const Shape& shape);

}  // namespace pipewright
