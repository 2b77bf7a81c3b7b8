// Bounds of the numbers in documents: wide enough for any machine, narrow enough to catch a wrong unit and to
// keep every sum of a document's numbers far from overflow.
#pragma once

#include <cstdint>

namespace pipewright {

inline constexpr int64_t kMostBytes = int64_t{1} << 53;  ///< 9 PB; exact as a double too
inline constexpr int64_t kMostCount = int64_t{1} << 53;  ///< samples, minibatches, updates
inline constexpr int64_t kMostRanks = 1 << 20;
inline constexpr int64_t kMostFrozenLayers = 1 << 20;
inline constexpr int64_t kMostInFlight = 1024;
inline constexpr int64_t kMostShare = 1024;
inline constexpr double kMostSeconds = 1e9;  ///< 31 years
inline constexpr double kMostBytesPerSecond = 1e18;
inline constexpr double kLargestNumber = 1e300;  ///< for numbers without a natural bound

}  // namespace pipewright
