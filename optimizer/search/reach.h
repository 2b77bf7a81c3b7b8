// An upper bound on the devices that a suffix of the model may use in a plan of a given period, such that the
// stages before it still have devices enough: the table of search_levels.h from the other end, with each stage
// priced as if the links that it shares with others were its own. A suffix that needs more devices is in no
// plan of that period; often none is left, and the period is refuted. For the search's own files.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/search/placement.h"

namespace pipewright::search_detail {

/// Lower bounds that do not depend on places. Borrows question and placement.
class StageBounds {
 public:
  StageBounds(const Question& question, const Placement& placement);

  double least_period() const;  ///< the work shared out over all devices
  void set_period(double seconds);
  /// Fewest devices of a stage; if they are more than `most`, some number above it.
  int64_t least_devices(int from, int to, int64_t most) const;
  /// Of all that comes before a cut, or behind it.
  int64_t least_before(int state) const;
  int64_t least_behind(int state) const { return behind_[state]; }

 private:
  int64_t devices_of(double seconds) const;
  double least_work(const StageLoad& load) const;
  double least_exchange(const Placement& placement, int64_t replicas) const;
  void fill_behind();

  const Question& q_;
  const States& states_;
  double fastest_;
  double pace_sum_;
  double period_ = 0;
  double per_period_ = 0;          ///< of the fastest device, a little less
  std::vector<double> work_;       ///< by state: of what is before it
  std::vector<double> gradients_;  ///< the same, bytes that are exchanged
  std::vector<double> cut_;        ///< on the links of a stage's devices, at least
  std::vector<int64_t> behind_;
  std::vector<double> exchange_;  ///< by replicas: seconds for a byte, wherever they are; it never falls
};

class Reach {
 public:
  Reach(const Question& question, const Placement& placement, const StageBounds& bounds)
      : q_(question), placement_(placement), bounds_(bounds) {}

  /// For the period of placement and bounds. False: no plan of at most so many devices is within it.
  bool fill(int64_t most_devices);
  /// Most devices that a suffix beginning after `state` may have, of those with this number modulo
  /// Placement::largest(); -1: none may.
  int64_t most(int state, int64_t devices) const {
    return most_[static_cast<size_t>(state) * row_ + static_cast<size_t>(devices % placement_.largest())];
  }
  int64_t most_of_any(int state) const { return most_of_any_[state]; }
  /// Most devices behind a block of so many servers, of each of which `filled` devices are taken.
  int64_t most_behind_block(int state, int64_t copies, int64_t filled) const {
    return blocks_[block_at(state, copies, filled)];
  }
  int64_t most_behind_any_block(int state) const { return most_of_any_block_[state]; }

 private:
  size_t block_at(int state, int64_t copies, int64_t filled) const {
    return (static_cast<size_t>(state) * static_cast<size_t>(copies_ + 1) + static_cast<size_t>(copies)) *
               static_cast<size_t>(placement_.server() + 1) +
           static_cast<size_t>(filled);
  }
  void raise(int state, int64_t devices);
  void raise_block(int state, int64_t copies, int64_t filled, int64_t devices);
  void extend(int i, int j);

  const Question& q_;
  const Placement& placement_;
  const StageBounds& bounds_;
  size_t row_ = 0;
  int64_t copies_ = 0;  ///< most servers of a block
  std::vector<int64_t> most_;
  std::vector<int64_t> most_of_any_;
  std::vector<int64_t> blocks_;
  std::vector<int64_t> most_of_any_block_;
};

}  // namespace pipewright::search_detail
