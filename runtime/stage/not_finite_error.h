// A number that is not finite, found while training.
#pragma once

#include <cstdint>

#include "graph/error.h"

namespace pipewright {

/// What to do about one.
inline constexpr const char* kDivergedRemedy =
    "lower --learning-rate, warm up with --warmup-minibatches, or clip with --gradient-clipping-norm";

/// With the minibatches that made it: the one of a loss, those of a round of a gradient.
class NotFiniteError : public NumericalError {
 public:
  NotFiniteError(const std::string& what, std::string remedy, int64_t first_minibatch, int64_t last_minibatch)
      : NumericalError(what, std::move(remedy)), first_(first_minibatch), last_(last_minibatch) {}
  int64_t first_minibatch() const { return first_; }
  int64_t last_minibatch() const { return last_; }

 private:
  int64_t first_;
  int64_t last_;
};

}  // namespace pipewright
