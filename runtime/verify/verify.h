// What a run must have ended with: computed in this process, compared with what its ranks wrote.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/job/job.h"
#include "runtime/schedule/schedule.h"
#include "runtime/verify/comparison.h"

namespace pipewright {

/// How far a parameter may lie from one device's, by RelativeComparison, where training does not enlarge what
/// rounding does.
constexpr double kTolerance = 1e-3;
/// However far rounding goes, no further: a parameter that was not trained at all lies 1 off.
constexpr double kMostAllowed = 0.25;

struct Verification {
  Span minibatches;
  int64_t ranks = 1;
  int64_t plans = 1;  ///< in force one after the other
  std::vector<StageTensor> places;
  ExactComparison serial;                        ///< with the serial reference
  std::optional<RelativeComparison> one_device;  ///< of plans that compute the same as one device
  bool one_device_equal = false;                 ///< bit for bit
  /// Beside one_device: how far from one device's another one ends whose first weights are one unit in the
  /// last place off.
  RelativeComparison rounding;
  double tolerance = kTolerance;

  /// Of one_device->parameters[i]: the tolerance, or ten times what rounding does to it or the model if that
  /// is more, up to kMostAllowed. Nothing where rounding alone goes so far (half of kMostAllowed, and more
  /// than the tolerance) that the comparison says nothing.
  std::optional<double> allowed(size_t i) const;
  /// How many parameters are compared with one device's.
  size_t compared() const;
  bool holds() const;
};

/// Trains `job` serially, from its start to the checkpoint `end` of `run_folder`, and compares its weights,
/// buffers and the losses of the run folder's metrics.jsonl; then once more on one device where that computes
/// the same but for the order of sums. Sets the number of compute threads of the process. InputError if the
/// checkpoint or the losses are not whole, or not of this job.
Verification verify(const Job& job, const std::filesystem::path& run_folder, const Checkpoint& end,
                    double tolerance);

}  // namespace pipewright
