// Passes beside others, and which of them tell of the model rather than of the machine's other load. No
// tensors, no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/profile.h"

namespace pipewright {

/// A pass: alone, beside others, in step with others, and by turns with another. Seconds of a core that the
/// thread had, where it is one (Marks).
struct CrowdSeconds {
  double compute_alone = 0, compute_beside = 0;  ///< forward and backward; beside: Bench::time_in_pipeline()
  double update_alone = 0, update_beside = 0;    ///< in place
  /// As a replica (Bench::time_replica()).
  double replica_compute_alone = 0, replica_compute_in_step = 0;
  double replica_update_alone = 0, replica_update_in_step = 0;
  double compute_by_turns = 0;               ///< Bench::time_by_turns()
  double clock_alone = 0, clock_beside = 0;  ///< compute_alone, compute_beside by the clock

  CrowdSeconds& operator+=(const CrowdSeconds& other);
};

/// Passes of all kinds, one of each kind after the other, and what the machine did meanwhile.
struct CrowdTurn {
  std::vector<CrowdSeconds> passes;
  /// compute_alone before and after the others trained, on one core and on the next one.
  std::vector<double> references;
  std::optional<double> other_cores = {};  ///< OtherLoad; nothing: not known

  bool is_quiet() const;
};

/// Turns go on until three were quiet and `least_seconds` are over, or three times as long in vain; without
/// least seconds there are three.
bool turns_go_on(const std::vector<CrowdTurn>& turns, double elapsed_seconds, double least_seconds);

/// What the turns say, by the quiet ones, or by the three quietest where fewer were quiet.
struct CrowdFound {
  CrowdSeconds seconds;         ///< medians
  double other_cores = 0;       ///< that other programs had meanwhile
  double reference_spread = 0;  ///< how much longer the slowest reference took than the fastest, as a part

  /// Of another part of the model: seconds add up, the worst of what was in the way counts.
  CrowdFound& operator+=(const CrowdFound& other);
  /// Factors of 1 or more.
  ProfiledCrowd factors(int64_t ranks) const;
};
CrowdFound judged(const std::vector<CrowdTurn>& turns);

}  // namespace pipewright
