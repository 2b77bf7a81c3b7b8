#include "interference/predictor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <opencv2/core.hpp>
#include <opencv2/ml.hpp>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::max();

// Beyond the training data, as a part of its range.
constexpr double kTolerance = 0.1;

FeatureRange range_of(const InterferenceData& data, size_t feature) {
  FeatureRange range;
  range.name = data.features[feature];
  std::vector<double> values;
  for (const InterferenceRow& row : data.rows)
    if (!std::isnan(row.features[feature])) values.push_back(row.features[feature]);
  if (values.empty()) return range;
  std::sort(values.begin(), values.end());
  range.values = {values.front(), values.back(), values[values.size() / 2]};
  return range;
}

double filled(double value, const FeatureRange& range) {
  if (!range.values) return 0;  // as it was trained: the same for all rows
  return std::isnan(value) ? range.values->middle : value;
}

cv::Mat matrix_of(const std::vector<std::vector<double>>& rows, const std::vector<FeatureRange>& features) {
  cv::Mat matrix(static_cast<int>(rows.size()), static_cast<int>(features.size()), CV_32F);
  for (size_t i = 0; i < rows.size(); ++i) {
    PW_CHECK(rows[i].size() == features.size(), "a row of " << rows[i].size() << " features");
    for (size_t f = 0; f < features.size(); ++f)
      matrix.at<float>(static_cast<int>(i), static_cast<int>(f)) =
          static_cast<float>(filled(rows[i][f], features[f]));
  }
  return matrix;
}

FeatureRange feature_from_json(JsonReader reader) {
  FeatureRange feature;
  feature.name = reader.string("name");
  feature.importance = reader.number("importance", 0, 1);
  if (reader.has("least")) {
    FeatureRange::Values values;
    values.least = reader.number("least", -kUnbounded, kUnbounded);
    values.most = reader.number("most", values.least, kUnbounded);
    values.middle = reader.number("middle", values.least, values.most);
    feature.values = values;
  }
  reader.finish();
  return feature;
}

Json to_json(const FeatureRange& feature) {
  Json json;
  json["name"] = feature.name;
  json["importance"] = feature.importance;
  if (!feature.values) return json;
  json["least"] = feature.values->least;
  json["most"] = feature.values->most;
  json["middle"] = feature.values->middle;
  return json;
}

PredictorReport report_from_json(JsonReader reader) {
  PredictorReport report;
  for (JsonReader& group : reader.objects("groups")) {
    GroupError error;
    error.group = group.string("group");
    error.rows = group.integer("rows", 1, std::numeric_limits<int64_t>::max());
    error.mean_error = group.number("mean_error", 0, kUnbounded);
    error.error = group.number("error", 0, kUnbounded);
    group.finish();
    report.groups.push_back(error);
  }
  report.mean_error = reader.number("mean_error", 0, kUnbounded);
  report.error = reader.number("error", 0, kUnbounded);
  report.r2 = reader.number("r2", -kUnbounded, 1);
  reader.finish();
  return report;
}

Json to_json(const PredictorReport& report) {
  Json json;
  json["groups"] = Json::array();
  for (const GroupError& group : report.groups)
    json["groups"].push_back({{"group", group.group},
                              {"rows", group.rows},
                              {"mean_error", group.mean_error},
                              {"error", group.error}});
  json["mean_error"] = report.mean_error;
  json["error"] = report.error;
  json["r2"] = report.r2;
  return json;
}

}  // namespace

class Predictor::Forest {
 public:
  explicit Forest(cv::Ptr<cv::ml::RTrees> trees) : trees_(std::move(trees)) {}

  std::string text() const {
    cv::FileStorage storage(".yml", cv::FileStorage::WRITE | cv::FileStorage::MEMORY);
    storage << "forest"
            << "{";
    trees_->write(storage);
    storage << "}";
    return storage.releaseAndGetString();
  }
  static std::shared_ptr<const Forest> from_text(const std::string& text) {
    return std::make_shared<Forest>(cv::Algorithm::loadFromString<cv::ml::RTrees>(text));
  }

  std::vector<double> predict(const cv::Mat& rows) const {
    cv::Mat results;
    trees_->predict(rows, results);
    std::vector<double> values;
    for (int i = 0; i < results.rows; ++i) values.push_back(results.at<float>(i));
    return values;
  }
  int features() const { return trees_->getVarCount(); }
  bool trained() const { return trees_->isTrained() && !trees_->isClassifier(); }

 private:
  cv::Ptr<cv::ml::RTrees> trees_;
};

