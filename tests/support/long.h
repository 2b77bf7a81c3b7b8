// What is tried in every run of the tests, and what only in a long one.
#pragma once

#include <cstdlib>

namespace pipewright::testing {

/// scripts/test --long.
inline bool is_long() { return std::getenv("PIPEWRIGHT_LONG") != nullptr; }

}  // namespace pipewright::testing
