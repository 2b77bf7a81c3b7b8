// Skipping visibly: ctest counts a test as skipped that skips a case and fails nowhere. `return` after it.
#pragma once

#include <filesystem>
#include <iostream>
#include <string>

#include "test_paths.h"

namespace pipewright::testing {

inline int skipped_cases = 0;

inline void skip(const std::string& why) {
  ++skipped_cases;
  std::cout << "SKIPPED: " << why << std::endl;
}

/// Inputs from elsewhere that tests use when they are there; "" when they are not. Beside the checkout, or
/// where PIPEWRIGHT_SHARED_DATA says.
inline std::filesystem::path shared_data() {
  if (const char* set = std::getenv("PIPEWRIGHT_SHARED_DATA")) return set;
  const std::filesystem::path beside =
      std::filesystem::path(PIPEWRIGHT_SOURCE_DIR) / ".." / "shared" / "data";
  return std::filesystem::exists(beside) ? beside : std::filesystem::path();
}

}  // namespace pipewright::testing
