// Cuts of a model by what is done at them, a few thousand cells for any number of cuts.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cuts/contraction.h"
#include "optimizer/cuts/down_sets.h"

namespace pipewright {

/// Least and most over the cuts of a cell.
struct Cell {
  double compute_low = 0;  ///< seconds, forward + backward
  double compute_high = 0;
  int64_t trainable_low = 0;  ///< bytes
  int64_t trainable_high = 0;
  int64_t cut_low = 0;  ///< bytes that cross
};

/// In an order in which a cut's cell never comes after that of a larger cut; first the empty set, last all
/// nodes, each alone in its cell.
using Cells = std::vector<Cell>;

/// Cells of the given sets of groups, about `most` at most. `cell_of`: by set, where it is.
Cells cells_of(const Dataflow& flow, const Contraction& graph, const DownSets& sets, int most,
               std::vector<int>* cell_of);

/// Cells that hold every down-set, of whatever number. For a number of seconds done, groups whose ancestors
/// alone take longer cannot be done, groups without which so much cannot be done must be; how many bytes the
/// others bring is bounded by filling up with those that have most or least for their seconds; what a group
/// that must be done sends to one that cannot crosses the cut.
Cells cells_around(const Dataflow& flow, const Contraction& graph, int most);

}  // namespace pipewright
