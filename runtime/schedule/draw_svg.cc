#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "graph/error.h"
#include "pages/svg.h"
#include "runtime/schedule/draw.h"

namespace pipewright {
namespace {

struct Style {
  ActionKind kind;
  const char* fill;
};
// Told apart by lightness too, not by hue alone.
constexpr std::array<Style, 6> kStyles = {{{ActionKind::kForward, "#3b6fb6"},
                                           {ActionKind::kBackward, "#7fc08a"},
                                           {ActionKind::kBackwardInput, "#7fc08a"},
                                           {ActionKind::kBackwardWeight, "#b9a7d9"},
                                           {ActionKind::kUpdate, "#5b3a8c"},
                                           {ActionKind::kReduce, "#f2c14e"}}};

// On ranks with several stages each later one is drawn lighter.
std::string shade(const std::string& fill, int64_t chunk, int64_t chunks) {
  if (chunk == 0) return fill;
  const double white = 0.55 * static_cast<double>(chunk) / static_cast<double>(chunks - 1);
  std::string shaded = "#";
  for (size_t at = 1; at < fill.size(); at += 2) {
    const int value = std::stoi(fill.substr(at, 2), nullptr, 16);
    char hex[8];
    std::snprintf(hex, sizeof hex, "%02x", value + static_cast<int>(std::lround(white * (255 - value))));
    shaded += hex;
  }
  return shaded;
}

constexpr const char* kSendActivation = "#3b6fb6";
constexpr const char* kSendGradient = "#4c9a5b";

constexpr double kMargin = 16, kTitleHeight = 30, kLegendHeight = 26, kAxisHeight = 34;
constexpr double kLaneHeight = 26, kLinkHeight = 4, kLanePitch = 38, kNameHeight = 26;

std::string number(double value, int decimals = 2) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

struct Unit {
  double seconds;
  const char* name;
};
Unit unit_for(double seconds) {
  if (seconds >= 1) return {1, "s"};
  if (seconds >= 1e-3) return {1e-3, "ms"};
  return {1e-6, "µs"};
}

std::string duration(double seconds) {
  const Unit unit = unit_for(seconds);
  return number(seconds / unit.seconds, 3) + " " + unit.name;
}

class Drawing {
 public:
  /// Several timelines of the same ranks, one below the other. A name of "" takes no line.
  explicit Drawing(const std::vector<NamedTimeline>& timelines) : timelines_(timelines) {
    for (const SimulatedRank& rank : timelines.front().timeline.ranks) {
      labels_.push_back(rank_label(rank.number, rank.placement));
      label_width_ = std::max(label_width_, 6.6 * static_cast<double>(labels_.back().size()) + 12);
    }
    for (const NamedTimeline& each : timelines) total_ = std::max(total_, each.timeline.total_seconds);
    // Wide enough for two digits in the shortest forward or backward, within reason.
    double shortest = total_;
    for_each_action([&](const SimulatedAction& a) {
      const double seconds = a.end_seconds - a.begin_seconds;
      // What a window cuts off is not how short actions are.
      if (timelines.size() > 1 && (a.begin_seconds <= 0 || a.end_seconds >= total_)) return;
      if (!is_of_message(a.action.kind) && !is_of_round(a.action.kind) && seconds > 0)
        shortest = std::min(shortest, seconds);
    });
    const double wanted = shortest > 0 ? 20 * total_ / shortest : 0;
    chart_width_ = std::clamp(wanted, 640.0, 6000.0);
    scale_ = total_ > 0 ? chart_width_ / total_ : 0;
  }

  Svg draw(const std::string& title) {
    double lanes = 0;
    for (const NamedTimeline& each : timelines_) lanes += panel_height(each);
    const double width = 2 * kMargin + label_width_ + chart_width_;
    const double height = 2 * kMargin + kTitleHeight + kLegendHeight + lanes + kAxisHeight;
    Svg svg(width, height, title);
    svg_ = &svg;
    svg.text(kMargin, kMargin + 16, title, "head");
    legend(kMargin + kTitleHeight);
    axis(lanes);
    for (const NamedTimeline& each : timelines_) {
      if (!each.name.empty()) {
        svg.text(kMargin, y(0) + kNameHeight - 8, each.name, "head");
        top_ += kNameHeight;
      }
      for (size_t rank = 0; rank < labels_.size(); ++rank) lane(rank);
      for (const SimulatedAction& action : each.timeline.actions) bar(action);
      top_ += kLanePitch * static_cast<double>(labels_.size());
    }
    return svg;
  }

 private:
  double x(double seconds) const { return kMargin + label_width_ + seconds * scale_; }
  double y(int64_t rank) const { return top_ + kLanePitch * static_cast<double>(rank); }
  double panel_height(const NamedTimeline& panel) const {
    return (panel.name.empty() ? 0 : kNameHeight) + kLanePitch * static_cast<double>(labels_.size());
  }
  template <typename Function>
  void for_each_action(Function function) const {
    for (const NamedTimeline& each : timelines_)
      for (const SimulatedAction& action : each.timeline.actions) function(action);
  }

