// A comparison as a file for people.
#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/units.h"
#include "graph/xml.h"
#include "optimizer/commands/comparison.h"
#include "optimizer/commands/comparison_rows.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_page.h"
#include "optimizer/commands/report.h"
#include "pages/charts.h"

namespace pipewright {
namespace {

/// What each way's plan takes with all links so many times as fast.
struct AtBandwidth {
  double bytes_per_second = 0;  ///< of the outermost level
  std::vector<double> seconds;  ///< by way; NaN: it cannot be run so
};

/// Powers of two from a sixteenth to sixteen times what was asked; of the same plans, not planned anew.
std::vector<AtBandwidth> at_bandwidths(const std::vector<const Contender*>& ways, const Inputs& inputs) {
  std::vector<AtBandwidth> all;
  for (int power = -4; power <= 4; ++power) {
    const std::optional<Topology> links = with_faster_links(inputs.topology, std::exp2(power));
    if (!links) break;
    AtBandwidth at{links->levels.back().bandwidth_bytes_per_second, {}};
    for (const Contender* way : ways) {
      try {
        at.seconds.push_back(
            evaluate_plan(*way->plan, inputs.profile, *links, inputs.request).minibatch_seconds);
      } catch (const Error&) {
        at.seconds.push_back(std::nan(""));
      }
    }
    all.push_back(std::move(at));
  }
  return all;
}

constexpr const char* kMoveBandwidth = R"(
(() => {
  const box = document.getElementById('bandwidth'), data = JSON.parse(box.dataset.times);
  const range = box.querySelector('input'), out = box.querySelector('output');
  const show = () => {
    out.textContent = data[range.value];
    range.setAttribute('aria-valuetext', out.textContent);
  };
  range.addEventListener('input', show);
  box.hidden = false;
  show();
})();
)";

/// Where another way would win: a chart, a table, and with scripts a link to make faster or slower.
void add_bandwidths(Page* page, const Comparison& comparison, const Inputs& inputs) {
  std::vector<const Contender*> ways;
  for (const Contender& each : comparison.contenders)
    if (each.plan && each.plan->world_size > 1) ways.push_back(&each);
  if (ways.size() < 2) return;
  const std::vector<AtBandwidth> all = at_bandwidths(ways, inputs);
  const double now = inputs.topology.levels.back().bandwidth_bytes_per_second;
  LineChart chart{"Time of a minibatch by bandwidth", "bandwidth of the outermost links", "time", {}};
  chart.x_logarithmic = chart.y_logarithmic = true;
  chart.x = Quantity::kBytesPerSecond;
  chart.y = Quantity::kSeconds;
  chart.marks = {{now, "as asked"}};
  std::vector<TableColumn> columns = {{"bandwidth", TableColumn::Side::kLeft}};
  for (size_t w = 0; w < ways.size(); ++w) {
    columns.push_back({ways[w]->name});
    Curve curve{ways[w]->name, {}};
    for (const AtBandwidth& at : all) curve.points.emplace_back(at.bytes_per_second, at.seconds[w]);
    chart.curves.push_back(std::move(curve));
  }
  columns.push_back({"fastest", TableColumn::Side::kLeft});
  TextTable table(columns);
  Json sentences = Json::array();
  size_t as_asked = 0;
  for (const AtBandwidth& at : all) {
    if (at.bytes_per_second <= now) as_asked = sentences.size();
    std::vector<std::string> row = {format_bytes_per_second(at.bytes_per_second)};
    std::vector<std::pair<double, std::string>> order;
    for (size_t w = 0; w < ways.size(); ++w) {
      row.push_back(std::isfinite(at.seconds[w]) ? format_seconds(at.seconds[w]) : "-");
      if (std::isfinite(at.seconds[w])) order.emplace_back(at.seconds[w], ways[w]->name);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    row.push_back(order.empty() ? "-" : order.front().second);
    std::string sentence = row.front() + ": ";
    for (const auto& [seconds, name] : order)
      sentence += (&name == &order.front().second ? "" : ", ") + name + " " + format_seconds(seconds);
    sentences.push_back(sentence);
    table.add(std::move(row));
  }
  page->heading("With other links");
  page->paragraph(
      "These plans, not planned anew; planned anew, another kind of plan takes over where the advice says.");
  page->moving("<div id=\"bandwidth\" hidden data-times=\"" + xml_escaped(sentences.dump()) +
                   "\"><p><label>bandwidth <input type=\"range\" min=\"0\" max=\"" +
                   std::to_string(all.size() - 1) + "\" value=\"" + std::to_string(as_asked) +
                   "\"></label></p><p><output></output></p></div>\n",
               kMoveBandwidth);
  page->figure(line_chart(chart), "Time of a minibatch with all links faster or slower");
  page->table(table, "Time of a minibatch by bandwidth of the outermost links");
}

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
  const TextTable settings = settings_table(inputs.settings);
  if (suffix_of(file) == ".md") {
    std::string text = "# " + title + "\n\n" + comparison.advice + "\n\n" + table.markdown();
    for (const Contender& each : comparison.contenders) {
      if (!each.plan) text += "\n" + each.name + ": " + each.why_not + "\n";
    }
    if (!comparison.ties.empty()) text += "\n" + comparison.ties + "\n";
    const TextTable stages = stage_table(plan, *plan.predicted, inputs);
    return text + "\n## The plan\n\n" + stages.markdown() + "\n## The question\n\n" + settings.markdown();
  }
  Page page(title);
  page.lead(comparison.advice);
  page.table(table, "Side by side");
  std::vector<std::string> notes;
  for (const Contender& each : comparison.contenders)
    if (!each.plan) notes.push_back(each.name + ": " + each.why_not);
  if (!comparison.ties.empty()) notes.push_back(comparison.ties);
  if (!notes.empty()) page.list(notes);
  add_bandwidths(&page, comparison, inputs);
  page.heading("The plan");
  add_plan(&page, plan, inputs);
  page.heading("The question");
  page.table(settings, "Settings");
  return page.html();
}

}  // namespace pipewright
