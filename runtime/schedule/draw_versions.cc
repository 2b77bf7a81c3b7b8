#include <algorithm>

#include "graph/error.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/versions.h"

namespace pipewright {

Svg draw_versions(const std::string& schedule, const PipelineShape& shape, Span span) {
  PW_CHECK(span.count > 0, span.count);
  constexpr double kTop = 44, kRow = 24, kBar = 20;
  int64_t most = 0;
  for (int64_t s = shape.frozen_stages; s < shape.stages(); ++s) {
    const ReadVersions versions(schedule, shape, s, span);
    for (int64_t k = span.first; k < span.end(); ++k) most = std::max(most, versions.of(k));
  }
  const double cell = 10 + text_width(std::to_string(std::max(most, span.end())));
  const double left = text_width("stage 100") + 16;
  // Delays 0, 1, 2, ...; one colour for all from the last on.
  constexpr const char* kShades[] = {"#7fc08a", "#f2c14e", "#e08a3c", "#c8503c", "#8c2f39"};
  constexpr size_t kLast = std::size(kShades) - 1;
  constexpr double kSwatch = 18, kGap = 14;
  const auto word = [](size_t i) {
    return (i == 0 ? "updates behind: " : "") + std::to_string(i) + (i == kLast ? " or more" : "");
  };
  double legend = 0;
  for (size_t i = 0; i <= kLast; ++i) legend += kSwatch + text_width(word(i)) + kGap;
  Svg svg(left + std::max(cell * static_cast<double>(span.count), legend) + 8,
          kTop + kRow * static_cast<double>(shape.stages()) + 8, "Weight versions");
  double x = left;
  for (size_t i = 0; i <= kLast; ++i) {
    svg.coloured(x, 4, 12, 12, kShades[i]);
    svg.text(x + kSwatch, 14, word(i));
    x += kSwatch + text_width(word(i)) + kGap;
  }
  for (int64_t k = 0; k < span.count; ++k)
    svg.text(left + cell * (static_cast<double>(k) + 0.5), kTop - 8, std::to_string(span.first + k), "muted",
             Svg::Anchor::kMiddle);
  for (int64_t s = 0; s < shape.stages(); ++s) {
    const double y = kTop + kRow * static_cast<double>(s);
    svg.text(0, y + 14, "stage " + std::to_string(s));
    if (!shape.trains(s)) {
      svg.text(left, y + 14, "frozen", "muted");
      continue;
    }
    const ReadVersions versions(schedule, shape, s, span);
    for (int64_t k = 0; k < span.count; ++k) {
      const int64_t minibatch = span.first + k, version = versions.of(minibatch),
                    delay = versions.delay(minibatch);
      const std::string colour = kShades[std::min<size_t>(static_cast<size_t>(delay), kLast)];
      const double at = left + cell * static_cast<double>(k);
      svg.coloured(at, y, cell - 1, kBar, colour,
                   "stage " + std::to_string(s) + ", minibatch " + std::to_string(minibatch) +
                       ": reads version " + std::to_string(version) + ", " + std::to_string(delay) +
                       (delay == 1 ? " update behind" : " updates behind") +
                       (versions.predicted(minibatch) ? ", as predicted" : ""));
      svg.text_on(colour, at + (cell - 1) / 2, y + 14, std::to_string(version));
    }
  }
  return svg;
}

}  // namespace pipewright
