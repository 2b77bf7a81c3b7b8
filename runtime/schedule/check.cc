#include "runtime/schedule/check.h"

#include <algorithm>
#include <sstream>

#include "graph/error.h"
#include "runtime/schedule/dry_run.h"
#include "runtime/schedule/versions.h"

namespace pipewright {
namespace {

std::string quoted(const Action& action) {
  std::string text = "'";
  text += to_text(action);
  text += "'";
  return text;
}

// Follows what one rank does at one of its stages. What happens to a minibatch there is a fixed chain of
// actions, so is the end of a round; a list is right when it interleaves all these chains and ends none
// early.
class StageChecker {
 public:
  StageChecker(const std::string& schedule, const PipelineShape& shape, Span span, bool trains, int64_t stage,
               RankCheck& out)
      : span_(span),
        replica_(out.placement.replica),
        depth_(shape.in_flight[stage]),
        named_stage_(shape.stages_per_rank > 1 ? stage : Action::kOnlyStage),
        trains_(trains),
        turns_(shape, stage),
        rounds_(turns_.rounds_of(span)),
        rule_(schedule.empty() ? "1f1b" : schedule, shape, stage, span),
        has_rule_(trains && !schedule.empty()),
        latest_(!has_rule_ || !shape.trains(stage) || facts_of(shape.weights).reads_latest()),
        out_(out),
        own_(turns_.minibatches_of(replica_, span)),
        reached_(own_.size(), 0),
        split_(own_.size(), false),
        read_(own_.size(), 0),
        held_(shape.weights, trains ? rounds_.count : 0),
        bounds_crossing_(facts_of(shape.weights).bounds_crossing),
        round_(rounds_.first) {
    const bool previous = stage > 0 && shape.crosses_ranks(stage - 1);
    const bool next = stage + 1 < shape.stages() && shape.crosses_ranks(stage);
    const auto chain = [](std::vector<std::pair<ActionKind, bool>> all) {
      std::vector<ActionKind> kinds;
      for (const auto& [kind, there] : all)
        if (there) kinds.push_back(kind);
      return kinds;
    };
    minibatch_chain_ =
        chain({{ActionKind::kReceiveActivation, previous},
               {ActionKind::kForward, true},
               {ActionKind::kSendActivation, next},
               {ActionKind::kReceiveGradient, trains_ && next && shape.receives_gradient(stage)},
               {ActionKind::kBackward, trains_},
               {ActionKind::kSendGradient, trains_ && previous && shape.sends_gradient(stage)}});
    round_chain_ = chain({{ActionKind::kReduce, trains_ && shape.trains(stage) && turns_.replicas() > 1},
                          {ActionKind::kUpdate, trains_}});
    if (latest_) return;
    // Versions that are read later than they are made are kept for their readers.
    for (size_t slot = 0; slot < own_.size(); ++slot) add_reader(slot, rule_.of(own_[slot]));
  }

  /// "" or what is wrong with the next action.
  std::string follow(const Action& action) {
    return is_of_round(action.kind) ? end_round(action) : minibatch_step(action);
  }

  /// Whether this action of the minibatch was there already.
  bool has_run(ActionKind kind, int64_t minibatch) const {
    const auto own = std::lower_bound(own_.begin(), own_.end(), minibatch);
    if (own == own_.end() || *own != minibatch) return false;
    const auto step = std::find(minibatch_chain_.begin(), minibatch_chain_.end(), kind);
    return reached_[static_cast<size_t>(own - own_.begin())] >
           static_cast<size_t>(step - minibatch_chain_.begin());
  }

  /// "" or what is missing.
  std::string end() const {
    for (size_t slot = 0; slot < own_.size(); ++slot)
      if (!done(slot)) return "ends before " + quoted(next_of(slot));
    if (trains_ && round_ < rounds_.end())
      return "ends before " + quoted({round_chain_[round_step_], round_, named_stage_});
    return "";
  }

 private:
  bool done(size_t slot) const { return reached_[slot] == minibatch_chain_.size() + (split_[slot] ? 1 : 0); }
  Action next_of(size_t slot) const {
    if (reached_[slot] == minibatch_chain_.size())
      return {ActionKind::kBackwardWeight, own_[slot], named_stage_};
    return {minibatch_chain_[reached_[slot]], own_[slot], named_stage_};
  }

