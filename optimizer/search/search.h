// The search over chains of stages: which cuts, how many replicas each. Exact over the states it is given.
//
// Core routine (docs/cost-model.md): for a period T, the fewest devices with which a suffix of the model runs
// within T and within the memory. The suffix acts on the stages before it through its number of devices alone
// (fewer leave more over and make every earlier stage hold fewer minibatches in flight), so one number per
// state is enough, whatever the number of devices. T itself is bisected.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/recompute.h"
#include "optimizer/cuts/states.h"

namespace pipewright {

class StagePlaces;

/// Borrows states and places.
struct Problem {
  const States* states = nullptr;
  CostInputs inputs;
  int64_t devices = 1;
  int64_t memory_bytes = 0;  ///< per device; 0 = no limit
  Recompute recompute = Recompute::kNever;
  bool single_stage = false;  ///< one stage on all devices: data parallelism, nothing to search
  int64_t least_stages = 1;   ///< 1 or 2
  int64_t most_replicas = std::numeric_limits<int64_t>::max();
  bool replicated = false;      ///< at least one stage has two replicas or more
  bool all_devices = false;     ///< exactly `devices`; otherwise at most, and fewest is the second aim
  bool one_in_flight = false;   ///< memory is that of one minibatch at a time
  /// Room is kept only for the depth without which no plan has the period asked for (Little's law: a rank
  /// of m replicas holds its minibatches for as long as the work behind it takes). The search sets the
  /// period.
  bool least_depths = false;
  double depth_period_seconds = 0;
  /// By number of replicas, not more than any placement's exchange takes for a byte, beside what the formula
  /// has; empty: that alone.
  std::vector<double> least_exchange_seconds_per_byte = {};
  /// Most minibatches in flight at a stage, over all its replicas: an update interval that is drained. 0: no
  /// such end.
  int64_t interval = 0;
  bool whole_interval = false;  ///< all of them are: gpipe
  /// The constraints on stages (search/constraints.h), for solve() alone: search() does not look at it.
  const StagePlaces* places = nullptr;
};

struct FoundStage {
  int from = 0;  ///< states
  int to = 0;
  int64_t replicas = 1;
  /// Devices of the replicas and their shares of the minibatches, where it matters which device is whose
  /// (CostInputs::placed()); empty otherwise, shares also where all are 1.
  std::vector<int64_t> ranks = {};
  std::vector<int64_t> shares = {};
  bool recompute = false;
  /// Then it keeps what it computes up to this state and runs the rest again, all of which stands behind in
  /// the profile's order; -1: it runs all again.
  int kept_to = -1;
};

struct Solution {
  std::vector<FoundStage> stages;
  double period_seconds =
      0;  ///< the largest of the stages; no solution is smaller by more than a part in 1e9
  int64_t devices = 0;
  bool exact = true;  ///< false: the space of placements was too large to search all of it
};

/// The solution with the smallest period; among those within a part in 1e9 of it the one with fewest devices,
/// then with the smallest periods of its stages, slowest first (in whole parts of 2^30 of the period; of
/// equal ones the shorter list), then fewest bytes across all its cuts, then the earliest cuts. With one
/// minibatch in flight the periods of the other stages are no aim. Nothing if there is none.
/// Where it matters which devices run a stage (CostInputs::placed()), only of one stage on all devices, and
/// of a stage on each device, which then stand in a row, whatever their links have in common: chains on all
/// other placements are solve()'s.
std::optional<Solution> search(const Problem& problem);

/// Memory of the fullest stage of a solution, with the in-flight depths that the search assumes, and which
/// stage that is.
struct FullestStage {
  int stage = 0;
  int64_t in_flight = 1;
  StageMemory memory;
};
FullestStage fullest_stage(const Problem& problem, const Solution& solution);

/// The solution whose fullest stage is smallest, `memory_bytes` ignored. Nothing if no memory would do.
std::optional<Solution> search_least_memory(const Problem& problem);

/// A period that no plan is below, wherever its stages stand and however deep they run: on one level of equal
/// devices the least of the formula (with the exchange of an update interval as it is), under a memory limit
/// with the least depths; on several levels as if each message had the innermost links to itself and each
/// exchange those that it cannot avoid. To a part in 10^4. For all of
/// the problem's states; 0 where nothing is known.
double least_period_anywhere(const Problem& problem);

/// Depth that the search assumes for a stage with `later_devices` behind it, or `behind_seconds` of work from
/// itself on.
int64_t assumed_in_flight(const Problem& problem, int64_t later_devices, int64_t replicas,
                          double behind_seconds = 0);

}  // namespace pipewright
