#include "runtime/probe/probe.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "runtime/control/control.h"
#include "runtime/control/exchange.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/probe/link_measurements.h"
#include "runtime/probe/measurements.h"
#include "runtime/probe/probe_report.h"
#include "runtime/probe/probed_topology.h"
#include "runtime/transport/connect.h"
#include "runtime/transport/process_state.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kExchangedBytes[] = {int64_t{1} << 20, int64_t{16} << 20, int64_t{64} << 20};
constexpr int64_t kCrowdRounds = 3;
constexpr double kCrowdSeconds = 0.3;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

// Of all threads of this process.
double core_seconds_so_far() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

RankFacts facts_of_this_rank() {
  const std::string host = this_process().host;
  const std::string machine = machine_identity();
  return {host, machine.empty() ? host : machine, usable_cores(), host_cores()};
}

// One rank's part in the plan: all go through it step by step.
class ProbingRank {
 public:
  ProbingRank(const std::vector<RankFacts>& ranks, const ProbePlan& plan, Transport& transport,
              Control& control, std::chrono::milliseconds patience)
      : ranks_(ranks),
        plan_(plan),
        transport_(transport),
        control_(control),
        patience_(patience),
        rank_(transport.rank()) {}

  void measure() {
    for (const Flow& link : plan_.links) {
      meet("link", link.from, link.to);
      if (!is_of(link)) continue;
      const ProbedLink found = meter(link).link();
      if (rank_ == link.from) control_.post(found);
    }
    for (const Flow& pair : plan_.pairs) {
      meet("pair", pair.from, pair.to);
      if (!is_of(pair)) continue;
      const ProbedPair found = meter(pair).look_closely(
          have_a_core_each(ranks_[static_cast<size_t>(pair.from)], ranks_[static_cast<size_t>(pair.to)]));
      if (rank_ == pair.from) control_.post(found);
    }
    for (size_t crowd = 0; crowd < plan_.crowds.size(); ++crowd) {
      for (int64_t round = 0; round < kCrowdRounds; ++round) {
        for (const bool together : {false, true}) take_part(static_cast<int64_t>(crowd), round, together);
      }
    }
    for (size_t group = 0; group < plan_.groups.size(); ++group) {
      const auto& ranks = plan_.groups[group];
      double seconds_per_byte = 0;  // of the size before
      for (const int64_t bytes : kExchangedBytes) {
        meet("sum", static_cast<int64_t>(group), bytes);
        if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) continue;
        const auto found =
            exchange(transport_, ranks, bytes, seconds_per_byte * static_cast<double>(bytes), {0.4, 3, 30});
        if (!found) continue;
        seconds_per_byte = found->seconds / static_cast<double>(bytes);
        if (rank_ == ranks[0]) control_.post(*found);
      }
    }
  }

 private:
  bool is_of(const Flow& flow) const { return rank_ == flow.from || rank_ == flow.to; }
  PairMeter meter(const Flow& pair) {
    const bool leads = rank_ == pair.from;
    return {transport_, leads ? pair.to : pair.from, leads};
  }
  void meet(const std::string& what, int64_t first, int64_t second) {
    control_.barrier(what + " " + std::to_string(first) + "-" + std::to_string(second), patience_);
  }
  void take_part(int64_t crowd, int64_t round, bool together) {
    meet("crowd " + std::to_string(crowd), round, together ? 1 : 0);
    const Crowd& plan = plan_.crowds[static_cast<size_t>(crowd)];
    for (const Flow& flow : together ? plan.together : plan.alone) {
      if (!is_of(flow)) continue;
      const double core_seconds = core_seconds_so_far();
      const auto begin = Clock::now();
      CrowdSample sample{crowd, round, together, rank_, stream(transport_, flow, kCrowdSeconds), 0, 0};
      sample.core_seconds = core_seconds_so_far() - core_seconds;
      sample.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      control_.post(sample);
    }
  }

  const std::vector<RankFacts>& ranks_;
  const ProbePlan& plan_;
  Transport& transport_;
  Control& control_;
  const std::chrono::milliseconds patience_;
  const int64_t rank_;
};

}  // namespace

void probe(const Place& place, const ProbeSettings& settings) {
  PW_CHECK_LE(2, place.world_size);
  at::set_num_threads(1);  // as ranks compute by default
  const auto patience = milliseconds_of(settings.start_timeout_seconds);
  std::optional<Store> server;
  if (place.rank == 0 && !place.store_is_served) server = serve_store(place);
  auto [store, for_control] = join_store(place, patience);

  std::mutex mutex;  // abort may come while the transport is being made
  std::unique_ptr<Transport> transport;
  Control control(std::move(for_control), place.rank, place.world_size, patience,
                  [&](const std::string& why) {
                    const std::lock_guard lock(mutex);
                    if (transport) transport->abort(why);
                  });
  std::vector<RankFacts> ranks;
  Measurements measurements;  // Control's thread adds to it, until finish() has returned
  control.set_sink([&](int64_t, RankMessage message) {
    const auto take = [&](auto& told) {
      if constexpr (requires { measurements.take(told); }) measurements.take(std::move(told));
    };
    std::visit(take, message);
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
    Exchange exchange(store, {place.rank, place.world_size, patience, [&] { control.check(); }});
    exchange.say(Topic::kProbeFacts, facts_of_this_rank().to_text());
    for (const std::string& facts : exchange.said_by_all(Topic::kProbeFacts))
      ranks.push_back(RankFacts::from_text(facts));
    std::vector<std::string> hosts;
    for (const RankFacts& rank : ranks) hosts.push_back(rank.host);
    const ProbePlan plan = probe_plan(hosts);
    ProbingRank(ranks, plan, *transport, control, patience).measure();
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
  measurements.ranks = std::move(ranks);
  measurements.sort();
  std::fputs(probe_report(measurements).c_str(), stdout);
  const std::string warning = noise_warning(measurements);
  if (!warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  write_document(settings.output, topology_of(measurements));
  std::printf("topology: %s\n", settings.output.c_str());
}

}  // namespace pipewright
