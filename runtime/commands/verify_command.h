// pipewright-runtime verify
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// `verify [options of launch]`: trains a little with all ranks, then compares with one process.
/// `verify --run FOLDER`: compares what a finished run left. NumericalError unless they agree.
void run_verify(const std::vector<std::string>& arguments);

}  // namespace pipewright
