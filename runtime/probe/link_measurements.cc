#include "runtime/probe/link_measurements.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

#include "graph/statistics.h"
#include "runtime/transport/all_reduce.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kKiB = int64_t{1} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMessageBytes[] = {8,          64,       512,       4 * kKiB, 32 * kKiB,
                                     256 * kKiB, 2 * kMiB, 16 * kMiB, 64 * kMiB};
constexpr double kLongestMessageSeconds = 0.5;
constexpr double kLongestSumSeconds = 1;
constexpr int64_t kLinkBytes = 4 * kMiB;
constexpr int64_t kCoreBytes[] = {4 * kKiB, 64 * kKiB, 256 * kKiB, kMiB};
constexpr double kLongestBesideComputing = 0.025;

constexpr int64_t kStreamedBytes = kMiB;
constexpr size_t kUnderWay = 4;
constexpr int64_t kLeastStreamed = 8;

// Of the shortest piece of computing that messages are measured beside, and of messages in it.
constexpr double kLeastComputingSeconds = 2e-3;
constexpr double kComputingOverMessage = 4;

/// What the first of the ranks says, to all of them.
int64_t said_by_first(Transport& transport, const std::vector<int64_t>& ranks, int64_t own) {
  const at::Tensor word = at::full({1}, own, at::kLong);
  if (transport.rank() == ranks[0]) {
    for (const int64_t peer : ranks)
      if (peer != ranks[0]) transport.send(word, peer, 0)->wait();
  } else {
    transport.receive(word, ranks[0], 0)->wait();
  }
  return word.item<int64_t>();
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// In memory of its own: pages that nobody has written yet may all be one.
at::Tensor message_of(int64_t bytes) { return at::full({bytes}, 1, at::kByte); }

MessageTime message_time(int64_t bytes, const std::vector<double>& seconds) {
  return {bytes, median(seconds), relative_spread(seconds)};
}

// Matrices that stay in a core's own caches.
class Computing {
 public:
  void run(int64_t times) {
    for (int64_t i = 0; i < times; ++i) at::mm_out(product_, left_, right_);
  }
  // So many that they take about so long.
  int64_t times_for(double seconds) {
    run(10);  // the first ones warm up
    std::vector<double> each;
    for (int i = 0; i < 25; ++i) {
      const auto begin = Clock::now();
      run(4);
      each.push_back(seconds_since(begin) / 4);
    }
    return std::max<int64_t>(1, std::llround(seconds / median(each)));
  }

 private:
  const at::Tensor left_ = at::ones({96, 96});
  const at::Tensor right_ = at::ones({96, 96});
  at::Tensor product_ = at::zeros({96, 96});
};

// Standard error of a median of values that are about normal.
double error_of_median(const std::vector<double>& values) {
  const double centre = median(values);
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - centre));
  return 1.2533 * 1.4826 * median(std::move(deviations)) / std::sqrt(static_cast<double>(values.size()));
}

}  // namespace

int64_t Effort::repetitions(double seconds_each) const {
  const double fitting = seconds / std::max(seconds_each, 1e-9);
  return std::clamp(static_cast<int64_t>(std::min(fitting, 1e9)), least, most);
}

int64_t PairMeter::agreed(int64_t value) {
  const int64_t own = transport_.rank();
  return said_by_first(transport_, leads_ ? std::vector{own, peer_} : std::vector{peer_, own}, value);
}

void PairMeter::ping_pong(const at::Tensor& out, const at::Tensor& in, int64_t rounds,
                          std::vector<double>* seconds) {
  auto receive = leads_ ? nullptr : transport_.receive(in, peer_, 0);
  for (int64_t i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    if (leads_) {
      receive = transport_.receive(in, peer_, 0);
      auto send = transport_.send(out, peer_, 0);
      receive->wait();
      send->wait();
    } else {
      receive->wait();
      if (i + 1 < rounds) receive = transport_.receive(in, peer_, 0);
      transport_.send(out, peer_, 0)->wait();
    }
    if (seconds) seconds->push_back(seconds_since(begin) / 2);
  }
}

