// What ranks measure over a Transport. Each function is called by all ranks that it names, at the same time;
// nothing else is under way between them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/probe/measurements.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// How much is repeated: as often as fits into `seconds`, `least` to `most` times.
struct Effort {
  double seconds = 0;
  int64_t least = 1;
  int64_t most = 1;

  /// Of what took `seconds_each` once.
  int64_t repetitions(double seconds_each) const;
};

/// One of two ranks. The one that leads decides how often, and has the results; the other's are of no use.
class PairMeter {
 public:
  PairMeter(Transport& transport, int64_t peer, bool leads)
      : transport_(transport), peer_(peer), leads_(leads) {}

  /// Half of a ping-pong. Receives stand ready before messages come, as a run's do.
  MessageTime one_way(int64_t bytes, const Effort& effort);
  /// Both send at once; until both have received.
  MessageTime both_ways(int64_t bytes, const Effort& effort);
  /// Both compute, by themselves and with a message sent and one received meanwhile, by turns. Computing
  /// lasts several times as long as the message takes; nothing for messages that take too long for that.
  std::optional<CoreTime> core_time(int64_t bytes, const Effort& effort);

  /// Latency and bandwidth, quickly.
  ProbedLink link();
  /// All of the above, core_time() only if `beside_computing`; the first size whose messages would take more
  /// than half a second is left out, and those behind it.
  ProbedPair look_closely(bool beside_computing);

 private:
  void ping_pong(const at::Tensor& out, const at::Tensor& in, int64_t rounds, std::vector<double>* seconds);
  void swap(const at::Tensor& out, const at::Tensor& in);
  void meet();
  // The leader's, at both ends.
  int64_t agreed(int64_t value);

  Transport& transport_;
  const int64_t peer_;
  const bool leads_;
};

/// Of the sum over `ranks`, of which this is one: as the first of them sees it. Nothing, at all of them,
/// where the first expects it to take too long.
std::optional<ProbedExchange> exchange(Transport& transport, const std::vector<int64_t>& ranks, int64_t bytes,
                                       double expected_seconds, const Effort& effort);

/// A stream of messages of 1 MiB, several of them always under way, for `seconds` and eight messages at
/// least. Returns what arrives in a second, without beginning and end; 0 at the end that sends.
double stream(Transport& transport, const Flow& flow, double seconds);

}  // namespace pipewright
