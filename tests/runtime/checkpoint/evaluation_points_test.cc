// Where a run evaluates within its epochs, and so drains, and where it drains for checkpoints.
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "runtime/coordinator/run_points.h"

using namespace pipewright;

TEST_CASE("evaluations within epochs: spans end there, at the ends of epochs and nowhere else") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const auto below = [&](uint64_t most) { return static_cast<int64_t>(random() % most); };
    const RunLength length{.minibatches = 1 + below(80),
                           .minibatches_per_epoch = 1 + below(30),
                           .evaluate_every = below(12),
                           .drain_every = i % 2 == 0 ? 0 : below(12),
                           .period = 1 + below(7)};
    CAPTURE(length.minibatches, length.minibatches_per_epoch, length.evaluate_every, length.drain_every,
            length.period);
    std::set<int64_t> expected{length.minibatches};
    for (int64_t n = length.minibatches_per_epoch; n < length.minibatches; n += length.minibatches_per_epoch)
      expected.insert(n);
    for (int64_t m = length.evaluate_every; m > 0 && m < length.minibatches; m += length.evaluate_every)
      expected.insert(next_stop(m, length.period, length));  // the definition
    for (int64_t n = 1; n <= length.minibatches; ++n) {
      const bool end_of_epoch = n % length.minibatches_per_epoch == 0 || n == length.minibatches;
      CHECK(evaluation_within_epoch(n, length) == (expected.count(n) > 0 && !end_of_epoch));
      if (evaluation_within_epoch(n, length)) CHECK(n % length.period == 0);  // no round is cut
    }
    for (int64_t m = length.drain_every; m > 0 && m < length.minibatches; m += length.drain_every)
      expected.insert(next_stop(m, length.period, length));
    // Wherever a run begins, its spans end at the same minibatches.
    for (int64_t from = 0; from < length.minibatches; ++from) {
      const Span span = span_from(from, length);
      CHECK(span.first == from);
      CHECK(span.end() == *expected.upper_bound(from));
    }
  }
}
