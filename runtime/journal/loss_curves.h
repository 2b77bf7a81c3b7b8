// Losses of finished runs, minibatch by minibatch: do two plans train alike?
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

namespace pipewright {

/// Losses by minibatch.
using LossCurve = std::map<int64_t, double>;

struct EvaluationPoint {
  int64_t minibatches = 0;  ///< trained before it
  double loss = 0;
  double top1 = 0;  ///< fraction of 1; NaN: the model has no scores
};

struct RunCurves {
  LossCurve losses;                          ///< NaN where the loss was not finite
  std::vector<EvaluationPoint> evaluations;  ///< in the order in which they were made
};
/// From a run's metrics.jsonl. InputError if there is no such file, or a line is none of metrics.jsonl.
RunCurves read_curves(const std::filesystem::path& metrics_file);

struct LossDifference {
  int64_t minibatches = 0;       ///< that both have
  int64_t first_different = -1;  ///< the first of them with other bits; -1: none
  double largest_first_100 = 0;  ///< relative, over the first 100 of them
  double largest = 0;            ///< over all
};

/// |a - b| / |b|, minibatch by minibatch, over those that both have. Equal bits (two NaN too) are no
/// difference; one NaN is an infinite one.
LossDifference compare_losses(const LossCurve& a, const LossCurve& b);

}  // namespace pipewright
