// Where solve() (solve.h) begins: plain shapes, or all of them where these are few.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/search/search.h"

namespace pipewright {

/// Stages along a chain of states, wherever they stand.
struct Shape {
  std::vector<int> cuts;  ///< states, both ends among them
  std::vector<int64_t> replicas;
};
Shape shape_of(const std::vector<FoundStage>& stages);

/// Seconds of compute up to a state.
double work_before(const States& states, int state);

/// Data parallelism on several numbers of devices, one and all among them.
std::vector<Shape> single_stages(const Problem& problem);

/// Equally many replicas in each of two, three, ... stages, which share evenly the compute; under a memory
/// limit also what is kept for the backward, or half and half of both.
std::vector<Shape> even_shapes(const Problem& problem);

/// Every chain of stages with any replicas, but those with a stage that computes for `seconds` or more;
/// nothing where these are too many.
std::optional<std::vector<Shape>> every_shape(const Problem& problem, double seconds);

}  // namespace pipewright
