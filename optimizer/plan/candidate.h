// A plan that might be, for the pool of plans (pool.h).
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/plan/layouts.h"
#include "optimizer/plan/pool_seeds.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Stages along a chain of states. `ranks` of each stage are set where devices are placed.
struct Candidate {
  std::vector<FoundStage> stages;
  /// For which depths a stage recomputes where it has no room for them otherwise: those without which no plan
  /// is as fast as the best known; the usual ones, 1 + ceil(D / m); what slow or shared links may need; one.
  /// Or those recompute that say so.
  enum class Room { kPaced, kUsual, kPlenty, kOne, kGiven };
  Room room = Room::kPaced;
  int64_t devices() const;
  Ranks ranks() const;
  Candidate placed_on(const Ranks& ranks) const;
  /// What tells it from others, whose stages stand elsewhere, are others or are given to recompute.
  std::vector<int64_t> key(const std::vector<TopologyLevel>& levels) const;
  /// Stages, devices and replicas are what the question is about, and as demanded.
  bool allowed_by(const Question& question) const;
};

/// Stages of a shape, on levels in every layout (layouts.h); nothing if the question does not allow them.
std::vector<Candidate> in_every_layout(const Question& question, const Shape& shape);

}  // namespace pipewright
