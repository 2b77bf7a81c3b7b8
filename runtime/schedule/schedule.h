// A schedule is data: the ordered list of actions of one rank, made by a pure function of (shape, stage, replica, span).
// From the same list come the dry-run check, the simulator, the drawing, the run itself and the trace. No tensors here.
//
// Rules that every schedule obeys (docs/semantics.md):
//  * Minibatch k of a stage with r replicas is processed by replica k mod r; k counts from 0 over the whole run.
//  * A round of a stage is the minibatches with equal k / r (integer division), clipped to the span: the first and the
//    last round of a span may be short. Every replica takes part in every round's update, also one that has no minibatch in
//    it (its gradient is zero), so that all replicas hold equal weights.
//  * The gradient of a stage's input is sent upstream before the stage's own gradients are reduced.
//  * Values cross neighbouring stages only: what skips a stage is carried through it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// The shape of a pipeline: all that a schedule needs to know of a plan.
struct PipelineShape {
  std::vector<int64_t> replicas;   ///< per stage, >= 1
  std::vector<int64_t> in_flight;  ///< per stage, >= 1: depth of each replica
  int64_t stages() const { return static_cast<int64_t>(replicas.size()); }
  int64_t ranks() const;
};

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
  const char* summary;
};
/// "1f1b", "model-parallel", "forward". To add one: its own file, one row.
const std::vector<ScheduleRow>& schedules();
/// InputError with the nearest name.
const ScheduleRow& schedule_named(const std::string& name);

/// Adds communication: RA before F and SA after it, RG before B and SG after it, AR before U; none where there is no
/// neighbour or one replica. After U nothing is added: weights are local.
std::vector<Action> lower(const std::vector<Action>& compute, const PipelineShape& shape, int64_t stage);

/// make + lower for one rank.
std::vector<Action> schedule_of_rank(const std::string& name, const PipelineShape& shape, int64_t stage,
                                     int64_t replica, Span span);

/// The replica of a stage with `replicas` replicas that processes minibatch k.
inline int64_t replica_of(int64_t minibatch, int64_t replicas) { return minibatch % replicas; }
/// Minibatches of round j within the span: 1..replicas, or 0 if the round lies outside.
int64_t round_size(int64_t round, int64_t replicas, Span span);

/// Rank numbering used by checks, simulator and drawings: stage by stage, replica by replica.
struct Placement {
  int64_t stage = 0;
  int64_t replica = 0;
};
std::vector<Placement> placements(const PipelineShape& shape);

}  // namespace pipewright
