// Where to stop: ranks as threads that work on different minibatches when a change of plan is proposed, and
// then another, and when a signal comes.
#include "runtime/control/standing_orders.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <memory>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "runtime/control/signals.h"
#include "tests/runtime/control/agreeing_rank.h"
#include "tests/support/long.h"

using namespace pipewright;
using pipewright::testing::AgreeingRank;

namespace {

// What a rank has come to know, and done.
struct Lived {
  std::vector<std::pair<int64_t, std::string>> stops;  // before which minibatch, and for what; "": a signal
  std::vector<int64_t> forwards;
};

struct World {
  int64_t entries = 1, ranks = 1, first = 0;
  std::function<int64_t(int64_t)> stop_after;
};

// One after the other: what to stop for is proposed as soon as nothing is under way, then the signal comes.
std::vector<Lived> live(const World& world, const std::vector<std::string>& changes, Store& server,
                        const std::string& name, uint64_t seed) {
  std::vector<std::unique_ptr<AgreeingRank>> ranks;
  for (int64_t rank = 0; rank < world.ranks; ++rank)
    ranks.push_back(std::make_unique<AgreeingRank>(
        AgreeingRank::Settings{rank, world.ranks, world.first, true, world.stop_after}));
  std::atomic<bool> end = false;
  std::vector<std::thread> controls;
  for (int64_t rank = 0; world.ranks > 1 && rank < world.ranks; ++rank) {
    controls.emplace_back([&, rank] {
      Store store = Store::join("127.0.0.1", server.port(), std::chrono::seconds(20), name);
      AgreeingRank& mine = *ranks[static_cast<size_t>(rank)];
      const auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
      while (!end) {
        mine.tick(store);
        rest();
      }
      // As a job ends: what is on its way arrives, so that what is left in the store is the same each time.
      mine.tick(store);
      mine.channel().finish(store);
      while (rank == 0 && !mine.channel().collect(store)) rest();
    });
  }
  std::vector<Lived> lives(static_cast<size_t>(world.ranks));
  std::vector<std::thread> workers;
  for (int64_t rank = 0; rank < world.ranks; ++rank) {
    workers.emplace_back([&, rank] {
      StandingOrders& mine = ranks[static_cast<size_t>(rank)]->orders();
      Lived& life = lives[static_cast<size_t>(rank)];
      std::mt19937_64 random(seed + static_cast<uint64_t>(rank));
      const auto rest = [&](uint64_t most) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % most));
      };
      size_t proposed = 0;
      int64_t k = world.first + rank;
      while (true) {
        if (rank == 0 && !mine.under_way() && random() % 4 == 0) {
          if (proposed < changes.size()) {
            ranks[0]->propose(changes[proposed++]);
          } else {
            received_signal = SIGTERM;
          }
        }
        if (rank < world.entries) mine.enter(k, [] {});
        const int64_t stop = mine.stop_before();
        if (rank >= world.entries ? stop == StandingOrders::kNever : k < stop) {
          if (rank < world.entries) life.forwards.push_back(std::exchange(k, k + world.entries));
          rest(300);
          continue;
        }
        life.stops.emplace_back(stop, mine.signal() == 0 ? mine.change() : "");
        if (mine.signal() != 0) return;
        rest(3000);
        mine.go_on();
      }
    });
  }
  for (auto& worker : workers) worker.join();
  end = true;
  for (auto& control : controls) control.join();
  received_signal = 0;
  return lives;
}

}  // namespace

TEST_CASE(
    "all ranks stop before the same minibatches for the same reasons, which none has begun, and the first "
    "stage goes on up to there") {
  static Store server = Store::serve(0);
  std::mt19937_64 random(4);
  for (int round = 0; round < (testing::is_long() ? 100 : 12); ++round) {
    World world;
    world.entries = 1 + static_cast<int64_t>(random() % 3);
    world.ranks = world.entries + static_cast<int64_t>(random() % 3);
    const int64_t period = 1 + static_cast<int64_t>(random() % 7);
    // A run that goes on begins somewhere.
    world.first = static_cast<int64_t>(random() % 3) * period * static_cast<int64_t>(random() % 9);
    world.stop_after = [&](int64_t last) {
      return (last + 1 + world.entries + period - 1) / period * period;
    };
    std::vector<std::string> changes;
    for (uint64_t n = random() % 5; n > 0; --n) changes.push_back("plan " + std::to_string(n));
    CAPTURE(round, world.entries, world.ranks, period, world.first, changes.size());
    const auto lives = live(world, changes, server, "stop" + std::to_string(round), random());

    const auto& stops = lives[0].stops;
    REQUIRE(stops.size() == changes.size() + 1);
    for (size_t i = 0; i < stops.size(); ++i) {
      CHECK(stops[i].second == (i < changes.size() ? changes[i] : ""));
      CHECK(stops[i].first % period == 0);
      CHECK(stops[i].first > (i == 0 ? world.first : stops[i - 1].first));
    }
    for (int64_t rank = 0; rank < world.ranks; ++rank) {
      const Lived& life = lives[static_cast<size_t>(rank)];
      CHECK(life.stops == stops);
      if (rank >= world.entries) continue;
      // All of its own up to the last stop, none twice.
      std::vector<int64_t> own;
      for (int64_t k = world.first + rank; k < stops.back().first; k += world.entries) own.push_back(k);
      CHECK(life.forwards == own);
    }
  }
}

TEST_CASE("however often the ranks stop, they leave no more keys in the store") {
  const auto keys_after = [](size_t changes) {
    Store server = Store::serve(0);
    live({2, 3, 0, [](int64_t last) { return last + 3; }}, std::vector<std::string>(changes, "another"),
         server, "keys", 1);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(server.port());
    options.waitWorkers = false;
    return c10d::TCPStore("127.0.0.1", options).getNumKeys();
  };
  CHECK(keys_after(20) == keys_after(1));
}

TEST_CASE(
    "one rank that goes on from a checkpoint and gets the signal first stops behind it, not before it") {
  for (const int64_t first : {0, 12, 4096}) {
    AgreeingRank rank({0, 1, first, true, [](int64_t last) { return last + 2; }});
    StandingOrders& alone = rank.orders();
    received_signal = SIGINT;
    alone.enter(first, [] {});
    received_signal = 0;
    CHECK(alone.signal() == SIGINT);
    CHECK(alone.stop_before() == first + 1);
  }
}
