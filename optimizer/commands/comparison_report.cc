// A comparison as a file for people.
#include "graph/error.h"
#include "optimizer/commands/comparison.h"
#include "optimizer/commands/comparison_rows.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/plan_page.h"
#include "optimizer/commands/report.h"
#include "optimizer/plan/faster_links.h"
#include "pages/bandwidths.h"

namespace pipewright {
namespace {

/// Why the fastest of the plans as they are need not be what the advice says of a bandwidth.
std::string other_links_text(const Comparison& comparison) {
  std::string text =
      "The plans above as they are, on other links. The advice is of plans made anew for each bandwidth, and "
      "changes for more than a percent alone";
  if (comparison.turns_sought && comparison.turns.empty())
    text += ": no other kind of plan then wins, up to 64 times slower or faster";
  for (const Turn& each : comparison.turns)
    text += (&each == &comparison.turns[0] ? ": " : "; ") + turn_text(each);
  return text +
         ". So the fastest of these may change at another bandwidth; compare with --bandwidths makes the "
         "plans for it.";
}

/// Where another way would win.
void add_other_links(Page* page, const Comparison& comparison, const Inputs& inputs) {
  std::vector<Curve> ways;
  for (const Contender& each : comparison.contenders)
    if (each.plan && (each.plan->world_size > 1 || each.name == kOneDevice))
      ways.push_back(
          {each.name, seconds_by_bandwidth(*each.plan, inputs.profile, inputs.topology, inputs.request)});
  if (comparison.devices == 1 || ways.size() < 2) return;
  page->heading("With other links");
  page->paragraph(other_links_text(comparison));
  add_bandwidths(page, ways, inputs.topology.levels.back().bandwidth_bytes_per_second);
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
    return text + "\n## The plan\n\n" + stages.markdown() + "\n## The problem\n\n" + settings.markdown();
  }
  Page page(title);
  page.lead(comparison.advice);
  page.table(table, "Side by side");
  std::vector<std::string> notes;
  for (const Contender& each : comparison.contenders)
    if (!each.plan) notes.push_back(each.name + ": " + each.why_not);
  if (!comparison.ties.empty()) notes.push_back(comparison.ties);
  if (!notes.empty()) page.list(notes);
  add_other_links(&page, comparison, inputs);
  page.heading("The plan");
  add_plan(&page, plan, inputs);
  page.heading("The problem");
  page.table(settings, "Settings");
  return page.html();
}

}  // namespace pipewright
