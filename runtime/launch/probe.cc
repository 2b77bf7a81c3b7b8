#include "runtime/launch/probe.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "runtime/control/control.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/transport/all_reduce.h"
#include "runtime/transport/connect.h"
#include "runtime/transport/process_state.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostProbedRanks = 16;
constexpr int64_t kLargeBytes = int64_t{4} << 20;
constexpr int64_t kExchangedBytes = int64_t{16} << 20;

double median(std::vector<double> values) {
  PW_CHECK(!values.empty(), "no values");
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Half of a ping-pong, the median of `repetitions`.
double one_way_seconds(Transport& transport, int64_t peer, bool first, int64_t bytes, int repetitions) {
  const at::Tensor out = at::zeros({bytes}, at::kByte);
  const at::Tensor in = at::zeros({bytes}, at::kByte);
  std::vector<double> times;
  for (int i = -3; i < repetitions; ++i) {  // the first ones warm up
    const auto begin = Clock::now();
    auto receive = transport.receive(in, peer, 0);
    if (!first) receive->wait();
    auto send = transport.send(out, peer, 0);
    if (first) receive->wait();
    send->wait();
    if (i >= 0) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 2);
  }
  return median(times);
}

ProbedLink measure(Transport& transport, int64_t from, int64_t to) {
  const bool first = transport.rank() == from;
  const int64_t peer = first ? to : from;
  ProbedLink link{from, to, one_way_seconds(transport, peer, first, 1, 200), 0};
  const double large = one_way_seconds(transport, peer, first, kLargeBytes, 20);
  link.bandwidth_bytes_per_second =
      static_cast<double>(kLargeBytes) / std::max(large - link.latency_seconds, large / 10);
  return link;
}

// The first ranks of the first host, and the first rank of each host, as far as they are several.
std::vector<std::vector<int64_t>> exchanging(const std::vector<std::string>& hosts) {
  std::vector<int64_t> within, between;
  std::vector<std::string> seen;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto number = static_cast<int64_t>(rank);
    if (hosts[rank] == hosts[0] && static_cast<int64_t>(within.size()) < kMostProbedRanks)
      within.push_back(number);
    if (std::find(seen.begin(), seen.end(), hosts[rank]) != seen.end()) continue;
    seen.push_back(hosts[rank]);
    if (static_cast<int64_t>(between.size()) < kMostProbedRanks) between.push_back(number);
  }
  std::vector<std::vector<int64_t>> groups;
  for (auto& group : {within, between})
    if (group.size() > 1) groups.push_back(group);
  return groups;
}

// Of a sum over `ranks`, of which this is one.
double exchange_seconds(Transport& transport, const std::vector<int64_t>& ranks) {
  const at::Tensor flat = at::zeros({kExchangedBytes / 4});
  std::vector<double> times;
  for (int i = -2; i < 7; ++i) {
    const auto begin = Clock::now();
    all_reduce_sum(transport, ranks, 0, flat);
    if (i >= 0) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(times);
}

// As if each byte of what a rank sends in a sum took so long on its link.
double exchange_bytes_per_second(const ProbedExchange& exchange, double latency_seconds) {
  const auto members = static_cast<double>(exchange.ranks.size());
  const double sent = 2 * (members - 1) / members * static_cast<double>(exchange.bytes);
  return sent / std::max(exchange.seconds - 2 * latency_seconds, exchange.seconds / 10);
}

void print(const std::vector<std::string>& hosts, const std::vector<ProbedLink>& links,
           const std::vector<ProbedExchange>& exchanges) {
  std::printf("ranks     hosts                     latency     bandwidth\n");
  for (const ProbedLink& link : links) {
    const std::string pair = std::to_string(link.from) + " - " + std::to_string(link.to);
    const std::string names =
        hosts[static_cast<size_t>(link.from)] + " - " + hosts[static_cast<size_t>(link.to)];
    std::printf("%-8s  %-24s  %-10s  %s\n", pair.c_str(), names.c_str(),
                format_seconds(link.latency_seconds).c_str(),
                format_bytes_per_second(link.bandwidth_bytes_per_second).c_str());
  }
  for (const ProbedExchange& exchange : exchanges) {
    std::printf("sum over %zu ranks: %s for %s\n", exchange.ranks.size(),
                format_seconds(exchange.seconds).c_str(),
                format_bytes(static_cast<double>(exchange.bytes)).c_str());
  }
}

}  // namespace

