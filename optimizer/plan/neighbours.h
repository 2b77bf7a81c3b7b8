// Chains beside a chain: what one move leads to.
#pragma once

#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/seeds.h"

namespace pipewright {

/// By device the lowest one of its kind (CostInputs::same_kind()).
std::vector<int64_t> kinds_of(const CostInputs& inputs, int64_t devices);

/// Not more than any chain of the shape takes, wherever it stands: cheap to know, for leaving shapes out.
double least_seconds(const Problem& problem, const Shape& shape);

/// The stages of a shape in several layouts (layouts.h); nothing if the problem does not allow them.
std::vector<Chain> chains_of(const Problem& problem, const Shape& shape);

/// The shape itself and all that one move away is: replicas more, fewer, or from one stage to another; a
/// cut elsewhere, with or without a device that moves along; two cuts the same way; two stages joined; a
/// stage split; a stage more at an end, whose devices all others give. They may break what the problem
/// allows.
std::vector<Shape> shapes_beside(const Problem& problem, const Chain& from);
/// A shape on devices in the order of a chain's; those that it left idle come last.
Chain placed_like(const Shape& shape, const Chain& from);
/// The same stages, two of whose devices have changed places, or one of which has gone to another stage;
/// without shares.
std::vector<Chain> with_devices_moved(const Problem& problem, const Chain& from);

}  // namespace pipewright
