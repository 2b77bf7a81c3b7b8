#include "profiler/predictor_report.h"

#include <algorithm>
#include <cstdio>

namespace pipewright {
namespace {

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string held_out_text(const PredictorReport& report, int64_t width) {
  TextTable table({{"held out", TableColumn::Side::kLeft}, {"rows"}, {"error of the mean"}, {"error"}});
  int64_t rows = 0;
  for (const GroupError& group : report.groups) {
    rows += group.rows;
    table.add(
        {group.group, std::to_string(group.rows), short_number(group.mean_error), short_number(group.error)});
  }
  table.add({"all", std::to_string(rows), short_number(report.mean_error), short_number(report.error)});
  char r2[64];
  std::snprintf(r2, sizeof r2, "R2 on what was held out: %.2f\n", report.r2);
  return table.text(width) + "\n" + r2;
}

std::string features_text(const Predictor& predictor, int64_t width) {
  TextTable table({{"feature", TableColumn::Side::kLeft}, {"importance"}, {"from"}, {"to"}});
  std::vector<FeatureRange> features = predictor.features();
  std::stable_sort(features.begin(), features.end(),
                   [](const FeatureRange& a, const FeatureRange& b) { return a.importance > b.importance; });
  for (const FeatureRange& feature : features) {
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.0f %%", 100 * feature.importance);
    table.add({feature.name, percent, feature.values ? short_number(feature.values->least) : "not measured",
               feature.values ? short_number(feature.values->most) : ""});
  }
  return table.text(width);
}

}  // namespace

std::string predictor_text(const Predictor& predictor, int64_t rows, int64_t width) {
  std::string text = "trained on " + std::to_string(rows) + " rows, slowdowns from " +
                     short_number(predictor.least_slowdown()) + " to " +
                     short_number(predictor.most_slowdown()) + "\n\n";
  if (predictor.report()) text += held_out_text(*predictor.report(), width) + "\n";
  return text + features_text(predictor, width);
}

std::vector<std::string> doubts_of(const Predictor& predictor) {
  std::vector<std::string> doubts;
  const std::optional<PredictorReport>& report = predictor.report();
  if (!report) {
    doubts.emplace_back(
        "there are not two kinds of hogs in the data: how well it does on a kind that it has not seen, "
        "nobody "
        "knows");
  } else if (report->error >= report->mean_error) {
    doubts.emplace_back(
        "on kinds of hogs that it has not seen it is no better than always saying the mean: use "
        "decide=measured");
  } else if (report->r2 < kGoodR2) {
    doubts.push_back("R2 on kinds of hogs that it has not seen is " + short_number(report->r2) + ", below " +
                     short_number(kGoodR2) + ": decide=measured is the better choice");
  }
  if (predictor.most_slowdown() < 1.5)
    doubts.push_back("the largest slowdown in the data is " + short_number(predictor.most_slowdown()) +
                     ": it knows no other, whatever happens");
  return doubts;
}

}  // namespace pipewright
