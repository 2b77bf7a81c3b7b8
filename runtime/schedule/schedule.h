// A schedule is data: the ordered list of actions of one rank, made by a pure function of (shape, stage,
// replica, span). From the same list come the dry-run check, the simulator, the drawing, the run itself and
// the trace. No tensors here.
//
// Rules that every schedule obeys (docs/semantics.md):
//  * Who processes a minibatch, and which minibatches make one update: turns.h.
//  * Which weights a forward reads: versions.h.
//  * The gradient of a stage's input is sent upstream before the rank waits for the sums of its own
//  gradients.
//  * At each stage a replica's forwards run in rising order of minibatches, and so do its backwards.
//  * Values cross neighbouring stages only: what skips a stage is carried through it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/schedule/shape.h"
#include "runtime/schedule/turns.h"

namespace pipewright {

enum class ActionKind {
  kReceiveActivation,  // RA k   wait for the values that enter the stage
  kForward,            // F  k
  kSendActivation,     // SA k
  kReceiveGradient,    // RG k
  kBackward,           // B  k   all of the backward
  kBackwardInput,      // BI k   the backward in two parts: gradients of the stage's inputs,
  kBackwardWeight,     // BW k   and gradients of its weights, any time later
  kSendGradient,       // SG k   after B or BI
  kReduce,             // AR j   average the gradients of round j over the replicas
  kUpdate,             // U  j   one weight update; the number of updates is the weight version
  kAverage,            // AW j   average weights with other pipelines; comes in where a rank runs a list
};
/// AR, U and AW: the index is a round.
inline bool is_of_round(ActionKind kind) {
  return kind == ActionKind::kReduce || kind == ActionKind::kUpdate || kind == ActionKind::kAverage;
}

/// RA, SA, RG, SG.
inline bool is_of_message(ActionKind kind) {
  return kind == ActionKind::kReceiveActivation || kind == ActionKind::kSendActivation ||
         kind == ActionKind::kReceiveGradient || kind == ActionKind::kSendGradient;
}

struct Action {
  static constexpr int64_t kOnlyStage = -1;

  ActionKind kind = ActionKind::kForward;
  int64_t index = 0;           ///< minibatch; round for those of a round
  int64_t stage = kOnlyStage;  ///< named only where the rank has several
  /// The stage it is about, on a rank whose first stage is `first`.
  int64_t stage_or(int64_t first) const { return stage == kOnlyStage ? first : stage; }
  bool operator==(const Action&) const = default;
};

/// What an action is called wherever people or programs read of it.
struct ActionWords {
  ActionKind kind;
  const char* code;      ///< in lists and drawings: "F", "RA", ...
  const char* name;      ///< in messages, before "of minibatch 7" or "of round 3"
  const char* category;  ///< in traces and legends
};
const ActionWords& words_of(ActionKind kind);
/// "F", "RA", ...
inline const char* to_text(ActionKind kind) { return words_of(kind).code; }
/// "F3", "RA0", ...; with a stage "2F3"
std::string to_text(const Action& action);
std::string to_text(const std::vector<Action>& actions);  ///< separated by blanks
/// The inverse; InputError names the word that is none.
std::vector<Action> parse_actions(const std::string& text);

/// The lists of all ranks, in the order of placements(): a line each, "rank 0  stage 0 replica 0 | F0 B0 U0".
std::string to_text(const std::vector<std::vector<Action>>& lists, const PipelineShape& shape);
/// The inverse; InputError names the line (and the word) that is wrong, also where the ranks are not those of
/// the shape.
std::vector<std::vector<Action>> parse_schedule(const std::string& text, const PipelineShape& shape);

/// Compute actions only (F, B, BI, BW, U), in order, of replica `replica` of the rank's first stage `stage`,
/// for all stages of the rank. The shape goes with the schedule.
using ScheduleFunction = std::vector<Action> (*)(const PipelineShape&, int64_t stage, int64_t replica, Span);

/// What is known of a schedule, and the functions that make it.
///
/// Frozen stages are the same under every schedule: each forward is followed by its backward, which drops
/// what the forward has left, and waits for nobody. The stages that are trained run as a pipeline of their
/// own.
struct ScheduleRow : ScheduleFacts {
  std::vector<Action> make(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) const;
  /// The depths it really uses, by stage: the most that a rank ever has in flight. 1 of frozen stages.
  std::vector<int64_t> depths(const PipelineShape& shape) const;

  ScheduleFunction make_trained;  ///< these two are for shapes without frozen stages
  std::vector<int64_t> (*trained_depths)(const PipelineShape&);
};
/// By kind, as in schedule_table() of graph/pipeline_rules.h. To add one: its own file, its row there, its
/// functions here.
const std::vector<ScheduleRow>& schedules();
/// InputError with the nearest name.
const ScheduleRow& schedule_named(const std::string& name);

/// InputError for an unknown name. PlanError unless check_shape() agrees, the version rule and the number of
/// stages a rank go with the schedule (several of which no frozen ones do), its depths are at most those of
/// the shape, and, with 2bw, the update interval covers the depth of the pipeline: at least as many
/// microbatches as the first stage runs ahead. The message says what would do.
void check_schedule_shape(const std::string& name, const PipelineShape& shape);

/// Adds communication: RA before F and SA after it, RG before B or BI and SG after it, AR before U; none
/// where there is no neighbour on another rank, or one replica, and no RG, SG and AR where a frozen stage is
/// at the end that would have had to wait. After U nothing is added: weights are local. `stage`: the rank's
/// first.
std::vector<Action> lower(const std::vector<Action>& compute, const PipelineShape& shape, int64_t stage);

/// make + lower for one rank, `stage` being its first; errors as in check_schedule_shape(), and PlanError for
/// a negative span.
std::vector<Action> schedule_of_rank(const std::string& name, const PipelineShape& shape, int64_t stage,
                                     int64_t replica, Span span);

/// The lists of all ranks, lowered, in the order of placements(). Errors as above.
std::vector<std::vector<Action>> schedule_of_all(const std::string& name, const PipelineShape& shape,
                                                 Span span);

/// The depths that 1f1b really uses: each stage's own, or less where the stage before it does not run far
/// enough ahead: were a stage further ahead of its backwards than the stage before it, both would wait for
/// each other. So StageTurns::run_ahead never grows from stage to stage; where all shares are 1, D_s = 1 +
/// min(in_flight_s - 1, (D_{s-1} - 1) r_{s-1} / r_s), rounded down. With it no depths deadlock; the proof is
/// in order.h. Frozen stages have 1 and hold nobody back: the first that is trained takes the
/// place of the first stage.
std::vector<int64_t> usable_in_flight(const PipelineShape& shape);

/// The depths of PipeDream's runtime: the ranks from stage s on, divided by the replicas of s, rounded up.
/// Enough for a straight pipeline with equal stages and free transfers; starves many others (2-1-1 takes 1.5
/// times the ideal time), so plans take choose_in_flight() of simulate.h instead.
std::vector<int64_t> pipedream_in_flight(const std::vector<int64_t>& replicas);

}  // namespace pipewright
