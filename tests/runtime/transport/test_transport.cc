// The suite that every transport must pass. A new transport joins with one word in kTransports.
#include <ATen/ATen.h>
#include <sched.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "runtime/transport/all_reduce.h"
#include "runtime/transport/channel.h"
#include "tests/support/spawn.h"

using namespace pipewright;
using pipewright::testing::make_world;
using pipewright::testing::spawn;

namespace {
const std::vector<std::string> kTransports = {"local", "gloo",   "shm",    "tiny-shm",
                                              "mixed", "staged", "blocks", "paired"};

at::Tensor numbered(int64_t first, std::vector<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return at::arange(first, first + elements, at::kFloat).reshape(shape);
}
}  // namespace

TEST_CASE("every rank tells every other rank something, and knows its place") {
  const auto transport = GENERATE(from_range(kTransports));
  CAPTURE(transport);
  spawn(make_world(transport, 4), [](int64_t rank, Transport& world) {
    if (world.rank() != rank || world.world_size() != 4) throw std::runtime_error("wrong place");
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<at::Tensor> got(4);
    for (int64_t peer = 0; peer < 4; ++peer) {
      if (peer == rank) continue;
      got[peer] = at::empty({3});
      requests.push_back(world.receive(got[peer], peer, 7));
      requests.push_back(world.send(at::full({3}, 10.0 * rank + peer), peer, 7));
    }
    for (auto& request : requests) request->wait();
    for (int64_t peer = 0; peer < 4; ++peer) {
      if (peer != rank && !got[peer].equal(at::full({3}, 10.0 * peer + rank)))
        throw std::runtime_error("wrong data");
    }
  });
}

TEST_CASE("messages of one tag keep their order, tags do not mix, sizes from one byte to megabytes") {
  const auto transport = GENERATE(from_range(kTransports));
  CAPTURE(transport);
  const std::vector<int64_t> sizes = {1, 2, 3, 1000, 65537, 1 << 20};
  spawn(make_world(transport, 2), [&](int64_t rank, Transport& world) {
    if (rank == 0) {
      std::vector<std::unique_ptr<Request>> requests;
      for (size_t i = 0; i < sizes.size(); ++i) {
        requests.push_back(world.send(numbered(static_cast<int64_t>(i), {sizes[i]}), 1, 0));
        requests.push_back(world.send(at::full({sizes[i]}, static_cast<int64_t>(i), at::kByte), 1, 1));
      }
      for (auto& request : requests) request->wait();
    } else {
      for (size_t i = 0; i < sizes.size(); ++i) {  // tag 1 first, though it was sent second
        const at::Tensor bytes = at::empty({sizes[i]}, at::kByte);
        world.receive(bytes, 0, 1)->wait();
        if (!bytes.eq(static_cast<int64_t>(i)).all().item<bool>()) throw std::runtime_error("bytes");
      }
      for (size_t i = 0; i < sizes.size(); ++i) {
        const at::Tensor floats = at::empty({sizes[i]});
        world.receive(floats, 0, 0)->wait();
        if (!floats.equal(numbered(static_cast<int64_t>(i), {sizes[i]}))) throw std::runtime_error("floats");
      }
    }
  });
}

TEST_CASE("abort wakes a waiting rank with its reason, and later waits too") {
  const auto transport = GENERATE(from_range(kTransports));
  CAPTURE(transport);
  auto world = make_world(transport, 2);
  std::string problem;
  const at::Tensor into = at::empty({4});
  auto request = world[0]->receive(into, 1, 0);  // never sent
  std::thread waiter([&] {
    try {
      request->wait();
    } catch (const PeerError& error) {
      problem = error.what();
    }
  });
  world[0]->abort("rank 1 has not been heard of for 30 s");
  waiter.join();
  CHECK_THAT(problem, Catch::Contains("rank 1 has not been heard of for 30 s"));
  CHECK_THROWS_AS(world[0]->receive(into, 1, 1)->wait(), PeerError);
}

TEST_CASE("a peer that goes away ends a receive with a PeerError that names it") {
  const auto transport = GENERATE(as<std::string>(), "gloo", "shm", "staged", "blocks", "paired");
  CAPTURE(transport);
  auto world = make_world(transport, 2);
  const at::Tensor into = at::empty({4});
  auto request = world[0]->receive(into, 1, 0);
  world[1].reset();
  try {
    request->wait();
    FAIL("the receive returned");
  } catch (const PeerError& error) {
    CHECK_THAT(error.what(), Catch::Contains("rank 1"));
  }
}

