// Stages that hardly compute: a device for what its messages cost more than.
#pragma once

#include <vector>

#include "optimizer/search/search.h"

namespace pipewright {

/// What a plan may take longer to be rid of a stage that computes less than its messages take.
inline constexpr double kThinTolerance = 1.02;

bool is_thin(const FoundStage& stage, const Question& question);
bool has_thin_stage(const std::vector<FoundStage>& stages, const Question& question);

/// The ways to join such a stage to a neighbour: on all devices of both or, where devices are alike, on
/// fewer. None if there is no such stage.
std::vector<std::vector<FoundStage>> with_thin_stage_joined(const std::vector<FoundStage>& stages,
                                                            const Question& question);

}  // namespace pipewright