MessageTime PairMeter::one_way(int64_t bytes, const Effort& effort) {
  const at::Tensor out = message_of(bytes);
  const at::Tensor in = message_of(bytes);
  std::vector<double> first, seconds;
  ping_pong(out, in, 2, &first);  // the first ones warm up
  ping_pong(out, in, agreed(effort.repetitions(2 * first.back())), &seconds);
  return message_time(bytes, seconds);
}

void PairMeter::swap(const at::Tensor& out, const at::Tensor& in) {
  auto receive = transport_.receive(in, peer_, 0);
  auto send = transport_.send(out, peer_, 0);
  receive->wait();
  send->wait();
}

MessageTime PairMeter::both_ways(int64_t bytes, const Effort& effort) {
  const at::Tensor out = message_of(bytes);
  const at::Tensor in = message_of(bytes);
  const auto timed = [&] {
    const auto begin = Clock::now();
    swap(out, in);
    return seconds_since(begin);
  };
  timed();
  const int64_t repetitions = agreed(effort.repetitions(timed()));
  std::vector<double> seconds;
  for (int64_t i = 0; i < repetitions; ++i) seconds.push_back(timed());
  return message_time(bytes, seconds);
}

void PairMeter::meet() { swap(message_of(1), message_of(1)); }

std::optional<CoreTime> PairMeter::core_time(int64_t bytes, const Effort& effort) {
  const double message_seconds = one_way(bytes, {0.02, 3, 10}).seconds;
  if (agreed(message_seconds > kLongestBesideComputing ? 1 : 0) != 0) return std::nullopt;
  const at::Tensor out = message_of(bytes);
  const at::Tensor in = message_of(bytes);
  Computing computing;
  const double wanted = std::max(kLeastComputingSeconds, kComputingOverMessage * message_seconds);
  const int64_t times = agreed(computing.times_for(wanted));
  const int64_t repetitions = agreed(effort.repetitions(2 * wanted));
  const auto computed_in = [&](bool with_messages) {
    meet();
    const auto begin = Clock::now();
    std::unique_ptr<Request> receive, send;
    if (with_messages) {
      receive = transport_.receive(in, peer_, 0);
      send = transport_.send(out, peer_, 0);
    }
    computing.run(times);
    if (with_messages) {
      receive->wait();
      send->wait();
    }
    return seconds_since(begin);
  };
  std::vector<double> extra;
  for (int64_t i = -1; i < repetitions; ++i) {
    double seconds[2];  // without, with; by turns first, as a core may become faster or slower
    for (const bool second : {false, true}) {
      const bool with_messages = second != (i % 2 == 0);
      seconds[with_messages] = computed_in(with_messages);
    }
    if (i >= 0) extra.push_back((seconds[1] - seconds[0]) / 2);  // one end sent, one received
  }
  // What the two ranks find is told apart by nothing: their mean.
  const at::Tensor own = at::zeros({2}, at::kDouble), peers = at::zeros({2}, at::kDouble);
  own[0] = median(extra);
  own[1] = error_of_median(extra);
  swap(own, peers);
  return CoreTime{bytes, (own[0].item<double>() + peers[0].item<double>()) / 2,
                  std::hypot(own[1].item<double>(), peers[1].item<double>()) / 2};
}

ProbedLink PairMeter::link() {
  const MessageTime small = one_way(1, {0.2, 10, 200});
  const MessageTime large = one_way(kLinkBytes, {0.3, 3, 20});
  return {transport_.rank(), peer_,
          small.seconds,     bytes_per_second(static_cast<double>(kLinkBytes), large.seconds, small.seconds),
          small.spread,      large.spread};
}

