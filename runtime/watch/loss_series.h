// The losses of a run, however long, as a curve of so many points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright {

/// Means over stretches of equally many minibatches. Its memory does not grow with the run: stretches are
/// joined in pairs when they become too many.
class LossSeries {
 public:
  /// Of the minibatch behind the last one; of an earlier one (a run that has gone back): what was told from
  /// there on is forgotten, but for what its stretch holds. A loss that is not finite counts as none.
  void add(int64_t minibatch, double loss);
  /// At most `most` points, in order; NaN for a stretch without a finite loss. Empty: nothing was told.
  std::vector<double> points(size_t most) const;

  static constexpr size_t kMostStretches = 2048;

 private:
  struct Stretch {
    double sum = 0;
    int64_t losses = 0;
  };
  int64_t first_ = -1;  // minibatch
  int64_t each_ = 1;    // minibatches of a stretch
  std::vector<Stretch> stretches_;
};

}  // namespace pipewright
