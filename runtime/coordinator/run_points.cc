#include "runtime/coordinator/run_points.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"

namespace pipewright {

int64_t round_period(const PipelineShape& shape) {
  // Past this no run gets anyway; it keeps the least common multiple from overflowing.
  constexpr int64_t kLongest = int64_t{1} << 40;
  int64_t period = 1;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const int64_t round = StageTurns(shape, stage).round_length();
    const int64_t factor = round / std::gcd(period, round);
    if (factor > kLongest / period) return kLongest;
    period *= factor;
  }
  return period;
}

int64_t next_stop(int64_t minibatch, int64_t period, const RunLength& length) {
  PW_CHECK_LT(0, minibatch);
  const int64_t round_end = (minibatch + period - 1) / period * period;
  const int64_t epoch = (minibatch - 1) / length.minibatches_per_epoch;
  return std::min({round_end, (epoch + 1) * length.minibatches_per_epoch, length.minibatches,
                   minibatch <= length.plan_end ? length.plan_end : length.minibatches});
}

// A rank that does not know yet where to stop asks for two messages beyond the last that has come (Inbox),
// each of a minibatch of its own: of two cycles at most. Within a round their order may be another, so rounds
// count to their end.
int64_t unplanned_stop(int64_t last_started, const PipelineShape& shape, const RunLength& length) {
  int64_t longest_cycle = 1;
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    longest_cycle = std::max(longest_cycle, StageTurns(shape, stage).cycle_length());
  return next_stop(std::min({last_started + 1 + 2 * longest_cycle, length.minibatches, length.plan_end}),
                   length.period, length);
}

bool checkpoint_due(int64_t n, const CheckpointSettings& settings, int64_t period, const RunLength& length) {
  if (n <= 0 || n > length.minibatches) return false;
  const int64_t every = settings.every_minibatches;
  if (n == length.minibatches && (every > 0 || settings.every_epochs > 0)) return true;
  const int64_t epochs = n / length.minibatches_per_epoch;
  const bool epoch_end = n % length.minibatches_per_epoch == 0;
  if (settings.every_epochs > 0 && epoch_end && epochs % settings.every_epochs == 0) return true;
  if (every == 0) return false;
  const int64_t latest = n / every * every;  // if an earlier multiple has its stop at n, so has this one
  return latest > length.plan_begin && next_stop(latest, period, length) == n;
}

namespace {

bool stops_for_multiple(int64_t n, int64_t every, const RunLength& length) {
  if (every == 0 || n < every) return false;
  const int64_t latest = n / every * every;  // as in checkpoint_due()
  return latest > length.plan_begin && next_stop(latest, length.period, length) == n;
}

}  // namespace

bool evaluation_within_epoch(int64_t n, const RunLength& length) {
  if (n >= length.minibatches || n % length.minibatches_per_epoch == 0) return false;
  return stops_for_multiple(n, length.evaluate_every, length);
}

bool decision_due(int64_t n, int64_t every, const RunLength& length) {
  if (every == 0) return n > 0 && n % length.minibatches_per_epoch == 0;
  return stops_for_multiple(n, every, length);
}

Span span_from(int64_t from, const RunLength& length) {
  PW_CHECK(from >= 0 && from < length.minibatches, from << " of " << length.minibatches);
  const int64_t epoch = from / length.minibatches_per_epoch;
  int64_t end = std::min((epoch + 1) * length.minibatches_per_epoch, length.minibatches);
  if (from < length.plan_end) end = std::min(end, length.plan_end);
  for (const int64_t every : {length.evaluate_every, length.drain_every, length.decide_every}) {
    if (every == 0) continue;
    int64_t multiple = std::max<int64_t>(1, from / every) * every;
    const auto is_over = [&] {
      return multiple <= length.plan_begin || next_stop(multiple, length.period, length) <= from;
    };
    while (multiple < end && is_over()) multiple += every;
    if (multiple < end) end = std::min(end, next_stop(multiple, length.period, length));
  }
  return {from, end - from};
}

std::vector<int64_t> checkpoints_within(Span span, const CheckpointSettings& settings, int64_t period,
                                        const RunLength& length) {
  std::vector<int64_t> within;
  const int64_t every = settings.every_minibatches;
  if (every == 0) return within;
  for (int64_t multiple = std::max<int64_t>(1, span.first / every) * every; multiple < span.end();
       multiple += every) {
    if (multiple <= length.plan_begin) continue;
    const int64_t n = next_stop(multiple, period, length);
    if (n > span.first && n < span.end() && (within.empty() || within.back() < n)) within.push_back(n);
  }
  return within;
}

}  // namespace pipewright
