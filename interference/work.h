// What the work of some nodes of a model is like, whatever core it runs on.
#pragma once

#include <string>
#include <vector>

#include "graph/profile.h"

namespace pipewright {

/// The feature "work_bytes_per_second": parameters read, values made and values kept for the backward, over
/// forward and backward, of nodes that the profile has. 0 of nodes that take no time.
double work_bytes_per_second(const Profile& profile, const std::vector<std::string>& nodes);

/// The model's nodes as `count` stretches, or fewer, in order, that take about as long as each other.
std::vector<std::vector<std::string>> stretches_of_work(const Profile& profile, int64_t count);

}  // namespace pipewright
