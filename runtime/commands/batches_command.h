// pipewright-runtime batches
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// `batches --config run.json --output FILE.safetensors`: what the run trains on, as a file for another
/// program (runtime/generation/minibatch_file.h).
void run_batches(const std::vector<std::string>& arguments);

}  // namespace pipewright
