#include "optimizer/commands/plan_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/units.h"
#include "graph/xml.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/report.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/memory_check.h"
#include "pages/model_graph.h"
#include "pages/stages.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

/// The first (`front`) or last nodes of `nodes` that are of one layer.
size_t nodes_of_layer(const std::vector<std::string>& nodes, bool front,
                      const std::map<std::string, std::string>& layer_of) {
  const std::string& layer = layer_of.at(front ? nodes.front() : nodes.back());
  size_t count = 0;
  while (count < nodes.size() && layer_of.at(front ? nodes[count] : nodes[nodes.size() - 1 - count]) == layer)
    ++count;
  return count;
}

/// With the cut behind stage `s` moved by `layers`: above 0, the first ones of stage s + 1 come to stage s.
/// Nothing where a stage would be left without a node.
std::optional<Plan> with_moved_cut(Plan plan, size_t s, int64_t layers,
                                   const std::map<std::string, std::string>& layer_of) {
  std::vector<std::string>&before = plan.stages[s].nodes, &behind = plan.stages[s + 1].nodes;
  for (; layers != 0; layers += layers > 0 ? -1 : 1) {
    std::vector<std::string>& from = layers > 0 ? behind : before;
    const auto count = static_cast<std::ptrdiff_t>(nodes_of_layer(from, layers > 0, layer_of));
    if (count == static_cast<std::ptrdiff_t>(from.size())) return std::nullopt;
    if (layers > 0) {
      before.insert(before.end(), from.begin(), from.begin() + count);
      from.erase(from.begin(), from.begin() + count);
    } else {
      behind.insert(behind.begin(), from.end() - count, from.end());
      from.erase(from.end() - count, from.end());
    }
  }
  return plan;
}

/// "12.3 ms (4 % more)", or why it cannot be.
std::string price_text(const Plan& moved, const Inputs& inputs, double now) {
  try {
    const Prediction price = evaluate_plan(moved, inputs.profile, inputs.topology, inputs.request);
    require_memory(moved, price, inputs);
    const double change = 100 * (price.minibatch_seconds / now - 1);
    return format_seconds(price.minibatch_seconds) +
           (std::fabs(change) < 0.05
                ? " (the same)"
                : " (" + number_text(std::fabs(change)) + (change > 0 ? " % more)" : " % less)"));
  } catch (const MemoryError&) {
    return "does not fit";
  } catch (const Error&) {
    return "not possible";
  }
}

constexpr const char* kMoveCuts = R"(
(() => {
  const box = document.getElementById('cuts'), data = JSON.parse(box.dataset.prices);
  const pick = box.querySelector('select'), range = box.querySelector('input'), out = box.querySelector('output');
  const show = () => {
    const cut = data[pick.value], at = +range.value - +range.min;
    out.textContent = cut.moves[at] + ': ' + cut.prices[at];
    range.setAttribute('aria-valuetext', out.textContent);
  };
  pick.addEventListener('change', () => { range.value = 0; show(); });
  range.addEventListener('input', show);
  box.hidden = false;
  show();
})();
)";

/// What the plan would take with each cut moved by a few layers: a table, and with scripts a cut to move.
void add_moved_cuts(Page* page, const Plan& plan, const Inputs& inputs) {
  if (plan.stages.size() < 2) return;
  // Prices of a deep plan take their time: a page is made within seconds.
  constexpr int64_t kMostPrices = 96, kMostLayers = 3;
  const auto cuts = static_cast<int64_t>(plan.stages.size()) - 1;
  const int64_t reach = std::clamp<int64_t>(kMostPrices / (2 * cuts), 1, kMostLayers);
  std::map<std::string, std::string> layer_of;
  for (const ProfiledNode& node : inputs.profile.nodes)
    layer_of[node.name] = node.layer.empty() ? node.name : node.layer;
  std::vector<TableColumn> columns = {{"cut behind", TableColumn::Side::kLeft}};
  for (int64_t by = -reach; by <= reach; ++by)
    columns.push_back({by == 0   ? "as planned"
                       : by == 1 ? "1 layer later"
                       : by == -1
                           ? "1 layer earlier"
                           : std::to_string(std::abs(by)) + (by < 0 ? " layers earlier" : " layers later")});
  TextTable table(columns);
  Json data = Json::array();
  std::string choices;
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    const std::string name = "stage " + std::to_string(s);
    std::vector<std::string> row = {name};
    Json cut = {{"moves", Json::array()}, {"prices", Json::array()}};
    for (int64_t by = -reach; by <= reach; ++by) {
      const std::optional<Plan> moved = with_moved_cut(plan, s, by, layer_of);
      row.push_back(by == 0 ? format_seconds(plan.predicted->minibatch_seconds)
                    : moved ? price_text(*moved, inputs, plan.predicted->minibatch_seconds)
                            : "no stage left");
      cut["moves"].push_back(columns[static_cast<size_t>(1 + by + reach)].head);
      cut["prices"].push_back(row.back());
    }
    data.push_back(cut);
    choices += "<option value=\"" + std::to_string(s) + "\">behind " + name + "</option>";
    table.add(std::move(row));
  }
  page->heading("With a cut moved");
  page->moving("<div id=\"cuts\" hidden data-prices=\"" + xml_escaped(data.dump()) +
                   "\"><p><label>cut <select>" + choices +
                   "</select></label></p><p><label>earlier or later <input type=\"range\" min=\"-" +
                   std::to_string(reach) + "\" max=\"" + std::to_string(reach) +
                   "\" value=\"0\"></label></p><p><output></output></p></div>\n",
               kMoveCuts);
  page->table(table, "Time of a minibatch with one cut moved, at the plan's depths");
}

