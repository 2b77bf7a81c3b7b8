#include "runtime/commands/watch_command.h"

#include <poll.h>

#include <chrono>
#include <filesystem>
#include <iostream>

#include "graph/command_line.h"
#include "graph/error.h"
#include "graph/regular_file.h"
#include "graph/units.h"
#include "runtime/control/signals.h"
#include "runtime/watch/run_watch.h"

namespace pipewright {

namespace po = boost::program_options;

void run_watch_command(const std::vector<std::string>& arguments) {
  po::options_description description;
  description.add_options()("start-timeout", po::value<std::string>()->default_value("5min"),
                            "how long to wait for a run to begin in the folder");
  constexpr const char* kUsage = "pipewright-runtime watch RUN_FOLDER [--start-timeout 5min]";
  std::vector<std::string> options = arguments;
  std::string folder;
  if (!options.empty() && options.front().rfind("-", 0) != 0) {
    folder = options.front();
    options.erase(options.begin());
  }
  const po::variables_map values = parse_options(options, description, kUsage);
  if (folder.empty()) throw InputError("watch: no run folder given", kUsage);
  const double patience = parse_seconds(values["start-timeout"].as<std::string>(), "--start-timeout");
  demand_place_of_run(folder);
  install_signal_handlers();
  RunWatch watch(folder);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  bool told = false;
  while (true) {
    const RunView& run = watch.look();
    if (run.has_ended()) return demand_done(run);
    if (watch.is_unread()) return;
    if (received_signal != 0)
      throw Error(exit_code_of_signal(received_signal),
                  words_of_signal(received_signal) + "; the run in " + folder + " goes on without this");
    const bool waits = run.phase == RunView::Phase::kAbsent;
    if (waits && !told)
      std::cerr << "waits for a run to begin in " << folder
                << (file_exists(folder) ? "" : ", which is not there yet") << ", for at most "
                << format_seconds(patience) << " (--start-timeout)\n"
                << std::flush;
    told = told || waits;
    if (waits && std::chrono::duration<double>(Clock::now() - begin).count() > patience)
      throw InputError(
          folder + ": no run has begun there within " + format_seconds(patience),
          "give the --output of a pipewright-runtime train or launch, or a longer --start-timeout");
    poll(nullptr, 0, 50);
  }
}

}  // namespace pipewright
