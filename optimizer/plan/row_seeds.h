// Chains of stages on devices in a row: where searches begin.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/search/counted_work.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Which devices, and what is asked of chains on them.
struct RowProblem {
  std::vector<int64_t> order;  ///< the first stage's devices are the first
  /// So many groups of devices like those before the tail run the same pipeline: minibatches stay in their
  /// group, and each stage has as many replicas in each of them. The order has the first group's.
  int64_t copies = 1;
  int64_t tail = 0;  ///< the last devices of the row, behind all groups: all minibatches come there
  int64_t least_replicas = 1, most_replicas = 1;  ///< of a stage in the row
  double careful = 1;  ///< links between groups are taken to be so many times as slow
};

/// Chains of small periods on devices in a row, by a dynamic program over the least devices of a suffix of
/// the model, each stage as if its links were its own. Borrows the problem.
class RowSearch {
 public:
  explicit RowSearch(const Problem& problem);
  ~RowSearch();
  /// Where memory is limited, with room for the usual depths and for the least with which a plan has the
  /// period. They may break what the problem allows of stages' numbers. Spends the work: fewer where little
  /// is left, and none where too little is.
  std::vector<Chain> chains(const RowProblem& asked, CountedWork* work);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// For several orders of the devices (where these differ, of known stages on them too) and bounds on a
/// stage's replicas, and for groups that run the same; while there is work left.
std::vector<Chain> row_seeds(const Problem& problem, const std::vector<Solution>& known, CountedWork* work);

}  // namespace pipewright
