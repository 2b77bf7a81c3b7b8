// Shared links, queues and blocking transfers.
#include "runtime/schedule/network.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/simulate.h"
#include "runtime/schedule/timeline.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::dashed;

TopologyLevel level(int64_t count, double bandwidth, bool shared = false, double latency = 0) {
  return {count, bandwidth, latency, shared};
}

TEST_CASE("a tree of links: a message passes both ends' links up to the level that joins them") {
  // Two servers of two devices, then one switch for all.
  const LinkTree tree({level(2, 10, false, 1), level(2, 4, false, 2)});
  CHECK(tree.devices() == 4);
  REQUIRE(tree.bandwidths().size() == 8 + 4);
  CHECK(tree.path(0, 1).links == std::vector<int32_t>{0, 3});
  CHECK(tree.path(0, 1).latency_seconds == 1);
  CHECK(tree.path(3, 0).links == std::vector<int32_t>{6, 1, 10, 9});
  CHECK(tree.path(3, 0).latency_seconds == 2);
  const LinkTree bus({level(2, 10, true), level(3, 4, true)});
  CHECK(bus.bandwidths().size() == 3 + 1);
  CHECK(bus.path(0, 1).links == std::vector<int32_t>{0});
  CHECK(bus.path(0, 5).links == std::vector<int32_t>{0, 2, 3});
  CHECK_THROWS_AS(LinkTree({}), CheckError);
  CHECK_THROWS_AS(LinkTree({level(2, 0)}), CheckError);
}

TEST_CASE("fair shares: rates are max-min fair, whatever comes and goes") {
  // Each message has a link that is full and on which no other is faster.
  std::mt19937_64 random(21);
  for (int round = 0; round < 100; ++round) {
    const size_t link_count = 1 + random() % 8;
    std::vector<double> bandwidths(link_count);
    for (double& bandwidth : bandwidths) bandwidth = 1 + static_cast<double>(random() % 9);
    FairNetwork network(bandwidths);
    struct Flow {
      std::vector<int32_t> links;
      std::vector<double> weights;
      double rate = 0;
    };
    std::map<int32_t, Flow> flows;
    double now = 0;
    for (int step = 0; step < 40; ++step, now += 1e-9) {  // too short for anything to arrive
      const auto number = static_cast<int32_t>(random() % 12);
      if (flows.count(number)) {
        network.remove(number);
        flows.erase(number);
      } else {
        Flow flow;
        for (size_t link = 0; link < link_count; ++link)
          if (random() % 3 == 0) flow.links.push_back(static_cast<int32_t>(link));
        if (flow.links.empty()) flow.links.push_back(static_cast<int32_t>(random() % link_count));
        for (size_t at = 0; round % 2 == 1 && at < flow.links.size(); ++at)
          flow.weights.push_back(0.5 * static_cast<double>(1 + random() % 6));
        network.add(number, flow.links, 1, now, flow.weights);
        if (flow.weights.empty()) flow.weights.assign(flow.links.size(), 1);
        flows[number] = flow;
      }
      if (random() % 3 == 0) continue;  // several changes at once
      network.settle(now);
      CHECK_FALSE(network.unsettled());
      double first = FairNetwork::kNever;
      for (auto& [other, flow] : flows) {
        flow.rate = 1 / (network.arrival(other) - now);
        first = std::min(first, network.arrival(other));
      }
      CHECK(network.next_arrival() == first);
      std::vector<double> load(link_count, 0), fastest(link_count, 0);
      for (const auto& [other, flow] : flows)
        for (size_t at = 0; at < flow.links.size(); ++at) {
          const int32_t link = flow.links[at];
          load[link] += flow.rate * flow.weights[at];
          fastest[link] = std::max(fastest[link], flow.rate);
        }
      for (size_t link = 0; link < link_count; ++link) CHECK(load[link] <= bandwidths[link] * (1 + 1e-6));
      for (const auto& [other, flow] : flows)
        CHECK(std::any_of(flow.links.begin(), flow.links.end(), [&](int32_t link) {
          return load[link] >= bandwidths[link] * (1 - 1e-6) && flow.rate >= fastest[link] * (1 - 1e-6);
        }));
    }
  }
}

TEST_CASE("fair shares by example: a message that leaves makes room for those that stay") {
  FairNetwork network({10});
  network.add(0, {0}, 100, 0);
  network.settle(0);
  CHECK(network.next_arrival() == 10);
  network.add(1, {0}, 10, 4);  // 60 left of the first; 5 each
  network.settle(4);
  CHECK(network.arrival(0) == 16);
  CHECK(network.part_left(0, 5) == 0.55);
  CHECK(network.next_arrival() == 6);
  CHECK(network.next_flow() == 1);
  network.remove(1);
  network.settle(6);
  CHECK(network.next_arrival() == 11);  // 50 left at 10
  CHECK(network.part_left(1, 6) == -1);
}

