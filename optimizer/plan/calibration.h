// How far real runs are from what their plans are priced at, and the few constants that bring them nearer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {

/// A run that has ended.
struct MeasuredRun {
  std::string name;  ///< for people
  Plan plan;
  double minibatch_seconds = 0;  ///< steady state, measured
  Profile profile;               ///< that the plan was made from
};

/// A run as it is priced; where the price does not say how a rank works, there is no factor to fit.
struct CalibratedRun {
  double plain_seconds = 0;  ///< priced without any factor
  /// Priced with factors fitted to the runs of other profiles, so that no run confirms itself.
  double left_out_seconds = 0;
  double HostFactors::*kind = nullptr;  ///< of all its ranks; null: they work in several ways
  /// With this factor the price is the measured time. Nothing where ranks are of several kinds, or links and
  /// not computing set the pace.
  std::optional<double> factor;
};

struct Calibration {
  HostFactors factors;              ///< each the median of its runs' factors, at least 1
  std::vector<CalibratedRun> runs;  ///< in the order given

  /// Means over the runs of |measured / priced - 1|.
  double plain_error = 0, left_out_error = 0;
};

/// Of runs on the topology, whose own factors are left aside; there is at least one.
Calibration calibrate(const std::vector<MeasuredRun>& runs, const Topology& topology);

}  // namespace pipewright
