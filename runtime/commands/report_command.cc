#include "runtime/commands/report_command.h"

#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "runtime/commands/run_report.h"

namespace pipewright {

namespace po = boost::program_options;

void run_report_command(const std::vector<std::string>& arguments) {
  // Folders come as plain words; what begins with -- is an option.
  std::vector<std::string> options;
  std::vector<std::filesystem::path> folders;
  for (const std::string& argument : arguments) {
    if (argument.rfind("-", 0) == 0) {
      options.push_back(argument);
    } else {
      folders.emplace_back(argument);
    }
  }
  parse_options(options, po::options_description(), "pipewright-runtime report RUN_FOLDER ...");
  if (folders.empty())
    throw InputError("report: no run folder given", "pipewright-runtime report runs/a runs/b");
  std::cout << run_report(folders);
}

}  // namespace pipewright
