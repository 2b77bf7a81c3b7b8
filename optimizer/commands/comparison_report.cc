// A comparison as a file for people.
#include <sstream>

#include "graph/error.h"
#include "graph/units.h"
#include "graph/xml.h"
#include "optimizer/commands/comparison.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/report.h"

namespace pipewright {
namespace {

std::string html_table(const TextTable& table, const std::string& caption) {
  std::string text = "<table><caption>" + xml_escaped(caption) + "</caption>\n<tr>";
  for (const TableColumn& column : table.columns())
    text += "<th scope=\"col\">" + xml_escaped(column.head) + "</th>";
  text += "</tr>\n";
  for (const auto& row : table.rows()) {
    text += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string tag = c == 0 ? "th scope=\"row\"" : "td";
      text += "<" + tag + ">" + xml_escaped(row[c]) + "</" + tag.substr(0, 2) + ">";
    }
    text += "</tr>\n";
  }
  return text + "</table>\n";
}

/// The model from left to right: a box for each stage with its layers, an arrow with what crosses each cut.
/// Colours come from the page, so that they follow its light or dark scheme.
std::string stages_svg(const Plan& plan, const Inputs& inputs) {
  const Profile& profile = inputs.profile;
  constexpr int kBox = 210, kGap = 96, kLine = 16, kHead = 58;
  constexpr size_t kMostLayers = 14;
  size_t lines = 1;
  for (const Stage& stage : plan.stages)
    lines = std::max(lines, std::min(stage.layers.size(), kMostLayers + 1));
  const int height = kHead + kLine * static_cast<int>(lines) + 24;
  const int width = static_cast<int>(plan.stages.size()) * (kBox + kGap) - kGap + 4;

  // What is made in a stage and read in a later one crosses every cut between.
  std::vector<int64_t> cut(plan.stages.size(), 0);
  std::map<std::string, size_t> stage_of;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& node : plan.stages[s].nodes) stage_of[node] = s;
  }
  std::map<std::string, size_t> last_reader;
  for (const ProfiledNode& node : profile.nodes) {
    for (const std::string& value : node.inputs)
      last_reader[value] = std::max(last_reader[value], stage_of[node.name]);
  }
  for (const ProfiledNode& node : profile.nodes) {
    for (const ProfiledValue& value : node.outputs) {
      for (size_t s = stage_of[node.name]; s < last_reader[value.name]; ++s) cut[s] += value.bytes;
    }
  }

  std::ostringstream out;
  out << "<svg viewBox=\"0 0 " << width << " " << height << "\" width=\"" << width << "\" height=\"" << height
      << "\" role=\"img\" aria-labelledby=\"stages-title\">\n<title id=\"stages-title\">"
      << xml_escaped(profile.model) << " in " << plan.stages.size() << " stages</title>\n";
  int x = 2;
  for (size_t s = 0; s < plan.stages.size(); ++s, x += kBox + kGap) {
    const Stage& stage = plan.stages[s];
    out << "<rect class=\"stage\" x=\"" << x << "\" y=\"2\" width=\"" << kBox << "\" height=\"" << height - 4
        << "\" rx=\"6\"/>\n<text class=\"head\" x=\"" << x + 10 << "\" y=\"22\">stage " << s << "</text>\n"
        << "<text x=\"" << x + 10 << "\" y=\"40\">" << stage.ranks.size()
        << (stage.ranks.size() == 1 ? " rank: " : " ranks: ")
        << xml_escaped(devices_text(stage, inputs.topology)) << ", "
        << xml_escaped(format_seconds(plan.predicted->stages[s].compute_seconds))
        << (stage.recompute ? ", recomputes" : "") << "</text>\n";
    for (size_t l = 0; l < stage.layers.size() && l <= kMostLayers; ++l) {
      const std::string name = l == kMostLayers
                                   ? "and " + std::to_string(stage.layers.size() - kMostLayers) + " more"
                                   : stage.layers[l].substr(0, 30);
      out << "<text class=\"layer\" x=\"" << x + 10 << "\" y=\"" << kHead + kLine * static_cast<int>(l) + 6
          << "\">" << xml_escaped(name) << "</text>\n";
    }
    if (s + 1 == plan.stages.size()) continue;
    const int y = height / 2, from = x + kBox + 4, to = x + kBox + kGap - 4;
    out << "<path class=\"arrow\" d=\"M" << from << " " << y << " H" << to << " m-7 -5 l7 5 l-7 5\"/>\n"
        << "<text class=\"bytes\" text-anchor=\"middle\" x=\"" << (from + to) / 2 << "\" y=\"" << y - 10
        << "\">" << xml_escaped(format_bytes(static_cast<double>(cut[s]))) << "</text>\n";
  }
  out << "</svg>\n";
  return out.str();
}

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light dark; --ink: #1c2733; --paper: #ffffff; --box: #eaf1f8; --edge: #3b76af; --line: #c8d2dc; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4eaf0; --paper: #14191f; --box: #1f2c3a; --edge: #7fb2e0; --line: #3a4653; }
}
body { font: 16px/1.5 Helvetica, Arial, sans-serif; color: var(--ink); background: var(--paper); margin: 2em auto;
       max-width: 72em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: bold; padding: .3em 0; }
