#include "optimizer/plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "graph/error.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {
namespace {

using Kind = double HostFactors::*;

// A tenth more computing that makes a minibatch longer by less than this says that computing is not what it
// waits for.
constexpr double kSensitive = 1.05;

double priced_seconds(const MeasuredRun& run, Topology topology, const HostFactors& factors) {
  topology.factors = factors;
  return evaluate_plan(run.plan, run.profile, topology, {}).minibatch_seconds;
}

Kind kind_of(const MeasuredRun& run, const Topology& topology) {
  const CostInputs inputs = cost_of_plan(run.plan, run.profile, topology, {}).inputs;
  Kind kind = nullptr;
  for (const Stage& stage : run.plan.stages) {
    const Kind own = host_factor_of(static_cast<int64_t>(stage.ranks.size()),
                                    ranks_on_host(stage, run.plan.world_size, inputs), inputs);
    if (kind != nullptr && own != kind) return nullptr;
    kind = own;
  }
  return kind;
}

/// The factor of the kind with which the price is what was measured; prices grow with it.
std::optional<double> factor_of(const MeasuredRun& run, const Topology& topology, Kind kind) {
  const auto price = [&](double factor) {
    HostFactors factors;
    factors.*kind = factor;
    return priced_seconds(run, topology, factors);
  };
  if (price(1.1) < kSensitive * price(1)) return std::nullopt;
  // No price falls below what the profile says: the factor of a faster run is the part of it, so that it
  // counts in the median. Otherwise a bisection to a thousandth.
  if (run.minibatch_seconds <= price(1)) return run.minibatch_seconds / price(1);
  double low = 1, high = HostFactors::kMost;
  while (high > low * 1.001) {
    const double middle = std::sqrt(low * high);
    (price(middle) < run.minibatch_seconds ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// To those runs that `counts` takes.
HostFactors fitted(const std::vector<CalibratedRun>& runs, const std::function<bool(size_t run)>& counts) {
  HostFactors factors;
  for (const HostFactorRow& row : host_factor_rows()) {
    std::vector<double> own;
    for (size_t i = 0; i < runs.size(); ++i)
      if (runs[i].kind == row.factor && runs[i].factor && counts(i)) own.push_back(*runs[i].factor);
    if (!own.empty()) factors.*row.factor = std::clamp(median(std::move(own)), 1.0, HostFactors::kMost);
  }
  return factors;
}

}  // namespace

Calibration calibrate(const std::vector<MeasuredRun>& runs, const Topology& topology) {
  PW_CHECK(!runs.empty(), "there are no runs to calibrate by");
  Calibration result;
  for (const MeasuredRun& run : runs) {
    CalibratedRun made;
    made.plain_seconds = priced_seconds(run, topology, {});
    made.kind = kind_of(run, topology);
    if (made.kind != nullptr) made.factor = factor_of(run, topology, made.kind);
    result.runs.push_back(made);
  }
  result.factors = fitted(result.runs, [](size_t) { return true; });
  result.factors.runs = static_cast<int64_t>(runs.size());
  const auto count = static_cast<double>(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const HostFactors others = fitted(result.runs, [&](size_t other) {
      return runs[other].plan.profile_digest != runs[i].plan.profile_digest;
    });
    CalibratedRun& run = result.runs[i];
    run.left_out_seconds = priced_seconds(runs[i], topology, others);
    result.plain_error += std::abs(runs[i].minibatch_seconds / run.plain_seconds - 1) / count;
    result.left_out_error += std::abs(runs[i].minibatch_seconds / run.left_out_seconds - 1) / count;
  }
  return result;
}

}  // namespace pipewright
