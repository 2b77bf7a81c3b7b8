// A device's tensors over a transport of the host. That all of the suite's messages arrive is in
// test_transport.cc; here is what the copies' order must be.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "runtime/transport/channel.h"
#include "tests/support/fake_device.h"
#include "tests/support/late_rank.h"
#include "tests/support/spawn.h"

using namespace pipewright;
using pipewright::testing::connect_world;
using pipewright::testing::LateCopies;
using pipewright::testing::spawn;

namespace {

auto two_staged_ranks() { return pipewright::testing::two_late_ranks<LateCopies, make_staged_transport>(); }

}  // namespace

TEST_CASE(
    "staged: a message is what the sender's stream had computed, and the receiver's stream computes with "
    "it") {
  const auto [first, second] = two_staged_ranks();
  for (int64_t k = 0; k < 30; ++k) {
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
  const auto [first, second] = two_staged_ranks();
  for (int64_t k = 0; k < 30; ++k) {
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
  const auto [first, second] = two_staged_ranks();
  for (int64_t k = 0; k < 30; ++k) {
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
  const auto [first, second] = two_staged_ranks();
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
  auto [first, second] = two_staged_ranks();
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

// The device that is none has streams and events, and its copies are done at once: what runs here is the
// engine that a GPU has.
TEST_CASE(
    "device tensors: staged over each host transport and handed over between threads, mixed with the "
    "host's") {
  const auto way = GENERATE(as<std::string>(), "local", "auto", "gloo", "shm");
  CAPTURE(way);
  const at::Device device = pipewright::testing::fake_device();
  auto world = way == "local" ? make_local_world(2)
                              : connect_world(2, [&](Store& store, const std::string& name, int64_t rank) {
                                  ConnectSettings settings;
                                  settings.transport = way;
                                  settings.gloo_address = "127.0.0.1";
                                  settings.device = device;
                                  return connect_ranks(store, name, rank, 2, settings);
                                });
  spawn(std::move(world), [device](int64_t rank, Transport& transport) {
    const std::vector<MessagePart> parts = {{{64}, at::kFloat}, {{3, 2}, at::kLong}, {{5}, at::kBFloat16}};
    const auto message = [&](int64_t from, int64_t k) {
      std::vector<at::Tensor> tensors;
      for (const MessagePart& part : parts)
        tensors.push_back(at::full(part.shape, k + 100 * from, at::TensorOptions().dtype(part.dtype)));
      return tensors;
    };
    const int64_t peer = 1 - rank;
    for (int64_t k = 0; k < 40; ++k) {
      std::vector<std::unique_ptr<Request>> requests;
      std::vector<at::Tensor> got;
      int64_t tag = 0;
      for (const at::Tensor& tensor : message(rank, k)) {
        const at::Device where = tag == 1 ? at::Device(at::kCPU) : device;
        got.push_back(at::empty(tensor.sizes(), tensor.options()).to(where));
        requests.push_back(transport.send(tensor.to(where), peer, tag));
        requests.push_back(transport.receive(got.back(), peer, tag++));
      }
      for (const auto& request : requests) request->wait();
      const auto expected = message(peer, k);
      for (size_t i = 0; i < got.size(); ++i)
        if (!got[i].to(at::kCPU).equal(expected[i])) throw std::runtime_error("part " + std::to_string(i));
    }
  });
}
