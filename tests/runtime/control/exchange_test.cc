// What ranks tell each other once.
#include "runtime/control/exchange.h"

#include <catch2/catch.hpp>
#include <thread>

#include "graph/error.h"

using namespace pipewright;
using namespace std::chrono_literals;

namespace {

constexpr Topic kTopics[] = {Topic::kFingerprint, Topic::kHost,     Topic::kProbeFacts,
                             Topic::kGroupServer, Topic::kCache,    Topic::kKeptInventory,
                             Topic::kKeptChoice,  Topic::kKeptReady};

struct Rank {
  Rank(const Store& server, int64_t rank, int64_t world_size, std::chrono::milliseconds patience = 60s,
       std::function<void()> check = {})
      : store(Store::join("127.0.0.1", server.port(), 60s)),
        exchange(store, {rank, world_size, patience, std::move(check)}) {}
  Store store;
  Exchange exchange;
};

}  // namespace

TEST_CASE("exchange: what all say is read in the order of ranks, whoever comes first") {
  const Store server = Store::serve(0);
  constexpr int64_t kRanks = 5;
  std::vector<std::vector<std::string>> heard(kRanks);
  std::vector<std::thread> ranks;
  for (int64_t r = kRanks - 1; r >= 0; --r) {
    ranks.emplace_back([&, r] {
      Rank rank(server, r, kRanks);
      if (r % 2 == 0) rank.exchange.said_by(1, Topic::kProbeFacts);  // rank 1 speaks before these
      rank.exchange.say(Topic::kProbeFacts, "of\n" + std::to_string(r));
      heard[static_cast<size_t>(r)] = rank.exchange.said_by_all(Topic::kProbeFacts);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& texts : heard)
    CHECK(texts == std::vector<std::string>{"of\n0", "of\n1", "of\n2", "of\n3", "of\n4"});
}

TEST_CASE("exchange: topics and ranks are apart, and a text may be empty") {
  const Store server = Store::serve(0);
  Rank first(server, 0, 2), second(server, 1, 2);
  for (const Topic topic : kTopics) {
    first.exchange.say(topic, "first " + std::to_string(static_cast<int>(topic)));
    second.exchange.say(topic, "");
  }
  for (const Topic topic : kTopics) {
    CHECK(second.exchange.said_by(0, topic) == "first " + std::to_string(static_cast<int>(topic)));
    CHECK(first.exchange.said_by(1, topic).empty());
  }
}

TEST_CASE("exchange: the same may be said again") {
  const Store server = Store::serve(0);
  Rank rank(server, 1, 2);
  rank.exchange.say(Topic::kHost, "node3");
  Rank(server, 1, 2).exchange.say(Topic::kHost, "node3");
  CHECK(rank.exchange.said_by(1, Topic::kHost) == "node3");
}

TEST_CASE("exchange: what nobody says is waited for as long as the patience, or until the job ends") {
  const Store server = Store::serve(0);
  Rank impatient(server, 0, 2, 50ms);
  impatient.exchange.say(Topic::kHost, "node1");
  CHECK_THROWS_AS(impatient.exchange.said_by(1, Topic::kHost), PeerError);
  CHECK_THROWS_AS(impatient.exchange.said_by_all(Topic::kHost), PeerError);
  Rank patient(server, 0, 2, 60s, [] { throw RunError("the job has ended"); });
  CHECK_THROWS_WITH(patient.exchange.said_by(1, Topic::kHost), Catch::Contains("the job has ended"));
}
