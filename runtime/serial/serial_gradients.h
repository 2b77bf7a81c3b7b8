// What the stages of the reference share of their gradients where rounds end together: tied parameters and
// the norm that clips.
#pragma once

#include <optional>
#include <vector>

#include "graph/plan.h"
#include "runtime/serial/serial_stage.h"

namespace pipewright {

/// Copies of a tied parameter get the sum of their gradients, in the order of the stages. `ended`: the stages
/// whose round has ended.
void add_tied_gradients(std::vector<SerialStage>& stages, const std::vector<size_t>& ended,
                        const std::vector<TiedParameter>& tied_parameters);

/// Scales the gradients of the stages in `ended` so that their norm is at most `largest_norm`: of the model
/// where all stages update together or must scale alike, else of each stage by itself. Returns the norm that
/// the last stage's had, if it is one of them.
std::optional<double> clip_gradients(std::vector<SerialStage>& stages, const std::vector<size_t>& ended,
                                     const Plan& plan, double largest_norm);

}  // namespace pipewright
