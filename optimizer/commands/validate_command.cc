// `validate`: runs that others measured and published, predicted by our simulator.
#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/text_table.h"
#include "graph/units.h"
#include "optimizer/baselines/sailor.h"
#include "optimizer/commands/commands.h"
#include "optimizer/commands/options.h"
#include "optimizer/commands/report.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;
using Predictions = std::vector<PublishedPrediction>;

std::string percent_text(double part, bool sign) {
  char text[32];
  std::snprintf(text, sizeof text, sign ? "%+.1f %%" : "%.1f %%", 100 * part);
  return text;
}

std::string part_name(PublishedPart part) {
  switch (part) {
    case PublishedPart::kPipelined:
      return "several stages";
    case PublishedPart::kOneStage:
      return "one stage";
    case PublishedPart::kAll:
      return "all";
  }
  return "";
}

TextTable runs_table(const std::vector<PublishedRun>& runs, const Predictions& predictions) {
  constexpr auto kToTheLeft = TableColumn::Side::kLeft;
  TextTable table({{"run", kToTheLeft},
                   {"stages", TableColumn::Side::kRight, 3},
                   {"replicas", TableColumn::Side::kRight, 4},
                   {"microbatches", TableColumn::Side::kRight, 5},
                   {"measured"},
                   {"by links", TableColumn::Side::kRight, 1},
                   {"error, by links", TableColumn::Side::kRight, 1},
                   {"factor", TableColumn::Side::kRight, 2},
                   {"left out"},
                   {"error, left out"}});
  for (size_t i = 0; i < runs.size(); ++i) {
    const PublishedRun& run = runs[i];
    if (!run.unusable.empty()) continue;
    const PublishedPrediction& prediction = predictions[i];
    table.add({run.group + "/" + run.name, std::to_string(run.shape.stages()),
               std::to_string(run.shape.replicas[0]), std::to_string(run.shape.microbatches),
               format_seconds(run.measured_seconds), format_seconds(prediction.plain_seconds),
               percent_text(error_of(run, prediction.plain_seconds), true),
               run.pipelined() ? number_text(prediction.left_out_factor) : "-",
               format_seconds(prediction.left_out_seconds),
               percent_text(error_of(run, prediction.left_out_seconds), true)});
  }
  return table;
}

TextTable errors_table(const std::vector<PublishedError>& errors) {
  constexpr auto kToTheLeft = TableColumn::Side::kLeft;
  TextTable table({{"runs of", kToTheLeft},
                   {"with", kToTheLeft},
                   {"runs"},
                   {"by links", TableColumn::Side::kRight, 1},
                   {"left out"},
                   {"worst"}});
  for (const PublishedError& error : errors)
    table.add({error.group, part_name(error.part), std::to_string(error.runs),
               percent_text(error.plain, false), percent_text(error.left_out, false),
               percent_text(error.worst, true)});
  return table;
}

Json json_of(const std::vector<PublishedRun>& runs, const Predictions& predictions,
             const std::vector<PublishedError>& errors) {
  Json json;
  json["runs"] = Json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
    const PublishedRun& run = runs[i];
    Json row = {{"group", run.group},
                {"run", run.name},
                {"stages", run.shape.stages()},
                {"replicas", run.shape.replicas[0]},
                {"microbatches", run.shape.microbatches},
                {"measured_seconds", run.measured_seconds}};
    if (run.unusable.empty()) {
      row["plain_seconds"] = predictions[i].plain_seconds;
      row["left_out_factor"] = run.pipelined() ? Json(predictions[i].left_out_factor) : Json(nullptr);
      row["left_out_seconds"] = predictions[i].left_out_seconds;
    } else {
      row["unusable"] = run.unusable;
    }
    json["runs"].push_back(std::move(row));
  }
  json["errors"] = Json::array();
  for (const PublishedError& error : errors) {
    json["errors"].push_back({{"group", error.group},
                              {"with", part_name(error.part)},
                              {"runs", error.runs},
                              {"mean_error", error.plain},
                              {"mean_error_left_out", error.left_out},
                              {"worst_error_left_out", error.worst}});
  }
  return json;
}

}  // namespace

void run_validate(const Arguments& arguments) {
  po::options_description options("Options");
  options.add_options()  //
      ("sailor", po::value<std::string>(),
       "folder of Sailor's validation: plans/, profiles.json, llm_info.json, network/")  //
      ("json", po::bool_switch(), "print JSON instead of tables");
  add_wide_option(&options);
  const po::variables_map values =
      parse_options(arguments, options, "pipewright-optimizer validate --sailor DIR [--json]");
  const std::vector<PublishedRun> runs = read_sailor(required(values, "sailor"));
  const Predictions predictions = leave_one_out(runs);
  const std::vector<PublishedError> errors = errors_by_group(runs, predictions);
  if (values["json"].as<bool>()) {
    std::cout << json_text(json_of(runs, predictions, errors));
    return;
  }
  const int64_t width = output_width(values);
  std::cout
      << wrapped(
             "Seconds of an update, measured and simulated: with transfers as the published links say, and "
             "with "
             "these times a factor that is fitted to the other runs of the group. Errors: predicted over "
             "measured.\n\n",
             width)
      << runs_table(runs, predictions).text(width) << "\n";
  for (const PublishedRun& run : runs)
    if (!run.unusable.empty())
      std::cout << wrapped("not used: " + run.group + "/" + run.name + ", " + run.unusable, width, 2) << "\n";
  std::cout << "\nMean errors:\n\n" << errors_table(errors).text(width);
}

}  // namespace pipewright
