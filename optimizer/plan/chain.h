// A chain of stages on devices that differ: what solve() makes, prices, moves and chooses among.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "optimizer/plan/layouts.h"
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

/// Equal for chains that run alike: devices that no price tells apart may change places.
std::vector<int64_t> key_of(const Chain& chain, const Question& question);

/// Where it matters: whether devices are unlike in speed, class or memory.
bool devices_differ(const CostInputs& inputs);
/// Whether no price tells the two devices apart, but for where they are.
bool same_kind(const CostInputs& inputs, int64_t a, int64_t b);

}  // namespace pipewright
