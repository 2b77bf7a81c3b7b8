// Whether a stage of a plan can run as recordings of its device, and what these need to know of the plan.
#pragma once

#include <string>

#include "graph/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/stage/recorded_stage.h"
#include "runtime/stage/stage_program.h"
#include "runtime/stage/training_rules.h"

namespace pipewright {

struct RecordingPlan {
  std::string obstacle;              ///< why there are none; "": nothing is known against them
  RecordedStageSettings settings{};  ///< but for the places of the gradients
};
/// Of a stage of `plan`, which is its pipeline's and has this shape. `program`: the stage's, of `graph`.
RecordingPlan recording_plan(const Graph& graph, const Plan& plan, const PipelineShape& shape, int64_t stage,
                             const StageProgram& program, const TrainingRules& rules);

}  // namespace pipewright
