// Who processes a minibatch, and which minibatches make one update: the only home of both.
#pragma once

#include <optional>

#include "runtime/schedule/shape.h"

namespace pipewright {

/// The replica of each minibatch of a cycle of sum(shares) minibatches: smooth weighted round robin, so that
/// what a replica gets is spread over the cycle. In each step every replica gains its share, the one that has
/// most (the first of equals) is taken and pays the sum. All ones: 0, 1, 2, ...
std::vector<int64_t> shares_cycle(const std::vector<int64_t>& shares);

/// Minibatches of an update where one crosses at most one: a turn of the stage's replicas, doubled until the
/// stage, which runs `ahead` minibatches ahead, runs no further than that.
int64_t round_that_bounds_crossing(int64_t turn, int64_t ahead);

/// The rounds of a stage that have a minibatch in a span: [first, first + count).
struct Rounds {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
};

/// The turns of one stage. Minibatches count from 0 over the whole run and go round robin in cycles of
/// cycle_length(). Round j is the minibatches [j L, (j + 1) L) with L = round_length(), clipped to the span:
/// the first and the last round of a span may be short. Every replica takes part in every round's update,
/// also one that has no minibatch in it (its gradient is zero), so that all replicas hold equal weights. Of a
/// stage that splits its minibatches each replica has all of them, and a cycle is one minibatch.
class StageTurns {
 public:
  StageTurns(const PipelineShape& shape, int64_t stage);

  int64_t replicas() const { return replicas_; }
  /// All replicas take part in every minibatch: in all that follows they are as one that takes each.
  bool splits() const { return splits_; }
  bool takes(int64_t replica, int64_t minibatch) const { return splits_ || replica_of(minibatch) == replica; }
  /// Sum of the shares.
  int64_t cycle_length() const { return cycle_length_; }
  int64_t largest_share() const { return largest_share_; }
  /// Minibatches of a cycle that the replica takes.
  int64_t share(int64_t replica) const {
    return cycle_.empty() ? 1 : static_cast<int64_t>(positions_[replica].size());
  }
  /// Minibatches from one of a replica's to its next, where that takes longest: how many fit into the stage
  /// at once. The number of replicas where all shares are 1.
  int64_t longest_turn() const { return (cycle_length_ + smallest_share_ - 1) / smallest_share_; }
  /// Minibatches of an update: microbatches with flush and 2bw, otherwise accumulation * cycle_length(), with
  /// paci doubled until the stage runs no further ahead than that.
  int64_t round_length() const { return round_length_; }

  /// Of a stage that splits: the first.
  int64_t replica_of(int64_t minibatch) const {
    return cycle_.empty() ? minibatch % takers_ : cycle_[minibatch % cycle_length_];
  }
  int64_t round_of(int64_t minibatch) const { return minibatch / round_length_; }
  /// Minibatches of round j within the span, of all replicas: 0 if the round lies outside.
  int64_t round_size(int64_t round, Span span) const;
  /// The first minibatch of round j within the span. The round has one.
  int64_t round_begin(int64_t round, Span span) const;
  Rounds rounds_of(Span span) const;
  /// Whether minibatch k is the last one of its replica in its round and the span.
  bool is_last_of_round(int64_t k, Span span) const;
  /// Those of one replica, ascending.
  std::vector<int64_t> minibatches_of(int64_t replica, Span span) const;

  /// The most that one replica gets of any `consecutive` minibatches.
  int64_t most_of_one_replica(int64_t consecutive) const;
  /// How many minibatches a stage of depth `depth` runs ahead: between the backward of minibatch k and the
  /// end of the stage's forwards up to k + run_ahead(depth), no rank has more than `depth` in flight. (depth
  /// - 1) replicas where all shares are 1, otherwise at most (depth - 1) cycle_length() / the largest share.
  int64_t run_ahead(int64_t depth) const;
  /// The largest depth whose run_ahead() is at most `minibatches`, and which is at most `most`.
  int64_t depth_that_runs_ahead(int64_t minibatches, int64_t most) const;

 private:
  int64_t replicas_, takers_, cycle_length_, round_length_, smallest_share_ = 1, largest_share_ = 1;
  bool splits_;
  std::vector<int64_t> cycle_;                   // by minibatch of a cycle; empty: all shares are 1
  std::vector<std::vector<int64_t>> positions_;  // by replica: its places in the cycle
};

/// Replicas of two stages, and of all minibatches the part that both take.
struct ReplicaPair {
  int64_t first = 0, second = 0;
  double part = 0;
};
/// All that have any, by the first. Of stages that take turns.
std::vector<ReplicaPair> replica_pairs(const StageTurns& first, const StageTurns& second);

/// After so many minibatches the turns of all stages, and with `rounds` their updates, are where they were:
/// the period of the pipeline. Nothing if it is longer than `longest`.
std::optional<int64_t> pipeline_period(const PipelineShape& shape, int64_t longest, bool rounds = true);

/// The replica of the stage that processes the minibatch.
int64_t replica_of(const PipelineShape& shape, int64_t stage, int64_t minibatch);
/// The round of the stage that the minibatch belongs to.
int64_t round_of(const PipelineShape& shape, int64_t stage, int64_t minibatch);
/// Minibatches of a round of the stage within the span.
int64_t round_size(const PipelineShape& shape, int64_t stage, int64_t round, Span span);

}  // namespace pipewright
