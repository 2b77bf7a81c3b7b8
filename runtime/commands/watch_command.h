// `watch`: what a run is doing, whoever started it.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// `watch RUN_FOLDER`: shows the run until it has ended (runtime/watch/run_watch.h); of one that has ended,
/// how. InputError for other words than one folder, and where no run has begun there within --start-timeout;
/// RunError of a run that has failed; interrupted by a signal, which the run does not hear of.
void run_watch_command(const std::vector<std::string>& arguments);

}  // namespace pipewright
