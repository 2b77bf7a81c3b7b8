// Which ways to run a suffix of the model are worth keeping: those that no other beats whatever stands before
// them. For the search's own files.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/search/placement.h"

namespace pipewright::search_detail {

/// Compares suffixes that begin after one cut.
class Dominance {
 public:
  Dominance(const Placement& placement, bool forward_only)
      : placement_(placement), costs_(placement.costs()), forward_only_(forward_only) {}

  /// They leave the groups of devices filled alike, and have the same to fulfil.
  bool alike(const Label& a, const Label& b) const;
  /// Whatever may stand before `b` may stand before `a` too, and comes to no more. `cut_bytes`: of the
  /// cut that they begin after.
  bool dominates(const Label& a, const Label& b, double cut_bytes) const;

 private:
  const Placement& placement_;
  const LevelCosts& costs_;
  bool forward_only_;
};

/// The labels of one state and place that nothing dominates; or, `few`, of each way to leave the groups
/// filled the first of fewest devices, and of these ways a handful.
class LabelSet {
 public:
  void add(Label label, const Dominance& dominance, double cut_bytes, bool few);
  const std::vector<Label>& labels() const { return labels_; }
  int64_t least_devices() const { return least_devices_; }
  bool empty() const { return labels_.empty(); }

 private:
  std::vector<Label> labels_;
  int64_t least_devices_ = int64_t{1} << 40;
};

}  // namespace pipewright::search_detail