void add_timeline(Page* page, const Plan& plan, const Inputs& inputs) {
  // As many as show the pipeline full, as far as a drawing stays readable.
  constexpr int64_t kLeast = 8, kMost = 24, kMostActions = 3000;
  int64_t deepest = 1;
  for (const Stage& stage : plan.stages) deepest = std::max(deepest, stage.in_flight);
  const auto stages = static_cast<int64_t>(plan.stages.size());
  const int64_t minibatches = std::clamp(std::min(2 * deepest, kMostActions / (3 * stages)), kLeast, kMost);
  const PlanCost cost = cost_as_run(plan, inputs);
  const Simulation run = simulate(plan.schedule, shape_of(plan), cost.times, {0, minibatches}, cost.shared);
  page->heading("Timeline");
  page->figure(draw_svg(run, "The first " + std::to_string(minibatches) + " minibatches, as simulated"),
               "What each rank does");
}

}  // namespace

void add_plan(Page* page, const Plan& plan, const Inputs& inputs) {
  std::vector<std::string> notes;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    notes.push_back((stage.ranks.size() == 1 ? "rank " : "ranks ") + devices_text(stage, inputs.topology) +
                    ", " + format_seconds(plan.predicted->stages[s].compute_seconds));
  }
  page->figure(model_graph(plan, inputs.profile),
               "The model coloured by stage, and what a minibatch sends across each cut");
  page->figure(stages_drawing(plan, notes), "Stages");
  if (is_for_inference(plan)) {
    page->table(plan_table(plan), "Stages");
  } else {
    page->table(
        stage_table(plan, *plan.predicted, inputs),
        "What each stage takes for a minibatch of the run (a rank's times, shared out among replicas)");
    page->table(memory_table(*plan.predicted), "Memory of a rank of each stage");
  }
  if (is_for_inference(plan)) return;  // no schedule of training
  add_timeline(page, plan, inputs);
  add_moved_cuts(page, plan, inputs);
}

std::string plan_page(const Plan& plan, const Inputs& inputs, const std::string& words,
                      const std::string& file) {
  Page page(plan.model + ", " + plan.strategy + " " + plan.shape_text());
  page.words(words);
  add_plan(&page, plan, inputs);
  if (!inputs.settings.empty()) {
    page.heading("The problem");
    page.table(settings_table(inputs.settings), "Settings");
  }
  if (is_for_inference(plan)) return page.html();  // nothing trains with it
  page.heading("Next");
  if (!memory_deficits(plan, *plan.predicted, *plan.predicted, inputs.topology).empty()) {
    page.paragraph("It does not fit: plan for what the devices hold, with --memory.");
    return page.html();
  }
  page.paragraph("Train with it, and see how true it was:");
  const int64_t samples = inputs.profile.minibatch_samples;
  page.command("pipewright-runtime launch --plan " + (file.empty() ? "PLAN.json" : file) + " --model " +
               plan.model + " --data SPEC" + (samples > 0 ? " --batch-size " + std::to_string(samples) : "") +
               " --output run");
  page.command("pipewright-runtime report run --output run.html");
  return page.html();
}

}  // namespace pipewright
