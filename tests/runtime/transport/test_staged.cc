// A device's tensors over a transport of the host. That all of the suite's messages arrive is in
// test_transport.cc; here is what the copies' order must be.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "runtime/transport/channel.h"
#include "tests/support/late_copies.h"
#include "tests/support/spawn.h"

using namespace pipewright;
using pipewright::testing::LateCopies;
using pipewright::testing::LateStream;
using pipewright::testing::spawn;

namespace {

// A rank with a stream that it computes on.
struct Rank {
  explicit Rank(std::unique_ptr<Transport> host) {
    auto copies = std::make_unique<LateCopies>(compute);
    engine = copies.get();
    transport = make_staged_transport(std::move(host), std::move(copies));
  }
  std::shared_ptr<LateStream> compute = std::make_shared<LateStream>();
  LateCopies* engine = nullptr;
  std::unique_ptr<Transport> transport;
};

std::pair<std::unique_ptr<Rank>, std::unique_ptr<Rank>> two_ranks() {
  auto world = make_local_world(2);
  return {std::make_unique<Rank>(std::move(world[0])), std::make_unique<Rank>(std::move(world[1]))};
}

}  // namespace

TEST_CASE(
    "staged: a message is what the sender's stream had computed, and the receiver's stream computes with "
    "it") {
  const auto [first, second] = two_ranks();
  for (int64_t k = 0; k < 60; ++k) {
    const at::Tensor value = at::zeros({1 + k % 7});
    first->compute->give([value, k] { value.fill_(k); });  // computed after send() has returned
    auto send = first->transport->send(value, 1, 0);
    const at::Tensor into = at::full(value.sizes(), -1.0);
    const at::Tensor result = at::zeros_like(into);
    auto receive = second->transport->receive(into, 0, 0);
    receive->wait();
    const int64_t number = second->compute->give([into, result] { result.copy_(into + 1); });
    send->wait();
    second->compute->wait(number);
    REQUIRE(result.equal(at::full(value.sizes(), static_cast<double>(k + 1))));
  }
}

TEST_CASE(
    "staged: what was computed with a tensor before it became the place of a message is not overtaken") {
  const auto [first, second] = two_ranks();
  for (int64_t k = 0; k < 60; ++k) {
    first->transport->send(at::full({5}, k), 1, 0)->wait();
    const at::Tensor place = at::full({5}, -7);
    const at::Tensor earlier = at::zeros({5}, at::kLong);
    second->compute->give([place, earlier] { earlier.copy_(place); });
    second->transport->receive(place, 0, 0)->wait();
    second->compute->wait(second->compute->given());
    REQUIRE(earlier.equal(at::full({5}, -7)));
    REQUIRE(place.equal(at::full({5}, k)));
  }
}

TEST_CASE("staged: after a send's wait the sender's tensor may change") {
  const auto [first, second] = two_ranks();
  for (int64_t k = 0; k < 60; ++k) {
    const at::Tensor value = at::full({9}, k);
    first->transport->send(value, 1, 0)->wait();
    first->compute->give([value] { value.fill_(-1); });
    const at::Tensor into = at::zeros({9}, at::kLong);
    second->transport->receive(into, 0, 0)->wait();
    second->compute->wait(second->compute->given());
    REQUIRE(into.equal(at::full({9}, k)));
  }
}

TEST_CASE("staged: the threads that compute never wait for a copy") {
  const auto [first, second] = two_ranks();
  const std::vector<MessagePart> parts = {{{64}, at::kFloat}, {{3}, at::kLong}};
  const int64_t messages = 50;
  std::vector<std::vector<at::Tensor>> got;
  std::set<std::thread::id> computing;
  std::thread sender([&, &first = first] {
    Outbox outbox(*first->transport, 10, 2);
    for (int64_t k = 0; k < messages; ++k) outbox.send(1, {at::full({64}, double(k)), at::full({3}, k)});
    outbox.flush();
  });
  computing.insert(sender.get_id());
  Inbox inbox(*second->transport, 10, std::vector<Inbox::Expected>(messages, {0, &parts}), 2);
  for (int64_t k = 0; k < messages; ++k) got.push_back(inbox.next());
  sender.join();
  second->compute->wait(second->compute->given());
  for (int64_t k = 0; k < messages; ++k) {
    CHECK(got[static_cast<size_t>(k)][0].equal(at::full({64}, double(k))));
    CHECK(got[static_cast<size_t>(k)][1].equal(at::full({3}, k)));
  }
  computing.insert(std::this_thread::get_id());
  CHECK(first->engine->host_waiters().size() == 1);  // the thread that sends
  CHECK(second->engine->host_waiters().empty());
  for (const auto& thread : first->engine->host_waiters()) CHECK(computing.count(thread) == 0);
}

TEST_CASE("staged: an abort wakes a receive that nobody serves, and the end of a rank its own threads") {
  auto [first, second] = two_ranks();
  auto waited = second->transport->receive(at::empty({4}), 0, 0);
  auto never = second->transport->receive(at::empty({4}), 0, 1);
  std::string problem;
  std::thread waiter([&] {
    try {
      waited->wait();
    } catch (const PeerError& error) {
      problem = error.what();
    }
  });
  second->transport->abort("rank 0 is gone");
  waiter.join();
  CHECK_THAT(problem, Catch::Contains("rank 0 is gone"));
  CHECK_THROWS_AS(never->wait(), PeerError);

  auto forgotten = first->transport->receive(at::empty({4}), 1, 0);
  first.reset();  // its thread waits for the message
}
