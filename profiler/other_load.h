// What other programs have of this process' cores while something is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "interference/core_texts.h"

namespace pipewright {

/// One moment.
struct LoadReading {
  double at_seconds = 0;   ///< of a clock that never goes back
  double own_seconds = 0;  ///< that this process has had of any core
  HostActivity host;
};

/// Between two moments: how many cores' worth of work others did on `cores`, with what the host of a virtual
/// machine took of them. Nothing where the host does not say.
std::optional<double> other_cores(const LoadReading& first, const LoadReading& second,
                                  const std::vector<int64_t>& cores);

/// In which the calling thread could have run and did not, since it began; 0 where Linux does not say.
double waited_for_core_seconds();

/// Begins where it is made. Linux; the kernel counts in ticks of some ms, so below a second it is rough.
class OtherLoad {
 public:
  OtherLoad();
  /// Until now.
  std::optional<double> cores() const;

 private:
  const std::vector<int64_t> cores_;
  const LoadReading first_;
};

}  // namespace pipewright
