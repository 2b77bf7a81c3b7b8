#include "runtime/probe/probed_topology.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "graph/statistics.h"

namespace pipewright {
namespace {

// What of one link several get together may seem to be more than one gets.
constexpr double kMostOfOneLink = 1.2;
constexpr double kBusyCores = 0.5;
// The rate of sums is that of the first of so many bytes, which all levels have.
constexpr double kExchangeRateBytes = 8 << 20;

// The links that a level is made of.
enum class Reach { kWithinHosts, kBetweenHosts, kAny };

// By each of its ranks.
double sent_bytes(const ProbedExchange& exchange) {
  const auto members = static_cast<double>(exchange.ranks.size());
  return 2 * (members - 1) / members * static_cast<double>(exchange.bytes);
}

TopologyLevel level_of(const Measurements& measurements, Reach reach, size_t count) {
  const auto is_between = [&](int64_t rank, int64_t other) {
    return between_hosts(measurements, rank, other);
  };
  std::vector<double> latencies, bandwidths;
  for (const ProbedLink& link : measurements.links) {
    if (reach != Reach::kAny && is_between(link.from, link.to) != (reach == Reach::kBetweenHosts)) continue;
    latencies.push_back(link.latency_seconds);
    bandwidths.push_back(link.bandwidth_bytes_per_second);
  }
  const bool one_level = reach == Reach::kAny;
  TopologyLevel level;
  level.count = static_cast<int64_t>(count);
  level.latency_seconds =
      one_level ? *std::max_element(latencies.begin(), latencies.end()) : median(std::move(latencies));
  level.bandwidth_bytes_per_second =
      one_level ? *std::min_element(bandwidths.begin(), bandwidths.end()) : median(std::move(bandwidths));

  // Of links between hosts, where there is one level for all.
  const bool between = reach != Reach::kWithinHosts;
  for (const ProbedPair& pair : measurements.pairs) {
    if (is_between(pair.from, pair.to) != between) continue;
    const CoreLine line = core_line(pair.core_times);
    level.buffered_bytes = pair.buffered_bytes;
    level.core_seconds_per_message = line.seconds_per_message;
    level.core_seconds_per_byte = line.seconds_per_byte;
    level.both_ways_bytes_per_second = bytes_per_second(static_cast<double>(pair.both_ways.bytes),
                                                        pair.both_ways.seconds, level.latency_seconds);
    level.messages = pair.messages;
  }
  double rate_of_bytes = 0;  // the longest comes last
  for (const ProbedExchange& sum : measurements.exchanges) {
    if (is_between(sum.ranks.at(0), sum.ranks.at(1)) != between) continue;
    level.exchanges.push_back({static_cast<int64_t>(sent_bytes(sum)), sum.seconds, sum.spread});
    if (rate_of_bytes >= kExchangeRateBytes) continue;
    rate_of_bytes = static_cast<double>(sum.bytes);
    level.exchange_bytes_per_second = exchange_bytes_per_second(sum, level.latency_seconds);
  }
  return level;
}

// What is alone or together in one round.
struct Round {
  double bytes_per_second = 0;
  std::map<std::string, double> core_seconds;  // by machine
  double seconds = 0;
};

struct Machine {
  std::set<int64_t> ranks;  // that take part
  std::set<int> cores;
  int64_t host_cores = 0;

  int64_t core_count() const { return std::max(host_cores, static_cast<int64_t>(cores.size())); }
};

std::map<std::string, Machine> machines_of(const Measurements& measurements, const std::vector<Flow>& flows) {
  std::map<std::string, Machine> machines;
  for (const Flow& flow : flows) {
    for (const int64_t rank : {flow.from, flow.to})
      machines[measurements.ranks.at(static_cast<size_t>(rank)).machine].ranks.insert(rank);
  }
  for (const RankFacts& rank : measurements.ranks) {
    const auto machine = machines.find(rank.machine);
    if (machine == machines.end()) continue;
    machine->second.cores.insert(rank.cores.begin(), rank.cores.end());
    machine->second.host_cores = std::max(machine->second.host_cores, rank.host_cores);
  }
  return machines;
}

bool had_time(const std::map<std::string, Machine>& machines, const std::map<int64_t, Round>& rounds) {
  for (const auto& [name, machine] : machines) {
    if (static_cast<int64_t>(machine.ranks.size()) <= machine.core_count()) continue;
    std::vector<double> used;
    for (const auto& [number, round] : rounds) {
      const double had = static_cast<double>(machine.core_count()) * round.seconds;
      const auto core_seconds = round.core_seconds.find(name);
      used.push_back(core_seconds == round.core_seconds.end() || had <= 0 ? 0 : core_seconds->second / had);
    }
    if (median(std::move(used)) >= kBusyCores) return false;
  }
  return true;
}

double weight_of(const CoreTime& time) {
  const double error = std::max(time.error_seconds, 1e-9);
  return 1 / (error * error);
}

double badness(const CoreLine& line, const std::vector<CoreTime>& times) {
  double sum = 0;
  for (const CoreTime& time : times) {
    const double off =
        line.seconds_per_message + line.seconds_per_byte * static_cast<double>(time.bytes) - time.seconds;
    sum += weight_of(time) * off * off;
  }
  return sum;
}

}  // namespace

bool between_hosts(const Measurements& measurements, int64_t rank, int64_t other) {
  return measurements.ranks.at(static_cast<size_t>(rank)).host !=
         measurements.ranks.at(static_cast<size_t>(other)).host;
}

ProbedCrowd::Verdict ProbedCrowd::verdict() const {
  if (together_bytes_per_second >= kMostOfOneLink * alone_bytes_per_second) return Verdict::kNotOneLink;
  return cores_had_time ? Verdict::kOneLink : Verdict::kNotKnown;
}

std::vector<ProbedCrowd> probed_crowds(const Measurements& measurements) {
  const ProbePlan plan = probe_plan(measurements.hosts());
  std::vector<ProbedCrowd> crowds;
  for (size_t c = 0; c < plan.crowds.size(); ++c) {
    std::map<int64_t, Round> rounds[2];  // alone, together
    for (const CrowdSample& sample : measurements.crowds) {
      if (sample.crowd != static_cast<int64_t>(c)) continue;
      Round& round = rounds[sample.together][sample.round];
      round.bytes_per_second += sample.received_bytes_per_second;
      round.core_seconds[measurements.ranks.at(static_cast<size_t>(sample.rank)).machine] +=
          sample.core_seconds;
      round.seconds = std::max(round.seconds, sample.seconds);
    }
    if (rounds[0].empty() || rounds[1].empty()) continue;
    std::vector<double> rates[2];
    for (const int i : {0, 1})
      for (const auto& [number, round] : rounds[i]) rates[i].push_back(round.bytes_per_second);
    crowds.push_back({plan.crowds[c], median(rates[0]), relative_spread(rates[0]), median(rates[1]),
                      relative_spread(rates[1]),
                      had_time(machines_of(measurements, plan.crowds[c].together), rounds[1])});
  }
  return crowds;
}

CoreLine core_line(const std::vector<CoreTime>& times) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const CoreTime& time : times) {
    const double weight = weight_of(time);
    const auto bytes = static_cast<double>(time.bytes);
    w += weight;
    wx += weight * bytes;
    wy += weight * time.seconds;
    wxx += weight * bytes * bytes;
    wxy += weight * bytes * time.seconds;
  }
  if (times.empty()) return {};
  // The best line without bounds, if it keeps them; else the better of those that lie on one.
  const double variance = w * wxx - wx * wx;
  if (variance > 1e-12 * w * wxx) {
    const CoreLine free{(wxx * wy - wx * wxy) / variance, (w * wxy - wx * wy) / variance};
    if (free.seconds_per_message >= 0 && free.seconds_per_byte >= 0) return free;
  }
  const CoreLine level{std::max(0.0, wy / w), 0}, steep{0, std::max(0.0, wxy / wxx)};
  return badness(level, times) <= badness(steep, times) ? level : steep;
}

