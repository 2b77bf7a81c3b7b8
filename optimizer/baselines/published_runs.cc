#include "optimizer/baselines/published_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr double kMostTransferFactor = 1e6;
constexpr int kHalvings = 40;

/// Whether its prediction has the constant in it.
bool tells_the_factor(const PublishedRun& run) { return run.unusable.empty() && run.pipelined(); }

/// The best of the factors for these runs.
double fitted_factor(const std::vector<const PublishedRun*>& runs, const std::vector<double>& factors) {
  double best = 1, least = std::numeric_limits<double>::infinity();
  for (const double factor : factors) {
    double sum = 0;
    for (const PublishedRun* run : runs) sum += std::abs(error_of(*run, predicted_seconds(*run, factor)));
    if (sum < least) least = sum, best = factor;
  }
  return best;
}

}  // namespace

double predicted_seconds(const PublishedRun& run, double transfer_factor) {
  PW_CHECK(!run.pipelines.empty(), "run " << run.name << " has no times");
  SimulationOptions options;
  options.blocking_transfers = true;
  double seconds = 0;
  for (std::vector<StageTimes> times : run.pipelines) {
    for (StageTimes& stage : times) {
      stage.send_activation_seconds *= transfer_factor;
      stage.send_gradient_seconds *= transfer_factor;
    }
    // As if all replicas were like this one: no pipeline hears of another before the exchange of gradients,
    // and there the others wait for the slowest.
    const Span update{0, run.shape.microbatches};
    seconds = std::max(seconds, simulate("1f1b-flush", run.shape, times, update, options).total_seconds);
  }
  return seconds;
}

std::optional<double> exact_transfer_factor(const PublishedRun& run) {
  PW_CHECK(run.pipelined(), "run " << run.name << " has one stage");
  double low = 0, high = 1;
  if (predicted_seconds(run, low) >= run.measured_seconds) return low;
  while (predicted_seconds(run, high) < run.measured_seconds) {
    low = high;
    high *= 2;
    if (high > kMostTransferFactor) return std::nullopt;
  }
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (predicted_seconds(run, middle) < run.measured_seconds ? low : high) = middle;
  }
  return high;
}

std::vector<PublishedPrediction> leave_one_out(const std::vector<PublishedRun>& runs) {
  std::vector<std::optional<double>> exact(runs.size());
  for (size_t i = 0; i < runs.size(); ++i)
    if (tells_the_factor(runs[i])) exact[i] = exact_transfer_factor(runs[i]);
  std::vector<PublishedPrediction> predictions(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].unusable.empty()) continue;
    PublishedPrediction& prediction = predictions[i];
    prediction.plain_seconds = prediction.left_out_seconds = predicted_seconds(runs[i], 1);
    if (!runs[i].pipelined()) continue;
    std::vector<const PublishedRun*> others;
    std::vector<double> factors;
    for (size_t k = 0; k < runs.size(); ++k) {
      if (k == i || runs[k].group != runs[i].group || !tells_the_factor(runs[k])) continue;
      others.push_back(&runs[k]);
      if (exact[k]) factors.push_back(*exact[k]);
    }
    prediction.left_out_factor = fitted_factor(others, factors);
    prediction.left_out_seconds = predicted_seconds(runs[i], prediction.left_out_factor);
  }
  return predictions;
}

double error_of(const PublishedRun& run, double seconds) { return seconds / run.measured_seconds - 1; }

std::vector<PublishedError> errors_by_group(const std::vector<PublishedRun>& runs,
                                            const std::vector<PublishedPrediction>& predictions) {
  PW_CHECK_EQ(runs.size(), predictions.size());
  std::vector<std::string> groups;
  for (const PublishedRun& run : runs)
    if (std::find(groups.begin(), groups.end(), run.group) == groups.end()) groups.push_back(run.group);
  std::vector<PublishedError> errors;
  for (const std::string& group : groups) {
    for (const PublishedPart part :
         {PublishedPart::kPipelined, PublishedPart::kOneStage, PublishedPart::kAll}) {
      PublishedError error{group, part};
      for (size_t i = 0; i < runs.size(); ++i) {
        const PublishedRun& run = runs[i];
        if (run.group != group || !run.unusable.empty()) continue;
        if (part != PublishedPart::kAll && run.pipelined() != (part == PublishedPart::kPipelined)) continue;
        ++error.runs;
        error.plain += std::abs(error_of(run, predictions[i].plain_seconds));
        const double left_out = error_of(run, predictions[i].left_out_seconds);
        error.left_out += std::abs(left_out);
        if (std::abs(left_out) > std::abs(error.worst)) error.worst = left_out;
      }
      if (error.runs == 0) continue;
      error.plain /= static_cast<double>(error.runs);
      error.left_out /= static_cast<double>(error.runs);
      errors.push_back(error);
    }
  }
  return errors;
}

}  // namespace pipewright
