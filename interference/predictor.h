// How many times as long work takes on a core, from what the host says of the core: a forest of regression
// trees (OpenCV's), and the range in which it was trained. A forest cannot go beyond what it has seen: it
// answers with the nearest it knows, so whoever asks asks for outside() first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/json.h"
#include "interference/data_set.h"

namespace pipewright {

struct ForestSettings {
  int64_t trees = 100;
  int64_t depth = 25;  ///< OpenCV takes no more
  uint64_t seed = 1;

  static constexpr int64_t kMostTrees = 10000;
};

/// A feature as the training data had it.
struct FeatureRange {
  std::string name;
  /// Nothing: no row had it, and the forest does not read it.
  struct Values {
    double least = 0, most = 0;
    double middle = 0;  ///< the median: in the place of one that is missing
  };
  std::optional<Values> values;
  double importance = 0;  ///< share of what the forest gets from it, 0..1
};

/// How well the forest does on groups that it was not trained on.
struct GroupError {
  std::string group;
  int64_t rows = 0;
  double mean_error = 0;  ///< mean absolute error of who always says the mean of the other groups
  double error = 0;       ///< that of the forest
};
struct PredictorReport {
  std::vector<GroupError> groups;  ///< each held out once; rows of kQuietGroup are always trained on
  double mean_error = 0, error = 0;
  /// Of all rows that were held out: 1 - sum of squared errors / sum of squares around their mean.
  double r2 = 0;
};

/// Trains a forest for each group, on all others. Nothing if there are not two groups.
std::optional<PredictorReport> cross_validate(const InterferenceData& data, const ForestSettings& settings);

class Predictor {
 public:
  static constexpr const char* kSchema = "pipewright.predictor/1";

  /// The same data and settings give the same forest. InputError: fewer than kLeastRows rows.
  static Predictor train(const InterferenceData& data, const ForestSettings& settings);
  static constexpr size_t kLeastRows = 10;

  const std::vector<FeatureRange>& features() const { return features_; }
  double least_slowdown() const { return least_slowdown_; }
  double most_slowdown() const { return most_slowdown_; }
  const std::optional<PredictorReport>& report() const { return report_; }
  void set_report(std::optional<PredictorReport> report) { report_ = std::move(report); }

  /// Slowdowns of rows of features(), in their order; NaN: not known.
  std::vector<double> predict(const std::vector<std::vector<double>>& rows) const;
  double predict(const std::vector<double>& row) const {
    return predict(std::vector<std::vector<double>>{row})[0];
  }

  /// Where the row lies beyond the training data by more than a tenth of its range, or lacks what the data
  /// had, in a feature that matters (kMatters): "waiting 7.2 (trained on 0..3.1)"; "" of a row within.
  std::string outside(const std::vector<double>& row) const;
  static constexpr double kMatters = 0.02;  ///< importance

  static Predictor from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;

  class Forest;  // of predictor.cc

 private:
  std::vector<FeatureRange> features_;
  double least_slowdown_ = 1, most_slowdown_ = 1;
  std::vector<std::pair<std::string, std::string>> provenance_;  // of the data
  std::optional<PredictorReport> report_;
  std::shared_ptr<const Forest> forest_;
};

}  // namespace pipewright