double exchange_bytes_per_second(const ProbedExchange& exchange, double latency_seconds) {
  return bytes_per_second(sent_bytes(exchange), exchange.seconds, 2 * latency_seconds);
}

namespace {

// Where all machines have the same number of ranks, in a row, and fewer cores than that.
SharedCores shared_cores(const std::vector<RankFacts>& ranks) {
  std::map<std::string, Machine> machines;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    Machine& machine = machines[ranks[rank].machine];
    machine.ranks.insert(static_cast<int64_t>(rank));
    machine.cores.insert(ranks[rank].cores.begin(), ranks[rank].cores.end());
    machine.host_cores = std::max(machine.host_cores, ranks[rank].host_cores);
  }
  const auto devices = static_cast<int64_t>(machines.begin()->second.ranks.size());
  int64_t cores = devices;
  for (const auto& [name, machine] : machines) {
    const int64_t row = *machine.ranks.rbegin() - *machine.ranks.begin() + 1;
    if (row != devices || static_cast<int64_t>(machine.ranks.size()) != devices) return {};
    cores = std::min(cores, machine.core_count());
  }
  return cores < devices && cores > 0 ? SharedCores{devices, cores} : SharedCores{};
}

// Sums over more ranks of a host than it has cores had to take turns; prices know that by themselves.
void give_cores_to_sums(const SharedCores& shared, Measurements* measurements) {
  for (ProbedExchange& sum : measurements->exchanges) {
    const auto ranks = static_cast<int64_t>(sum.ranks.size());
    if (shared.too_few_for(ranks))
      sum.seconds *= static_cast<double>(shared.cores) / static_cast<double>(ranks);
  }
}

}  // namespace

Topology topology_of(const Measurements& measured) {
  Measurements measurements = measured;
  const HostLayout layout = layout_of(measurements.hosts());
  Topology topology;
  topology.cores = shared_cores(measurements.ranks);
  if (layout.names.size() == 1) give_cores_to_sums(topology.cores, &measurements);
  if (layout.even) {
    const size_t per_host = layout.ranks[0].size();
    if (per_host > 1) topology.levels.push_back(level_of(measurements, Reach::kWithinHosts, per_host));
    if (layout.names.size() > 1)
      topology.levels.push_back(level_of(measurements, Reach::kBetweenHosts, layout.names.size()));
  } else {
    topology.levels.push_back(level_of(measurements, Reach::kAny, measurements.ranks.size()));
  }
  for (const ProbedCrowd& crowd : probed_crowds(measurements)) {
    switch (crowd.crowd.kind) {
      case Crowd::Kind::kPairsOfAHost:
        topology.levels.front().shared = crowd.verdict() == ProbedCrowd::Verdict::kOneLink;
        break;
      case Crowd::Kind::kRanksOfTwoHosts:
        // A host's link is its ranks' together; one of them alone may not fill it.
        topology.levels.back().bandwidth_bytes_per_second =
            std::max(topology.levels.back().bandwidth_bytes_per_second, crowd.together_bytes_per_second);
        break;
      case Crowd::Kind::kPairsOfHosts:
        topology.levels.back().shared = crowd.verdict() == ProbedCrowd::Verdict::kOneLink;
        break;
    }
  }
  for (const RankFacts& rank : measurements.ranks) {
    TopologyDevice device;
    device.host = rank.host;
    topology.devices.push_back(device);
  }
  return topology;
}

}  // namespace pipewright
