// Interleaved 1F1B (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC
// 2021, section 2.2): each rank runs several stages, so that filling and draining take as many short steps.
// Two ranks with two stages each, four microbatches, every action one unit of time:
//
//   rank 0  stages 0,2 replica 0 | 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ..  2B2 ..  2B3 0B2 0B3
//   rank 1  stages 1,3 replica 0 | ..  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 ..
//
// The interval's minibatches are cut into blocks. A rank lets a block through its first stage, then through
// its second, and so on (depth first); backwards go the other way. With the i-th forward and the b-th
// backward of this order on all replicas of a group of ranks, backward b runs after forward b + w,
//
//   w = (v - 1) n + 2 (minibatches that fit into the groups after this one),
//
// v stages a rank, n minibatches in the longest block. Blocks are as long as all groups need to be busy, or a
// little longer, because blocks of equal length (to one) must fill the interval: with p straight ranks and a
// multiple of p minibatches, p, which is Megatron-LM's order. A rank without replicas has w + 1 = (v - 1) p +
// 2 (p - 1 - rank) + 1 minibatches in flight, counted over its stages. Where a span cuts an update short,
// what is left keeps the order that it has in the whole update, and what is not there waits for nothing.
//
// Why it never deadlocks. Let t_g be how many minibatches fit into group g at once (its replicas; with
// shares, their sum over the smallest), S_g the sum of t over the groups 1 to g, A_g that over the groups
// after g. First let there be blocks of n >= sum(t) minibatches. Give forward i on group g the place 2 i + 2
// S_g, backward b the place 2 (b + w_g) + 2 S_g + 1; on a rank both rise in the order of its list. Every wait
// leads down:
//  * forward from group g - 1: the same i, S smaller by t_g;
//  * forward from the last group to the first (the next stage of its ranks): i smaller by n, S larger by A_0,
//    and n > A_0;
//  * backward from group g + 1: the same b; w smaller by 2 t_{g+1}, S larger by t_{g+1};
//  * backward from the first group to the last: b smaller by n, w larger by 2 A_0, S smaller by A_0, and
//    2 (-n + 2 A_0 - A_0) < 0;
//  * the backward of the last stage after its own forward: i - b = (v - 1) n <= w.
// A single block may be shorter. Then all forwards of the first v - 1 stages of every rank come before its
// first backward, in the same order everywhere; forwards and backwards of the last stages are a 1f1b-flush
// with the distance 2 A_g, which falls; the other backwards follow in the same order everywhere. The updates
// end the list, stage by stage.
#include <algorithm>

#include "graph/error.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {
namespace {

// The order of all groups' actions within an update interval.
class Blocks {
 public:
  explicit Blocks(const PipelineShape& shape)
      : minibatches_(shape.microbatches), stages_per_rank_(shape.stages_per_rank), after_(shape.groups(), 0) {
    int64_t fit = 0;
    for (int64_t group = shape.groups(); group-- > 0;) {
      after_[group] = fit;
      fit += StageTurns(shape, group).longest_turn();
    }
    count_ = std::max<int64_t>(1, minibatches_ / fit);
  }

  int64_t count() const { return count_; }
  /// The first minibatch of a block, counted in the interval.
  int64_t begin(int64_t block) const {
    const int64_t longer = minibatches_ % count_;  // the first blocks have one more
    return block * (minibatches_ / count_) + std::min(block, longer);
  }
  int64_t length(int64_t block) const { return begin(block + 1) - begin(block); }
  /// The place of forward `position` (counted in the block) of the rank's stage number `chunk`; of the
  /// backward, on group `group`.
  int64_t forward_place(int64_t block, int64_t chunk, int64_t position) const {
    return 2 * index(block, chunk, position);
  }
  int64_t backward_place(int64_t group, int64_t block, int64_t chunk, int64_t position) const {
    const int64_t ahead = (stages_per_rank_ - 1) * length(0) + 2 * after_[group];
    return 2 * (index(block, stages_per_rank_ - 1 - chunk, position) + ahead) + 1;
  }

 private:
  int64_t index(int64_t block, int64_t turn, int64_t position) const {
    return stages_per_rank_ * begin(block) + turn * length(block) + position;
  }

  int64_t minibatches_, stages_per_rank_;
  std::vector<int64_t> after_;  // by group: minibatches that fit into the groups after it
  int64_t count_ = 1;
};

}  // namespace

std::vector<int64_t> interleaved_depths(const PipelineShape& shape) {
  const Blocks blocks(shape);
  std::vector<int64_t> depths;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const int64_t group = shape.group_of(stage), chunk = stage / shape.groups();
    std::vector<int64_t> forwards, backwards;  // places by minibatch
    for (int64_t block = 0; block < blocks.count(); ++block)
      for (int64_t position = 0; position < blocks.length(block); ++position) {
        forwards.push_back(blocks.forward_place(block, chunk, position));
        backwards.push_back(blocks.backward_place(group, block, chunk, position));
      }
    // In flight are neighbouring minibatches: from each, those whose forward comes before its backward.
    int64_t most = 0;
    for (size_t first = 0, end = 0; first < forwards.size(); ++first) {
      while (end < forwards.size() && forwards[end] < backwards[first]) ++end;
      most = std::max(most, static_cast<int64_t>(end - first));
    }
    depths.push_back(StageTurns(shape, stage).most_of_one_replica(most));
  }
  return depths;
}

std::vector<Action> interleaved(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  const Blocks blocks(shape);
  const StageTurns turns(shape, stage);
  const int64_t several = shape.stages_per_rank;
  const auto named = [&](int64_t chunk) {
    return several > 1 ? stage + chunk * shape.groups() : Action::kOnlyStage;
  };
  struct Placed {
    int64_t place;
    Action action;
  };
  std::vector<Placed> forwards, backwards;
  std::vector<Action> actions;
  const Rounds rounds = turns.rounds_of(span);
  for (int64_t round = rounds.first; round < rounds.end(); ++round) {
    // Every interval has the order of a whole one, also one that the span cuts short.
    forwards.clear();
    backwards.clear();
    for (int64_t block = 0; block < blocks.count(); ++block) {
      const int64_t begin = round * shape.microbatches + blocks.begin(block);
      const int64_t first = std::max(begin, span.first);
      const int64_t end = std::min(begin + blocks.length(block), span.end());
      if (first >= end) continue;
      const std::vector<int64_t> own = turns.minibatches_of(replica, {first, end - first});
      for (int64_t chunk = 0; chunk < several; ++chunk)
        for (const int64_t k : own)
          forwards.push_back(
              {blocks.forward_place(block, chunk, k - begin), {ActionKind::kForward, k, named(chunk)}});
      for (int64_t chunk = several; chunk-- > 0;)
        for (const int64_t k : own)
          backwards.push_back({blocks.backward_place(stage, block, chunk, k - begin),
                               {ActionKind::kBackward, k, named(chunk)}});
    }
    size_t forward = 0;
    for (const Placed& backward : backwards) {
      for (; forward < forwards.size() && forwards[forward].place < backward.place; ++forward)
        actions.push_back(forwards[forward].action);
      actions.push_back(backward.action);
    }
    PW_CHECK_EQ(forward, forwards.size());
    for (int64_t chunk = 0; chunk < several; ++chunk)
      actions.push_back({ActionKind::kUpdate, round, named(chunk)});
  }
  return actions;
}

}  // namespace pipewright
