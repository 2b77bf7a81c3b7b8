// How long a pipeline waits for others that it could average its weights with.
#pragma once

#include <chrono>

namespace pipewright {

struct GroupPatience {
  std::chrono::nanoseconds wait{0};    ///< in any case, if it is the first of its group
  std::chrono::nanoseconds update{0};  ///< what an update takes it
};

}  // namespace pipewright
