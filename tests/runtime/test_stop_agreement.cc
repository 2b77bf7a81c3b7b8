// Where to stop: ranks as threads that work on different minibatches when a signal comes.
#include <catch2/catch.hpp>
#include <csignal>
#include <memory>
#include <random>
#include <thread>

#include "runtime/control/control.h"
#include "runtime/control/stop_agreement.h"

using namespace pipewright;

TEST_CASE("all ranks agree on a minibatch that none has begun, and the first stage goes on up to it") {
  static Store server = Store::serve(0);
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    const int64_t entries = 1 + static_cast<int64_t>(random() % 3);
    const int64_t world = entries + static_cast<int64_t>(random() % 3);
    if (world == 1) continue;  // nothing to agree on
    const int64_t period = 1 + static_cast<int64_t>(random() % 7);
    // A run that goes on begins somewhere; a signal may come before it has.
    const int64_t first = static_cast<int64_t>(random() % 3) * period * static_cast<int64_t>(random() % 9);
    const bool at_once = random() % 3 == 0;
    std::vector<int64_t> first_stage;
    for (int64_t rank = 0; rank < entries; ++rank) first_stage.push_back(rank);
    const auto stop_after = [&](int64_t last) { return (last + 1 + entries + period - 1) / period * period; };
    std::vector<std::unique_ptr<StopAgreement>> ranks;
    for (int64_t rank = 0; rank < world; ++rank)
      ranks.push_back(std::make_unique<StopAgreement>(rank, world, first, first_stage, stop_after));

    std::vector<int64_t> last(static_cast<size_t>(entries), first - 1);
    if (at_once) received_signal = SIGTERM;
    std::atomic<bool> end = false;
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        Store store =
            Store::join("127.0.0.1", server.port(), std::chrono::seconds(20), "stop" + std::to_string(round));
        while (!end) {
          ranks[static_cast<size_t>(rank)]->tick(store);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
    }
    std::vector<std::thread> workers;
    for (int64_t rank = 0; rank < entries; ++rank) {
      workers.emplace_back([&, rank] {
        StopAgreement& mine = *ranks[static_cast<size_t>(rank)];
        if (at_once) {
          while (mine.signal() == 0) std::this_thread::yield();
        }
        for (int64_t k = first + rank;; k += entries) {
          mine.enter(k, [] {});
          if (k >= mine.stop_before()) return;
          last[static_cast<size_t>(rank)] = k;
          std::this_thread::sleep_for(std::chrono::microseconds(200 * (1 + rank)));
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    received_signal = SIGTERM;
    for (auto& worker : workers) worker.join();
    end = true;
    for (auto& thread : threads) thread.join();
    received_signal = 0;

    const int64_t stop = ranks[0]->stop_before();
    CAPTURE(round, entries, world, period, first, at_once, stop);
    CHECK(stop % period == 0);
    CHECK(stop > first);
    for (const auto& rank : ranks) {
      CHECK(rank->stop_before() == stop);
      CHECK(rank->signal() == SIGTERM);
    }
    for (int64_t rank = 0; rank < entries; ++rank) {
      // The last of its own before the stop.
      CHECK(last[static_cast<size_t>(rank)] < stop);
      CHECK(last[static_cast<size_t>(rank)] + entries >= stop);
    }
  }
}

TEST_CASE(
    "one rank that goes on from a checkpoint and gets the signal first stops behind it, not before it") {
  for (const int64_t first : {0, 12, 4096}) {
    StopAgreement alone(0, 1, first, {0}, [](int64_t last) { return last + 2; });
    received_signal = SIGINT;
    alone.enter(first, [] {});
    received_signal = 0;
    CHECK(alone.signal() == SIGINT);
    CHECK(alone.stop_before() == first + 1);
  }
}
