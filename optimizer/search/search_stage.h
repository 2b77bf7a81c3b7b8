// What the search asks about one stage, and what it compares plans by. For the search's own files.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "optimizer/search/search.h"

namespace pipewright::search_detail {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();
/// Differences below this part are rounding: sums of the same seconds in another order.
inline constexpr double kTolerance = 1e-9;
/// A search ends when no period smaller by this part is possible.
inline constexpr double kProof = 1e-12;

/// The best way found to run the model from a state to its end.
struct Suffix {
  bool possible = false;
  // What is compared, in this order.
  double period_seconds = 0;  // left 0 where the period is only bounded
  int64_t devices = 0;        // left 0 where the number is given
  // Periods of the stages, slowest first; left empty where they are no aim. Their order is kept when the same
  // stage is added to both sides, so the best suffix is part of the best plan.
  std::vector<int32_t> levels;
  int64_t stages = 0;
  int64_t bytes = 0;  // over all cuts inside the suffix and the one before it
  // How it begins.
  int next = -1;
  int64_t replicas = 0;
  bool rest_replicated = false;  // which table it continues in
  int64_t rest_devices = 0;

  bool better_than(const Suffix& other) const {
    if (!other.possible) return true;
    return std::tie(period_seconds, devices, levels, stages, bytes) <
           std::tie(other.period_seconds, other.devices, other.levels, other.stages, other.bytes);
  }
  void add_level(int32_t level, const std::vector<int32_t>& rest);
};

/// The period of a stage in a plan of `period`, in the parts that periods are compared in.
int32_t level_of(double stage_period, double period);

/// With its workspace where memory is limited; recomputing if all stages do.
StageLoad load_of(const Problem& q, int from, int to);
bool stage_allowed(const Problem& q, int from, int to);

/// Whether the stage recomputes: if it must to fit `memory_bytes` (0 = no limit) and may, or if all stages
/// do. Nothing if it does not fit. Less is recomputed the more replicas there are (from two on) and the fewer
/// devices come later, and what is not recomputed takes no longer: so this is never a choice to search.
std::optional<bool> recompute_to_fit(const Problem& q, StageLoad load, int64_t replicas,
                                     int64_t later_devices, int64_t memory_bytes);
/// Of a stage behind which so many devices are: where devices are placed, they stand in a row, the last stage
/// on the first of them.
std::vector<int64_t> ranks_in_row(const Problem& q, int64_t replicas, int64_t later_devices);
/// Period of the stage, recomputing where it must; infinite if it does not fit.
double fitted_period(const Problem& q, StageLoad load, int64_t replicas, int64_t later_devices);

/// A stage with its terms, which do not depend on the period: worked out once for all periods tried.
struct StageOption {
  StageLoad load;
  StageTerms terms;
  StageTerms recomputing;
};
StageOption option_of(const Problem& q, int from, int to);

/// Whether the stage is within period and memory.
bool within(const Problem& q, const StageOption& stage, int64_t replicas, int64_t later_devices,
            double period);
/// The least number in [least, most] that is `within`, where `most` is and so is every one above one that is.
template <typename Within>
int64_t least_that(int64_t least, int64_t most, Within within) {
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    if (within(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

/// Smallest number of replicas in [least, most] with which it is; 0 if there is none.
int64_t fewest_replicas(const Problem& q, const StageOption& stage, int64_t least, int64_t most,
                        int64_t later_devices, double period);

/// Fills period and devices of a solution from its stages, and which of them recompute.
void finish(const Problem& q, Solution* solution);

/// A table by cut and number of devices: exactly `devices` of them. `least_period` makes the period the only
/// aim that counts; otherwise, under `period`, the periods of all stages as parts of `levels_of` are, if
/// given, then stages and bytes.
std::optional<Solution> exactly_all_devices(const Problem& q, double period, bool least_period,
                                            std::optional<double> levels_of = {});

}  // namespace pipewright::search_detail
