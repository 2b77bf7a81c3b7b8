// A period that no plan beats, for models with too many cuts to try them all.
//
// The search looks for a way from the empty set of nodes to all of them, stage by stage. Here the cuts are
// put into cells by what is done at them (seconds of compute, bytes of weights), and a stage may begin with
// the best of a cell and end with the best of another, whether one cut contains the other or not: what no
// chain of cells can do, no plan can. Cells come from all down-sets where these can be listed, otherwise from
// what surely is and surely is not done when so many seconds are.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/cuts/cells.h"
#include "optimizer/cuts/contraction.h"
#include "optimizer/cuts/down_sets.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// More are not listed: a second's work, 100 MB.
inline constexpr int64_t kMostDownSets = 1000000;

struct Bound {
  double period_seconds = 0;  ///< no plan is faster
  int64_t down_sets = 0;      ///< 0: more than could be listed
  /// Cuts in the cells that ways of smaller period go through: where better plans may be, if there are any.
  std::vector<NodeSet> cuts;
  /// The same, as seconds of compute done, where down-sets are not listed.
  std::vector<double> places_seconds;
};

/// Bounds of a problem's plans (memory and `states` are not looked at). Borrows all three.
class Bounds {
 public:
  Bounds(const Dataflow& flow, const Contraction& graph, const Problem& problem,
         int64_t most_down_sets = kMostDownSets);

  /// At most `achieved_seconds`, a plan's period; within a part in 5000 of what the cells can prove.
  Bound of(double achieved_seconds) const;

 private:
  const Dataflow& flow_;
  const Contraction& graph_;
  const Problem& problem_;
  std::optional<DownSets> sets_;
  Cells cells_;
  std::vector<int> cell_of_set_;
};

}  // namespace pipewright