  std::string minibatch_step(const Action& action) {
    if (action.index < span_.first || action.index >= span_.end()) return "the minibatch is not in the span";
    if (!turns_.takes(replica_, action.index))
      return "the minibatch belongs to replica " + std::to_string(turns_.replica_of(action.index));
    const size_t slot = std::lower_bound(own_.begin(), own_.end(), action.index) - own_.begin();
    if (done(slot)) return "the minibatch is already done here";
    const Action expected = next_of(slot);
    const bool first_part =
        action.kind == ActionKind::kBackwardInput && expected.kind == ActionKind::kBackward;
    if (first_part)
      split_[slot] = true;
    else if (expected.kind != action.kind)
      return "expected " + quoted(expected) + " next for this minibatch";
    ++reached_[slot];
    if (action.kind == ActionKind::kForward) return forward(slot);
    const bool backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput ||
                          action.kind == ActionKind::kBackwardWeight;
    if (backward && round_ != turns_.round_of(action.index))
      return "round " + std::to_string(round_) + " has no update yet";
    if (backward && !first_part) {
      --in_flight_;
      remove_reader(slot);
    }
    const int64_t crossed = out_.updates - read_[slot];
    if (backward && bounds_crossing_ && crossed > 1)
      return std::to_string(crossed) + " updates since its forward, expected at most 1";
    return "";
  }

  std::string forward(size_t slot) {
    if (latest_) add_reader(slot, out_.updates);
    if (has_rule_ && rule_.predicted(own_[slot])) held_.predict();
    const int64_t version = read_[slot];
    out_.minibatches.push_back(own_[slot]);
    out_.forward_version.push_back(version);
    out_.peak_in_flight = std::max(out_.peak_in_flight, ++in_flight_);
    count_versions();
    if (!trains_) {
      --in_flight_;
      remove_reader(slot);
    }
    if (in_flight_ > depth_)
      return std::to_string(in_flight_) + " minibatches in flight, expected at most " +
             std::to_string(depth_);
    if (version > out_.updates)
      return "reads version " + std::to_string(version) + ", the latest is " + std::to_string(out_.updates);
    if (has_rule_ && version != rule_.of(own_[slot]))
      return "reads version " + std::to_string(version) + ", expected version " +
             std::to_string(rule_.of(own_[slot]));
    return "";
  }

  std::string end_round(const Action& action) {
    if (round_chain_.empty()) return "this schedule has no updates";
    if (action.index != round_ || round_ == rounds_.end() || action.kind != round_chain_[round_step_])
      return round_ == rounds_.end()
                 ? "all rounds of the span are done"
                 : "expected " + quoted({round_chain_[round_step_], round_, named_stage_}) + " next";
    for (; first_open_ < own_.size() && turns_.round_of(own_[first_open_]) <= round_; ++first_open_)
      if (!done(first_open_)) return "expected " + quoted(next_of(first_open_)) + " first";
    if (++round_step_ < round_chain_.size()) return "";
    round_step_ = 0;
    ++round_;
    ++out_.updates;
    held_.update();
    count_versions();
    return "";
  }

  void add_reader(size_t slot, int64_t version) {
    read_[slot] = version;
    held_.add_reader(version);
  }
  void remove_reader(size_t slot) { held_.remove_reader(read_[slot]); }
  void count_versions() { out_.peak_versions = std::max(out_.peak_versions, held_.count()); }

