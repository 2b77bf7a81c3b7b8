#include "runtime/commands/join_command.h"

#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "runtime/launch/join.h"

namespace pipewright {

namespace po = boost::program_options;

void run_join(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add_options()("run", po::value<std::string>()->value_name("FOLDER"), "run folder of the job")(
      "host", po::value<std::string>()->value_name("H")->default_value(""),
      "where the ranks can run, as in the hosts file; default: on the launcher's host")(
      "ranks", po::value<int64_t>()->value_name("N")->default_value(1), "how many");
  constexpr const char* kUsage = "pipewright-runtime join --run FOLDER [--host H] [--ranks N]";
  const po::variables_map options = parse_options(arguments, description, kUsage);
  if (!options.count("run")) throw InputError("join: --run is missing", kUsage);
  const JoinRequest request{options["host"].as<std::string>(), options["ranks"].as<int64_t>()};
  std::cout << join_job(options["run"].as<std::string>(), request, std::chrono::seconds(15)) << "\n";
}

}  // namespace pipewright
