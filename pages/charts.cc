#include "pages/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "graph/error.h"
#include "graph/units.h"

namespace pipewright {
namespace {

constexpr double kLegendPitch = 22;

std::string said(const Quantity& quantity, double value) {
  if (quantity.say) return quantity.say(value);
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// The least round step of the quantity that is at least `least` (> 0).
double step_of(const Quantity& quantity, double least) {
  constexpr double kUnit = 1024;
  const double unit =
      quantity.binary && least > 1 ? std::pow(kUnit, std::floor(std::log(least) / std::log(kUnit))) : 1;
  return unit * round_step(least / unit);
}

std::string percent_text(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", 100 * part);
  return text;
}

/// From `left` on, in lines of at most `width`; returns the height it took.
template <typename DrawSign>
double legend(Svg* svg, double left, double top, double width, const std::vector<std::string>& names,
              const DrawSign& sign) {
  double x = left, y = top;
  for (size_t i = 0; i < names.size(); ++i) {
    const double wide = 18 + text_width(names[i]) + 18;
    if (x > left && x + wide > left + width) {
      x = left;
      y += kLegendPitch;
    }
    if (svg != nullptr) {
      sign(i, x, y);
      svg->text(x + 18, y + 10, names[i]);
    }
    x += wide;
  }
  return names.empty() ? 0 : y + kLegendPitch - top;
}

constexpr auto kNoSign = [](size_t, double, double) {};

constexpr double kPlot = 800, kHeight = 260, kLeft = 84;

/// An axis from `least` to `most`, straight or logarithmic.
class Axis {
 public:
  Axis(double least, double most, bool logarithmic, double begin, double end)
      : logarithmic_(logarithmic), least_(place(least)), most_(place(most)), begin_(begin), end_(end) {
    if (most_ > least_) return;
    // One value only: in the middle.
    const double room = least_ != 0 ? 0.05 * std::fabs(least_) : 0.5;
    least_ -= room;
    most_ += room;
    single_ = least;
  }
  double at(double value) const {
    return begin_ + (end_ - begin_) * (place(value) - least_) / (most_ - least_);
  }
  bool is_single() const { return single_.has_value(); }
  /// Round numbers on it, about `count`; of one value, the value.
  std::vector<double> ticks(double count, const Quantity& quantity) const {
    if (single_) return {*single_};
    std::vector<double> ticks;
    if (!logarithmic_) {
      const double step = step_of(quantity, (most_ - least_) / count);
      for (double tick = std::ceil(least_ / step - 1e-9) * step; tick <= most_ + 1e-9 * step; tick += step)
        ticks.push_back(std::fabs(tick) < 1e-9 * step ? 0 : tick);
      return ticks;
    }
    constexpr double kManyDecades = 2.5;
    const double decades = std::max(1.0, std::ceil((most_ - least_) / (2 * count)));
    for (double power = std::floor(least_); power <= most_; power += decades) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        if (most_ - least_ > kManyDecades && factor != 1) continue;
        const double value = factor * std::pow(10, power);
        if (place(value) >= least_ - 1e-9 && place(value) <= most_ + 1e-9) ticks.push_back(value);
      }
    }
    return ticks;
  }

 private:
  double place(double value) const { return logarithmic_ ? std::log10(value) : value; }
  bool logarithmic_;
  double least_, most_, begin_, end_;
  std::optional<double> single_;  ///< the only value on it
};

struct Frame {
  double left, top, bottom;
};
/// The grid of a chart, and what its axes say.
void draw_axes(Svg* svg, const Frame& frame, const Axis& x, const Axis& y, const Quantity& of_x,
               const Quantity& of_y, const std::string& x_name, const std::string& y_name) {
  for (const double tick : y.ticks(6, of_y)) {
    svg->line(frame.left, y.at(tick), frame.left + kPlot, y.at(tick));
    svg->text(frame.left - 8, y.at(tick) + 4, said(of_y, tick), "muted", Svg::Anchor::kEnd);
  }
  for (const double tick : x.ticks(8, of_x)) {
    svg->line(x.at(tick), frame.top, x.at(tick), frame.bottom);
    svg->text(x.at(tick), frame.bottom + 16, said(of_x, tick), "muted", Svg::Anchor::kMiddle);
  }
  svg->text(frame.left + kPlot / 2, frame.bottom + 36, x_name, "ink", Svg::Anchor::kMiddle);
  svg->text(frame.left - 8, frame.top - 10, y_name, "ink", Svg::Anchor::kEnd);
}

/// The points of a curve in order, at most four for each of `columns`: the first, least, greatest and last.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points,
                                               size_t columns) {
  if (points.size() <= 4 * columns) return points;
  std::vector<std::pair<double, double>> kept;
  for (size_t column = 0; column < columns; ++column) {
    const size_t begin = column * points.size() / columns, end = (column + 1) * points.size() / columns;
    size_t least = begin, most = begin;
    bool gap = false;
    for (size_t i = begin; i < end; ++i) {
      gap = gap || !std::isfinite(points[i].second);
      if (!(points[i].second >= points[least].second)) least = i;
      if (!(points[i].second <= points[most].second)) most = i;
    }
    std::vector<size_t> chosen = {begin, least, most, end - 1};
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (const size_t i : chosen) kept.push_back(points[i]);
    if (gap) kept.emplace_back(points[end - 1].first, std::nan(""));
  }
  return kept;
}

}  // namespace

