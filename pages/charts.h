// Charts of pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pages/svg.h"

namespace pipewright {

/// What an axis counts.
struct Quantity {
  std::string (*say)(double) = nullptr;  ///< in words; nullptr: the number
  bool binary = false;                   ///< its steps are round in powers of 1024

  static const Quantity kSeconds, kBytes, kBytesPerSecond, kPart;  ///< kPart: of 1, in percent
};

/// A part of a bar.
struct BarPart {
  double value = 0;  ///< >= 0
  std::string tip;   ///< "": none
};
struct Bar {
  std::string name;
  std::vector<BarPart> parts;  ///< in the order of the chart's `parts`
  std::string note;            ///< behind the bar; "": none
};

/// Horizontal bars of parts, one below the other, under a legend of the parts' names and an axis from 0 on.
/// CheckError unless each bar has one part for each name.
Svg bar_chart(const std::string& title, const std::vector<std::string>& parts, const std::vector<Bar>& bars,
              const Quantity& quantity);

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x ascending; what is not finite is a gap
};
struct LineChart {
  std::string title;
  std::string x_name, y_name;
  std::vector<Curve> curves;
  std::vector<std::pair<double, std::string>> marks = {};  ///< dashed, across the chart, at x, with a word
  bool x_logarithmic = false, y_logarithmic = false;       ///< then all > 0
  Quantity x = {}, y = {};
};
/// Whether their finite y are all > 0 and so far apart, four decades, that a straight axis shows the greatest
/// only.
bool spans_decades(const std::vector<Curve>& curves);
/// A curve of one point is a dot; alone in its chart it says its value. A curve of more points than a screen
/// has columns is drawn by the least and the greatest of each column.
Svg line_chart(const LineChart& chart);

/// Quantities one above the other over time, as steps (at one time only, as a bar), under dashed lines at
/// `limits`.
struct StackedChart {
  std::string title;
  std::string x_name;
  std::vector<std::string> names;
  std::vector<double> at;                   ///< ascending
  std::vector<std::vector<double>> values;  ///< by name, at each of these
  std::vector<std::pair<double, std::string>> limits = {};
  Quantity x = {}, y = {};
};
/// CheckError unless there are values for each name and place.
Svg stacked_chart(const StackedChart& chart);

}  // namespace pipewright
