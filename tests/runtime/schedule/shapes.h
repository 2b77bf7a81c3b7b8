// Every small shape of a pipeline, for tests that leave none out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright::testing {

/// All replica counts with 1..`most_stages` stages and 1..`most_replicas` replicas each.
inline std::vector<std::vector<int64_t>> all_replica_counts(int64_t most_stages, int64_t most_replicas) {
  std::vector<std::vector<int64_t>> all, shorter = {{}};
  for (int64_t stages = 1; stages <= most_stages; ++stages) {
    std::vector<std::vector<int64_t>> longer;
    for (const std::vector<int64_t>& counts : shorter)
      for (int64_t replicas = 1; replicas <= most_replicas; ++replicas) {
        longer.push_back(counts);
        longer.back().push_back(replicas);
      }
    all.insert(all.end(), longer.begin(), longer.end());
    shorter = longer;
  }
  return all;
}

/// Those that run any replicas on ranks of one stage each: neither V-shaped nor listed by a plan.
inline std::vector<ScheduleRow> schedules_of_any_shape() {
  std::vector<ScheduleRow> rows;
  for (const ScheduleRow& row : schedules())
    if (!row.v_shaped && row.kind != ScheduleKind::kCustom) rows.push_back(row);
  return rows;
}

/// "2-1-1"
inline std::string dashed(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += '-';
    text += std::to_string(number);
  }
  return text;
}

}  // namespace pipewright::testing