  bool shown(ActionKind kind) const {
    bool any = false;
    for_each_action([&](const SimulatedAction& a) {
      any = any || (a.action.kind == kind && a.end_seconds > a.begin_seconds);
    });
    return any;
  }

  void legend(double top) {
    double left = kMargin;
    const auto next = [&](const std::string& name) {
      svg_->text(left + 19, top + 11, name);
      left += 19 + text_width(name) + 18;
    };
    const auto entry = [&](const std::string& name, const std::string& fill, double box_height) {
      svg_->coloured(left, top + 12 - box_height, 14, box_height, fill);
      next(name);
    };
    for (const Style& style : kStyles)
      if (shown(style.kind)) entry(words_of(style.kind).category, style.fill, 12);
    int64_t chunks = 1;
    for (const SimulatedRank& rank : ranks()) chunks = std::max(chunks, rank.placement.stages);
    for (int64_t chunk = 1; chunk < chunks; ++chunk)
      entry("stage " + std::to_string(chunk + 1) + " of a rank", shade(kStyles[0].fill, chunk, chunks), 12);
    if (shown(ActionKind::kSendActivation)) entry("sending activations", kSendActivation, kLinkHeight);
    if (shown(ActionKind::kSendGradient)) entry("sending gradients", kSendGradient, kLinkHeight);
    svg_->area(left, top, 14, 12, "lane");
    next("idle");
  }

  void axis(double lanes) {
    const double total = total_;
    if (total <= 0) return;
    const Unit unit = unit_for(total);
    const double step = round_step(total / unit.seconds * 80 / chart_width_);
    const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
    const double bottom = y(0) + lanes;
    for (int64_t tick = 0; static_cast<double>(tick) * step <= total / unit.seconds * (1 + 1e-9); ++tick) {
      const double value = static_cast<double>(tick) * step;
      const double left = x(value * unit.seconds);
      svg_->line(left, y(0) - 4, left, bottom);
      svg_->text(left, bottom + 15, number(value, decimals) + " " + unit.name, "muted", Svg::Anchor::kMiddle);
    }
  }

  void lane(size_t rank) {
    svg_->text(kMargin, y(rank) + kLaneHeight / 2 + 4, labels_[rank], "ink names");
    svg_->area(x(0), y(rank), chart_width_, kLaneHeight, "lane");
  }

  void bar(const SimulatedAction& a) {
    const double seconds = a.end_seconds - a.begin_seconds;
    if (seconds <= 0) return;
    const double left = x(a.begin_seconds), width = seconds * scale_;
    const std::string tip = to_text(a.action) + ", " + labels_[a.rank] + ": from " +
                            duration(a.begin_seconds) + " for " + duration(seconds);
    if (a.action.kind == ActionKind::kSendActivation || a.action.kind == ActionKind::kSendGradient) {
      const bool gradient = a.action.kind == ActionKind::kSendGradient;
      svg_->coloured(left, y(a.rank) + kLaneHeight + (gradient ? kLinkHeight : 0) + 1, width, kLinkHeight - 1,
                     gradient ? kSendGradient : kSendActivation, tip);
      return;
    }
    for (const Style& style : kStyles) {
      if (style.kind != a.action.kind) continue;
      // A hair's breadth between neighbours.
      const Placement& at = ranks()[static_cast<size_t>(a.rank)].placement;
      const int64_t chunk = at.stages > 1 ? (a.action.stage - at.stage) / at.apart : 0;
      const std::string fill = shade(style.fill, chunk, at.stages);
      svg_->coloured(left, y(a.rank), std::max(width - 0.75, width / 2), kLaneHeight, fill, tip);
      const std::string index = std::to_string(a.action.index);
      if (width >= 7.0 * static_cast<double>(index.size()) + 3)
        svg_->text_on(fill, left + width / 2, y(a.rank) + kLaneHeight / 2 + 4, index);
    }
  }

  const std::vector<SimulatedRank>& ranks() const { return timelines_.front().timeline.ranks; }

  const std::vector<NamedTimeline>& timelines_;
  double total_ = 0;                                     // of the longest
  double top_ = kMargin + kTitleHeight + kLegendHeight;  // of the timeline that is drawn
  std::vector<std::string> labels_;
  double label_width_ = 0, chart_width_ = 0, scale_ = 0;
  Svg* svg_ = nullptr;  // while drawing
};

}  // namespace

Svg draw_svg(const Simulation& simulation, const std::string& title) {
  return draw_svg({{"", simulation}}, title);
}

Svg draw_svg(const std::vector<NamedTimeline>& timelines, const std::string& title) {
  PW_CHECK(!timelines.empty(), "no timeline");
  for (const NamedTimeline& each : timelines)
    PW_CHECK_EQ(each.timeline.ranks.size(), timelines.front().timeline.ranks.size());
  return Drawing(timelines).draw(title);
}

}  // namespace pipewright
