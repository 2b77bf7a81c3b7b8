// Which weights a forward reads: the version rules as one formula.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// The version that each minibatch reads at one stage, counted in updates since the begin of the span: all
/// rounds that end `lag` minibatches or more before it, but none from before the pipeline was last empty.
/// With L the length of a round and the pipeline empty before minibatch `began`,
///
///   version(k) = max(floor(began / L), floor((k - lag) / L)) - floor(first / L)
///
/// A span whose pipeline starts empty has began = first, and no version is negative. One that goes on from a
/// checkpoint within a span has began < first: its first minibatches read versions from before it.
///
///   stash, paci, predict   lag = what this stage runs ahead
///   vertical               lag = what the first trained stage runs ahead
///   2bw                    lag = L
///   flush, and any frozen stage: lag = 0
///
/// That is what is there, W being what the stage runs ahead. stash, flush: U j stands before F k exactly if
/// (j + 1) L - 1 + W < k, and where every update drains if round j is before that of k. vertical: later
/// stages run less far ahead, so they have made as many updates by then. 2bw: the interval M is at least the
/// W of the first trained stage, so for k in interval j, (j - 1) M - 1 + W < j M <= k and version j - 1 is
/// there; never three, as version j comes with the last backward of interval j - 1, whose version j - 2 goes
/// with it. With predict it is what the prediction is made of. Its backward reads the same, but where updates
/// are made in place the latest, as if lag were 0.
///
/// It does not fall from minibatch to minibatch. So a version can go when the oldest minibatch of the rank
/// whose backward has not ended reads a later one, and it is not the latest.
class ReadVersions {
 public:
  /// The shape goes with the schedule (check_schedule_shape).
  ReadVersions(const std::string& schedule, const PipelineShape& shape, int64_t stage, Span span)
      : ReadVersions(schedule, shape, stage, span, span.first) {}
  ReadVersions(const std::string& schedule, const PipelineShape& shape, int64_t stage, Span span,
               int64_t began);
  int64_t of(int64_t minibatch) const { return behind(minibatch, lag_); }
  /// What its backward reads.
  int64_t at_backward(int64_t minibatch) const { return behind(minibatch, rule_->in_place ? 0 : lag_); }
  /// How many updates the weights have had since what it reads, when the update of the round is made that it
  /// begins. No other minibatch of the round reads an older version.
  int64_t delay(int64_t minibatch) const { return behind(minibatch, 0) - of(minibatch); }
  /// What it reads is a prediction.
  bool predicted(int64_t minibatch) const {
    return rule_->predicts && at_backward(minibatch) > of(minibatch);
  }
  /// The first minibatch of the span that reads the same: with predict what is made of one version, for one.
  int64_t first_reader(int64_t minibatch) const;
  /// The number under which a checkpoint of the span's first minibatch, of `updates` updates, has what a
  /// minibatch reads that is made of an older version: that version's, with predict its first reader.
  int64_t number_in_checkpoint(int64_t minibatch, int64_t updates) const {
    return rule_->predicts ? first_reader(minibatch) : updates + of(minibatch);
  }

 private:
  int64_t behind(int64_t minibatch, int64_t lag) const {
    const int64_t reached = std::max<int64_t>(0, minibatch - lag) / round_length_;
    return std::max(empty_round_, reached) - first_round_;
  }

  int64_t lag_, round_length_, first_, first_round_;
  int64_t empty_round_;  // of `began`
  const WeightRuleFacts* rule_;
};

/// How many versions of a stage's weights a rank holds: the latest, and those that are there and have
/// readers. A reader is a minibatch, from when it is known what it reads (`vertical`, `2bw`: from the start;
/// else from its forward) to the end of its backward. With a rule that updates in place nothing is held for
/// readers; from the first prediction on there is room for one.
class HeldVersions {
 public:
  HeldVersions(WeightRule rule, int64_t most_updates)
      : in_place_(facts_of(rule).in_place), readers_(most_updates + 1, 0) {}
  void add_reader(int64_t version) {
    if (!in_place_) there_ += ++readers_[version] == 1 && version <= updates_;
  }
  void remove_reader(int64_t version) {
    if (!in_place_) there_ -= --readers_[version] == 0 && version <= updates_;
  }
  void predict() { predictions_ = 1; }
  void update() { there_ += readers_[++updates_] > 0; }
  int64_t updates() const { return updates_; }
  int64_t count() const { return there_ + (readers_[updates_] == 0 ? 1 : 0) + predictions_; }

 private:
  bool in_place_;
  std::vector<int64_t> readers_;  // by version
  int64_t updates_ = 0, there_ = 0, predictions_ = 0;
};

/// Weight versions that a rank keeps beside the latest, of a stage of such a depth: with stash one for each
/// further minibatch in flight, with vertical as many as the first trained stage has (`pipeline_depth` is its
/// depth), with 2bw one, with predict one where several are in flight, with flush and paci none.
int64_t further_versions(WeightRule weights, int64_t in_flight, int64_t pipeline_depth);
/// Weight versions of a checkpoint beside the latest, likewise, at most: what minibatches behind it read. In
/// place they are copied for the checkpoint.
int64_t older_in_checkpoint(WeightRule weights, int64_t in_flight, int64_t pipeline_depth);

}  // namespace pipewright
