// Messages whose halves wait for each other on the device. That all of the suite's messages arrive is in
// test_transport.cc; here is that the device never waits for what its host has still to do.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/late_lanes.h"
#include "tests/support/spawn.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Contains;

namespace {

struct Rank {
  std::unique_ptr<Transport> transport;
  LateLanes* lanes = nullptr;  // owned by the transport
};

std::vector<Rank> paired_ranks(int64_t size, const DeviceLinks& links) {
  std::vector<Rank> ranks;
  const auto place = std::make_shared<MeetingPlace>();
  auto hosts = make_local_world(size);
  for (int64_t rank = 0; rank < size; ++rank) {
    auto lanes = std::make_unique<LateLanes>();
    Rank one;
    one.lanes = lanes.get();
    one.transport =
        make_paired_transport(std::move(hosts[static_cast<size_t>(rank)]),
                              std::make_unique<MeetingTransport>(place, rank, size), std::move(lanes), links);
    ranks.push_back(std::move(one));
  }
  return ranks;
}

}  // namespace

TEST_CASE(
    "paired: a host may wait for its device before anything it does, receives posted far ahead or not") {
  // Down and up a pipeline, as 1F1B does: each rank has `ahead` receives posted of either kind. Launched at
  // once, those of gradients would keep the device waiting for activations that its host has not sent yet.
  const int64_t ranks = GENERATE(2, 3, 4);
  const int64_t ahead = GENERATE(1, 2, 5);
  CAPTURE(ranks, ahead);
  constexpr int64_t kMinibatches = 12;
  constexpr int64_t kDown = 1, kUp = 2;
  auto world = paired_ranks(ranks, links_between(ranks, {kDown, kUp}));
  std::vector<std::thread> threads;
  std::vector<std::string> problems(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Transport& transport = *world[static_cast<size_t>(rank)].transport;
      std::mt19937 draw(static_cast<uint32_t>(rank));
      const auto host_waits = [&] {
        if (draw() % 2 == 0) world[static_cast<size_t>(rank)].lanes->wait_for_all();
      };
      struct Posted {
        at::Tensor tensor;
        std::unique_ptr<Request> request;
      };
      std::deque<Posted> down, up;
      std::vector<std::unique_ptr<Request>> sends;
      const auto post = [&](std::deque<Posted>& posted, int64_t peer, int64_t tag) {
        const at::Tensor into = at::full({3}, -1.0);
        posted.push_back({into, transport.receive(into, peer, tag)});
      };
      const auto next = [&](std::deque<Posted>& posted, int64_t k) {
        posted.front().request->wait();
        if (!posted.front().tensor.eq(static_cast<double>(k)).all().item<bool>())
          problems[static_cast<size_t>(rank)] = "minibatch " + std::to_string(k);
        posted.pop_front();
      };
      const bool first = rank == 0, last = rank + 1 == ranks;
      for (int64_t k = 0; k < std::min(ahead, kMinibatches); ++k) {
        if (!first) post(down, rank - 1, kDown);
        if (!last) post(up, rank + 1, kUp);
      }
      const int64_t depth = ranks - rank;
      for (int64_t step = 0; step < kMinibatches + depth - 1; ++step) {
        host_waits();
        if (const int64_t k = step; k < kMinibatches) {
          if (!first) next(down, k);
          if (!first && k + ahead < kMinibatches) post(down, rank - 1, kDown);
          host_waits();
          if (!last) sends.push_back(transport.send(at::full({3}, 1.0 * k), rank + 1, kDown));
        }
        host_waits();
        if (const int64_t k = step - (depth - 1); k >= 0) {
          if (!last) next(up, k);
          if (!last && k + ahead < kMinibatches) post(up, rank + 1, kUp);
          host_waits();
          if (!first) sends.push_back(transport.send(at::full({3}, 1.0 * k), rank - 1, kUp));
        }
      }
      for (const auto& send : sends) send->wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(problems == std::vector<std::string>(static_cast<size_t>(ranks)));
}

TEST_CASE("paired: what has no counterpart is never launched") {
  auto world = paired_ranks(2, links_between(2, {1}));
  const at::Tensor into = at::full({3}, -1.0);
  const auto receive = world[0].transport->receive(into, 1, 1);
  world[0].lanes->wait_for_all();  // returns: nothing was launched
  const auto send = world[1].transport->send(at::ones({3}), 0, 1);
  receive->wait();
  send->wait();
  CHECK(into.equal(at::ones({3})));
}

TEST_CASE("paired: an abort wakes waits for what was launched and for what was not") {
  auto world = paired_ranks(2, links_between(2, {1, 2}));
  const auto receive = world[0].transport->receive(at::zeros({3}), 1, 1);
  const auto send = world[0].transport->send(at::zeros({3}), 1, 2);
  world[0].transport->abort("rank 1 is lost");
  for (Request* const request : {receive.get(), send.get()}) {
    try {
      request->wait();
      FAIL("it came");
    } catch (const PeerError& error) {
      CHECK_THAT(error.what(), Contains("rank 1 is lost"));
    }
  }
}
