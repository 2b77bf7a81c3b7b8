// Charts of pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pages/svg.h"

namespace pipewright {

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
/// `say` writes a value of the axis. CheckError unless each bar has one part for each name.
Svg bar_chart(const std::string& title, const std::vector<std::string>& parts, const std::vector<Bar>& bars,
              std::string (*say)(double));

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x ascending; what is not finite is a gap
};
/// A number on an axis, in words.
using SayNumber = std::string (*)(double);
struct LineChart {
  std::string title;
  std::string x_name, y_name;
  std::vector<Curve> curves;
  std::vector<std::pair<double, std::string>> marks = {};  ///< dashed, across the chart, at x, with a word
  bool x_logarithmic = false, y_logarithmic = false;       ///< then all > 0
  SayNumber say_x = nullptr, say_y = nullptr;              ///< nullptr: as they are
};
/// A curve of more points than a screen has columns is drawn by the least and the greatest of each column.
Svg line_chart(const LineChart& chart);

/// Quantities one above the other over time, as steps, under dashed lines at `limits`.
struct StackedChart {
  std::string title;
  std::string x_name;
  std::vector<std::string> names;
  std::vector<double> x;                    ///< ascending
  std::vector<std::vector<double>> values;  ///< by name, at each x
  std::vector<std::pair<double, std::string>> limits = {};
  SayNumber say_x = nullptr, say_y = nullptr;
};
/// CheckError unless there are values for each name and x.
Svg stacked_chart(const StackedChart& chart);

}  // namespace pipewright
