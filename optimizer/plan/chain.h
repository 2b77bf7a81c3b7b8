// A chain of stages: what the searches of plans make, price, move and choose among.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/plan.h"
#include "optimizer/plan/layouts.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Seconds of what cannot run.
inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

/// Stages along a chain of states, first stage first. Where it matters which device runs a stage
/// (CostInputs::placed()) each stage has its ranks, as many as replicas; elsewhere none has.
struct Chain {
  std::vector<FoundStage> stages;

  int64_t devices() const;
  Ranks ranks() const;
  Chain placed_on(const Ranks& ranks) const;
  /// Whether stages, devices and replicas keep the problem's constraints; says nothing of memory.
  bool allowed_by(const Question& question) const;
};

/// Depths that a stage is to have room for; one that has none recomputes, where that is a choice: the least
/// with which any plan has a pace (Little's law), the usual (1 + ceil(D / m)), what slow or shared links may
/// need, one.
enum class Room { kPaced, kUsual, kPlenty, kOne };
inline constexpr Room kRooms[] = {Room::kPaced, Room::kUsual, Room::kPlenty, Room::kOne};

/// Of training, with a stage on each rank; `later` is the number of devices behind stage `s`. Borrows the
/// problem and the request.
class ChainFacts {
 public:
  ChainFacts(const Question& question, const PlanRequest& request);

  std::vector<StageLoad> loads(const Chain& chain) const;
  int64_t usual_depth(const Chain& chain, size_t s, int64_t later) const;
  /// For a pace of `seconds`, where a minibatch takes `behind_seconds` from the stage on, there and back.
  int64_t wanted_depth(Room room, const Chain& chain, size_t s, int64_t later, double behind_seconds,
                       double seconds) const;
  /// Of an update interval, most minibatches of one replica.
  int64_t replicas_part(int64_t replicas) const;
  /// As it runs, but for its depths. What stages share of tied parameters goes to their loads.
  Plan plan(const Chain& chain, std::vector<StageLoad>* loads) const;

 private:
  const Question& q_;
  const PlanRequest& request_;
  const bool drains_;
};

}  // namespace pipewright
