#include <cmath>
#include <map>
#include <set>

#include "graph/error.h"
#include "interference/predictor.h"

namespace pipewright {
namespace {

/// Sums over the rows that were held out.
struct HeldOut {
  std::vector<double> slowdowns, squared_errors;
  double error = 0, mean_error = 0;
};

GroupError held_out(const InterferenceData& data, const std::string& group, const ForestSettings& settings,
                    HeldOut* sums) {
  InterferenceData others{data.features, data.provenance, {}};
  std::vector<std::vector<double>> rows;
  std::vector<double> slowdowns;
  double mean = 0;
  for (const InterferenceRow& row : data.rows) {
    if (row.group == group) {
      rows.push_back(row.features);
      slowdowns.push_back(row.slowdown);
    } else {
      others.rows.push_back(row);
      mean += row.slowdown;
    }
  }
  mean /= static_cast<double>(others.rows.size());
  const std::vector<double> predicted = Predictor::train(others, settings).predict(rows);
  GroupError error{group, static_cast<int64_t>(rows.size()), 0, 0};
  for (size_t i = 0; i < rows.size(); ++i) {
    const double off = predicted[i] - slowdowns[i];
    error.error += std::abs(off);
    error.mean_error += std::abs(mean - slowdowns[i]);
    sums->slowdowns.push_back(slowdowns[i]);
    sums->squared_errors.push_back(off * off);
  }
  sums->error += error.error;
  sums->mean_error += error.mean_error;
  error.error /= static_cast<double>(rows.size());
  error.mean_error /= static_cast<double>(rows.size());
  return error;
}

}  // namespace

std::optional<PredictorReport> cross_validate(const InterferenceData& data, const ForestSettings& settings) {
  std::map<std::string, size_t> groups;
  for (const InterferenceRow& row : data.rows)
    if (row.group != kQuietGroup) ++groups[row.group];
  for (const auto& [group, rows] : groups)
    if (groups.size() < 2 || data.rows.size() - rows < Predictor::kLeastRows) return std::nullopt;
  if (groups.empty()) return std::nullopt;
  PredictorReport report;
  HeldOut sums;
  for (const auto& [group, rows] : groups) report.groups.push_back(held_out(data, group, settings, &sums));
  const auto count = static_cast<double>(sums.slowdowns.size());
  double mean = 0, squares = 0, squared_errors = 0;
  for (const double slowdown : sums.slowdowns) mean += slowdown / count;
  for (const double slowdown : sums.slowdowns) squares += (slowdown - mean) * (slowdown - mean);
  for (const double error : sums.squared_errors) squared_errors += error;
  report.error = sums.error / count;
  report.mean_error = sums.mean_error / count;
  // Of slowdowns that are all the same there is nothing to explain.
  report.r2 = squares > 0 ? 1 - squared_errors / squares : squared_errors > 0 ? 0 : 1;
  return report;
}

}  // namespace pipewright
