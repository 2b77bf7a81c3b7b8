// Two profiles of one model beside each other: how well they agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "graph/text_table.h"

namespace pipewright {

struct LayerDifference {
  std::string name;
  double share = 0;  ///< of the first profile's time
  double first_seconds = 0, second_seconds = 0;

  double part() const { return second_seconds / first_seconds - 1; }
};

struct ProfileComparison {
  double first_seconds = 0, second_seconds = 0;  ///< all nodes, forward and backward
  /// Layers of at least kWeightyShare of the first profile's time, the most different first.
  std::vector<LayerDifference> layers;
  std::vector<std::string> other_bytes;  ///< nodes that differ in something that is no time

  double part() const { return second_seconds / first_seconds - 1; }
};

constexpr double kWeightyShare = 0.01, kNotableDifference = 0.05;

/// The node with nothing that a look at a clock gives.
ProfiledNode without_times(ProfiledNode node);

/// InputError, naming the first node, where they are not of the same nodes, or where the first has no times.
ProfileComparison compare_profiles(const Profile& first, const Profile& second);

/// For people, in lines of `width` characters: the sums, and the layers that differ by more than
/// kNotableDifference.
std::string comparison_text(const ProfileComparison& comparison, int64_t width = kAnyWidth);

}  // namespace pipewright
