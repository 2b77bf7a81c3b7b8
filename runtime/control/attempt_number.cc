#include "runtime/control/attempt_number.h"

#include <cstdlib>

namespace pipewright {

int64_t attempt_of_process() {
  const char* text = std::getenv(kAttemptVariable);
  return text ? std::atoll(text) : 0;
}

}  // namespace pipewright
