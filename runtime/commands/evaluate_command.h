// pipewright-runtime evaluate, predict
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// Started by a launcher (ours, torchrun, Slurm, an MPI): one rank. Otherwise starts all ranks of the plan.
void run_evaluate(const std::vector<std::string>& arguments);
void run_predict(const std::vector<std::string>& arguments);

}  // namespace pipewright
