// Messages that are held back: late, in order, and no wait that cannot be woken.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "graph/error.h"
#include "runtime/transport/local.h"
#include "runtime/transport/slowed.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct World {
  std::atomic<double> seconds = 0;
  std::unique_ptr<Transport> sender, receiver;

  World() {
    auto ranks = make_local_world(2);
    receiver = std::move(ranks[1]);
    sender = make_slowed_transport(std::move(ranks[0]), [this](int64_t) { return seconds.load(); });
  }
  int64_t next() {
    const at::Tensor into = at::empty({1}, at::kLong);
    receiver->receive(into, 0, 7)->wait();
    return into.item<int64_t>();
  }
  std::unique_ptr<Request> send(int64_t value) { return sender->give(at::full({1}, value, at::kLong), 1, 7); }
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TEST_CASE("messages that are held back follow each other, and those behind them do not overtake") {
  World world;
  std::vector<std::unique_ptr<Request>> requests;
  const auto begin = Clock::now();
  for (int64_t k = 0; k < 20; ++k) {
    world.seconds = k % 3 == 0 ? 0.005 : 0;  // seven of them
    requests.push_back(world.send(k));
  }
  for (int64_t k = 0; k < 20; ++k) CHECK(world.next() == k);
  CHECK(seconds_since(begin) >= 7 * 0.005);
  for (const auto& request : requests) request->wait();
}

TEST_CASE("whoever waits for a message that is held back is woken when the job ends") {
  World world;
  world.seconds = 3600;
  const auto request = world.send(1);
  std::thread ends([&] { world.sender->abort("rank 1 has died"); });
  CHECK(error_of<PeerError>([&] { request->wait(); }).find("rank 1 has died") != std::string::npos);
  ends.join();
}

}  // namespace pipewright::testing