struct NetworkCase {
  PipelineShape shape;
  std::vector<StageTimes> times;
  std::string schedule;
  Span span;
};

NetworkCase random_network_case(std::mt19937_64& random) {
  const auto number = [&](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  NetworkCase out;
  const auto& rows = schedules();
  const ScheduleRow* drawn = nullptr;
  do drawn = &rows[random() % rows.size()];
  while (drawn->kind == ScheduleKind::kCustom);
  const ScheduleRow& row = *drawn;
  out.schedule = row.name;
  const size_t stages = 2 + random() % 3;
  for (size_t stage = 0; stage < stages; ++stage)
    out.shape.replicas.push_back(1 + static_cast<int64_t>(random() % 3));
  if (row.v_shaped) out.shape.replicas.assign(stages, out.shape.replicas[0]);
  if (row.several_stages && (row.v_shaped || random() % 2)) {
    out.shape.stages_per_rank = 2;
    out.shape.v_shaped = row.v_shaped;
    const std::vector<int64_t> once = out.shape.replicas;
    out.shape.replicas.insert(out.shape.replicas.end(), once.begin(), once.end());
  }
  out.shape.in_flight.resize(out.shape.replicas.size());
  for (int64_t& depth : out.shape.in_flight) depth = 1 + static_cast<int64_t>(random() % 5);
  out.shape.microbatches = 1 + static_cast<int64_t>(random() % 9);
  if (row.trains() && out.schedule != "1f1b" && out.schedule != "model-parallel")
    out.shape.weights = WeightRule::kFlush;
  const std::vector<int64_t> depths = row.depths(out.shape);
  for (size_t stage = 0; stage < depths.size(); ++stage)
    out.shape.in_flight[stage] = std::max(out.shape.in_flight[stage], depths[stage]);
  for (size_t stage = 0; stage < out.shape.replicas.size(); ++stage) {
    StageTimes t{number(1), number(2), number(0.5), number(0.2), number(0.7), number(0.7)};
    t.backward_weight_seconds = number(t.backward_seconds);
    t.recompute_seconds = random() % 2 ? 0 : number(1);
    out.times.push_back(t);
  }
  out.span = {static_cast<int64_t>(random() % 5), static_cast<int64_t>(random() % 30)};
  return out;
}

using Key = std::tuple<int64_t, int, int64_t, int64_t>;
std::map<Key, std::pair<double, double>> by_action(const Simulation& simulation) {
  std::map<Key, std::pair<double, double>> all;
  for (const SimulatedAction& a : simulation.actions)
    all[{a.rank, static_cast<int>(a.action.kind), a.action.stage, a.action.index}] = {a.begin_seconds,
                                                                                      a.end_seconds};
  return all;
}

TEST_CASE("both engines find the same times, to the bit") {
  std::mt19937_64 random(22);
  for (int round = 0; round < 300; ++round) {
    const NetworkCase one = random_network_case(random);
    CAPTURE(one.schedule, dashed(one.shape.replicas), dashed(one.shape.in_flight), one.span.first,
            one.span.count);
    SimulationOptions options;
    options.blocking_transfers = random() % 2;
    const Simulation swept = simulate(one.schedule, one.shape, one.times, one.span, options);
    options.send_queue = 1000000;
    const Simulation events = simulate(one.schedule, one.shape, one.times, one.span, options);
    CHECK(swept.total_seconds == events.total_seconds);
    CHECK(swept.steady_minibatch_seconds == events.steady_minibatch_seconds);
    CHECK((by_action(swept) == by_action(events)));
    for (size_t rank = 0; rank < swept.ranks.size(); ++rank) {
      CHECK(swept.ranks[rank].busy_seconds == events.ranks[rank].busy_seconds);
      CHECK(swept.ranks[rank].peak_in_flight == events.ranks[rank].peak_in_flight);
      CHECK(swept.ranks[rank].receive_wait_seconds == Approx(events.ranks[rank].receive_wait_seconds));
      CHECK(swept.ranks[rank].send_wait_seconds == Approx(events.ranks[rank].send_wait_seconds));
      CHECK(swept.ranks[rank].reduce_seconds == Approx(events.ranks[rank].reduce_seconds));
    }
  }
}

TEST_CASE("a network that nobody shares: the times of its links") {
  // Activations only, so that no link has two messages at once.
  const std::vector<StageTimes> times(3, StageTimes{1, 2, 0, 0, 0.5, 0.25});
  const PipelineShape shape{{1, 1, 1}, {4, 2, 1}};
  SimulationOptions options;
  options.network = {level(3, 100)};
  options.messages.assign(3, {50, 25, 0});
  const Simulation shared = simulate("1f1b", shape, times, Span{0, 40}, options);
  const Simulation alone = simulate("1f1b", shape, times, Span{0, 40});
  CHECK(shared.total_seconds == Approx(alone.total_seconds));
  CHECK(shared.steady_minibatch_seconds == Approx(alone.steady_minibatch_seconds));
  options.network[0].latency_seconds = 0.125;
  CHECK(simulate("model-parallel", shape, times, Span{0, 4}, options).total_seconds ==
        Approx(4 * (9 + 2 * 0.75 + 4 * 0.125)));
}

TEST_CASE("a server's link is shared by its ranks") {
  // Two replicas on one server send to two on another, both at the same time.
  const std::vector<StageTimes> times = {{1, 0}, {1, 0}};
  const PipelineShape shape{{2, 2}, {1, 1}};
  SimulationOptions options;
  options.messages.assign(2, {100, 0, 0});
  options.network = {level(4, 100)};
  CHECK(simulate("forward", shape, times, Span{0, 2}, options).total_seconds == Approx(1 + 1 + 1));
  options.network = {level(2, 1000), level(2, 100)};
  CHECK(simulate("forward", shape, times, Span{0, 2}, options).total_seconds == Approx(1 + 2 + 1));
  // Placed crosswise no message leaves its server.
  options.devices = {0, 2, 1, 3};
  CHECK(simulate("forward", shape, times, Span{0, 2}, options).total_seconds == Approx(1 + 0.1 + 1));
  // One bus for all.
  options.network = {level(4, 100, true)};
  CHECK(simulate("forward", shape, times, Span{0, 2}, options).total_seconds == Approx(1 + 2 + 1));
  options.devices = {0, 1};
  CHECK_THROWS_AS(simulate("forward", shape, times, Span{0, 2}, options), CheckError);
  options.devices = {};
  options.network = {level(3, 100)};
  CHECK_THROWS_AS(simulate("forward", shape, times, Span{0, 2}, options), CheckError);
  options.network = {level(4, 100)};
  options.messages.pop_back();
  CHECK_THROWS_AS(simulate("forward", shape, times, Span{0, 2}, options), CheckError);
}

TEST_CASE("a reduce on a network is the direct exchange of the formula") {
  SimulationOptions options;
  options.network = {level(4, 100, false, 0.5)};
  options.messages.assign(1, {0, 0, 200});
  const auto seconds = [&] {
    return simulate("1f1b", {{4}, {1}}, {{1, 2}}, Span{0, 4}, options).total_seconds - 3;
  };
  // Two latencies, then 2 * 3 / 4 * 200 bytes from each.
  CHECK(seconds() == Approx(1 + 3));
  // Two servers: each of the two ranks of one sends a quarter to each of the two others, twice.
  options.network = {level(2, 1e9), level(2, 100)};
  CHECK(seconds() == Approx(2 * 2 * 2 * 50 / 100.0));
  // It is the same wherever the replicas of a server are in the row.
  options.devices = {0, 2, 1, 3};
  CHECK(seconds() == Approx(2 * 2 * 2 * 50 / 100.0));
  // One bus for all: twelve messages, twice.
  options.network = {level(4, 100, true)};
  CHECK(seconds() == Approx(2 * 12 * 50 / 100.0));
  options.messages[0].reduce_bytes = 0;
  CHECK(seconds() == Approx(0));
}

TEST_CASE("an exchange as one flow carries what its messages would, one by one") {
  std::mt19937_64 random(24);
  for (int round = 0; round < 200; ++round) {
    std::vector<TopologyLevel> levels;
    for (size_t l = 1 + random() % 3; l > 0; --l)
      levels.push_back(level(1 + static_cast<int64_t>(random() % 4), 100, random() % 2));
    const LinkTree tree(levels);
    std::vector<int64_t> devices;
    for (int64_t d = 0; d < tree.devices(); ++d)
      if (random() % 2) devices.push_back(d);
    if (devices.size() < 2) continue;
    std::map<int32_t, double> expected, found;
    for (const int64_t a : devices)
      for (const int64_t b : devices) {
        if (a == b) continue;
        for (const int32_t link : tree.path(a, b).links)
          expected[link] += 1 / static_cast<double>(devices.size() - 1);
      }
    const LinkTree::Exchange exchange = tree.exchange(devices);
    for (size_t at = 0; at < exchange.links.size(); ++at) found[exchange.links[at]] += exchange.weights[at];
    REQUIRE(found.size() == expected.size());
    for (const auto& [link, weight] : expected) CHECK(found.at(link) == Approx(weight));
  }
}

TEST_CASE("blocking transfers are added to the compute at both ends") {
  // Straight, with time to spare: a middle rank computes 3, receives and sends 0.5 + 0.25 each way.
  std::vector<StageTimes> times(3, StageTimes{1, 2, 0, 0, 0.5, 0.25});
  SimulationOptions blocking;
  blocking.blocking_transfers = true;
  const PipelineShape shape{{1, 1, 1}, {3, 2, 1}};
  CHECK(bottleneck_seconds(shape, times, true) == Approx(4.5));
  CHECK(simulate("model-parallel", shape, times, Span{0, 3}, blocking).total_seconds == Approx(3 * 10.5));
  const double steady =
      simulate("1f1b", {{1, 1, 1}, {5, 3, 1}}, times, Span{0, 300}, blocking).steady_minibatch_seconds;
  CHECK(steady >= 4.5 - 1e-9);
  CHECK(steady <= 4.5 * 1.5);
  CHECK(simulate("1f1b", shape, times, Span{0, 300}).steady_minibatch_seconds < 4.5);
  // A pair: the sender is busy while it sends, the receiver while it receives.
  times.resize(2);
  const Simulation pair = simulate("forward", {{1, 1}, {1, 1}}, times, Span{0, 10}, blocking);
  CHECK(pair.steady_minibatch_seconds == Approx(1.5));
  CHECK(pair.ranks[0].send_wait_seconds == Approx(5));
}

TEST_CASE("queues: a send waits for its receiver to ask, too short a queue deadlocks and is found") {
  const std::vector<StageTimes> times = {{1, 1}, {4, 0}};
  SimulationOptions options;
  options.send_queue = 1;
  options.receive_ahead = 1;
  // Forward only: the first stage runs ahead of the second by what is asked for (1), and what it may send
  // (1).
  const Simulation simulation = simulate("forward", {{1, 1}, {1, 1}}, times, Span{0, 6}, options);
  std::map<Key, std::pair<double, double>> at = by_action(simulation);
  const auto sent = [&](int64_t k) {
    return at[{0, static_cast<int>(ActionKind::kSendActivation), -1, k}].first;
  };
  CHECK(sent(0) == 1);
  CHECK(sent(1) == 2);
  CHECK(sent(2) == 3);  // 0 was consumed at 1, so 1 has been asked for
  CHECK(sent(3) == 5);  // 2 is asked for when 1 is consumed
  CHECK(sent(4) == 9);
  CHECK(simulation.ranks[0].send_wait_seconds > 0);
  CHECK(simulation.total_seconds == 1 + 24);

  const PipelineShape far_ahead{{1, 1}, {25, 1}};
  options.send_queue = 2;
  options.receive_ahead = 2;
  CHECK_THROWS_AS(simulate("1f1b", far_ahead, times, Span{0, 40}, options), CheckError);
  options.send_queue = 26;
  CHECK_NOTHROW(simulate("1f1b", far_ahead, times, Span{0, 40}, options));
}

TEST_CASE("random pipelines on random networks: everything ends, no faster than without sharing") {
  std::mt19937_64 random(23);
  for (int round = 0; round < 200; ++round) {
    NetworkCase one = random_network_case(random);
    CAPTURE(one.schedule, dashed(one.shape.replicas));
    SimulationOptions options;
    for (size_t stage = 0; stage < one.times.size(); ++stage) {
      const StageMessages bytes{static_cast<int64_t>(random() % 100), static_cast<int64_t>(random() % 100),
                                0};
      options.messages.push_back(bytes);
      one.times[stage].send_activation_seconds = static_cast<double>(bytes.activation_bytes) / 100;
      one.times[stage].send_gradient_seconds = static_cast<double>(bytes.gradient_bytes) / 100;
      one.times[stage].reduce_seconds = 0;
    }
    const bool shared = random() % 2;
    options.network = {level(4, 100, shared), level(4, 100, random() % 2)};
    const double alone = simulate(one.schedule, one.shape, one.times, one.span).total_seconds;
    const Simulation on_network = simulate(one.schedule, one.shape, one.times, one.span, options);
    CHECK(on_network.total_seconds >= alone * (1 - 1e-9));
    const Simulation again = simulate(one.schedule, one.shape, one.times, one.span, options);
    CHECK(again.total_seconds == on_network.total_seconds);
    CHECK((by_action(again) == by_action(on_network)));
    // Ten times the bandwidth is no slower, to what order can do.
    for (TopologyLevel& fast : options.network) fast.bandwidth_bytes_per_second *= 1e6;
    std::vector<StageTimes> free = one.times;
    for (StageTimes& times : free) times.send_activation_seconds = times.send_gradient_seconds = 0;
    CHECK(simulate(one.schedule, one.shape, one.times, one.span, options).total_seconds ==
          Approx(simulate(one.schedule, one.shape, free, one.span).total_seconds).epsilon(1e-4));
  }
}

}  // namespace
}  // namespace pipewright
