// A run bounds what its sends keep (runtime/transport/channel.h): a send may have to wait until its receiver
// asks for an earlier message. runtime/schedule/order.h says that this closes no circle of waiting ranks;
// here it is tried on every small plan, with the rules of the run and no time.
//
// A wait that may end stays so, whatever the other ranks do, and no rank ever chooses. So the order in which
// ranks are visited cannot change where they get to, and a fixpoint holds for every real run. For the same
// reason a larger limit, or receiving further ahead, never blocks what a smaller one lets through.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <set>

#include "graph/error.h"
#include "runtime/schedule/dry_run.h"
#include "runtime/schedule/message_limits.h"
#include "runtime/schedule/simulate.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::all_replica_counts;
using testing::dashed;
using Depths = std::vector<int64_t>;

/// How a rank's streams wait.
struct StreamRules {
  /// Per stage: a send first waits for the oldest of so many that are not taken yet. 0: a send waits for its
  /// own receiver.
  Depths activation_limit;
  Depths gradient_limit;
  /// Receives asked for beyond the one that was consumed last. 0: when the rank reaches the receive.
  size_t ahead = 2;
};

/// The rules of Worker::Execution for a plan of this shape. Depths are the plan's, before 1f1b cuts them.
StreamRules rules_of_a_run(const PipelineShape& shape) {
  Depths limit = shape.in_flight;
  for (int64_t& messages : limit) ++messages;
  Depths gradients;
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    gradients.push_back(untaken_gradients(shape, stage));
  return {limit, gradients};
}

