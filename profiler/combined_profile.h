// One profile of several that were measured at different times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "graph/text_table.h"

namespace pipewright {

/// What a machine that others use gives depends on when one looks: from minute to minute it is faster or
/// slower as a whole, which no number of repeats within a few seconds can tell.
struct MeasuredProfile {
  std::string name;  ///< of its file, for messages
  Profile profile;
};

/// Each time, spread and factor is the median of theirs; what the allocator said the most that any has; all
/// else as in the first. `whole.known_within` is half of how far apart their sums of all nodes lie. The
/// provenance has what each said (`repeats`, `date`), and `combines` the digest of each, and of what that
/// combines. What only some have (launch times, `update`, `crowd`, ...) is left out. InputError, naming file
/// and field, for fewer than two, and where they are not of the same model, minibatch, device, threads,
/// machine and versions.
Profile combined_profile(const std::vector<MeasuredProfile>& measured);

/// For people, in lines of `width` characters: the sum of all nodes of each, against that of `combined`.
std::string sums_text(const std::vector<MeasuredProfile>& measured, const Profile& combined,
                      int64_t width = kAnyWidth);

}  // namespace pipewright
