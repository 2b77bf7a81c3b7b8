// Runs the lists of all ranks against each other: the one engine behind check_schedule and simulate.
//
// Every rank follows its own list and no choice is ever made, so the order in which this engine visits the
// ranks cannot change which action waits for which: what it finds holds for every real run, whatever the
// times.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "runtime/schedule/meetings.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/split_messages.h"

namespace pipewright {

using RankLists = std::vector<std::vector<Action>>;

/// Messages [first, first + count).
struct MessageRange {
  size_t first = 0;
  size_t count = 0;
};

/// One message for each minibatch across each boundary and direction, or one for each part of a stage that
/// splits and sends it: numbers them.
class MessageIndex {
 public:
  MessageIndex(const PipelineShape& shape, Span span)
      : shape_(shape), stages_(shape.stages()), span_(span), split_(shape.any_splits()) {
    for (int64_t boundary = 0; boundary + 1 < stages_; ++boundary) {
      for (const int64_t sender : {boundary, boundary + 1}) {
        begin_.push_back(static_cast<int64_t>(count_));
        parts_.push_back(parts_of(shape, sender));
        count_ += static_cast<size_t>(parts_.back() * span.count);
      }
    }
  }
  size_t count() const { return count_; }
  /// Those that a send or receive action of a replica of `stage` is about. A send has one.
  MessageRange of(const Action& action, int64_t stage, int64_t replica) const {
    const size_t first = this->first(action, stage);
    if (!split_) return {first, 1};
    const bool sends = action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kSendGradient;
    if (sends) return {first + static_cast<size_t>(shape_.splits(stage) ? replica : 0), 1};
    const int64_t other = stage + (action.kind == ActionKind::kReceiveActivation ? -1 : 1);
    const ReplicaRange met = parts_met(shape_, stage, replica, other);
    return {first + static_cast<size_t>(met.first), static_cast<size_t>(met.count)};
  }

 private:
  /// Of the first part.
  size_t first(const Action& action, int64_t stage) const {
    const bool gradient =
        action.kind == ActionKind::kReceiveGradient || action.kind == ActionKind::kSendGradient;
    const bool below =  // the boundary with the stage before
        action.kind == ActionKind::kReceiveActivation || action.kind == ActionKind::kSendGradient;
    const int64_t boundary = stage - (below ? 1 : 0);
    PW_CHECK(boundary >= 0 && boundary < stages_ - 1, to_text(action) << " at stage " << stage);
    PW_CHECK(action.index >= span_.first && action.index < span_.end(), to_text(action)
                                                                            << " outside the span");
    const auto way = static_cast<size_t>(2 * boundary + (gradient ? 1 : 0));
    return static_cast<size_t>(begin_[way] + parts_[way] * (action.index - span_.first));
  }

  const PipelineShape& shape_;
  int64_t stages_;
  Span span_;
  bool split_;
  size_t count_ = 0;
  std::vector<int64_t> begin_, parts_;  // by boundary and direction
};

/// Sends never block, a receive waits for its message, a reduce waits until all replicas of the stage reach
/// it, an update for the ranks of its meeting. Calls ran(rank, position, messages) after each action but a
/// reduce
/// (`messages` are none where it is about none), reduced(first_rank, action) once for each reduce, and
/// met(meetings, meeting) before the updates of a meeting. Returns where each rank got to: its list's size,
/// or the action that waits for ever. Time is linear in the number of actions.
template <typename Ran, typename Reduced, typename Met>
std::vector<size_t> dry_run(const RankLists& lists, const PipelineShape& shape, Span span, Ran&& ran,
                            Reduced&& reduced, Met&& met) {
  const std::vector<Placement> ranks = placements(shape);
  const std::vector<int64_t> first_rank = first_ranks(shape);
  const MessageIndex messages(shape, span);
  // A receiver of each message, where it is waiting for it; or one of these. Other receivers of the same
  // message hang on it.
  constexpr int64_t kNobody = -1, kSent = -2;
  std::vector<int64_t> waiter(messages.count(), kNobody);
  std::vector<int64_t> next_waiter(lists.size(), kNobody);
  std::vector<int64_t> at_reduce(shape.stages(), 0);  // how many replicas of the stage wait at a reduce
  std::vector<size_t> position(lists.size(), 0);
  Meetings meetings(shape);
  std::vector<int64_t> ready;
  for (size_t rank = lists.size(); rank-- > 0;) ready.push_back(static_cast<int64_t>(rank));

  // Lets the stage pass when its last replica has come, if all wait for the same round.
  const auto arrive = [&](int64_t stage) {
    if (++at_reduce[stage] < shape.replicas[stage]) return;
    const int64_t begin = first_rank[stage], end = begin + shape.replicas[stage];
    for (int64_t rank = begin; rank < end; ++rank)
      if (!(lists[rank][position[rank]] == lists[begin][position[begin]])) return;
    at_reduce[stage] = 0;
    reduced(begin, lists[begin][position[begin]]);
    for (int64_t rank = begin; rank < end; ++rank) {
      ++position[rank];
      ready.push_back(rank);
    }
  };

  while (!ready.empty()) {
    const int64_t rank = ready.back();
    ready.pop_back();
    const std::vector<Action>& list = lists[rank];
    for (bool waits = false; !waits && position[rank] < list.size();) {
      const Action& action = list[position[rank]];
      const int64_t stage = action.stage_or(ranks[rank].stage);
      MessageRange about;
      switch (action.kind) {
        case ActionKind::kReceiveActivation:
        case ActionKind::kReceiveGradient:
          about = messages.of(action, stage, ranks[rank].replica);
          for (size_t message = about.first; message < about.first + about.count && !waits; ++message) {
            waits = waiter[message] != kSent;
            if (waits) next_waiter[rank] = std::exchange(waiter[message], rank);
          }
          break;
        case ActionKind::kSendActivation:
        case ActionKind::kSendGradient:
          about = messages.of(action, stage, ranks[rank].replica);
          for (int64_t waiting = std::exchange(waiter[about.first], kSent); waiting >= 0;
               waiting = next_waiter[waiting])
            ready.push_back(waiting);
          break;
        case ActionKind::kReduce:
          waits = true;
          arrive(stage);
          break;
        case ActionKind::kUpdate: {
          const Meetings::Reached reached = meetings.reach_update(rank);
          waits = reached != Meetings::Reached::kGoesOn;
          if (reached != Meetings::Reached::kAllAreThere) break;
          met(meetings, meetings.of_rank(rank));
          for (const int64_t other : meetings.ranks(meetings.of_rank(rank))) {
            ran(other, position[other]++, MessageRange{});
            ready.push_back(other);
          }
          break;
        }
        default:
          break;
      }
      if (!waits) ran(rank, position[rank]++, about);
    }
  }
  return position;
}

}  // namespace pipewright