TEST_CASE("an inbox hands out messages of several peers in the order asked for, tensor by tensor") {
  const auto transport = GENERATE(from_range(kTransports));
  const int64_t ahead = GENERATE(1, 2, 5);
  CAPTURE(transport, ahead);
  const std::vector<MessagePart> big = {{{2, 3}, at::kFloat}, {{4}, at::kLong}};
  const std::vector<MessagePart> small = {{{1, 3}, at::kFloat}, {{2}, at::kLong}};
  spawn(make_world(transport, 3), [&](int64_t rank, Transport& world) {
    const int64_t messages = 11;
    if (rank < 2) {
      Outbox outbox(world, 100, 2);
      for (int64_t k = rank; k < messages; k += 2) {
        const bool last = k == messages - 1;
        outbox.send(2, {numbered(k, last ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 3}),
                        at::full({last ? 2 : 4}, k, at::kLong)});
      }
      outbox.flush();
      const int64_t full = 6 * 4 + 4 * 8;
      if (rank == 1 && outbox.sent_bytes() != 5 * full) throw std::runtime_error("bytes sent");
    } else {
      std::vector<Inbox::Expected> order;
      for (int64_t k = 0; k < messages; ++k) order.push_back({k % 2, k == messages - 1 ? &small : &big});
      Inbox inbox(world, 100, order, ahead);
      for (int64_t k = 0; k < messages; ++k) {
        const auto message = inbox.next();
        if (message[0].flatten()[0].item<int64_t>() != k) throw std::runtime_error("order");
        if (message[1][0].item<int64_t>() != k) throw std::runtime_error("second tensor");
        if (reinterpret_cast<uintptr_t>(message[0].data_ptr()) % 64 != 0)
          throw std::runtime_error("alignment");
      }
    }
  });
}

TEST_CASE("all_reduce_sum adds in the order of ranks, bit for bit, whatever the size") {
  const auto transport = GENERATE(from_range(kTransports));
  CAPTURE(transport);
  for (const int64_t size : {1, 2, 3, 4}) {
    spawn(make_world(transport, size), [&](int64_t rank, Transport& world) {
      std::vector<int64_t> ranks;
      for (int64_t r = 0; r < size; ++r) ranks.push_back((r + 1) % size);  // not ascending: the order counts
      for (const int64_t elements : {0, 1, 2, 3, 7, 1000, 4099}) {
        const auto value = [&](int64_t r) {
          auto generator =
              at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * elements + r));
          return at::randn({elements}, generator, at::TensorOptions()) *
                 std::pow(10.0, static_cast<double>(r));
        };
        at::Tensor expected = value(ranks[0]);
        for (size_t i = 1; i < ranks.size(); ++i) expected = expected + value(ranks[i]);
        const at::Tensor flat = value(rank).contiguous();
        all_reduce_sum(world, ranks, 40, flat);
        if (!flat.equal(expected))
          throw std::runtime_error("sum of " + std::to_string(elements) + " elements");
      }
    });
  }
}

TEST_CASE("random traffic: any sizes, tags and orders of waiting, everything arrives as sent") {
  const auto transport = GENERATE(from_range(kTransports));
  CAPTURE(transport);
  // Both sides draw the same plan: who sends how much with which tag. A receiver posts late or early, as it
  // likes.
  struct Message {
    int64_t from, to, tag, bytes;
  };
  const int64_t size = 3;
  std::mt19937 draw(7);
  std::vector<Message> plan;
  for (int i = 0; i < 300; ++i) {
    const auto from = static_cast<int64_t>(draw() % size);
    const auto to = (from + 1 + static_cast<int64_t>(draw() % (size - 1))) % size;
    const int64_t most = std::vector<int64_t>{1, 64, 1000, 5000, 300000}[draw() % 5];
    plan.push_back({from, to, static_cast<int64_t>(draw() % 3), static_cast<int64_t>(draw()) % most});
  }
  spawn(make_world(transport, size), [&](int64_t rank, Transport& world) {
    std::mt19937 own(static_cast<uint32_t>(rank));
    std::vector<std::unique_ptr<Request>> sends;
    std::vector<std::pair<std::unique_ptr<Request>, at::Tensor>> receives;
    std::vector<int64_t> expected;
    const auto finish_receives = [&] {
      for (size_t i = 0; i < receives.size(); ++i) {
        receives[i].first->wait();
        if (!receives[i].second.eq(expected[i]).all().item<bool>()) throw std::runtime_error("contents");
      }
      receives.clear();
      expected.clear();
    };
    for (size_t i = 0; i < plan.size(); ++i) {
      const auto [from, to, tag, bytes] = plan[i];
      const auto content = static_cast<int64_t>(i % 251);
      if (bytes == 0) continue;  // Gloo refuses empty messages
      if (rank == from) sends.push_back(world.send(at::full({bytes}, content, at::kByte), to, tag));
      if (rank == to) {
        at::Tensor into = at::empty({bytes}, at::kByte);
        auto request = world.receive(into, from, tag);
        receives.emplace_back(std::move(request), std::move(into));
        expected.push_back(content);
        if (own() % 10 == 0) finish_receives();
      }
    }
    finish_receives();
    for (auto& send : sends) send->wait();
  });
}

