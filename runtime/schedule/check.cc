#include "runtime/schedule/check.h"

#include <algorithm>
#include <sstream>

#include "graph/error.h"
#include "runtime/schedule/dry_run.h"

namespace pipewright {
namespace {

std::string quoted(const Action& action) {
  std::string text = "'";
  text += to_text(action);
  text += "'";
  return text;
}

// Follows one rank's list on its own. What happens to a minibatch on a rank is a fixed chain of actions, so
// is the end of a round; a list is right when it interleaves all these chains and ends none early.
class ListChecker {
 public:
  ListChecker(const PipelineShape& shape, Span span, bool trains, const Placement& placement, RankCheck& out)
      : span_(span),
        replica_(placement.replica),
        replicas_(shape.replicas[placement.stage]),
        depth_(shape.in_flight[placement.stage]),
        rounds_(rounds_of(replicas_, span)),
        trains_(trains),
        out_(out),
        reached_(rounds_.count, 0),
        version_(rounds_.count, 0),
        round_(rounds_.first) {
    const bool previous = placement.stage > 0, next = placement.stage + 1 < shape.stages();
    const auto chain = [](std::vector<std::pair<ActionKind, bool>> all) {
      std::vector<ActionKind> kinds;
      for (const auto& [kind, there] : all)
        if (there) kinds.push_back(kind);
      return kinds;
    };
    minibatch_chain_ = chain({{ActionKind::kReceiveActivation, previous},
                              {ActionKind::kForward, true},
                              {ActionKind::kSendActivation, next},
                              {ActionKind::kReceiveGradient, trains && next},
                              {ActionKind::kBackward, trains},
                              {ActionKind::kSendGradient, trains && previous}});
    round_chain_ = chain({{ActionKind::kReduce, trains && replicas_ > 1}, {ActionKind::kUpdate, trains}});
  }

  /// "" or what is wrong with the list.
  std::string follow(const std::vector<Action>& list) {
    for (size_t position = 0; position < list.size(); ++position) {
      const Action& action = list[position];
      const bool of_round = action.kind == ActionKind::kReduce || action.kind == ActionKind::kUpdate;
      const std::string problem = of_round ? end_round(action) : minibatch_step(action);
      if (!problem.empty())
        return "action " + std::to_string(position) + " " + quoted(action) + ": " + problem;
    }
    for (int64_t round = rounds_.first; round < rounds_.end(); ++round)
      if (own(round) && reached_[round - rounds_.first] < minibatch_chain_.size())
        return "ends before " + quoted({minibatch_chain_[reached_[round - rounds_.first]], minibatch(round)});
    if (trains_ && round_ < rounds_.end())
      return "ends before " + quoted({round_chain_[round_step_], round_});
    return "";
  }

 private:
  int64_t minibatch(int64_t round) const { return round * replicas_ + replica_; }
  bool own(int64_t round) const { return minibatch(round) >= span_.first && minibatch(round) < span_.end(); }

  std::string minibatch_step(const Action& action) {
    if (action.index < span_.first || action.index >= span_.end()) return "the minibatch is not in the span";
    if (replica_of(action.index, replicas_) != replica_)
      return "the minibatch belongs to replica " + std::to_string(replica_of(action.index, replicas_));
    const int64_t slot = action.index / replicas_ - rounds_.first;
    size_t& reached = reached_[slot];
    if (reached == minibatch_chain_.size()) return "the minibatch is already done here";
    if (minibatch_chain_[reached] != action.kind)
      return "expected " + quoted({minibatch_chain_[reached], action.index}) + " next for this minibatch";
    ++reached;
    if (action.kind == ActionKind::kForward) {
      out_.minibatches.push_back(action.index);
      out_.forward_version.push_back(out_.updates);
      version_[slot] = out_.updates;
      flying_.push_back(slot);
      out_.peak_in_flight = std::max(out_.peak_in_flight, static_cast<int64_t>(flying_.size()));
      count_versions();
      if (!trains_) flying_.clear();
      if (static_cast<int64_t>(flying_.size()) > depth_)
        return std::to_string(flying_.size()) + " minibatches in flight, expected at most " +
               std::to_string(depth_);
    } else if (action.kind == ActionKind::kBackward) {
      if (round_ != action.index / replicas_) return "round " + std::to_string(round_) + " has no update yet";
      flying_.erase(std::find(flying_.begin(), flying_.end(), slot));
    }
    return "";
  }

