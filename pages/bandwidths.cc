#include "pages/bandwidths.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/units.h"
#include "graph/xml.h"

namespace pipewright {
namespace {

constexpr double kRounding = 1e-9;  // of sums in another order
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

}  // namespace

void add_bandwidths(Page* page, const std::vector<Curve>& plans, double now) {
  if (plans.empty()) return;
  LineChart chart{"Time of a minibatch by bandwidth", "bandwidth of the outermost links", "time", plans};
  chart.x_logarithmic = chart.y_logarithmic = true;
  chart.x = Quantity::kBytesPerSecond;
  chart.y = Quantity::kSeconds;
  chart.marks = {{now, "as asked"}};
  std::vector<TableColumn> columns = {{"bandwidth", TableColumn::Side::kLeft}};
  for (const Curve& plan : plans) {
    PW_CHECK_EQ(plan.points.size(), plans.front().points.size());
    columns.push_back({plan.name});
  }
  columns.push_back({"fastest", TableColumn::Side::kLeft});
  TextTable table(columns);
  Json sentences = Json::array();
  size_t as_asked = 0;
  for (size_t i = 0; i < plans.front().points.size(); ++i) {
    const double bandwidth = plans.front().points[i].first;
    if (bandwidth <= now) as_asked = i;
    std::vector<std::string> row = {format_bytes_per_second(bandwidth)};
    std::vector<std::pair<double, std::string>> order;
    for (const Curve& plan : plans) {
      const double seconds = plan.points[i].second;
      row.push_back(std::isfinite(seconds) ? format_seconds(seconds) : "-");
      if (std::isfinite(seconds)) order.emplace_back(seconds, plan.name);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    // Of plans that are equal but for rounding the first one.
    const auto fastest = std::find_if(plans.begin(), plans.end(), [&](const Curve& plan) {
      return !order.empty() && plan.points[i].second <= order.front().first * (1 + kRounding);
    });
    row.push_back(order.empty() ? "-" : fastest->name);
    std::string sentence = row.front() + ": ";
    for (const auto& [seconds, name] : order)
      sentence += (&name == &order.front().second ? "" : ", ") + name + " " + format_seconds(seconds);
    sentences.push_back(sentence);
    table.add(std::move(row));
  }
  page->moving("<div id=\"bandwidth\" hidden data-times=\"" + xml_escaped(sentences.dump()) +
                   "\"><p><label>bandwidth <input type=\"range\" min=\"0\" max=\"" +
                   std::to_string(sentences.size() - 1) + "\" value=\"" + std::to_string(as_asked) +
                   "\"></label></p><p><output></output></p></div>\n",
               kMoveBandwidth);
  page->figure(line_chart(chart), "Time of a minibatch with all links faster or slower");
  page->table(table, "Time of a minibatch by bandwidth of the outermost links");
}

}  // namespace pipewright
