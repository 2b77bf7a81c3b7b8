#include "optimizer/cost/link_loads.h"

#include <algorithm>
#include <numeric>

namespace pipewright {

LinkLoads::LinkLoads(const CostInputs& inputs) : inputs_(inputs), tree_(inputs.levels) {}

double LinkLoads::floor_seconds(const std::vector<StageLoad>& loads,
                                const std::vector<std::vector<int64_t>>& ranks) const {
  const std::vector<double>& bandwidths = tree_.bandwidths();
  std::vector<double> busy(bandwidths.size(), 0);  // seconds per minibatch
  double slowest = 0;
  for (size_t s = 0; s < loads.size(); ++s) {
    const auto m = static_cast<double>(ranks[s].size());
    const double update =
        inputs_.minibatches_per_update > 0 ? static_cast<double>(inputs_.minibatches_per_update) : m;
    double once = static_cast<double>(loads[s].trainable_bytes) * inputs_.step_seconds_per_byte;
    if (ranks[s].size() > 1 && loads[s].trainable_bytes > 0) {
      const LinkTree::Exchange exchange = tree_.exchange(ranks[s]);
      const double bytes = 2 * (m - 1) / m * static_cast<double>(loads[s].trainable_bytes);
      double alone = 0;
      for (size_t at = 0; at < exchange.links.size(); ++at) {
        const auto link = static_cast<size_t>(exchange.links[at]);
        const double seconds = bytes * exchange.weights[at] / bandwidths[link];
        alone = std::max(alone, seconds);
        busy[link] += seconds / update;
      }
      once += 2 * exchange.latency_seconds + alone;
    }
    slowest = std::max(slowest, loads[s].compute_seconds() / m + once / update);
    if (s + 1 == loads.size()) continue;
    // Replicas meet whose numbers are equal modulo what both counts divide by.
    const auto ours = static_cast<int64_t>(ranks[s].size());
    const auto theirs = static_cast<int64_t>(ranks[s + 1].size());
    const int64_t apart = std::gcd(ours, theirs);
    const double each = static_cast<double>(loads[s].out_bytes) * static_cast<double>(apart) /
                        static_cast<double>(ours * theirs);
    for (int64_t a = 0; a < ours; ++a) {
      for (int64_t b = a % apart; b < theirs; b += apart) {
        const int64_t from = ranks[s][static_cast<size_t>(a)];
        const int64_t to = ranks[s + 1][static_cast<size_t>(b)];
        for (const int32_t link : tree_.path(from, to).links)
          busy[static_cast<size_t>(link)] += each / bandwidths[static_cast<size_t>(link)];
        for (const int32_t link : tree_.path(to, from).links)
          busy[static_cast<size_t>(link)] += each / bandwidths[static_cast<size_t>(link)];
      }
    }
  }
  for (const double seconds : busy) slowest = std::max(slowest, seconds);
  return slowest;
}

}  // namespace pipewright
