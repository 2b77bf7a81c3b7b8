// Chains of stages on devices that differ, in a row: where a search begins.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/search/search.h"
#include "optimizer/plan/chain.h"

namespace pipewright {

/// A chain for each of several orders of the devices and bounds on a stage's replicas: of a small period, by
/// a dynamic program over the least devices of a suffix of the model, each stage as if its links were its
/// own. They may break what the problem allows of stages' numbers.
std::vector<Chain> row_seeds(const Question& question);

}  // namespace pipewright
