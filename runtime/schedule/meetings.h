// Ranks that wait for each other before an update: their stages hold copies of tied parameters, whose
// gradients are summed over the stages (docs/semantics.md, "Gradients of a round").
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/schedule/shape.h"

namespace pipewright {

/// Follows the updates of all ranks of a shape, in whatever order they come.
class Meetings {
 public:
  explicit Meetings(const PipelineShape& shape);

  bool any() const { return !ranks_.empty(); }
  int64_t count() const { return static_cast<int64_t>(ranks_.size()); }
  /// -1: the rank waits for nobody.
  int64_t of_rank(int64_t rank) const { return of_rank_[static_cast<size_t>(rank)]; }
  /// Ascending. Numbers as in placements().
  const std::vector<int64_t>& ranks(int64_t meeting) const { return ranks_[static_cast<size_t>(meeting)]; }
  /// Those of the ranks, ascending.
  const std::vector<int64_t>& stages(int64_t meeting) const { return stages_[static_cast<size_t>(meeting)]; }

  enum class Reached { kGoesOn, kWaits, kAllAreThere };
  /// A rank has come to the update of one of its stages. A rank with several stages exchanges when all of
  /// them have their gradients, so at the last of these updates.
  Reached reach_update(int64_t rank);

 private:
  int64_t stages_per_rank_;
  std::vector<int64_t> of_rank_;
  std::vector<std::vector<int64_t>> ranks_;
  std::vector<std::vector<int64_t>> stages_;
  std::vector<int64_t> updates_;  // by rank, so far
  std::vector<size_t> arrived_;   // by meeting
};

}  // namespace pipewright
