// pipewright-runtime join
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// `join --run FOLDER [--host H] [--ranks N]`: offers places for further ranks to a job that runs
/// (runtime/launch/join.h).
void run_join(const std::vector<std::string>& arguments);

}  // namespace pipewright
