#include "optimizer/commands/convergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "graph/delay_corrections.h"
#include "graph/limits.h"
#include "graph/update_rules.h"
#include "optimizer/plan/updates.h"

namespace pipewright {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kLeastRatio = 1e-3, kMostRatio = 1e6;
constexpr int64_t kMostSeeds = 1000;

}  // namespace

Convergence Convergence::from_json(JsonReader& reader) {
  Convergence table;
  table.model = reader.string("model");
  for (JsonReader& each : reader.objects("rows")) {
    ConvergenceRow row;
    row.weights = each.string_one_of("weights", weight_rule_names());
    row.optimizer = each.string_one_of("optimizer", update_rule_names());
    row.delay_correction = each.string_one_of("delay_correction", delay_correction_names());
    row.stages = each.integer("stages", 1, kMostRanks);
    // For people.
    each.integer("seeds", 1, kMostSeeds);
    each.number("rate", 0, kMost);
    each.number_or_null("final_loss", -kMost, kMost);
    each.number_or_null("final_loss_spread", 0, kMost);
    row.samples_ratio = each.number_or_null("samples_ratio", kLeastRatio, kMostRatio);
    if (std::isnan(row.samples_ratio)) row.samples_ratio = std::numeric_limits<double>::infinity();
    each.finish();
    table.rows.push_back(std::move(row));
  }
  return table;
}

void Convergence::validate(const std::string& where) const {
  if (rows.empty()) fail_document(where, "rows", "there is none");
  std::set<std::tuple<std::string, std::string, std::string, int64_t>> ways;
  for (size_t i = 0; i < rows.size(); ++i)
    if (!ways.emplace(rows[i].weights, rows[i].optimizer, rows[i].delay_correction, rows[i].stages).second)
      fail_document(where, list_element("rows", i), "the same way to train as a row before it");
}

std::optional<double> Convergence::samples_ratio(const Plan& plan, const std::string& optimizer,
                                                 const std::string& delay_correction) const {
  const int64_t staleness = updates_of(plan).staleness;
  if (staleness == 0) return 1;
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  // Of rules whose weights are one update old at most any number of stages says it.
  const bool any_number = rule.one_update_for_all || rule.bounds_crossing;
  const int64_t stages = any_number ? 2 : staleness + 1;
  const ConvergenceRow* nearest = nullptr;
  for (const ConvergenceRow& row : rows) {
    if (row.weights != plan.weights || row.optimizer != optimizer || row.delay_correction != delay_correction)
      continue;
    if (row.stages >= stages && (nearest == nullptr || row.stages < nearest->stages)) nearest = &row;
  }
  if (nearest == nullptr) return std::nullopt;
  // That older weights than the plan's never get there says nothing of the plan.
  if (!any_number && nearest->stages > stages && std::isinf(nearest->samples_ratio)) return std::nullopt;
  return nearest->samples_ratio;
}

}  // namespace pipewright
