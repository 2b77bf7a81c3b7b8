// The thread that takes what ranks tell: from several threads, and when taking fails.
#include "runtime/journal/message_thread.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

int64_t number_in(const RankMessage& message) { return std::stoll(std::get<TraceDocument>(message).text); }

}  // namespace

TEST_CASE("message thread: of each thread that puts messages all are taken, in its order, one at a time") {
  for (int round = 0; round < 20; ++round) {
    constexpr int64_t kThreads = 4, kMessages = 300;
    std::map<int64_t, std::vector<int64_t>> taken;
    std::atomic<int> inside = 0;
    bool overlapped = false;
    MessageThread messages([&](int64_t rank, const RankMessage& message) {
      overlapped = overlapped || inside.fetch_add(1) != 0;
      taken[rank].push_back(number_in(message));
      inside.fetch_sub(1);
    });
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < kThreads; ++rank) {
      threads.emplace_back([&, rank] {
        for (int64_t i = 0; i < kMessages; ++i) messages.put(rank, TraceDocument{std::to_string(i)});
      });
    }
    for (std::thread& thread : threads) thread.join();
    messages.finish();
    CHECK_FALSE(overlapped);
    CHECK(taken.size() == kThreads);
    for (const auto& [rank, numbers] : taken) {
      REQUIRE(numbers.size() == kMessages);
      CHECK(std::is_sorted(numbers.begin(), numbers.end()));
    }
  }
}

TEST_CASE("message thread: behind an error nothing is taken, whatever was waiting, and all hear of it") {
  std::mt19937_64 random(10);
  for (int round = 0; round < 50; ++round) {
    CAPTURE(round);
    const auto fails_at = static_cast<int64_t>(random() % 20);
    std::vector<int64_t> taken;
    std::promise<void> all_put;
    MessageThread messages([&, allowed = all_put.get_future().share()](int64_t, const RankMessage& message) {
      allowed.wait();
      taken.push_back(number_in(message));
      if (number_in(message) == fails_at) throw RunError("no room at " + std::to_string(fails_at));
    });
    for (int64_t i = 0; i < 20; ++i) messages.put(0, TraceDocument{std::to_string(i)});
    messages.check();
    all_put.set_value();
    const std::string expected = "no room at " + std::to_string(fails_at);
    CHECK(error_of<RunError>([&] { messages.finish(); }) == expected);
    CHECK(error_of<RunError>([&] { messages.check(); }) == expected);
    CHECK(error_of<RunError>([&] { messages.put(0, TraceDocument{"20"}); }) == expected);
    CHECK(taken.size() == static_cast<size_t>(fails_at + 1));
  }
}

}  // namespace pipewright::testing
