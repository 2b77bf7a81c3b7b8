// Losses of finished runs, minibatch by minibatch: do two plans train alike?
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

namespace pipewright {

/// Losses by minibatch.
using LossCurve = std::map<int64_t, double>;

/// From a run's metrics.jsonl; NaN where the loss was not finite. InputError if there is no such file, or a
/// line is not one of a minibatch or an evaluation.
LossCurve read_losses(const std::filesystem::path& metrics_file);

struct EvaluationPoint {
  int64_t minibatches = 0;  ///< trained before it, as far as the file has told by then
  double loss = 0;
  double top1 = 0;  ///< fraction of 1; NaN: the model has no scores
};
/// In the order in which they were made. InputError as above.
std::vector<EvaluationPoint> read_evaluations(const std::filesystem::path& metrics_file);

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