/// Runs the lists of all ranks to where nobody can move.
class BoundedRun {
 public:
  BoundedRun(const RankLists& lists, const PipelineShape& shape, Span span, const StreamRules& rules)
      : lists_(lists), shape_(shape), rules_(rules), messages_(shape, span), placements_(placements(shape)) {
    asked_.assign(messages_.count(), false);
    sent_.assign(messages_.count(), false);
    first_rank_ = first_ranks(shape);
    ranks_.resize(lists.size());
    for (size_t rank = 0; rank < lists.size(); ++rank) open_inboxes(rank);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < lists.size(); ++rank)
        while (step(rank)) moved = true;
    }
  }

  bool completes() const {
    for (size_t rank = 0; rank < lists_.size(); ++rank)
      if (!finished(rank)) return false;
    return true;
  }

  /// All ranks, each from a little before the place where it waits.
  std::string grid() const {
    std::string text;
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      const size_t position = ranks_[rank].position;
      text += '\n' + rank_label(static_cast<int64_t>(rank), placements_[rank]) + " |";
      const size_t begin = position < 12 ? 0 : position - 12;
      if (begin > 0) text += " (" + std::to_string(begin) + " done)";
      for (size_t i = begin; i < std::min(lists_[rank].size(), position + 8); ++i) {
        text += ' ' + to_text(lists_[rank][i]);
        if (i == position) text += " <-- waits;";
      }
      if (position == lists_[rank].size() && !finished(rank)) text += " <-- waits for its sends";
    }
    return text;
  }

 private:
  struct Stream {
    int64_t last = -1;             // minibatch that was sent or is received
    std::vector<size_t> order;     // inbox: all messages to come
    size_t next = 0, asked = 0;    // of order: to consume, to ask for
    std::deque<size_t> under_way;  // outbox: sent and not waited for
  };
  struct Rank {
    size_t position = 0;
    bool offered = false;                        // limit 0: the message at `position` is sent, not taken yet
    std::vector<std::array<Stream, 2>> in, out;  // by the rank's stages: activations, gradients
  };

  static bool receives(ActionKind kind) {
    return kind == ActionKind::kReceiveActivation || kind == ActionKind::kReceiveGradient;
  }
  static int of_gradients(ActionKind kind) {
    return kind == ActionKind::kReceiveGradient || kind == ActionKind::kSendGradient ? 1 : 0;
  }

  // The number of a stage among those of the rank.
  size_t slot(size_t rank, const Action& action) const {
    const Placement& at = placements_[rank];
    return at.stages == 1 ? 0 : static_cast<size_t>((action.stage - at.stage) / at.apart);
  }

  /// No stage here splits minibatches, so there is one.
  size_t message_of(const Action& action, size_t rank) const {
    const Placement& at = placements_[rank];
    return messages_.of(action, action.stage_or(at.stage), at.replica).first;
  }

  void open_inboxes(size_t rank) {
    ranks_[rank].in.resize(static_cast<size_t>(placements_[rank].stages));
    ranks_[rank].out.resize(static_cast<size_t>(placements_[rank].stages));
    for (const Action& action : lists_[rank]) {
      if (!receives(action.kind)) continue;
      Stream& in = ranks_[rank].in[slot(rank, action)][of_gradients(action.kind)];
      // Real messages have no names: the n-th sent is the n-th received between two ranks. With both ends in
      // rising order that is the one of the same minibatch.
      PW_CHECK(action.index > in.last, to_text(action) << " out of order");
      in.last = action.index;
      in.order.push_back(message_of(action, rank));
    }
    for (auto& streams : ranks_[rank].in)
      for (Stream& in : streams) ask_up_to(in, rules_.ahead);
  }

  void ask_up_to(Stream& in, size_t count) {
    for (; in.asked < std::min(in.order.size(), in.next + count); ++in.asked)
      asked_[in.order[in.asked]] = true;
  }

  // Takes from the front what would not have to be waited for. Doing so early changes no wait: only the
  // oldest ever counts.
  void drop_taken(Stream& out) {
    while (!out.under_way.empty() && asked_[out.under_way.front()]) out.under_way.pop_front();
  }

  bool finished(size_t rank) const {
    if (ranks_[rank].position < lists_[rank].size()) return false;
    for (const auto& streams : ranks_[rank].out)
      for (const Stream& out : streams)
        for (const size_t message : out.under_way)
          if (!asked_[message]) return false;
    return true;
  }

  /// Whether the rank could move.
  bool step(size_t rank_number) {
    Rank& rank = ranks_[rank_number];
    if (rank.position == lists_[rank_number].size()) return false;
    const Action& action = lists_[rank_number][rank.position];
    const int64_t stage = action.stage_or(placements_[rank_number].stage);
    const size_t at = slot(rank_number, action);
    const int kind = of_gradients(action.kind);
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient: {
        Stream& in = rank.in[at][kind];
        ask_up_to(in, 1);
        if (!sent_[in.order[in.next]]) return false;
        ++in.next;
        ask_up_to(in, rules_.ahead);
        break;
      }
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient: {
        Stream& out = rank.out[at][kind];
        const size_t message = message_of(action, rank_number);
        const int64_t limit = (kind ? rules_.gradient_limit : rules_.activation_limit)[stage];
        drop_taken(out);
        if (!rank.offered) {
          if (limit > 0 && static_cast<int64_t>(out.under_way.size()) >= limit) return false;
          PW_CHECK(action.index > out.last, to_text(action) << " out of order");
          out.last = action.index;
          sent_[message] = true;
          if (limit > 0) {
            out.under_way.push_back(message);
          } else {
            rank.offered = true;
            return true;
          }
        } else {
          if (!asked_[message]) return false;
          rank.offered = false;
        }
        break;
      }
      case ActionKind::kReduce: {
        const auto begin = static_cast<size_t>(first_rank_[stage]);
        const size_t end = begin + static_cast<size_t>(shape_.replicas[stage]);
        for (size_t other = begin; other < end; ++other) {
          const size_t position = ranks_[other].position;
          if (position == lists_[other].size() || !(lists_[other][position] == action)) return false;
        }
        for (size_t other = begin; other < end; ++other) ++ranks_[other].position;
        return true;
      }
      default:
        break;
    }
    ++rank.position;
    return true;
  }

  const RankLists& lists_;
  const PipelineShape& shape_;
  const StreamRules& rules_;
  MessageIndex messages_;
  std::vector<Placement> placements_;
  std::vector<int64_t> first_rank_;  // per stage
  std::vector<char> asked_, sent_;   // per message
  std::vector<Rank> ranks_;
};

/// Empty, or the plan and the grid.
std::string deadlock(const RankLists& lists, const PipelineShape& shape, Span span,
                     const StreamRules& rules) {
  const BoundedRun run(lists, shape, span, rules);
  if (run.completes()) return "";
  return "plan " + dashed(shape.replicas) + " depths " + dashed(shape.in_flight) + " span " +
         std::to_string(span.first) + "+" + std::to_string(span.count) + run.grid();
}

std::string deadlock(const char* schedule, const PipelineShape& shape, Span span, const StreamRules& rules) {
  return deadlock(schedule_of_all(schedule, shape, span), shape, span, rules);
}

Depths equal_times_in_flight(const Depths& replicas) {
  std::vector<StageTimes> times;
  for (const int64_t r : replicas)
    times.push_back(
        {.forward_seconds = 1.0 * static_cast<double>(r), .backward_seconds = 2.0 * static_cast<double>(r)});
  return choose_in_flight(replicas, times);
}

