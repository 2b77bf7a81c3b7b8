// Losses for people.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace pipewright {

/// So many digits behind the point; what has diverged as a power of ten.
inline std::string loss_text(double loss, int digits = 4) {
  char text[40];
  std::snprintf(text, sizeof text, std::abs(loss) < 1e6 ? "%.*f" : "%.*g", digits, loss);
  return text;
}

}  // namespace pipewright