Topology topology_of_links(const std::vector<std::string>& hosts, const std::vector<ProbedLink>& links,
                           const std::vector<ProbedExchange>& exchanges) {
  // Levels need hosts of equal size whose ranks are neighbours.
  std::vector<std::string> names;
  for (const std::string& host : hosts) {
    if (std::find(names.begin(), names.end(), host) == names.end()) names.push_back(host);
  }
  const size_t per_host = hosts.size() / names.size();
  bool even = per_host * names.size() == hosts.size();
  for (size_t rank = 0; even && rank < hosts.size(); ++rank) even = hosts[rank] == names[rank / per_host];

  std::vector<double> latency[2], bandwidth[2];  // within a host, between hosts
  for (const ProbedLink& link : links) {
    const bool between = hosts.at(static_cast<size_t>(link.from)) != hosts.at(static_cast<size_t>(link.to));
    latency[between].push_back(link.latency_seconds);
    bandwidth[between].push_back(link.bandwidth_bytes_per_second);
  }
  Topology topology;
  const auto count = [](size_t members) { return static_cast<int64_t>(members); };
  if (even) {
    if (per_host > 1) topology.levels.push_back({count(per_host), median(bandwidth[0]), median(latency[0])});
    if (names.size() > 1)
      topology.levels.push_back({count(names.size()), median(bandwidth[1]), median(latency[1])});
  } else {
    TopologyLevel level{count(hosts.size()), links.at(0).bandwidth_bytes_per_second, 0};
    for (const ProbedLink& link : links) {
      level.bandwidth_bytes_per_second =
          std::min(level.bandwidth_bytes_per_second, link.bandwidth_bytes_per_second);
      level.latency_seconds = std::max(level.latency_seconds, link.latency_seconds);
    }
    topology.levels.push_back(level);
  }
  for (const ProbedExchange& exchange : exchanges) {
    const bool between = hosts.at(static_cast<size_t>(exchange.ranks.at(0))) !=
                         hosts.at(static_cast<size_t>(exchange.ranks.at(1)));
    TopologyLevel& level = between ? topology.levels.back() : topology.levels.front();
    level.exchange_bytes_per_second = exchange_bytes_per_second(exchange, level.latency_seconds);
  }
  for (const std::string& host : hosts) {
    TopologyDevice device;
    device.host = host;
    topology.devices.push_back(device);
  }
  return topology;
}

void probe(const Place& place, const ProbeSettings& settings) {
  PW_CHECK_LE(2, place.world_size);
  const auto milliseconds_of = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
  };
  const auto patience = milliseconds_of(settings.start_timeout_seconds);
  std::optional<Store> server;
  if (place.rank == 0 && !place.store_is_served) server = serve_store(place);
  Store store = join_store(place, patience);
  claim_rank(store, place);

  std::mutex mutex;  // abort may come while the transport is being made
  std::unique_ptr<Transport> transport;
  Control control(store.clone(), place.rank, place.world_size, patience, [&](const std::string& why) {
    const std::lock_guard lock(mutex);
    if (transport) transport->abort(why);
  });
  std::vector<std::string> hosts(static_cast<size_t>(place.world_size));
  std::vector<ProbedLink> links;
  std::vector<ProbedExchange> exchanges;
  control.set_sink([&](int64_t rank, const std::string& line) {
    const Json json = parse_json(line, "probe");
    if (json.contains("exchange")) {
      exchanges.push_back({json.at("exchange").get<std::vector<int64_t>>(), kExchangedBytes,
                           json.at("seconds").get<double>()});
    } else {
      links.push_back({rank, json.at("to").get<int64_t>(), json.at("latency_seconds").get<double>(),
                       json.at("bandwidth_bytes_per_second").get<double>()});
    }
  });

  try {
    control.barrier("arrival", patience, Meeting::kStart);
    ConnectSettings connection;
    connection.transport = settings.transport;
    connection.gloo_address = gloo_address_of(place);
    connection.timeout = patience;
    connection.check = [&] { control.check(); };
    connection.cores = host_cores();
    auto connected = connect_ranks(store, "links", place.rank, place.world_size, connection);
    {
      const std::lock_guard lock(mutex);
      transport = std::move(connected);
      if (const auto failure = control.failure()) transport->abort(failure->message);
    }
    warm_links(*transport);
    control.set_timeout(milliseconds_of(settings.timeout_seconds));
    const auto host_key = [](int64_t rank) { return "probe/host/" + std::to_string(rank); };
    store.set(host_key(place.rank), this_process().host);
    for (size_t rank = 0; rank < hosts.size(); ++rank)
      hosts[rank] = store.get(host_key(static_cast<int64_t>(rank)), patience, [&] { control.check(); });
    const int64_t probed = std::min(place.world_size, kMostProbedRanks);
    for (int64_t from = 0; from < probed; ++from) {
      for (int64_t to = from + 1; to < probed; ++to) {
        control.barrier("link " + std::to_string(from) + "-" + std::to_string(to), patience);
        if (place.rank != from && place.rank != to) continue;
        const ProbedLink link = measure(*transport, from, to);
        if (place.rank != from) continue;
        control.post(Json{{"to", to},
                          {"latency_seconds", link.latency_seconds},
                          {"bandwidth_bytes_per_second", link.bandwidth_bytes_per_second}}
                         .dump());
      }
    }
    const auto groups = exchanging(hosts);
    for (size_t g = 0; g < groups.size(); ++g) {
      control.barrier("exchange " + std::to_string(g), patience);
      const auto& ranks = groups[g];
      if (std::find(ranks.begin(), ranks.end(), place.rank) == ranks.end()) continue;
      const double seconds = exchange_seconds(*transport, ranks);
      if (place.rank == ranks[0]) control.post(Json{{"exchange", ranks}, {"seconds", seconds}}.dump());
    }
    control.barrier("end", patience, Meeting::kEnd);
  } catch (const PeerError& lost) {
    const Failure failure = control.peer_lost(lost.what());
    control.finish(std::chrono::seconds(2));
    throw JobEnded(ExitCode::kPeerLost, failure.message, failure);
  } catch (const JobEnded&) {
    control.finish(std::chrono::seconds(2));
    throw;
  }
  control.finish(patience);
  control.check();
  if (place.rank != 0) return;
  std::sort(links.begin(), links.end(), [](const ProbedLink& a, const ProbedLink& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  print(hosts, links, exchanges);
  write_document(settings.output, topology_of_links(hosts, links, exchanges));
  std::printf("topology: %s\n", settings.output.c_str());
}

}  // namespace pipewright