ProbedPair PairMeter::look_closely(bool beside_computing) {
  ProbedPair pair;
  pair.from = transport_.rank();
  pair.to = peer_;
  pair.buffered_bytes = transport_.buffered_bytes(peer_);
  for (const int64_t bytes : kMessageBytes) {
    if (!pair.messages.empty()) {
      const MessageTime& before = pair.messages.back();
      const double expected = before.seconds * static_cast<double>(bytes) / static_cast<double>(before.bytes);
      // Of small messages the latency is most, which does not grow.
      const bool too_long = before.bytes >= 4 * kKiB && expected > kLongestMessageSeconds;
      if (agreed(too_long ? 1 : 0) != 0) {
        pair.left_out_bytes = bytes;
        break;
      }
    }
    pair.messages.push_back(one_way(bytes, {0.2, 3, 1000}));
  }
  pair.both_ways = both_ways(kLinkBytes, {0.3, 3, 30});
  if (!beside_computing) return pair;
  for (const int64_t bytes : kCoreBytes) {
    const auto time = core_time(bytes, {0.5, 5, 150});
    if (!time) break;
    pair.core_times.push_back(*time);
  }
  return pair;
}

std::optional<ProbedExchange> exchange(Transport& transport, const std::vector<int64_t>& ranks, int64_t bytes,
                                       double expected_seconds, const Effort& effort) {
  if (said_by_first(transport, ranks, expected_seconds > kLongestSumSeconds ? 1 : 0) != 0)
    return std::nullopt;
  const at::Tensor flat = at::full({bytes / 4}, 0.0f);  // remains 0 when it is summed again and again
  const auto timed = [&] {
    const auto begin = Clock::now();
    all_reduce_sum(transport, ranks, 0, flat);
    return seconds_since(begin);
  };
  timed();
  const int64_t repetitions = said_by_first(transport, ranks, effort.repetitions(timed()));
  std::vector<double> seconds;
  for (int64_t i = 0; i < repetitions; ++i) seconds.push_back(timed());
  return ProbedExchange{ranks, bytes, median(seconds), relative_spread(seconds)};
}

double stream(Transport& transport, const Flow& flow, double seconds) {
  const bool sends = transport.rank() == flow.from;
  const int64_t peer = sends ? flow.to : flow.from;
  std::deque<std::pair<at::Tensor, std::unique_ptr<Request>>> under_way;
  const auto begin = Clock::now();
  if (sends) {
    // The last one under way and those behind it say that they are.
    bool last = false;
    int64_t sent = 0;
    for (size_t after_last = 0; after_last < kUnderWay; ++sent) {
      last = last || (seconds_since(begin) >= seconds && sent >= kLeastStreamed);
      if (last) ++after_last;
      at::Tensor message;
      if (under_way.size() == kUnderWay) {
        under_way.front().second->wait();
        message = std::move(under_way.front().first);
        under_way.pop_front();
      } else {
        message = message_of(kStreamedBytes);
      }
      message[0] = last ? 1 : 0;
      auto request = transport.send(message, peer, 0);
      under_way.emplace_back(std::move(message), std::move(request));
    }
    for (auto& [message, request] : under_way) request->wait();
    return 0;
  }
  const auto post = [&](at::Tensor into) {
    auto request = transport.receive(into, peer, 0);
    under_way.emplace_back(std::move(into), std::move(request));
  };
  for (size_t i = 0; i < kUnderWay; ++i) post(message_of(kStreamedBytes));
  std::vector<double> arrivals;
  for (bool last = false; !under_way.empty();) {
    auto [message, request] = std::move(under_way.front());
    under_way.pop_front();
    request->wait();
    arrivals.push_back(seconds_since(begin));
    last = last || message[0].item<uint8_t>() != 0;
    if (!last) post(std::move(message));
  }
  // Without the first fifth, as the others may begin a little later, and what came when some had ended.
  const size_t from = arrivals.size() / 5;
  size_t until = arrivals.size() - 1;
  while (until > from + kUnderWay && arrivals[until] > seconds) --until;
  const double bytes = static_cast<double>(kStreamedBytes) * static_cast<double>(until - from);
  return bytes / std::max(arrivals[until] - arrivals[from], 1e-9);
}

}  // namespace pipewright
