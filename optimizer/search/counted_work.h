// How much a search may spend. It is counted, not timed: the solution is the same on every machine, however
// busy that is.
#pragma once

namespace pipewright {

class CountedWork {
 public:
  /// `seconds`: of one core as those on which the steps were counted (docs/interference.md).
  explicit CountedWork(double seconds) : left_(seconds * kStepsPerSecond) {}

  /// A step is a handful of operations.
  static constexpr double kStepsPerSecond = 1e8;

  void spend(double steps) { left_ -= steps; }
  bool has(double steps = 0) const { return left_ > steps; }
  double left() const { return left_; }

 private:
  double left_;
};

}  // namespace pipewright
