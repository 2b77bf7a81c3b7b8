#include "runtime/schedule/network_floor.h"

#include <algorithm>

#include "runtime/schedule/timeline.h"

namespace pipewright {

namespace {

/// An exchange gets no less of a link than one among a few messages does.
constexpr double kLeastShare = 0.25;

struct Exchanging {
  size_t stage = 0, link = 0;
  double seconds = 0;  // per minibatch, alone
};

/// What others do not use of their links is what exchanges have.
double likely(const std::vector<double>& others, const std::vector<Exchanging>& exchanges,
              const std::vector<double>& links, double floor) {
  double pace = floor;
  for (int round = 0; round < 4; ++round) {
    std::vector<double> longest(others.size(), 0);
    for (const Exchanging& each : exchanges) {
      const double left = 1 - (links[each.link] - each.seconds) / pace;
      longest[each.stage] = std::max(longest[each.stage], each.seconds / std::max(left, kLeastShare));
    }
    double next = floor;
    for (size_t s = 0; s < others.size(); ++s) next = std::max(next, others[s] + longest[s]);
    pace = next;
  }
  return pace;
}

}  // namespace

NetworkPace network_pace(const LinkTree& tree, const PipelineShape& shape, const std::vector<int64_t>& rounds,
                         const std::vector<StageTimes>& given, const std::vector<StageMessages>& messages,
                         const std::vector<std::vector<int64_t>>& devices) {
  const std::vector<StageTimes> times = times_with_frozen(shape, given);
  const std::vector<double>& bandwidths = tree.bandwidths();
  std::vector<double> links(bandwidths.size(), 0);                    // seconds per minibatch
  std::vector<double> ranks(static_cast<size_t>(shape.groups()), 0);  // the same, of a rank of each group
  std::vector<double> others(devices.size(), 0);                      // of each stage, all but the exchange
  std::vector<Exchanging> exchanges;
  std::vector<double> between;
  for (size_t s = 0; s < devices.size(); ++s) {
    const StageTurns turns(shape, static_cast<int64_t>(s));
    const auto round = static_cast<double>(rounds[s]);
    const auto replicas = static_cast<double>(devices[s].size());
    const StageTimes& t = times[s];
    double exchange_latency = 0, alone = 0;
    const auto stage = static_cast<int64_t>(s);
    if (devices[s].size() > 1 && messages[s].reduce_bytes > 0 && shape.trains(stage)) {
      const LinkTree::Exchange exchange = tree.exchange(devices[s]);
      const double bytes = 2 * (replicas - 1) / replicas * static_cast<double>(messages[s].reduce_bytes);
      for (size_t at = 0; at < exchange.links.size(); ++at) {
        const auto link = static_cast<size_t>(exchange.links[at]);
        const double seconds = bytes * exchange.weights[at] / bandwidths[link];
        alone = std::max(alone, seconds);
        links[link] += seconds / round;
        exchanges.push_back({s, link, seconds / round});
      }
      exchange_latency = 2 * exchange.latency_seconds;
    }
    for (int64_t q = 0; q < turns.replicas(); ++q) {
      const ReplicaTimes own = t.of(q);
      const double minibatches =
          static_cast<double>(turns.cycle_length()) / static_cast<double>(turns.share(q));
      others[s] = std::max(
          others[s], own.minibatch_seconds() / minibatches + (own.step_seconds + exchange_latency) / round);
    }
    ranks[static_cast<size_t>(shape.group_of(static_cast<int64_t>(s)))] += others[s] + alone / round;
    if (s + 1 == devices.size()) continue;
    const auto pass = [&](int64_t from, int64_t to, int64_t bytes, double part) {
      double alone = 0;
      const double latency = tree.along_path(from, to, [&](int32_t link) {
        const double seconds = static_cast<double>(bytes) / bandwidths[static_cast<size_t>(link)];
        links[static_cast<size_t>(link)] += part * seconds;
        alone = std::max(alone, seconds);
      });
      between.back() += part * (latency + alone);
    };
    between.push_back(0);
    for (const ReplicaPair& pair : replica_pairs(turns, StageTurns(shape, stage + 1))) {
      const int64_t ours = devices[s][static_cast<size_t>(pair.first)];
      const int64_t theirs = devices[s + 1][static_cast<size_t>(pair.second)];
      pass(ours, theirs, messages[s].activation_bytes, pair.part);
      if (shape.receives_gradient(stage)) pass(theirs, ours, messages[s + 1].gradient_bytes, pair.part);
    }
  }
  NetworkPace pace;
  pace.floor_seconds =
      std::max(*std::max_element(ranks.begin(), ranks.end()), *std::max_element(links.begin(), links.end()));
  pace.likely_seconds = likely(others, exchanges, links, pace.floor_seconds);
  pace.between_seconds = std::move(between);
  return pace;
}

double network_floor_seconds(const PipelineShape& shape, const std::vector<StageTimes>& times,
                             const SimulationOptions& options) {
  if (shape.stages_per_rank > 1) return 0;
  std::vector<std::vector<int64_t>> devices;
  std::vector<int64_t> rounds;
  int64_t rank = 0;
  for (const int64_t replicas : shape.replicas) {
    rounds.push_back(StageTurns(shape, std::ssize(rounds)).round_length());
    devices.emplace_back();
    for (int64_t q = 0; q < replicas; ++q, ++rank)
      devices.back().push_back(options.devices.empty() ? rank : options.devices[static_cast<size_t>(rank)]);
  }
  return network_pace(LinkTree(options.network), shape, rounds, times, options.messages, devices)
      .floor_seconds;
}

}  // namespace pipewright
