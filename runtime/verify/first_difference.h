// Where a run and its serial reference part: what was done first that should have come out otherwise.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/verify/retraining.h"

namespace pipewright {

struct FirstDifference {
  /// What went wrong first, as far as the run's checkpoints tell: "the forward of minibatch 3", "the update
  /// behind minibatches 0 to 3, whose gradients are right".
  std::string action;
  std::optional<ExactComparison::Element> element;  ///< in which it shows; none: in a loss only
};

/// `first_loss`: that differs, as in ExactComparison, of `minibatches`, behind which the run folder has a
/// checkpoint. Compares with its checkpoints, halving, until it has the first that differs.
FirstDifference first_difference(const Job& job, const Retraining& retraining,
                                 const std::filesystem::path& run_folder, Span minibatches,
                                 const std::optional<ExactComparison::Loss>& first_loss);

}  // namespace pipewright
