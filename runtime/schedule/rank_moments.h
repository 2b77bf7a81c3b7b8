// What a rank with several stages has of each of them at a time: their peaks need not coincide.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "runtime/schedule/shape.h"

namespace pipewright {

/// Of one stage of a rank, while the rank runs a forward or a backward.
struct StageMoment {
  int64_t in_flight = 0;  ///< minibatches whose forward has begun and whose backward has not ended
  int64_t waiting = 0;    ///< of these, those whose backward comes in two parts and has begun
  /// Where no link lies between two stages: values that the stage has left for the one behind it, and
  /// gradients for the one before it that have not been used yet.
  int64_t left_values = 0, left_gradients = 0;
  bool runs = false;  ///< it is the stage's forward or backward
  auto operator<=>(const StageMoment&) const = default;
};

/// All that differ of replica `replica` of the group's rank within an update: by stage, those of other ranks
/// as they were at the begin. Of a schedule whose updates nothing crosses.
std::vector<std::vector<StageMoment>> rank_moments(const std::string& schedule, const PipelineShape& shape,
                                                   int64_t group, int64_t replica);

}  // namespace pipewright
