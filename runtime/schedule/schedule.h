// A schedule is data: the ordered list of actions of one rank, made by a pure function of (shape, stage,
// replica, span). From the same list come the dry-run check, the simulator, the drawing, the run itself and
// the trace. No tensors here.
//
// Rules that every schedule obeys (docs/semantics.md):
//  * Minibatch k of a stage with r replicas is processed by replica k mod r; k counts from 0 over the whole
//  run.
//  * A round of a stage is the minibatches with equal k / r (integer division), clipped to the span: the
//  first and the
//    last round of a span may be short. Every replica takes part in every round's update, also one that has
//    no minibatch in it (its gradient is zero), so that all replicas hold equal weights.
//  * The gradient of a stage's input is sent upstream before the stage's own gradients are reduced.
//  * Values cross neighbouring stages only: what skips a stage is carried through it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// The shape of a pipeline: all that a schedule needs to know of a plan.
struct PipelineShape {
  std::vector<int64_t> replicas;  ///< per stage, >= 1
  std::vector<int64_t>
      in_flight;  ///< per stage, >= 1: depth of each replica, an upper bound (see usable_in_flight)
  int64_t stages() const { return static_cast<int64_t>(replicas.size()); }
  int64_t ranks() const;
};

/// PlanError unless there is a stage, and every stage has at least one replica and a depth of at least one.
void check_shape(const PipelineShape& shape);

/// The depths that 1f1b really uses: each stage's own, or less where the stage before it does not run far
/// enough ahead. With D forwards before the first backward on each of r replicas, a stage runs (D - 1) r
/// minibatches ahead; were that more than the stage before it is ready to send, both would wait for each
/// other. So (D - 1) r never grows from stage to stage: D_s = 1 + min(in_flight_s - 1, (D_{s-1} - 1) r_{s-1}
/// / r_s), rounded down. With it no depths deadlock; the proof is in docs/schedules.md.
std::vector<int64_t> usable_in_flight(const PipelineShape& shape);

/// The depths of PipeDream's runtime: the ranks from stage s on, divided by the replicas of s, rounded up.
/// Enough for a straight pipeline with equal stages and free transfers; starves many others (2-1-1 takes 1.5
/// times the ideal time), so plans take choose_in_flight() of simulate.h instead.
std::vector<int64_t> pipedream_in_flight(const std::vector<int64_t>& replicas);

/// Minibatches [first, first + count): trained without a drain in between.
struct Span {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
};

enum class ActionKind {
  kReceiveActivation,  // RA k   wait for the values that enter the stage
  kForward,            // F  k
  kSendActivation,     // SA k
  kReceiveGradient,    // RG k
  kBackward,           // B  k
  kSendGradient,       // SG k
  kReduce,             // AR j   average the gradients of round j over the replicas
  kUpdate,             // U  j   one weight update; the number of updates is the weight version
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int64_t index = 0;  ///< minibatch; round for kReduce and kUpdate
  bool operator==(const Action&) const = default;
};

/// "F", "RA", ...
const char* to_text(ActionKind kind);
/// "F3", "RA0", ...
std::string to_text(const Action& action);
std::string to_text(const std::vector<Action>& actions);  ///< separated by blanks
/// The inverse; InputError names the word that is none.
std::vector<Action> parse_actions(const std::string& text);

/// Compute actions only (F, B, U), in order, of replica `replica` of stage `stage`.
using ScheduleFunction = std::vector<Action> (*)(const PipelineShape&, int64_t stage, int64_t replica, Span);

struct ScheduleRow {
  const char* name;
  ScheduleFunction make;
  bool trains;  ///< has backward and update, not forward only
  const char* summary;
};
/// "1f1b", "model-parallel", "forward". To add one: its own file, one row.
const std::vector<ScheduleRow>& schedules();
/// InputError with the nearest name.
const ScheduleRow& schedule_named(const std::string& name);

/// Adds communication: RA before F and SA after it, RG before B and SG after it, AR before U; none where
/// there is no neighbour or one replica. After U nothing is added: weights are local.
std::vector<Action> lower(const std::vector<Action>& compute, const PipelineShape& shape, int64_t stage);

/// make + lower for one rank.
std::vector<Action> schedule_of_rank(const std::string& name, const PipelineShape& shape, int64_t stage,
                                     int64_t replica, Span span);

/// The replica of a stage with `replicas` replicas that processes minibatch k.
inline int64_t replica_of(int64_t minibatch, int64_t replicas) { return minibatch % replicas; }
/// Minibatches of round j within the span: 1..replicas, or 0 if the round lies outside.
int64_t round_size(int64_t round, int64_t replicas, Span span);

/// The rounds of a stage that have a minibatch in the span: [first, first + count).
struct Rounds {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
};
Rounds rounds_of(int64_t replicas, Span span);

/// Rank numbering used by checks, simulator and drawings: stage by stage, replica by replica.
struct Placement {
  int64_t stage = 0;
  int64_t replica = 0;
};
std::vector<Placement> placements(const PipelineShape& shape);
/// "rank 3  stage 1 replica 0"
std::string rank_label(int64_t rank, const Placement& placement);

/// The lists of all ranks, lowered, in the order of placements(). PlanError for a bad shape or a negative
/// span.
std::vector<std::vector<Action>> schedule_of_all(const std::string& name, const PipelineShape& shape,
                                                 Span span);

}  // namespace pipewright
