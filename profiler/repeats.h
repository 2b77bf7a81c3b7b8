// How often to measure: until the sum of the medians is known well enough.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace pipewright {

/// One series for each thing that is measured, an entry per repeat; all of one length.
using RepeatSeries = std::vector<std::vector<double>>;

/// The sum over the series of their medians.
double sum_of_medians(const RepeatSeries& series);

/// How far that sum may be off, as a part of it: the farther end of the interval that holds 95 % of the sums
/// of as many repeats drawn from these, with repetition (Efron's percentile bootstrap). Repeats are drawn as
/// they are, so series that are slow together count so; nothing is assumed of how times are distributed. The
/// draws are always the same. Nothing of fewer than 6 repeats, of which the extremes are too few, and of a
/// sum that is 0.
std::optional<double> sum_known_within(const RepeatSeries& series);

struct RepeatRule {
  double aim = 0.01;          ///< sum_known_within() at most: known
  size_t least = 3;           ///< repeats, whatever they take
  size_t least_to_know = 20;  ///< fewer tell too little of single layers, and a lucky start would end it
  size_t most = 1000;
  double most_seconds = 20;
};

enum class Repeating {
  kGoesOn,  ///< another repeat is needed
  kKnown,   ///< the aim is reached
  kGivesUp  ///< it is not, and repeats or time have run out
};

/// `elapsed_seconds`: since the first repeat began. Whether the sum is known is looked at every tenth more
/// repeats only: a look takes longer than a repeat of a small model.
Repeating repeating(const RepeatSeries& series, double elapsed_seconds, const RepeatRule& rule = {});

}  // namespace pipewright
