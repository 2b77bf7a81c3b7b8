// pipewright-runtime checkpoint inspect|merge|export
#pragma once

#include <string>
#include <vector>

namespace pipewright {

void run_checkpoint(const std::vector<std::string>& arguments);

}  // namespace pipewright
