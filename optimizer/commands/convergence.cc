#include "optimizer/commands/convergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/delay_corrections.h"
#include "graph/limits.h"
#include "graph/update_rules.h"
#include "optimizer/plan/updates.h"

namespace pipewright {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
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
    row.seeds = each.integer("seeds", 1, kMostSeeds);
    row.rate = each.number("rate", 0, kMost);
    row.final_loss = each.number("final_loss", -kMost, kMost);
    row.final_loss_spread = each.number("final_loss_spread", 0, kMost);
    row.samples_ratio = each.number_or_null("samples_ratio", 0, kMost);
    if (std::isnan(row.samples_ratio)) row.samples_ratio = std::numeric_limits<double>::infinity();
    each.finish();
    table.rows.push_back(std::move(row));
  }
  return table;
}

Json Convergence::to_json() const {
  Json json;
  json["model"] = model;
  json["rows"] = Json::array();
  for (const ConvergenceRow& row : rows) {
    Json& each = json["rows"].emplace_back();
    each["weights"] = row.weights;
    each["optimizer"] = row.optimizer;
    each["delay_correction"] = row.delay_correction;
    each["stages"] = row.stages;
    each["seeds"] = row.seeds;
    each["rate"] = row.rate;
    each["final_loss"] = row.final_loss;
    each["final_loss_spread"] = row.final_loss_spread;
    each["samples_ratio"] = std::isfinite(row.samples_ratio) ? Json(row.samples_ratio) : Json(nullptr);
  }
  return json;
}

void Convergence::validate(const std::string& where) const {
  if (rows.empty()) fail_document(where, "rows", "there is none");
}

std::optional<double> Convergence::samples_ratio(const Plan& plan, const std::string& optimizer,
                                                 const std::string& delay_correction) const {
  const int64_t staleness = updates_of(plan).staleness;
  if (staleness == 0) return 1;
  const int64_t stages = std::max<int64_t>(std::ssize(plan.stages), staleness + 1);
  const ConvergenceRow* nearest = nullptr;
  for (const ConvergenceRow& row : rows) {
    if (row.weights != plan.weights || row.optimizer != optimizer || row.delay_correction != delay_correction)
      continue;
    if (row.stages >= stages && (nearest == nullptr || row.stages < nearest->stages)) nearest = &row;
  }
  return nearest == nullptr ? std::nullopt : std::optional(nearest->samples_ratio);
}

}  // namespace pipewright
