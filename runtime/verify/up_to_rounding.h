// Two trainings that should have computed the same but for the order of sums: how far apart they are, beside
// how far rounding alone takes them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/verify/comparison.h"

namespace pipewright {

/// How far a parameter may lie from the other's, by RelativeComparison, where training does not enlarge what
/// rounding does.
constexpr double kTolerance = 1e-3;
/// However far rounding goes, no further: a parameter that was not trained at all lies 1 off.
constexpr double kMostAllowed = 0.25;

/// Likewise for a loss, as a part of it: half the rate changes one by so much within few minibatches.
constexpr double kMostLossAllowed = 0.02;

struct UpToRounding {
  RelativeComparison found;
  /// Of the same places: how far from a training another one ends whose first weights are one unit in the
  /// last place off.
  RelativeComparison rounding;
  double tolerance = kTolerance;
  bool equal = false;  ///< bit for bit

  /// Of found.parameters[i]: the tolerance, or ten times what rounding does to it or the model if that is
  /// more, up to kMostAllowed. Nothing where rounding alone goes so far (half of kMostAllowed, and more than
  /// the tolerance) that the comparison says nothing.
  std::optional<double> allowed(size_t i) const;
  /// How many parameters are compared.
  size_t compared() const;
  /// Those that lie farther off than they may, the one first that is farthest beyond.
  std::vector<size_t> beyond() const;
  bool holds() const { return beyond().empty(); }
};

/// The losses of two trainings, minibatch by minibatch.
struct LossesUpToRounding {
  struct Loss {
    int64_t minibatch = 0;
    double got = 0;
    double expected = 0;
    double difference = 0;  ///< |got - expected|
    double allowed = 0;
  };
  int64_t compared = 0;       ///< but those that rounding alone takes too far
  int64_t left_out = 0;       ///< these
  bool equal = true;          ///< bit for bit
  double largest = 0;         ///< difference, as a part of the loss
  std::optional<Loss> first;  ///< that lies farther off than it may
};

/// What a loss may differ by, as a part of it, before training has enlarged anything.
double loss_tolerance(const std::string& precision);

/// Minibatch first + k has the losses k. They may differ by `tolerance` of the expected one (or of the mean
/// of all, if that is more), or by ten times what rounding has made of the losses up to there if that is
/// more, up to kMostLossAllowed: `shifted` are the losses of `unshifted`'s training from weights one unit in
/// the last place off. Left out where rounding alone goes so far (half of kMostLossAllowed, and more than the
/// tolerance). `expected` may be shorter than the others; so many are compared.
LossesUpToRounding compare_losses(const std::vector<double>& got, const std::vector<double>& expected,
                                  const std::vector<double>& unshifted, const std::vector<double>& shifted,
                                  int64_t first, double tolerance);

}  // namespace pipewright
