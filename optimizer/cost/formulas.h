// What a message, an exchange of gradients, a cut and an update take on the links given: the formulas of
// every price, on one level or several. docs/cost-model.md explains them. cost_model.cc and levels.cc say
// which bytes and which links go in.
#pragma once

#include <cstdint>

namespace pipewright {

/// Bytes of one direction; a link carries both at once, at its full bandwidth each.
inline double link_seconds(double bytes, double bandwidth_bytes_per_second) {
  return bytes / bandwidth_bytes_per_second;
}

/// One message with nothing else on its way.
inline double message_seconds(double bytes, double latency_seconds, double bandwidth_bytes_per_second) {
  return latency_seconds + link_seconds(bytes, bandwidth_bytes_per_second);
}

/// What an end of a message, its sending or its receipt, takes of a core that computes meanwhile.
inline double message_end_seconds(double bytes, double core_seconds_per_message,
                                  double core_seconds_per_byte) {
  return core_seconds_per_message + bytes * core_seconds_per_byte;
}

/// Of the bytes that `all` ranks reduce, the part that crosses, each way and in each of the two halves of an
/// all-reduce, the link that `ranks` of them share: each rank's piece goes to the others, pieces are 1 / all.
/// (m - 1) / m for a rank alone.
inline double crossing_part(int64_t ranks, int64_t all) {
  return static_cast<double>(ranks) * static_cast<double>(all - ranks) / static_cast<double>(all);
}

/// An all-reduce of so many bytes, direct reduce-scatter and then all-gather, on a link that `crossing` of
/// them cross; beside its latency.
inline double all_reduce_link_seconds(double bytes, double crossing, double bandwidth_bytes_per_second) {
  return 2 * link_seconds(crossing * bytes, bandwidth_bytes_per_second);
}
/// Its two halves wait for a message each.
inline double all_reduce_latency_seconds(double latency_seconds) { return 2 * latency_seconds; }

}  // namespace pipewright
