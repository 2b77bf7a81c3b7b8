// What a verification says, to people and to programs.
#pragma once

#include <filesystem>
#include <string>

#include "graph/json.h"
#include "graph/plan.h"
#include "runtime/verify/verify.h"

namespace pipewright {

/// NumericalError with the first parameter and the first loss that differ, unless it holds.
void demand(const Verification& verification, const std::filesystem::path& run_folder);

/// The table is at most `width` characters wide (graph/text_table.h).
std::string verification_table(const Verification& verification, const Plan& plan, int64_t width);
Json verification_json(const Verification& verification);

}  // namespace pipewright
