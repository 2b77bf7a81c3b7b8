#include "runtime/schedule/network_floor.h"

#include <algorithm>
#include <numeric>

namespace pipewright {

double network_floor_seconds(const LinkTree& tree, const PipelineShape& shape,
                             const std::vector<StageTimes>& times, const std::vector<StageMessages>& messages,
                             const std::vector<std::vector<int64_t>>& devices) {
  const std::vector<double>& bandwidths = tree.bandwidths();
  std::vector<double> links(bandwidths.size(), 0);                    // seconds per minibatch
  std::vector<double> ranks(static_cast<size_t>(shape.groups()), 0);  // the same, of a rank of each group
  for (size_t s = 0; s < devices.size(); ++s) {
    const StageTurns turns(shape, static_cast<int64_t>(s));
    const auto round = static_cast<double>(turns.round_length());
    const auto replicas = static_cast<double>(devices[s].size());
    const StageTimes& t = times[s];
    double once = t.step_seconds;
    if (devices[s].size() > 1 && messages[s].reduce_bytes > 0) {
      const LinkTree::Exchange exchange = tree.exchange(devices[s]);
      const double bytes = 2 * (replicas - 1) / replicas * static_cast<double>(messages[s].reduce_bytes);
      double alone = 0;
      for (size_t at = 0; at < exchange.links.size(); ++at) {
        const auto link = static_cast<size_t>(exchange.links[at]);
        const double seconds = bytes * exchange.weights[at] / bandwidths[link];
        alone = std::max(alone, seconds);
        links[link] += seconds / round;
      }
      once += 2 * exchange.latency_seconds + alone;
    }
    ranks[static_cast<size_t>(shape.group_of(static_cast<int64_t>(s)))] +=
        (t.forward_seconds + t.recompute_seconds + t.backward_seconds) / replicas + once / round;
    if (s + 1 == devices.size()) continue;
    // Replicas meet whose numbers are equal modulo what both counts divide by.
    const size_t ours = devices[s].size(), theirs = devices[s + 1].size();
    const size_t apart = std::gcd(ours, theirs);
    const double part = static_cast<double>(apart) / static_cast<double>(ours * theirs);
    const double ahead = part * static_cast<double>(messages[s].activation_bytes);
    const double back = part * static_cast<double>(messages[s + 1].gradient_bytes);
    for (size_t a = 0; a < ours; ++a) {
      for (size_t b = a % apart; b < theirs; b += apart) {
        const int64_t from = devices[s][a], to = devices[s + 1][b];
        for (const int32_t link : tree.path(from, to).links)
          links[static_cast<size_t>(link)] += ahead / bandwidths[static_cast<size_t>(link)];
        for (const int32_t link : tree.path(to, from).links)
          links[static_cast<size_t>(link)] += back / bandwidths[static_cast<size_t>(link)];
      }
    }
  }
  return std::max(*std::max_element(ranks.begin(), ranks.end()),
                  *std::max_element(links.begin(), links.end()));
}

double network_floor_seconds(const PipelineShape& shape, const std::vector<StageTimes>& times,
                             const SimulationOptions& options) {
  if (!shape.shares.empty() || shape.stages_per_rank > 1) return 0;
  std::vector<std::vector<int64_t>> devices;
  int64_t rank = 0;
  for (const int64_t replicas : shape.replicas) {
    devices.emplace_back();
    for (int64_t q = 0; q < replicas; ++q, ++rank)
      devices.back().push_back(options.devices.empty() ? rank : options.devices[static_cast<size_t>(rank)]);
  }
  return network_floor_seconds(LinkTree(options.network), shape, times, options.messages, devices);
}

}  // namespace pipewright
