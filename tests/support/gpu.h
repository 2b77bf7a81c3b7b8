// The GPU that tests tagged [cuda] run on.
#pragma once

#include <optional>

#include "graph/error.h"
#include "models/device/device.h"
#include "tests/support/skip.h"

namespace pipewright::testing {

/// cuda:0, or nothing, with the reason as a skipped test. The plug-in of this build is beside the test
/// programs.
inline std::optional<at::Device> gpu() {
  try {
    return open_device("cuda:0", "test");
  } catch (const Error& error) {
    skip(error.what());
    return std::nullopt;
  }
}

}  // namespace pipewright::testing
