// What a measurement ran on and when.
#pragma once

#include <string>

namespace pipewright {

/// "Intel(R) Xeon(R) ..." as the kernel names it; "unknown" where it does not.
std::string processor_name();
/// "2026-01-31T12:00:00Z"
std::string utc_date();
std::string libtorch_version();

}  // namespace pipewright