TEST_CASE("two threads of a rank send and wait at the same time, each with its own tags") {
  const auto transport = GENERATE(from_range(kTransports));
  CAPTURE(transport);
  spawn(make_world(transport, 3), [](int64_t rank, Transport& world) {
    const auto talk = [&](int64_t tag) {
      std::mt19937_64 sizes(static_cast<uint64_t>(tag));  // the same on all ranks
      for (int64_t i = 0; i < 100; ++i) {
        const auto size = static_cast<int64_t>(1 + sizes() % (i % 20 == 0 ? 100'000 : 500));
        std::vector<std::unique_ptr<Request>> requests;
        std::vector<at::Tensor> got;
        for (int64_t peer = 0; peer < 3; ++peer) {
          if (peer == rank) continue;
          requests.push_back(world.send(numbered(rank + i * tag, {size}), peer, tag));
          got.push_back(at::empty({size}));
          requests.push_back(world.receive(got.back(), peer, tag));
        }
        for (const auto& request : requests) request->wait();
        int64_t at = 0;
        for (int64_t peer = 0; peer < 3; ++peer) {
          if (peer != rank && !got[static_cast<size_t>(at++)].equal(numbered(peer + i * tag, {size})))
            throw std::runtime_error("wrong data");
        }
      }
    };
    std::exception_ptr error;
    std::thread second([&] {
      try {
        talk(2);
      } catch (...) {
        error = std::current_exception();
      }
    });
    talk(1);
    second.join();
    if (error) std::rethrow_exception(error);
  });
}

TEST_CASE("shm: a send that does not fit returns at once and goes on while its rank does something else") {
  auto world = make_world("tiny-shm", 2);
  const at::Tensor message = numbered(0, {5000});
  auto send = world[0]->send(message, 1, 0);
  const at::Tensor into = at::empty({5000});
  world[1]->receive(into, 0, 0)->wait();  // rank 0's thread does nothing for it
  CHECK(into.equal(message));
  send->wait();
}

TEST_CASE("shm: a receiver that has taken all, and computes, leaves senders free of eight messages") {
  constexpr int64_t kRounds = 40;
  const int64_t floats = GENERATE(100, 20000, 200000);  // 400 B; 80 kB, 800 kB: beyond where rings restart
  CAPTURE(floats);
  auto world = make_world("shm", 2);
  for (int64_t round = 0; round < kRounds; ++round) {
    const int64_t count = 1 + round % 8;
    std::vector<std::unique_ptr<Request>> sends;
    for (int64_t i = 0; i < count; ++i) {
      at::Tensor message = at::full({floats}, static_cast<float>(10 * round + i));
      const auto memory = c10::weak_intrusive_ptr<c10::StorageImpl>(message.storage().getWeakStorageImpl());
      sends.push_back(world[0]->send(std::move(message), 1, 7));
      CHECK(memory.expired());  // it is in the ring, though nobody has looked
    }
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor into = at::empty({floats});
      world[1]->receive(into, 0, 7)->wait();
      CHECK(into.eq(static_cast<float>(10 * round + i)).all().item<bool>());
    }
    for (const auto& send : sends) send->wait();
  }
}

TEST_CASE("shm: what a rank sent before it left still arrives, then it is missed") {
  auto world = make_world("shm", 2);
  world[0]->send(numbered(5, {100}), 1, 0)->wait();
  world[0].reset();
  const at::Tensor into = at::empty({100});
  world[1]->receive(into, 0, 0)->wait();
  CHECK(into.equal(numbered(5, {100})));
  CHECK_THROWS_AS(world[1]->receive(into, 0, 0)->wait(), PeerError);
}

TEST_CASE("connect_ranks: every choice connects") {
  const auto transport = GENERATE(as<std::string>(), "auto", "gloo", "shm");
  CAPTURE(transport);
  auto world =
      pipewright::testing::connect_world(3, [&](Store& store, const std::string& name, int64_t rank) {
        ConnectSettings settings;
        settings.transport = transport;
        settings.gloo_address = "127.0.0.1";
        return connect_ranks(store, name, rank, 3, settings);
      });
  spawn(std::move(world), [](int64_t rank, Transport& ranks) {
    const at::Tensor flat = at::full({5}, static_cast<double>(rank));
    all_reduce_sum(ranks, {0, 1, 2}, 0, flat);
    if (!flat.equal(at::full({5}, 3.0))) throw std::runtime_error("sum");
  });
}

TEST_CASE("all_reduce_sum sends 2(r-1)/r of the tensor") {
  spawn(make_world("local", 4), [](int64_t, Transport& world) {
    const at::Tensor flat = at::ones({4000});
    if (all_reduce_sum(world, {0, 1, 2, 3}, 0, flat) != 2 * 3 * 4000) throw std::runtime_error("bytes");
  });
}

TEST_CASE("gloo's device waits for the core in a batch thread, and all other threads stay as they are") {
  const auto batch_threads = [] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      count += sched_getscheduler(std::stoi(task.path().filename().string())) == SCHED_BATCH;
    return count;
  };
  const int before = batch_threads();
  spawn(make_world("gloo", 2), [&](int64_t, Transport&) {
    if (batch_threads() <= before) throw std::runtime_error("no thread of Gloo's is a batch thread");
    if (sched_getscheduler(0) != SCHED_OTHER) throw std::runtime_error("a rank's own thread is one");
  });
}
