// Plans beside a plan: what local moves reach, for the pool of plans (pool.h).
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/plan/layouts.h"
#include "optimizer/plan/pool_seeds.h"

namespace pipewright {

/// The shape itself and all that one move away is: replicas more, fewer, or from one stage to another; a cut
/// elsewhere, with or without a device that moves along; two stages joined; a stage split. They may break
/// what the question allows.
std::vector<Shape> neighbours(const Question& question, const Shape& from);

/// Stage `s` and the next one joined: on the devices of both, on one less, and on one more if there is one.
std::vector<Shape> joined_at(const Question& question, const Shape& from, size_t s);

/// A device of one stage swapped for one of another that stands in another group.
std::vector<Ranks> swapped(const Ranks& ranks, const std::vector<TopologyLevel>& levels);

}  // namespace pipewright