th, td { border-bottom: 1px solid var(--line); padding: .3em .8em; text-align: left; white-space: nowrap; }
figure { margin: 1em 0; overflow-x: auto; }
svg { font-size: 12px; fill: var(--ink); }
.stage { fill: var(--box); stroke: var(--edge); }
.head { font-weight: bold; font-size: 14px; }
.arrow { fill: none; stroke: var(--edge); stroke-width: 1.5; }
</style>
)";

}  // namespace

void check_comparison_suffix(const std::string& file) {
  if (suffix_of(file) == ".md" || suffix_of(file) == ".html") return;
  throw InputError("--report: got " + in_quotes(file) + "; expected a name that ends in .md or .html");
}

std::string comparison_report(const Comparison& comparison, const Inputs& inputs, const std::string& file) {
  check_comparison_suffix(file);
  const Plan& plan = *comparison.contenders[comparison.best].plan;
  const std::string devices =
      std::to_string(comparison.devices) + (comparison.devices == 1 ? " device" : " devices");
  const std::string title = comparison.model + " on " + devices;
  const TextTable table = comparison_table(comparison, inputs);
  const TextTable stages = stage_table(plan, *plan.predicted, inputs);
  const TextTable settings = settings_table(inputs.settings);
  if (suffix_of(file) == ".md") {
    std::string text = "# " + title + "\n\n" + comparison.advice + "\n\n" + table.markdown();
    for (const Contender& each : comparison.contenders) {
      if (!each.plan) text += "\n" + each.name + ": " + each.why_not + "\n";
    }
    if (!comparison.ties.empty()) text += "\n" + comparison.ties + "\n";
    return text + "\n## The plan\n\n" + stages.markdown() + "\n## The question\n\n" + settings.markdown();
  }
  std::string text =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      xml_escaped(title) + "</title>\n" + kStyle + "</head>\n<body>\n<h1>" + xml_escaped(title) +
      "</h1>\n<p>" + xml_escaped(comparison.advice) + "</p>\n" + html_table(table, "Side by side");
  for (const Contender& each : comparison.contenders) {
    if (!each.plan) text += "<p>" + xml_escaped(each.name + ": " + each.why_not) + "</p>\n";
  }
  if (!comparison.ties.empty()) text += "<p>" + xml_escaped(comparison.ties) + "</p>\n";
  return text + "<h2>The plan</h2>\n<figure>\n" + stages_svg(plan, inputs) + "</figure>\n" +
         html_table(stages, "Stages") + "<h2>The question</h2>\n" + html_table(settings, "Settings") +
         "</body>\n</html>\n";
}

}  // namespace pipewright
