// Which weights a forward reads: the version rules as one formula.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// The version that each minibatch reads at one stage, counted in updates of the span: all rounds that end
/// `lag` minibatches or more before it. With L the length of a round, and as the span's first round is number
/// 0,
///
///   version(k) = max(0, floor((k - lag) / L) - floor(first / L))
///
///   stash     lag = what this stage runs ahead    vertical  lag = what stage 0 runs ahead
///   2bw       lag = L                             flush     lag = 0
///
/// It does not fall from minibatch to minibatch. So a version can go when the oldest minibatch of the rank
/// whose backward has not ended reads a later one, and it is not the latest.
class ReadVersions {
 public:
  /// The shape goes with the schedule (check_schedule_shape).
  ReadVersions(const std::string& schedule, const PipelineShape& shape, int64_t stage, Span span);
  int64_t of(int64_t minibatch) const {
    const int64_t reached = minibatch - lag_;
    return reached < 0 ? 0 : std::max<int64_t>(0, reached / round_length_ - first_round_);
  }

 private:
  int64_t lag_, round_length_, first_round_;
};

/// How many versions of a stage's weights a rank holds: the latest, and those that are there and have
/// readers. A reader is a minibatch, from when it is known what it reads (`vertical`, `2bw`: from the start;
/// else from its forward) to the end of its backward.
class HeldVersions {
 public:
  explicit HeldVersions(int64_t most_updates) : readers_(most_updates + 1, 0) {}
  void add_reader(int64_t version) { there_ += ++readers_[version] == 1 && version <= updates_; }
  void remove_reader(int64_t version) { there_ -= --readers_[version] == 0 && version <= updates_; }
  void update() { there_ += readers_[++updates_] > 0; }
  int64_t updates() const { return updates_; }
  int64_t count() const { return there_ + (readers_[updates_] == 0 ? 1 : 0); }

 private:
  std::vector<int64_t> readers_;  // by version
  int64_t updates_ = 0, there_ = 0;
};

}  // namespace pipewright
