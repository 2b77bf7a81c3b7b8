#include "pages/stages.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "graph/units.h"

namespace pipewright {
namespace {

/// What is made in a stage and read in a later one crosses every cut between.
std::vector<int64_t> crossing_bytes(const Plan& plan, const Profile& profile) {
  std::vector<int64_t> cut(plan.stages.size(), 0);
  std::map<std::string, size_t> stage_of, last_reader;
  for (size_t s = 0; s < plan.stages.size(); ++s)
    for (const std::string& node : plan.stages[s].nodes) stage_of[node] = s;
  for (const ProfiledNode& node : profile.nodes)
    for (const std::string& value : node.inputs)
      last_reader[value] = std::max(last_reader[value], stage_of[node.name]);
  for (const ProfiledNode& node : profile.nodes)
    for (const ProfiledValue& value : node.outputs)
      for (size_t s = stage_of[node.name]; s < last_reader[value.name]; ++s) cut[s] += value.bytes;
  return cut;
}

std::string short_name(const std::string& name) {
  constexpr size_t kMost = 28;
  return name.size() <= kMost ? name : name.substr(0, kMost - 2) + "..";
}

}  // namespace

Svg stages_drawing(const Plan& plan, const Profile* profile, const std::vector<std::string>& notes) {
  PW_CHECK_EQ(notes.size(), plan.stages.size());
  constexpr double kBox = 210, kLine = 16, kHead = 64;
  const double gap = profile ? 96 : 28;
  constexpr size_t kMostLayers = 14;
  size_t lines = 1;
  for (const Stage& stage : plan.stages)
    lines = std::max(lines, std::min(stage.layers.size(), kMostLayers + 1));
  const double height = kHead + kLine * static_cast<double>(lines) + 12;
  const std::vector<int64_t> cut = profile ? crossing_bytes(plan, *profile) : std::vector<int64_t>();
  Svg svg(static_cast<double>(plan.stages.size()) * (kBox + gap) - gap + 4, height,
          plan.model + " in " + std::to_string(plan.stages.size()) +
              (plan.stages.size() == 1 ? " stage" : " stages"));
  double x = 2;
  for (size_t s = 0; s < plan.stages.size(); ++s, x += kBox + gap) {
    const Stage& stage = plan.stages[s];
    svg.area(x, 2, kBox, height - 4, "box");
    svg.area(x, 2, kBox, 6, area_look(s));
    svg.text(x + 10, 26,
             "stage " + std::to_string(s) + (stage.recompute ? ", recomputes" : "") +
                 (stage.frozen ? ", frozen" : ""),
             "head");
    svg.text(x + 10, 44, notes[s], "muted");
    for (size_t l = 0; l < stage.layers.size() && l <= kMostLayers; ++l) {
      const std::string name = l == kMostLayers
                                   ? "and " + std::to_string(stage.layers.size() - kMostLayers) + " more"
                                   : short_name(stage.layers[l]);
      svg.text(x + 10, kHead + kLine * static_cast<double>(l) + 6, name);
    }
    if (s + 1 == plan.stages.size() || !profile) continue;
    const double y = height / 2, from = x + kBox + 4, to = x + kBox + gap - 4;
    svg.path("M" + svg_number(from) + " " + svg_number(y) + "H" + svg_number(to) + "m-7 -5l7 5l-7 5",
             "arrow");
    svg.text((from + to) / 2, y - 10, format_bytes(static_cast<double>(cut[s])), "ink", Svg::Anchor::kMiddle);
  }
  return svg;
}

}  // namespace pipewright
