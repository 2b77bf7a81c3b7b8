#include "runtime/schedule/order.h"

#include <algorithm>
#include <limits>

namespace pipewright {
namespace {

// Actions of one kind on a range of the rank's minibatches, each placed `behind` minibatches later.
struct Stream {
  ActionKind kind;
  int64_t behind;
  size_t next;
};

// Merges the streams up to the place `until`, exclusive; of equal places the earlier stream comes first.
void merge(const std::vector<int64_t>& minibatches, size_t end, std::vector<Stream>& streams, int64_t until,
           std::vector<Action>* actions) {
  for (;;) {
    Stream* first = nullptr;
    int64_t first_place = until;
    for (Stream& stream : streams) {
      if (stream.next == end) continue;
      const int64_t place = minibatches[stream.next] + stream.behind;
      if (place < first_place) {
        first = &stream;
        first_place = place;
      }
    }
    if (!first) return;
    actions->push_back({first->kind, minibatches[first->next++]});
  }
}

}  // namespace

std::vector<Action> asynchronous_order(const StageTurns& turns, int64_t replica, int64_t ahead, Span span) {
  const std::vector<int64_t> minibatches = turns.minibatches_of(replica, span);
  const Rounds rounds = turns.rounds_of(span);
  std::vector<Action> actions;
  actions.reserve(2 * minibatches.size() + static_cast<size_t>(rounds.count));
  std::vector<Stream> streams = {{ActionKind::kForward, 0, 0}, {ActionKind::kBackward, ahead, 0}};
  for (int64_t round = rounds.first; round < rounds.end(); ++round) {
    merge(minibatches, minibatches.size(), streams, (round + 1) * turns.round_length() + ahead, &actions);
    actions.push_back({ActionKind::kUpdate, round});
  }
  return actions;
}

std::vector<Action> interval_order(const StageTurns& turns, int64_t replica, int64_t ahead, int64_t hold,
                                   Span span) {
  const std::vector<int64_t> minibatches = turns.minibatches_of(replica, span);
  const Rounds rounds = turns.rounds_of(span);
  const bool split = hold != kWholeBackward;
  std::vector<Action> actions;
  actions.reserve((split ? 3 : 2) * minibatches.size() + static_cast<size_t>(rounds.count));
  size_t begin = 0;
  for (int64_t round = rounds.first; round < rounds.end(); ++round) {
    const auto beyond = std::lower_bound(minibatches.begin() + static_cast<std::ptrdiff_t>(begin),
                                         minibatches.end(), (round + 1) * turns.round_length());
    const auto end = static_cast<size_t>(beyond - minibatches.begin());
    std::vector<Stream> streams = {{ActionKind::kForward, 0, begin}};
    streams.push_back({split ? ActionKind::kBackwardInput : ActionKind::kBackward, ahead, begin});
    if (split) streams.push_back({ActionKind::kBackwardWeight, hold, begin});
    merge(minibatches, end, streams, std::numeric_limits<int64_t>::max(), &actions);
    actions.push_back({ActionKind::kUpdate, round});
    begin = end;
  }
  return actions;
}

std::vector<Action> listed_order(IntervalList list, const PipelineShape& shape, int64_t group,
                                 int64_t replica, Span span) {
  const StageTurns turns(shape, group);
  const Rounds rounds = turns.rounds_of(span);
  std::vector<Action> actions;
  for (int64_t round = rounds.first; round < rounds.end(); ++round) {
    const std::vector<int64_t> own =
        turns.minibatches_of(replica, {round * shape.microbatches, shape.microbatches});
    for (const Action& action : list(shape, group, static_cast<int64_t>(own.size()))) {
      const int64_t k = own[static_cast<size_t>(action.index)];
      if (span.first <= k && k < span.end()) actions.push_back({action.kind, k, action.stage});
    }
    const bool named = shape.stages_per_rank > 1;
    for (int64_t stage = group; stage < shape.stages(); stage = shape.next_of_group(stage))
      actions.push_back({ActionKind::kUpdate, round, named ? stage : Action::kOnlyStage});
  }
  return actions;
}

std::vector<int64_t> listed_depths(IntervalList list, const PipelineShape& shape) {
  std::vector<int64_t> depths(shape.replicas.size(), 1), in_flight(shape.replicas.size(), 0);
  for (int64_t group = 0; group < shape.groups(); ++group) {
    const int64_t most = StageTurns(shape, group).most_of_one_replica(shape.microbatches);
    for (const Action& action : list(shape, group, most)) {
      const auto stage = static_cast<size_t>(action.stage_or(group));
      if (action.kind == ActionKind::kForward) depths[stage] = std::max(depths[stage], ++in_flight[stage]);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight)
        --in_flight[stage];
    }
  }
  return depths;
}

}  // namespace pipewright
