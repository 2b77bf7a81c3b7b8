#include "runtime/commands/verify_page.h"

#include <algorithm>

#include "graph/document.h"
#include "graph/regular_file.h"
#include "graph/summary.h"
#include "graph/text_table.h"
#include "pages/charts.h"
#include "pages/page.h"
#include "runtime/journal/loss_curves.h"
#include "runtime/verify/distance_report.h"

namespace pipewright {
namespace {

constexpr auto kLeft = TableColumn::Side::kLeft;

TextTable compared(const Verification& verification) {
  const ExactComparison& serial = verification.serial;
  TextTable table({{"compared with", kLeft}, {"what", kLeft}, {"result", kLeft}});
  const auto count = [](size_t many, const char* of) { return std::to_string(many) + of; };
  table.add({"serial reference", count(static_cast<size_t>(verification.minibatches.count), " losses"),
             serial.first_loss ? "the first that differs is that of minibatch " +
                                     std::to_string(verification.minibatches.first +
                                                    static_cast<int64_t>(serial.first_loss->position)) +
                                     ": " + number_text(serial.first_loss->got) + " instead of " +
                                     number_text(serial.first_loss->expected)
                               : "equal bit for bit"});
  table.add({"serial reference", count(verification.places.size(), " tensors"),
             serial.different.empty() ? "equal bit for bit" : count(serial.different.size(), " differ")});
  if (verification.first) table.add({"serial reference", "what differs first", verification.first->action});
  if (verification.one_device)
    table.add({"one device", count(verification.one_device->compared(), " parameters"),
               verdict_text(*verification.one_device)});
  if (verification.against)
    table.add({verification.against->from,
               std::to_string(verification.against->losses.compared) + " losses, " +
                   count(verification.against->weights.size(), " times weights"),
               verdict_text(*verification.against)});
  return table;
}

/// The run's, and where they begin to differ.
Svg losses(const Verification& verification, const std::filesystem::path& run_folder) {
  LineChart chart{"Loss by minibatch", "minibatch", "loss", {{"the run", {}}}};
  for (const auto& [minibatch, loss] : read_curves(run_folder / "metrics.jsonl").losses)
    chart.curves[0].points.emplace_back(static_cast<double>(minibatch), loss);
  if (const auto& first = verification.serial.first_loss)
    chart.marks.emplace_back(
        static_cast<double>(verification.minibatches.first + static_cast<int64_t>(first->position)),
        "differs");
  chart.y_logarithmic = spans_decades(chart.curves);
  return line_chart(chart);
}

}  // namespace

std::string verify_page(const Verification& verification, const Plan& plan,
                        const std::filesystem::path& run_folder, const std::string& verdict) {
  constexpr size_t kMostTensors = 50;
  const Span& span = verification.minibatches;
  Page page(plan.model + ", " + plan.strategy + " " + plan.shape_text() +
            (verification.serial.first_loss || !verification.serial.different.empty() ? ", compared"
                                                                                      : ", verified"));
  page.words(verdict);
  page.table(compared(verification),
             "Minibatches " + std::to_string(span.first) + " to " + std::to_string(span.end() - 1) + " of " +
                 std::to_string(verification.ranks) + (verification.ranks == 1 ? " rank" : " ranks"));
  TextTable different({{"tensor", kLeft}, {"stage"}});
  const std::vector<StageTensor>& places = verification.serial.different;
  for (size_t i = 0; i < std::min(places.size(), kMostTensors); ++i)
    different.add({places[i].name, std::to_string(places[i].stage)});
  if (!places.empty()) page.table(different, "Tensors that differ from the serial reference's");
  page.figure(losses(verification, run_folder), "Losses of the run");
  TextTable digests({{"rank"}, {"stage"}, {"digest of the last weights", kLeft}});
  if (const auto file = run_folder / "summary.json"; file_exists(file))
    for (const RankSummary& rank : read_document<Summary>(file).ranks)
      if (!rank.weights_digest.empty())
        digests.add({std::to_string(rank.rank), std::to_string(rank.stage), rank.weights_digest});
  if (!digests.rows().empty()) page.table(digests, "Replicas of a stage have equal weights");
  return page.html();
}

}  // namespace pipewright
