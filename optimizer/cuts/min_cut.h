// The down-set after which least is carried over.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cuts/contraction.h"

namespace pipewright {

/// Least bytes that cross after a down-set of the groups that holds all of `sure` (a down-set) and nothing
/// but `possible` (a down-set too): a maximum flow. `values`: producers and readers by group; a value crosses
/// if its producer is in the set and some reader is not.
int64_t least_cut_bytes(const Contraction& graph, const std::vector<DataflowValue>& values,
                        const std::vector<char>& sure, const std::vector<char>& possible);

}  // namespace pipewright
