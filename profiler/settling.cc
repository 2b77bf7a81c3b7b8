#include "profiler/settling.h"

#include <cmath>
#include <cstdint>

#include "graph/error.h"
#include "graph/statistics.h"

namespace pipewright {

Settling settling(const std::vector<double>& pass_seconds, double elapsed_seconds, const SettlingRule& rule) {
  PW_CHECK(rule.window > 0, "a median of no passes");
  const size_t passes = pass_seconds.size();
  if (passes >= 2 * rule.window) {
    const auto look = [&](size_t ends_before) {
      const auto end = pass_seconds.end() - static_cast<int64_t>(ends_before);
      return median({end - static_cast<int64_t>(rule.window), end});
    };
    const double now = look(0), before = look(rule.window);
    if (std::abs(now - before) <= rule.tolerance * before) return Settling::kSettled;
  }
  return passes >= rule.most_passes || elapsed_seconds >= rule.most_seconds ? Settling::kGivesUp
                                                                            : Settling::kGoesOn;
}

}  // namespace pipewright