  std::string end_round(const Action& action) {
    if (round_chain_.empty()) return "this schedule has no updates";
    if (action.index != round_ || round_ == rounds_.end() || action.kind != round_chain_[round_step_])
      return round_ == rounds_.end() ? "all rounds of the span are done"
                                     : "expected " + quoted({round_chain_[round_step_], round_}) + " next";
    if (own(round_) && reached_[round_ - rounds_.first] < minibatch_chain_.size())
      return "expected " + quoted({minibatch_chain_[reached_[round_ - rounds_.first]], minibatch(round_)}) +
             " first";
    if (++round_step_ < round_chain_.size()) return "";
    round_step_ = 0;
    ++round_;
    ++out_.updates;
    count_versions();
    return "";
  }

  void count_versions() {
    std::vector<int64_t> held = {out_.updates};
    for (const int64_t slot : flying_) held.push_back(version_[slot]);
    std::sort(held.begin(), held.end());
    const auto distinct = std::unique(held.begin(), held.end()) - held.begin();
    out_.peak_versions = std::max<int64_t>(out_.peak_versions, distinct);
  }

  Span span_;
  int64_t replica_, replicas_, depth_;
  Rounds rounds_;
  bool trains_;
  RankCheck& out_;
  std::vector<ActionKind> minibatch_chain_, round_chain_;
  std::vector<size_t> reached_;   // by round: how many actions of the minibatch's chain are done
  std::vector<int64_t> version_;  // by round: the version that the forward read
  std::vector<int64_t> flying_;   // rounds in flight, by slot
  int64_t round_;                 // the next to end
  size_t round_step_ = 0;
};

std::string what_it_waits_for(const Action& action, const PipelineShape& shape, int64_t stage) {
  const auto sender = [&](int64_t other) {
    return " from stage " + std::to_string(other) + " replica " +
           std::to_string(replica_of(action.index, shape.replicas[other]));
  };
  switch (action.kind) {
    case ActionKind::kReceiveActivation:
      return "activation " + std::to_string(action.index) + sender(stage - 1);
    case ActionKind::kReceiveGradient:
      return "gradient " + std::to_string(action.index) + sender(stage + 1);
    default:
      return "the other replicas";
  }
}

// A row per rank; long lists are cut to what is near the failing action.
std::string deadlock_grid(const RankLists& lists, const PipelineShape& shape,
                          const std::vector<size_t>& position) {
  constexpr size_t kBefore = 12, kAfter = 6;
  const std::vector<Placement> ranks = placements(shape);
  size_t waiting = 0;
  std::ostringstream rows;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const std::vector<Action>& list = lists[rank];
    const size_t reached = position[rank];
    const size_t begin = reached > kBefore ? reached - kBefore : 0;
    const size_t end = std::min(list.size(), reached + kAfter + 1);
    rows << "\n" << rank_label(rank, ranks[rank]) << " |";
    if (begin > 0) rows << " (" << begin << " done)";
    for (size_t i = begin; i < end; ++i) {
      rows << " " << to_text(list[i]);
      if (i == reached)
        rows << " <-- waits for " << what_it_waits_for(list[i], shape, ranks[rank].stage) << ";";
    }
    if (end < list.size()) rows << " (" << list.size() - end << " more)";
    if (reached == list.size()) rows << " (all done)";
    waiting += reached < list.size();
  }
  std::ostringstream grid;
  grid << "deadlock: " << waiting << " of " << lists.size() << " ranks wait for ever" << rows.str();
  return grid.str();
}

}  // namespace

ScheduleCheck check_lists(const std::vector<std::vector<Action>>& lists, const PipelineShape& shape,
                          Span span, bool trains) {
  check_shape(shape);
  PW_CHECK_EQ(static_cast<int64_t>(lists.size()), shape.ranks());
  ScheduleCheck check;
  for (const Placement& placement : placements(shape)) {
    const size_t rank = check.ranks.size();
    check.ranks.emplace_back().placement = placement;
    const std::string problem =
        ListChecker(shape, span, trains, placement, check.ranks.back()).follow(lists[rank]);
    if (!problem.empty() && check.problem.empty())
      check.problem = rank_label(rank, placement) + ", " + problem;
  }
  if (!check.problem.empty()) return check;

  const std::vector<size_t> position = dry_run(
      lists, shape, span, [](int64_t, size_t, size_t) {}, [](int64_t, int64_t, int64_t) {});
  for (size_t rank = 0; rank < lists.size(); ++rank)
    if (position[rank] < lists[rank].size()) {
      check.problem = deadlock_grid(lists, shape, position);
      return check;
    }
  check.completes = true;
  return check;
}

ScheduleCheck check_schedule(const std::string& schedule, const PipelineShape& shape, Span span) {
  return check_lists(schedule_of_all(schedule, shape, span), shape, span, schedule_named(schedule).trains);
}

}  // namespace pipewright
