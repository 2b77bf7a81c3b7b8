#include "pages/stages.h"

#include <algorithm>

#include "graph/error.h"

namespace pipewright {
namespace {

std::string short_name(const std::string& name) {
  constexpr size_t kMost = 28;
  return name.size() <= kMost ? name : name.substr(0, kMost - 2) + "..";
}

}  // namespace

Svg stages_drawing(const Plan& plan, const std::vector<std::string>& notes) {
  PW_CHECK_EQ(notes.size(), plan.stages.size());
  constexpr double kBox = 210, kLine = 16, kHead = 64, kGap = 28;
  constexpr size_t kMostLayers = 14;
  const auto names_of = [](const Stage& stage) -> const std::vector<std::string>& {
    return stage.layers.empty() ? stage.nodes : stage.layers;
  };
  size_t lines = 1;
  for (const Stage& stage : plan.stages)
    lines = std::max(lines, std::min(names_of(stage).size(), kMostLayers + 1));
  const double height = kHead + kLine * static_cast<double>(lines) + 12;
  Svg svg(static_cast<double>(plan.stages.size()) * (kBox + kGap) - kGap + 4, height,
          plan.model + " in " + std::to_string(plan.stages.size()) +
              (plan.stages.size() == 1 ? " stage" : " stages"));
  double x = 2;
  for (size_t s = 0; s < plan.stages.size(); ++s, x += kBox + kGap) {
    const Stage& stage = plan.stages[s];
    svg.area(x, 2, kBox, height - 4, "box");
    svg.area(x, 2, kBox, 6, area_look(s));
    svg.text(x + 10, 26,
             "stage " + std::to_string(s) + (stage.recompute ? ", recomputes" : "") +
                 (stage.frozen ? ", frozen" : ""),
             "head");
    svg.text(x + 10, 44, notes[s], "muted");
    const std::vector<std::string>& names = names_of(stage);
    for (size_t l = 0; l < names.size() && l <= kMostLayers; ++l) {
      const std::string name = l == kMostLayers
                                   ? "and " + std::to_string(names.size() - kMostLayers) + " more"
                                   : short_name(names[l]);
      svg.text(x + 10, kHead + kLine * static_cast<double>(l) + 6, name);
    }
  }
  return svg;
}

}  // namespace pipewright
