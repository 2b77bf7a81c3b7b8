// A verification as a page for people.
#pragma once

#include <filesystem>
#include <string>

#include "graph/plan.h"
#include "runtime/verify/verify.h"

namespace pipewright {

/// Under `verdict`, a line each: what was compared and how it came out, tensors and losses that differ, the
/// losses of the run, the digests of its last weights where the folder has them. `plan`: the last one.
std::string verify_page(const Verification& verification, const Plan& plan,
                        const std::filesystem::path& run_folder, const std::string& verdict);

}  // namespace pipewright
