#include "optimizer/search/labels.h"

#include <algorithm>
#include <cmath>

namespace pipewright::search_detail {
namespace {

constexpr size_t kFewLabels = 4;

}  // namespace

bool Dominance::alike(const Label& a, const Label& b) const {
  const int64_t largest = placement_.largest();
  return a.copies == b.copies && a.filled == b.filled && a.devices % largest == b.devices % largest &&
         a.replicated == b.replicated;
}

bool Dominance::dominates(const Label& a, const Label& b, double cut_bytes) const {
  if (!alike(a, b) || a.devices > b.devices) return false;
  if (forward_only_ && (a.latency_seconds > b.latency_seconds || a.first_span > b.first_span)) return false;
  for (size_t l = 0; l < costs_.links().size(); ++l) {
    const GroupLink& link = costs_.links()[l];
    if (a.copies > 1) {
      if (a.loads[l] > b.loads[l]) return false;
      continue;
    }
    if (a.devices % link.group == 0) continue;
    // The parts of the first stages in the group decide how much of the cut stays inside.
    double differ = std::abs(Placement::part_in(a, link.group) - Placement::part_in(b, link.group));
    if (link.shared)
      differ += std::abs(Placement::part_in(a, link.member) - Placement::part_in(b, link.member));
    // A link in common carries what goes out and what comes back.
    const double most =
        (link.shared ? 2 : 1) * link_seconds(differ * cut_bytes, link.bandwidth_bytes_per_second);
    if (a.loads[l] + most > b.loads[l]) return false;
  }
  return true;
}

void LabelSet::add(Label label, const Dominance& dominance, double cut_bytes, bool few) {
  for (const Label& other : labels_) {
    if (few ? dominance.alike(other, label) && other.devices <= label.devices &&
                  (other.devices < label.devices || other.loads <= label.loads)
            : dominance.dominates(other, label, cut_bytes))
      return;
  }
  std::erase_if(labels_, [&](const Label& other) {
    return few ? dominance.alike(other, label) : dominance.dominates(label, other, cut_bytes);
  });
  least_devices_ = std::min(least_devices_, label.devices);
  labels_.push_back(std::move(label));
  if (few && labels_.size() > kFewLabels) {
    labels_.erase(std::max_element(labels_.begin(), labels_.end(),
                                   [](const Label& a, const Label& b) { return a.devices < b.devices; }));
  }
}

}  // namespace pipewright::search_detail
