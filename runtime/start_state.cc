#include "runtime/start_state.h"

#include "runtime/checkpoint_state.h"
#include "runtime/initial_weights.h"

namespace pipewright {

std::optional<StageState> start_state(const Job& job, const StageProgram& stage) {
  if (job.resume) return load_stage_state(*job.resume, stage, job.run.optimizer);
  if (job.run.initial_weights.empty()) return std::nullopt;
  return initial_state_from(TensorFiles(job.run.initial_weights), job.model, stage);
}

}  // namespace pipewright
