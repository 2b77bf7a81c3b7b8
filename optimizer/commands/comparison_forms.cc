// A comparison as a table and as JSON.
#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/units.h"
#include "optimizer/commands/comparison_rows.h"
#include "optimizer/commands/report.h"

namespace pipewright {
namespace {

std::string update_text(const Updates& updates, int64_t minibatch_samples) {
  const int64_t each = std::max<int64_t>(1, minibatch_samples);
  std::string text = std::to_string(updates.least_minibatches * each);
  if (updates.most_minibatches > updates.least_minibatches)
    text += "-" + std::to_string(updates.most_minibatches * each);
  return minibatch_samples > 0 ? text : text + (text == "1" ? " minibatch" : " minibatches");
}

}  // namespace

namespace {

/// How many times as fast as one device to the loss that synchronous training comes to.
std::string same_loss_cell(const Contender& contender, const Comparison& comparison) {
  if (!contender.samples_ratio) return "not known";
  if (!std::isfinite(*contender.samples_ratio)) return "never";
  return number_text(comparison.one_device_seconds / seconds(contender) / *contender.samples_ratio) + "x";
}

/// Where a row that might be a pipeline ends as something plainer.
std::string plain_text(const Contender& contender) {
  if (contender.plan->stages.size() > 1 || contender.name == kDataParallelism ||
      contender.plan->strategy == kDataParallelism)
    return "";
  return " (" + kind_of(*contender.plan) + ")";
}

}  // namespace

TextTable comparison_table(const Comparison& comparison, const Inputs& inputs) {
  constexpr auto kLeft = TableColumn::Side::kLeft;
  constexpr auto kRight = TableColumn::Side::kRight;
  const bool slowed =
      std::any_of(comparison.contenders.begin(), comparison.contenders.end(),
                  [&](const Contender& each) { return each.plan && crowd_cell(*each.plan, inputs) != "-"; });
  std::vector<TableColumn> columns = {{"strategy", kLeft},           {"stages", kLeft, 0, 12},
                                      {"ranks", kRight, 4},          {"minibatch"},
                                      {"speed-up", kRight, 1},       {"samples/s", kRight, 5},
                                      {"samples/update", kRight, 4}, {"staleness", kRight, 3},
                                      {"memory", kRight, 2},         {"bound by", kLeft, 0, 16}};
  constexpr auto kFurtherColumns = 8;
  const bool has_losses = !comparison.convergence.empty();
  if (has_losses) columns.insert(columns.begin() + kFurtherColumns, {"to same loss", kRight, 6});
  if (slowed) columns.insert(columns.begin() + kFurtherColumns, {"slowed", kRight, 6});
  TextTable table(columns);
  const auto add = [&](std::vector<std::string> row, const std::string& cell, const std::string& loss) {
    if (has_losses) row.insert(row.begin() + kFurtherColumns, loss);
    if (slowed) row.insert(row.begin() + kFurtherColumns, cell);
    table.add(std::move(row));
  };
  for (const Contender& each : comparison.contenders) {
    if (!each.plan) {
      add({each.name, "-", "-", "-", "-", "-", "-", "-", "-",
           each.lacks_memory ? "does not fit" : "not possible"},
          "-", "-");
      continue;
    }
    const Prediction& predicted = *each.plan->predicted;
    const Updates updates = updates_of(*each.plan);
    add({each.name, shape_and_recompute_text(*each.plan) + plain_text(each),
         std::to_string(each.plan->world_size), format_seconds(predicted.minibatch_seconds),
         number_text(comparison.one_device_seconds / predicted.minibatch_seconds) + "x",
         inputs.profile.minibatch_samples > 0 ? number_text(predicted.samples_per_second) : "-",
         update_text(updates, inputs.profile.minibatch_samples), std::to_string(updates.staleness),
         format_bytes(static_cast<double>(largest_memory(*each.plan, predicted))), predicted.bottleneck},
        crowd_cell(*each.plan, inputs), same_loss_cell(each, comparison));
  }
  return table;
}

Json comparison_json(const Comparison& comparison) {
  Json json;
  json["model"] = comparison.model;
  json["strategies"] = Json::array();
  for (const Contender& each : comparison.contenders) {
    Json row;
    row["strategy"] = each.name;
    if (each.plan) {
      const Prediction& predicted = *each.plan->predicted;
      row["shape"] = each.plan->shape_text();
      row["kind"] = kind_of(*each.plan);
      row["world_size"] = each.plan->world_size;
      row["recompute"] = Json::array();
      for (const Stage& stage : each.plan->stages) row["recompute"].push_back(stage.recompute);
      row["minibatch_seconds"] = predicted.minibatch_seconds;
      const Updates updates = updates_of(*each.plan);
      row["minibatches_per_update"] = updates.most_minibatches;
      row["staleness"] = updates.staleness;
      row["speed_up"] = comparison.one_device_seconds / predicted.minibatch_seconds;
      row["memory_bytes"] = largest_memory(*each.plan, predicted);
      row["bottleneck"] = predicted.bottleneck;
      if (each.samples_ratio)
        row["samples_ratio"] = std::isfinite(*each.samples_ratio) ? Json(*each.samples_ratio) : Json(nullptr);
    } else {
      row["why_not"] = each.why_not;
    }
    json["strategies"].push_back(row);
  }
  json["best"] = comparison.contenders[comparison.best].name;
  json["kind"] = kind_of(*comparison.contenders[comparison.best].plan);
  json["turns"] = Json::array();
  for (const Turn& each : comparison.turns) {
    json["turns"].push_back({{"bandwidth_bytes_per_second", each.bytes_per_second.front()},
                             {"bandwidths_bytes_per_second", each.bytes_per_second},
                             {"side", each.below ? "below" : "above"},
                             {"kind", each.kind},
                             {"shape", each.shape},
                             {"gain", each.gain}});
  }
  json["advice"] = comparison.advice;
  if (!comparison.ties.empty()) json["tied_parameters"] = comparison.ties;
  return json;
}

}  // namespace pipewright