std::vector<Depths> depths_to_bound(const Depths& replicas) {
  const size_t stages = replicas.size();
  // A first stage far ahead sends much before it asks for a gradient: the hardest for shallow stages behind.
  Depths first_ahead(stages, 1), falling(stages), growing(stages);
  first_ahead[0] = 25;
  for (size_t stage = 0; stage < stages; ++stage) {
    falling[stage] = static_cast<int64_t>(3 * (stages - stage) - 2);
    growing[stage] = static_cast<int64_t>(stage) + 2;  // deeper downstream: 1f1b cuts it, the limits stay
  }
  return {
      Depths(stages, 1), pipedream_in_flight(replicas), equal_times_in_flight(replicas), first_ahead, falling,
      growing,           Depths(stages, 1000)};
}

TEST_CASE("bounded sends: every plan of up to four stages and four replicas completes as a run does it") {
  int64_t plans = 0;
  for (const Depths& replicas : all_replica_counts(4, 4)) {
    ++plans;
    const auto check = [&](const char* schedule, const Depths& depths) {
      const PipelineShape shape{replicas, depths};
      for (const int64_t first : {0, 1, 7})
        for (int64_t count = 0; count <= 24; ++count) {
          const std::string problem = deadlock(schedule, shape, {first, count}, rules_of_a_run(shape));
          if (!problem.empty()) FAIL(schedule << " " << problem);
        }
    };
    for (const Depths& depths : depths_to_bound(replicas)) check("1f1b", depths);
    // Their lists do not depend on depths, so the smallest limits are the hardest.
    for (const char* schedule : {"model-parallel", "forward"}) check(schedule, Depths(replicas.size(), 1));
  }
  CHECK(plans == 340);
}

TEST_CASE("bounded sends: so does every plan whose first stages are frozen, and wait for room alone") {
  for (const Depths& replicas : all_replica_counts(4, 3)) {
    const auto stages = static_cast<int64_t>(replicas.size());
    for (int64_t frozen = 1; frozen < stages; ++frozen) {
      for (const Depths& depths : depths_to_bound(replicas)) {
        PipelineShape shape{replicas, depths};
        shape.frozen_stages = frozen;
        for (const int64_t count : {1, 6, 24}) {
          std::string problem = deadlock("1f1b", shape, {5, count}, rules_of_a_run(shape));
          if (!problem.empty()) FAIL(problem);
          PipelineShape drains = shape;
          drains.weights = WeightRule::kFlush;
          drains.microbatches = 5;
          for (const char* schedule : {"1f1b-flush", "zb-h1"}) {
            problem = deadlock(schedule, drains, {5, count}, rules_of_a_run(drains));
            if (!problem.empty()) FAIL(schedule << " " << problem);
          }
        }
      }
    }
  }
}

TEST_CASE("bounded sends: so do the schedules with a flush") {
  for (const Depths& replicas : all_replica_counts(3, 4)) {
    const auto check = [&](const char* schedule, PipelineShape shape) {
      const Depths depths = schedule_named(schedule).depths(shape);
      for (size_t stage = 0; stage < depths.size(); ++stage)
        shape.in_flight[stage] = std::max(shape.in_flight[stage], depths[stage]);
      for (const int64_t first : {0, 5})
        for (const int64_t count : {1, 3, 8, 29}) {
          const std::string problem = deadlock(schedule, shape, {first, count}, rules_of_a_run(shape));
          if (!problem.empty()) FAIL(schedule << " " << problem);
        }
    };
    for (const int64_t microbatches : {1, 2, 5, 12}) {
      PipelineShape shape{replicas, Depths(replicas.size(), 1)};
      shape.weights = WeightRule::kFlush;
      shape.microbatches = microbatches;
      check("gpipe", shape);
      for (const char* schedule : {"1f1b-flush", "zb-h1"})
        for (const Depths& depths : depths_to_bound(replicas)) {
          shape.in_flight = depths;
          check(schedule, shape);
        }
      if (replicas.size() == 1) continue;
      for (const int64_t several : {2, 3}) {
        shape.stages_per_rank = several;
        shape.replicas.insert(shape.replicas.end(), replicas.begin(), replicas.end());
        shape.in_flight = Depths(shape.replicas.size(), 1);
        check("interleaved", shape);
        check("forward", shape);
      }
      if (std::set<int64_t>(replicas.begin(), replicas.end()).size() > 1) continue;
      PipelineShape v{replicas, {}};
      v.replicas.insert(v.replicas.end(), replicas.begin(), replicas.end());
      v.in_flight = Depths(v.replicas.size(), 1);
      v.weights = WeightRule::kFlush;
      v.microbatches = microbatches;
      v.stages_per_rank = 2;
      v.v_shaped = true;
      for (const char* schedule : {"zbv", "dualpipev", "forward"}) check(schedule, v);
    }
  }
}