  Span span_;
  int64_t replica_, depth_, named_stage_;
  bool trains_;
  StageTurns turns_;
  Rounds rounds_;
  ReadVersions rule_;
  bool has_rule_;
  bool latest_;  // the rule is about when a forward runs: it reads the latest version
  RankCheck& out_;
  std::vector<ActionKind> minibatch_chain_, round_chain_;
  std::vector<int64_t> own_;     // minibatches; the vectors below go with it
  std::vector<size_t> reached_;  // how many actions of the minibatch's chain are done
  std::vector<bool> split_;      // the backward is in two parts
  std::vector<int64_t> read_;    // version
  HeldVersions held_;
  bool bounds_crossing_;
  int64_t in_flight_ = 0;
  size_t first_open_ = 0;  // minibatches before it are done
  int64_t round_;          // the next to end
  size_t round_step_ = 0;
};

/// In the middle of a V: "" or what the neighbouring stage of the same rank should have done before.
std::string not_there_yet(const std::vector<StageChecker>& checkers, const PipelineShape& shape,
                          const Placement& placement, const Action& action) {
  const int64_t middle = placement.stage;
  if (placement.stages < 2 || shape.crosses_ranks(middle)) return "";
  const bool takes_value = action.kind == ActionKind::kForward && action.stage == middle + 1;
  const bool backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  if (!takes_value && !(backward && action.stage == middle)) return "";
  const Action needed = {takes_value ? ActionKind::kForward : ActionKind::kBackward, action.index,
                         takes_value ? middle : middle + 1};
  const bool there = checkers[takes_value ? 0 : 1].has_run(needed.kind, action.index);
  return there ? "" : "expected " + quoted(needed) + " first";
}

/// "" or what is wrong with a rank's list; fills the checks of its stages.
std::string follow(const std::string& schedule, const PipelineShape& shape, Span span, bool trains,
                   const std::vector<Action>& list, const Placement& placement,
                   const std::vector<RankCheck*>& out) {
  std::vector<StageChecker> checkers;
  for (RankCheck* stage : out)
    checkers.emplace_back(schedule, shape, span, trains, stage->placement.stage, *stage);
  for (size_t position = 0; position < list.size(); ++position) {
    const Action& action = list[position];
    const auto at = [&] { return "action " + std::to_string(position) + " " + quoted(action) + ": "; };
    const int64_t stage = action.stage_or(placement.stage) - placement.stage;
    const bool named = action.stage != Action::kOnlyStage;
    if (named != (placement.stages > 1)) return at() + (named ? "the rank has one stage" : "of which stage?");
    if (named && (stage < 0 || stage % placement.apart != 0 || stage / placement.apart >= placement.stages))
      return at() + "the rank does not have this stage";
    std::string problem = checkers[named ? stage / placement.apart : 0].follow(action);
    if (problem.empty()) problem = not_there_yet(checkers, shape, placement, action);
    if (!problem.empty()) return at() + problem;
  }
  for (const StageChecker& checker : checkers) {
    const std::string problem = checker.end();
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string what_it_waits_for(const Action& action, const PipelineShape& shape, int64_t stage) {
  const auto sender = [&](int64_t other) {
    if (shape.splits(other))
      return " from stage " + std::to_string(other) + ", of which each replica sends a part";
    return " from stage " + std::to_string(other) + " replica " +
           std::to_string(replica_of(shape, other, action.index));
  };
  switch (action.kind) {
    case ActionKind::kReceiveActivation:
      return "activation " + std::to_string(action.index) + sender(stage - 1);
    case ActionKind::kReceiveGradient:
      return "gradient " + std::to_string(action.index) + sender(stage + 1);
    case ActionKind::kUpdate:
      return "the stages that share its tied parameters";
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
    rows << "\n" << rank_label(shape.number_of(static_cast<int64_t>(rank)), ranks[rank]) << " |";
    if (begin > 0) rows << " (" << begin << " done)";
    for (size_t i = begin; i < end; ++i) {
      rows << " " << to_text(list[i]);
      if (i == reached)
        rows << " <-- waits for " << what_it_waits_for(list[i], shape, list[i].stage_or(ranks[rank].stage))
             << ";";
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
                          Span span, bool trains, const std::string& schedule) {
  check_shape(shape);
  PW_CHECK_EQ(static_cast<int64_t>(lists.size()), shape.ranks());
  ScheduleCheck check;
  const std::vector<int64_t> first_rank = first_ranks(shape);
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    for (int64_t replica = 0; replica < shape.replicas[stage]; ++replica) {
      check.ranks.emplace_back();
      check.ranks.back().rank = first_rank[stage] + replica;
      check.ranks.back().placement = {stage, replica};
    }
  std::vector<std::vector<RankCheck*>> by_rank(lists.size());
  for (RankCheck& at_stage : check.ranks) by_rank[at_stage.rank].push_back(&at_stage);
  const std::vector<Placement> ranks = placements(shape);
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const std::string problem =
        follow(schedule, shape, span, trains, lists[rank], ranks[rank], by_rank[rank]);
    if (!problem.empty() && check.problem.empty())
      check.problem = rank_label(shape.number_of(static_cast<int64_t>(rank)), ranks[rank]) + ", " + problem;
  }
  if (!check.problem.empty()) return check;

  const std::vector<size_t> position = dry_run(
      lists, shape, span, [](int64_t, size_t, MessageRange) {}, [](int64_t, const Action&) {},
      [](const Meetings&, int64_t) {});
  for (size_t rank = 0; rank < lists.size(); ++rank)
    if (position[rank] < lists[rank].size()) {
      check.problem = deadlock_grid(lists, shape, position);
      return check;
    }
  check.completes = true;
  return check;
}

ScheduleCheck check_schedule(const std::string& schedule, const PipelineShape& shape, Span span) {
  return check_lists(schedule_of_all(schedule, shape, span), shape, span, schedule_named(schedule).trains(),
                     schedule);
}

Span rehearsal_span(const PipelineShape& shape) {
  int64_t count = 0;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const StageTurns turns(shape, stage);
    const int64_t longest = std::max(turns.round_length(), turns.cycle_length());
    count = std::max(count, 2 * turns.run_ahead(shape.in_flight[stage]) + 4 * longest);
  }
  return {1, count + shape.stages() + 1};
}

}  // namespace pipewright