Predictor Predictor::train(const InterferenceData& data, const ForestSettings& settings) {
  if (data.rows.size() < kLeastRows)
    throw InputError("predictor: " + std::to_string(data.rows.size()) + " rows to train on, expected " +
                         std::to_string(kLeastRows) + " or more",
                     "Next: pipewright-profiler interference with more --repeats.");
  Predictor predictor;
  predictor.provenance_ = data.provenance;
  for (size_t f = 0; f < data.features.size(); ++f) predictor.features_.push_back(range_of(data, f));
  std::vector<std::vector<double>> rows;
  cv::Mat slowdowns(static_cast<int>(data.rows.size()), 1, CV_32F);
  predictor.least_slowdown_ = predictor.most_slowdown_ = data.rows[0].slowdown;
  for (size_t i = 0; i < data.rows.size(); ++i) {
    const double slowdown = data.rows[i].slowdown;
    slowdowns.at<float>(static_cast<int>(i)) = static_cast<float>(slowdown);
    predictor.least_slowdown_ = std::min(predictor.least_slowdown_, slowdown);
    predictor.most_slowdown_ = std::max(predictor.most_slowdown_, slowdown);
    rows.push_back(data.rows[i].features);
  }
  auto trees = cv::ml::RTrees::create();
  trees->setMaxDepth(static_cast<int>(settings.depth));
  // Slowdowns of one state of a core differ by some percent from window to window: no leaf is finer.
  trees->setMinSampleCount(5);
  trees->setRegressionAccuracy(0.02F);
  trees->setCalculateVarImportance(true);
  // All of them for each split: of a few features drawn, none may say anything, and the branch would end.
  trees->setActiveVarCount(static_cast<int>(data.features.size()));
  trees->setTermCriteria({cv::TermCriteria::MAX_ITER, static_cast<int>(settings.trees), 0});
  cv::setRNGSeed(static_cast<int>(settings.seed));
  trees->train(
      cv::ml::TrainData::create(matrix_of(rows, predictor.features_), cv::ml::ROW_SAMPLE, slowdowns));
  const cv::Mat importance = trees->getVarImportance();
  double sum = 0;
  for (int f = 0; f < static_cast<int>(importance.total()); ++f)
    sum += std::max(0.0F, importance.at<float>(f));
  for (size_t f = 0; f < predictor.features_.size() && f < importance.total(); ++f)
    predictor.features_[f].importance =
        sum > 0 ? std::clamp(importance.at<float>(static_cast<int>(f)) / sum, 0.0, 1.0) : 0;
  predictor.forest_ = std::make_shared<Forest>(trees);
  return predictor;
}

std::vector<double> Predictor::predict(const std::vector<std::vector<double>>& rows) const {
  PW_CHECK(forest_ != nullptr, "a predictor without a forest");
  return rows.empty() ? std::vector<double>{} : forest_->predict(matrix_of(rows, features_));
}

std::string Predictor::outside(const std::vector<double>& row) const {
  PW_CHECK(row.size() == features_.size(), "a row of " << row.size() << " features");
  std::string words;
  for (size_t f = 0; f < row.size(); ++f) {
    const FeatureRange& feature = features_[f];
    if (!feature.values || feature.importance < kMatters) continue;
    const auto [least, most, middle] = *feature.values;
    const double room = kTolerance * std::max(most - least, kTolerance * std::abs(most));
    if (row[f] >= least - room && row[f] <= most + room) continue;
    char text[160];
    if (std::isnan(row[f]))
      std::snprintf(text, sizeof text, "%s not measured", feature.name.c_str());
    else
      std::snprintf(text, sizeof text, "%s %.3g (trained on %.3g..%.3g)", feature.name.c_str(), row[f], least,
                    most);
    words += (words.empty() ? "" : ", ") + std::string(text);
  }
  return words;
}

Predictor Predictor::from_json(JsonReader& reader) {
  Predictor predictor;
  for (JsonReader& feature : reader.objects("features"))
    predictor.features_.push_back(feature_from_json(std::move(feature)));
  predictor.least_slowdown_ = reader.number("least_slowdown", 0, kUnbounded);
  predictor.most_slowdown_ = reader.number("most_slowdown", predictor.least_slowdown_, kUnbounded);
  if (reader.has("report")) predictor.report_ = report_from_json(reader.object("report"));
  predictor.provenance_ = reader.string_entries("provenance");
  const std::string digest = reader.string("forest_digest");
  const std::string text = reader.string("forest");
  // OpenCV takes what it is given: it gets nothing but what it has written.
  if (digest_of(text) != digest)
    reader.fail("forest", "does not have the digest that forest_digest says: the file is damaged",
                "Next: pipewright-profiler train-predictor makes it again from the data set.");
  try {
    predictor.forest_ = Forest::from_text(text);
  } catch (const cv::Exception& error) {
    reader.fail("forest", "OpenCV does not read it: " + std::string(error.err));
  }
  if (!predictor.forest_->trained() ||
      predictor.forest_->features() != static_cast<int>(predictor.features_.size()))
    reader.fail("forest", "is no forest of the features above");
  return predictor;
}

Json Predictor::to_json() const {
  PW_CHECK(forest_ != nullptr, "a predictor without a forest");
  Json json;
  json["features"] = Json::array();
  for (const FeatureRange& feature : features_) json["features"].push_back(pipewright::to_json(feature));
  json["least_slowdown"] = least_slowdown_;
  json["most_slowdown"] = most_slowdown_;
  if (report_) json["report"] = pipewright::to_json(*report_);
  json["provenance"] = Json::object();
  for (const auto& [what, value] : provenance_) json["provenance"][what] = value;
  const std::string text = forest_->text();
  json["forest_digest"] = digest_of(text);
  json["forest"] = text;
  return json;
}

void Predictor::validate(const std::string& where) const {
  if (features_.empty()) fail_document(where, "features", "there are none");
}

}  // namespace pipewright
