// Tags of the streams between two ranks. A stream's messages take one tag for each of their parts, and one more
// for how these lie in memory.
#pragma once

#include <cstdint>

#include "graph/error.h"

namespace pipewright {

enum class Stream : int64_t {
  kActivation,
  kGradient,
  kEvaluation,
  kReplicaSum,
  kBufferSum,
  kTied,
  kSquareSum,
  kState,
  kMeeting,
  kCopy
};

/// Tag of part 0 of the stream of `stage`, the stage that sends; for sums the stage whose replicas they are.
class StreamTags {
 public:
  static constexpr int64_t kMostParts = 4096;  ///< tensors across one cut, buckets, tied parameters
  explicit StreamTags(int64_t stages) : stages_(stages) {}
  int64_t of(Stream stream, int64_t stage, int64_t part = 0) const {
    PW_CHECK_LT(part, kMostParts);
    return (static_cast<int64_t>(stream) * stages_ + stage) * kMostParts + part;
  }

 private:
  int64_t stages_;
};

}  // namespace pipewright