bool spans_decades(const std::vector<Curve>& curves) {
  constexpr double kDecades = 1e4;
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const Curve& curve : curves)
    for (const auto& [x, y] : curve.points)
      if (std::isfinite(y)) {
        least = std::min(least, y);
        most = std::max(most, y);
      }
  return least > 0 && most >= kDecades * least;
}

const Quantity Quantity::kSeconds{format_seconds};
const Quantity Quantity::kBytes{format_bytes, true};
const Quantity Quantity::kBytesPerSecond{format_bytes_per_second};
const Quantity Quantity::kPart{percent_text};

Svg bar_chart(const std::string& title, const std::vector<std::string>& parts, const std::vector<Bar>& bars,
              const Quantity& quantity) {
  constexpr double kPlot = 560, kRow = 20, kBar = 14;
  double longest_name = text_width("stage"), longest_note = 0, most = 0;
  for (const Bar& bar : bars) {
    PW_CHECK_EQ(bar.parts.size(), parts.size());
    double sum = 0;
    for (const BarPart& part : bar.parts) sum += part.value;
    most = std::max(most, sum);
    longest_name = std::max(longest_name, text_width(bar.name));
    longest_note = std::max(longest_note, text_width(bar.note));
  }
  if (most <= 0) most = 1;
  // Behind the longest bar stand its note and half of the axis' last word.
  const double left = 16 + longest_name, width = left + kPlot + std::max(longest_note + 20, 48.0);
  const double top = 12 + legend(nullptr, left, 12, kPlot, parts, kNoSign) + 26;
  Svg svg(width, top + kRow * static_cast<double>(bars.size()) + 12, title);
  legend(&svg, left, 12, kPlot, parts,
         [&](size_t i, double x, double y) { svg.area(x, y, 12, 12, area_look(i)); });
  const double step = step_of(quantity, most / 6);
  for (double tick = 0; tick <= most * 1.0001; tick += step) {
    const double x = left + kPlot * tick / most;
    svg.line(x, top - 6, x, svg.height() - 8);
    svg.text(x, top - 12, tick == 0 ? "0" : said(quantity, tick), "muted", Svg::Anchor::kMiddle);
  }
  double y = top;
  for (const Bar& bar : bars) {
    svg.text(left - 8, y + 11, bar.name, "ink", Svg::Anchor::kEnd);
    double x = left;
    for (size_t i = 0; i < bar.parts.size(); ++i) {
      const double length = kPlot * bar.parts[i].value / most;
      if (length > 0) svg.area(x, y, std::max(length, 0.1), kBar, area_look(i), bar.parts[i].tip);
      x += length;
    }
    if (!bar.note.empty()) svg.text(x + 6, y + 11, bar.note, "muted");
    y += kRow;
  }
  return svg;
}

Svg line_chart(const LineChart& chart) {
  double x_least = HUGE_VAL, x_most = -HUGE_VAL, y_least = HUGE_VAL, y_most = -HUGE_VAL;
  std::vector<std::string> names;
  for (const Curve& curve : chart.curves) {
    names.push_back(curve.name);
    for (const auto& [x, y] : curve.points) {
      x_least = std::min(x_least, x);
      x_most = std::max(x_most, x);
      if (!std::isfinite(y)) continue;
      y_least = std::min(y_least, y);
      y_most = std::max(y_most, y);
    }
  }
  if (!(x_most >= x_least)) x_least = 1, x_most = 2;
  if (!(y_most >= y_least)) y_least = 1, y_most = 2;
  const double top = 8 + legend(nullptr, kLeft, 8, kPlot, names, kNoSign) + 26, bottom = top + kHeight;
  Svg svg(kLeft + kPlot + 40, bottom + 46, chart.title);
  legend(&svg, kLeft, 8, kPlot, names, [&](size_t i, double x, double y) {
    svg.path("M" + svg_number(x) + " " + svg_number(y + 6) + "h13", line_look(i));
  });
  const Axis across(x_least, x_most, chart.x_logarithmic, kLeft, kLeft + kPlot);
  const Axis up(y_least, y_most, chart.y_logarithmic, bottom, top);
  draw_axes(&svg, {kLeft, top, bottom}, across, up, chart.x, chart.y, chart.x_name, chart.y_name);
  for (const auto& [x, word] : chart.marks) {
    svg.line(across.at(x), top - 4, across.at(x), bottom, "mark");
    svg.text(across.at(x), top - 8, word, "ink",
             across.at(x) > kLeft + kPlot / 2 ? Svg::Anchor::kEnd : Svg::Anchor::kStart);
  }
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    const auto points = thinned(chart.curves[i].points, static_cast<size_t>(kPlot));
    std::string data;
    bool drawing = false;
    for (size_t p = 0; p < points.size(); ++p) {
      const auto& [x, y] = points[p];
      if (!std::isfinite(y)) {
        drawing = false;
        continue;
      }
      data += (drawing ? "L" : "M") + svg_number(across.at(x)) + " " + svg_number(up.at(y));
      drawing = true;
      // A point between two gaps.
      if ((p == 0 || !std::isfinite(points[p - 1].second)) &&
          (p + 1 == points.size() || !std::isfinite(points[p + 1].second)))
        data += "h0.5";
    }
    if (!data.empty()) svg.path(data, line_look(i), chart.curves[i].name);
    // Few points are shown one by one, each with its value.
    constexpr size_t kFew = 64;
    if (points.size() > kFew) continue;
    // What is no line is larger, and says its value.
    const auto finite = std::count_if(points.begin(), points.end(),
                                      [](const auto& point) { return std::isfinite(point.second); });
    const double half = finite == 1 ? 5 : 3;
    for (const auto& [x, y] : points) {
      if (!std::isfinite(y)) continue;
      svg.area(across.at(x) - half, up.at(y) - half, 2 * half, 2 * half, area_look(i),
               chart.curves[i].name + ", " + said(chart.x, x) + ": " + said(chart.y, y));
      if (finite == 1 && chart.curves.size() == 1)
        svg.text(across.at(x) + 10, up.at(y) - 6, said(chart.y, y), "ink");
    }
  }
  return svg;
}

