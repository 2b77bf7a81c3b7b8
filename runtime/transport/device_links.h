// Who sends what to whom between devices: what a transport must know before it starts whose messages have no
// tags, and whose connections are made one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pipewright {

struct TagRange {
  int64_t first = 0;
  int64_t count = 0;
  bool holds(int64_t tag) const { return first <= tag && tag < first + count; }
};

inline bool any_holds(const std::vector<TagRange>& ranges, int64_t tag) {
  return std::any_of(ranges.begin(), ranges.end(), [tag](const TagRange& range) { return range.holds(tag); });
}

/// Messages from one rank to another that keep one order among them, whatever their tags: `to` receives them
/// in the order in which `from` sends.
struct DeviceLink {
  int64_t from = 0;
  int64_t to = 0;
  std::vector<TagRange> tags;
};

/// Sums over ranks (all_reduce_sum), which all of them make in the same order.
struct DeviceSum {
  std::vector<int64_t> ranks;
  std::vector<TagRange> tags;
};

/// All of a job, the same on every rank: connections are made in this order, so no two ranks wait for each
/// other.
struct DeviceLinks {
  std::vector<DeviceLink> links;
  std::vector<DeviceSum> sums;
};

}  // namespace pipewright
