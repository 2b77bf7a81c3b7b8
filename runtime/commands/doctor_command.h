// `doctor`: is this machine, are these hosts, ready for a job?
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// Prints a line for each thing that was looked at, and behind what is not well what to do. RunError, so exit
/// code 1, if something is wrong.
void run_doctor(const std::vector<std::string>& arguments);

}  // namespace pipewright
