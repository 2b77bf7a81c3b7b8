// How often to measure: until the median is known well enough.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace pipewright {

/// How far the true median may lie from that of `values`, as a part of the latter, at 95 % confidence: the
/// farther of the two order statistics that enclose it whatever the distribution is (David and Nagaraja,
/// Order Statistics, 7.1). Nothing of fewer than 6 values, of which none do, and of a median that is 0.
std::optional<double> median_known_within(std::vector<double> values);

struct RepeatRule {
  double aim = 0.01;          ///< median_known_within() at most: known
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

/// `seconds`: what the repeats so far took, each. `elapsed_seconds`: since the first of them began.
Repeating repeating(const std::vector<double>& seconds, double elapsed_seconds, const RepeatRule& rule = {});

}  // namespace pipewright
