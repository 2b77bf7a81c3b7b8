// What a plan predicts, and of which runs.
#pragma once

#include <filesystem>
#include <string>

#include "graph/plan.h"
#include "graph/run.h"

namespace pipewright {

/// The plan, without its prediction where that is of another run than `run`: prices are of an update after
/// each of the plan's rounds, so of no gradient accumulation, and of replicas that are held equal.
Plan plan_as_run(Plan plan, const Run& run);

/// What a run writes of `plan`, which it has from `file` ("": from none): the document, with the prediction
/// of the file where that is not taken, so that who reads it is told what outdated_text() says.
std::string plan_text_as_given(const Plan& plan, const std::filesystem::path& file);

/// Of a plan's file a sentence where its prediction is not taken, being of the plan before somebody changed
/// it; else "".
std::string outdated_text(const std::filesystem::path& file);

}  // namespace pipewright
