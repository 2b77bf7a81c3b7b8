#include "runtime/commands/report_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "runtime/commands/metrics_export.h"
#include "runtime/commands/run_report.h"

namespace pipewright {

namespace po = boost::program_options;

void run_report_command(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add_options()(
      "csv", po::value<std::string>()->value_name("FILE"),
      "writes all numbers of metrics.jsonl there, a row for each line; default: writes none")(
      "tensorboard", po::value<std::string>()->value_name("FOLDER"),
      "writes curves there for TensorBoard, a folder for each run; default: writes none");
  // Folders come as plain words; what begins with -- is an option, and the word behind it its value.
  std::vector<std::string> options;
  std::vector<std::filesystem::path> folders;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].rfind("-", 0) != 0) {
      folders.emplace_back(arguments[i]);
      continue;
    }
    options.push_back(arguments[i]);
    const auto* option =
        description.find_nothrow(arguments[i].substr(std::min<size_t>(2, arguments[i].size())),
                                 /*approx=*/false);
    if (option && option->semantic()->max_tokens() > 0 && i + 1 < arguments.size())
      options.push_back(arguments[++i]);
  }
  const po::variables_map values =
      parse_options(options, description, "pipewright-runtime report RUN_FOLDER ... [options]");
  if (folders.empty())
    throw InputError("report: no run folder given", "pipewright-runtime report runs/a runs/b");
  std::cout << run_report(folders);
  if (values.count("csv")) write_metrics_csv(folders, values["csv"].as<std::string>());
  if (values.count("tensorboard")) write_tensorboard(folders, values["tensorboard"].as<std::string>());
}

}  // namespace pipewright