Svg stacked_chart(const StackedChart& chart) {
  PW_CHECK_EQ(chart.values.size(), chart.names.size());
  double most = 0;
  std::vector<double> floor(chart.at.size(), 0);
  for (const auto& values : chart.values) PW_CHECK_EQ(values.size(), chart.at.size());
  for (size_t i = 0; i < chart.at.size(); ++i) {
    double sum = 0;
    for (const auto& values : chart.values) sum += values[i];
    most = std::max(most, sum);
  }
  for (const auto& [value, word] : chart.limits) most = std::max(most, value);
  const double top = 8 + legend(nullptr, kLeft, 8, kPlot, chart.names, kNoSign) + 22, bottom = top + kHeight;
  Svg svg(kLeft + kPlot + 40, bottom + 46, chart.title);
  legend(&svg, kLeft, 8, kPlot, chart.names,
         [&](size_t i, double x, double y) { svg.area(x, y, 12, 12, area_look(i)); });
  const Axis across(chart.at.empty() ? 0 : chart.at.front(), chart.at.empty() ? 1 : chart.at.back(), false,
                    kLeft, kLeft + kPlot);
  const Axis up(0, most * 1.02, false, bottom, top);
  draw_axes(&svg, {kLeft, top, bottom}, across, up, chart.x, chart.y, chart.x_name, "");
  // What is known at one time only is a bar there.
  constexpr double kBar = 28;
  const double bar = across.is_single() ? kBar : 0;
  // Of what changes within a column of the screen, the most is shown.
  const size_t columns = static_cast<size_t>(kPlot);
  const size_t shown = std::min(chart.at.size(), columns);
  for (size_t n = 0; n < chart.names.size(); ++n) {
    std::string above, below;
    double largest = 0;
    for (size_t c = 0; c < shown; ++c) {
      const size_t begin = c * chart.at.size() / shown, end = (c + 1) * chart.at.size() / shown;
      size_t at = begin;  // all parts at one time, so that the whole is right
      double whole = -1;
      for (size_t i = begin; i < end; ++i) {
        double sum = 0;
        for (const auto& values : chart.values) sum += values[i];
        if (sum > whole) whole = sum, at = i;
      }
      double low = 0;
      for (size_t m = 0; m < n; ++m) low += chart.values[m][at];
      const double high = low + chart.values[n][at];
      largest = std::max(largest, chart.values[n][at]);
      const std::string x = svg_number(across.at(chart.at[at]) - bar / 2);
      above +=
          (above.empty() ? "M" + x + " " + svg_number(up.at(high)) : "H" + x + "V" + svg_number(up.at(high)));
      below = "V" + svg_number(up.at(low)) + "H" + x + below;
    }
    if (bar > 0) above += "H" + svg_number(across.at(chart.at.front()) + bar / 2);
    if (largest <= 0) continue;
    svg.path(above + below + "Z", area_look(n), chart.names[n] + ": at most " + said(chart.y, largest));
  }
  for (const auto& [value, word] : chart.limits) {
    svg.line(kLeft, up.at(value), kLeft + kPlot, up.at(value), "mark");
    svg.text(kLeft + kPlot, up.at(value) - 4, word, "ink", Svg::Anchor::kEnd);
  }
  return svg;
}

}  // namespace pipewright