TEST_CASE("bounded sends: room for the usable depth in activations is enough, none is needed for gradients") {
  // Less than a run gives: the depths that 1f1b really uses, and a gradient waits for its own receiver, which
  // asks for nothing ahead. So the limits of a run have room to spare, whatever its plan's depths.
  for (const Depths& replicas : all_replica_counts(3, 3)) {
    const size_t stages = replicas.size();
    const Depths none(stages, 0);
    for (const int64_t count : {1, 2, 5, 8, 13, 18}) {
      for (const char* schedule : {"model-parallel", "forward"}) {
        const PipelineShape shape{replicas, Depths(stages, 1)};
        const std::string problem = deadlock(schedule, shape, {3, count}, {Depths(stages, 1), none, 0});
        if (!problem.empty()) FAIL(schedule << " " << problem);
      }
      const Depths choices{1, 2, 3, 4, 6};
      std::vector<size_t> choice(stages, 0);  // counts through all depths
      for (size_t stage = 0; stage < stages;) {
        Depths depths;
        for (const size_t c : choice) depths.push_back(choices[c]);
        const PipelineShape shape{replicas, depths};
        const std::string problem = deadlock("1f1b", shape, {3, count}, {usable_in_flight(shape), none, 0});
        if (!problem.empty()) FAIL(problem);
        for (stage = 0; stage < stages && ++choice[stage] == choices.size(); ++stage) choice[stage] = 0;
      }
    }
  }
}

TEST_CASE("bounded sends: a limit that does not grow with the depth deadlocks, and the grid shows it") {
  // The first stage sends on while the second waits for it to ask for a gradient.
  const PipelineShape pair{{1, 1}, {2, 1}};
  const StreamRules synchronous{{0, 0}, {0, 0}, 0};
  CHECK(deadlock("1f1b", pair, {0, 1}, synchronous).empty());
  CHECK(deadlock("1f1b", pair, {0, 2}, synchronous) ==
        "plan 1-1 depths 2-1 span 0+2\n"
        "rank 0  stage 0 replica 0 | F0 SA0 F1 SA1 <-- waits; RG0 B0 U0 RG1 B1 U1\n"
        "rank 1  stage 1 replica 0 | RA0 F0 B0 SG0 <-- waits; U0 RA1 F1 B1 SG1 U1");

  const PipelineShape bursts{{3, 1}, {6, 1}};
  const StreamRules one_and_two{{1, 1}, {2, 2}};
  CHECK(deadlock("1f1b", bursts, {0, 18}, rules_of_a_run(bursts)).empty());
  CHECK_THAT(deadlock("1f1b", bursts, {0, 18}, one_and_two),
             Catch::StartsWith("plan 3-1 depths 6-1 span 0+18\n"));

  const PipelineShape far_ahead{{1, 1}, {25, 1}};
  const StreamRules two{{2, 2}, {2, 2}};
  CHECK(deadlock("1f1b", far_ahead, {0, 40}, rules_of_a_run(far_ahead)).empty());
  CHECK_FALSE(deadlock("1f1b", far_ahead, {0, 40}, two).empty());
}

TEST_CASE("bounded sends: reducing before the gradient is sent deadlocks whatever the limits") {
  const PipelineShape shape{{1, 2}, {1, 1}};
  RankLists lists = schedule_of_all("1f1b", shape, {0, 2});
  CHECK(deadlock(lists, shape, {0, 2}, rules_of_a_run(shape)).empty());
  for (std::vector<Action>& list : lists)
    for (size_t i = 0; i + 1 < list.size(); ++i)
      if (list[i].kind == ActionKind::kSendGradient && list[i + 1].kind == ActionKind::kReduce)
        std::swap(list[i], list[i + 1]);
  const StreamRules unlimited{{1000, 1000}, {1000, 1000}};
  for (const StreamRules& rules : {rules_of_a_run(shape), unlimited})
    CHECK(deadlock(lists, shape, {0, 2}, rules) ==
          "plan 1-2 depths 1-1 span 0+2\n"
          "rank 0  stage 0 replica 0 | F0 SA0 RG0 <-- waits; B0 U0 F1 SA1 RG1 B1 U1\n"
          "rank 1  stage 1 replica 0 | RA0 F0 B0 AR0 <-- waits; SG0 U0\n"
          "rank 2  stage 1 replica 1 | RA1 <-- waits; F1 B1 AR0 SG1 U0");
}

TEST_CASE("bounded sends: what nobody takes is waited for at the end of the span") {
  const PipelineShape shape{{1, 1}, {1, 1}};
  const RankLists lists{parse_actions("F0 SA0"), {}};
  CHECK(deadlock(lists, shape, {0, 1}, rules_of_a_run(shape)) ==
        "plan 1-1 depths 1-1 span 0+1\n"
        "rank 0  stage 0 replica 0 | F0 SA0 <-- waits for its sends\n"
        "rank 1  stage 1 replica 0 |");
}

}  // namespace
}  // namespace pipewright
