// A device's tensors between processes that share it. That all of the suite's messages arrive is in
// test_transport.cc; here is what the copies' order must be, how many blocks there are, and who uses them.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "runtime/transport/shared_blocks.h"
#include "tests/support/fake_device.h"
#include "tests/support/late_blocks.h"
#include "tests/support/late_rank.h"
#include "tests/support/spawn.h"
#include "tests/support/stand_in_cuda.h"

using namespace pipewright;
using pipewright::testing::connect_world;
using pipewright::testing::LateBlocks;
using pipewright::testing::spawn;

namespace {

auto two_block_ranks() { return pipewright::testing::two_late_ranks<LateBlocks, make_block_transport>(); }

// Opens nothing when it is told so, as where the system keeps processes apart.
class ShyBlocks : public BlockSharing {
 public:
  explicit ShyBlocks(bool opens, std::atomic<int64_t>& filled) : opens_(opens), filled_(filled) {}
  std::unique_ptr<SharedBlock> make(int64_t bytes) override {
    ++filled_;
    return inner_.make(bytes);
  }
  std::unique_ptr<SharedBlock> open(const std::string& handle) override {
    if (!opens_) throw RunError("CUDA: invalid device context");
    return inner_.open(handle);
  }

 private:
  bool opens_;
  std::atomic<int64_t>& filled_;
  LateBlocks inner_;
};

class SharingCuda : public pipewright::testing::StandInCuda {
 public:
  SharingCuda(std::string identity, bool opens) : identity_(std::move(identity)), opens_(opens) {}
  std::string device_identity(int64_t) override { return identity_; }
  std::unique_ptr<BlockSharing> make_block_sharing(int64_t) override {
    return std::make_unique<ShyBlocks>(opens_, made);
  }
  std::atomic<int64_t> made = 0;

 private:
  std::string identity_;
  bool opens_;
};

}  // namespace

TEST_CASE(
    "blocks: a message is what the sender's stream had computed, and the receiver's stream computes with "
    "it") {
  const auto [first, second] = two_block_ranks();
  for (int64_t k = 0; k < 50; ++k) {
    const at::Tensor value = at::zeros({1 + k % 7});
    first->compute->give([value, k] { value.fill_(k); });  // computed after send() has returned
    auto send = first->transport->send(value, 1, 0);
    send->wait();
    first->compute->give([value] { value.fill_(-1); });  // after the wait it may change
    const at::Tensor into = at::full(value.sizes(), -1.0);
    const at::Tensor earlier = at::zeros_like(into), result = at::zeros_like(into);
    second->compute->give([into, earlier] { earlier.copy_(into); });  // is not overtaken
    second->transport->receive(into, 0, 0)->wait();
    const int64_t number = second->compute->give([into, result] { result.copy_(into + 1); });
    second->compute->wait(number);
    REQUIRE(earlier.equal(at::full(value.sizes(), -1.0)));
    REQUIRE(result.equal(at::full(value.sizes(), static_cast<double>(k + 1))));
  }
}

TEST_CASE("blocks: one is used again once its reader has answered") {
  const auto [first, second] = two_block_ranks();
  constexpr int64_t kMessages = 200, kUnderWay = 3;
  std::thread sender([&, &first = first] {
    std::deque<std::unique_ptr<Request>> answers;
    for (int64_t k = 0; k < kMessages; ++k) {
      first->transport->send(at::full({16}, k), 1, 0)->wait();
      // What the receiver sends back bounds how far this rank runs ahead.
      const at::Tensor credit = at::empty({1}, at::kLong);
      answers.push_back(first->transport->receive(credit, 1, 1));
      if (static_cast<int64_t>(answers.size()) < kUnderWay) continue;
      answers.front()->wait();
      answers.pop_front();
    }
    for (const auto& answer : answers) answer->wait();
  });
  for (int64_t k = 0; k < kMessages; ++k) {
    const at::Tensor into = at::zeros({16}, at::kLong);
    second->transport->receive(into, 0, 0)->wait();
    second->compute->wait(second->compute->given());
    REQUIRE(into.equal(at::full({16}, k)));
    second->transport->send(at::full({1}, k), 0, 1)->wait();
  }
  sender.join();
  // The thread that collects answers may be a little behind.
  CHECK(first->engine->made() <= kMessages / 2);
  CHECK(second->engine->opened() == first->engine->made());
}

TEST_CASE("blocks: an abort wakes a receive that nobody serves, and the end of a rank its own thread") {
  auto [first, second] = two_block_ranks();
  auto never = second->transport->receive(at::empty({4}), 0, 0);
  second->transport->abort("rank 0 is gone");
  CHECK_THROWS_WITH(never->wait(), Catch::Contains("rank 0 is gone"));
  first->transport->send(at::ones({4}), 1, 3)->wait();  // nobody will ever read it
  first.reset();
}

TEST_CASE("ranks that share a device use its memory, where each can open the other's, and no others") {
  struct Case {
    std::string transport;
    std::vector<std::string> identities;
    std::vector<bool> opens;
    std::vector<bool> uses;
  };
  const Case now = GENERATE(Case{"auto", {"a", "a", "b"}, {true, true, true}, {true, true, false}},
                            Case{"auto", {"a", "a", "a"}, {true, false, true}, {true, false, true}},
                            Case{"auto", {"a", "b", "b"}, {true, true, false}, {false, false, false}},
                            Case{"shm", {"a", "a", "a"}, {true, true, true}, {false, false, false}});
  CAPTURE(now.transport, now.identities, now.opens);
  const at::Device device = pipewright::testing::fake_device();
  std::vector<std::unique_ptr<SharingCuda>> plugins;
  for (size_t rank = 0; rank < 3; ++rank)
    plugins.push_back(std::make_unique<SharingCuda>(now.identities[rank], now.opens[rank]));
  auto world = connect_world(3, [&](Store& store, const std::string& name, int64_t rank) {
    ConnectSettings settings;
    settings.transport = now.transport;
    settings.gloo_address = "127.0.0.1";
    settings.device = device;
    settings.cuda = plugins[static_cast<size_t>(rank)].get();
    return connect_ranks(store, name, rank, 3, settings);
  });
  std::vector<int64_t> before;
  for (const auto& plugin : plugins) before.push_back(plugin->made);
  spawn(std::move(world), [device](int64_t rank, Transport& transport) {
    for (int64_t k = 0; k < 20; ++k) {
      std::vector<std::unique_ptr<Request>> requests;
      std::vector<at::Tensor> got(3);
      for (int64_t peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        got[static_cast<size_t>(peer)] = at::empty({5}, at::TensorOptions(at::kLong).device(device));
        requests.push_back(transport.receive(got[static_cast<size_t>(peer)], peer, 4));
        requests.push_back(transport.send(
            at::full({5}, 10 * rank + k, at::TensorOptions(at::kLong).device(device)), peer, 4));
      }
      for (const auto& request : requests) request->wait();
      for (int64_t peer = 0; peer < 3; ++peer) {
        if (peer != rank && !got[static_cast<size_t>(peer)].cpu().equal(at::full({5}, 10 * peer + k)))
          throw std::runtime_error("wrong data");
      }
    }
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK((plugins[rank]->made > before[rank]) == now.uses[rank]);
  }
}
