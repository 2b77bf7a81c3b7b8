// N ranks as threads of a test.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "runtime/transport/connect.h"
#include "runtime/transport/gloo.h"
#include "runtime/transport/local.h"
#include "runtime/transport/shm.h"
#include "runtime/transport/staged.h"
#include "tests/support/late_blocks.h"
#include "tests/support/late_copies.h"
#include "tests/support/late_lanes.h"

namespace pipewright::testing {

/// Runs function(rank, transport) on one thread a rank, joins them all and rethrows the first error by rank.
/// A rank that throws aborts the others' waits, so that a failing test ends.
inline void spawn(std::vector<std::unique_ptr<Transport>> world,
                  const std::function<void(int64_t, Transport&)>& function) {
  std::vector<std::exception_ptr> errors(world.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        function(static_cast<int64_t>(rank), *world[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
        for (auto& other : world) other->abort("another rank of the test failed");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // An abort is a consequence: report a cause first.
  for (const auto& error : errors) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const PeerError&) {
      continue;
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// A world within this process: make(store, name, rank) connects each rank, on a thread of its own.
inline std::vector<std::unique_ptr<Transport>> connect_world(
    int64_t size,
    const std::function<std::unique_ptr<Transport>(Store&, const std::string& name, int64_t rank)>& make) {
  static Store server = Store::serve(0);
  static int64_t worlds = 0;
  const std::string name = "world" + std::to_string(worlds++);
  std::vector<std::unique_ptr<Transport>> world(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Store store = Store::join("127.0.0.1", server.port(), std::chrono::seconds(20));
      world[static_cast<size_t>(rank)] = make(store, name, rank);
    });
  }
  for (auto& thread : threads) thread.join();
  return world;
}

/// A world of the named transport within this process: "local", "gloo", "shm", "tiny-shm" (rings that hardly
/// any message fits into), "mixed" (even and odd ranks as if on two hosts), "staged" (shm, with copies as if
/// the tensors were a device's), "blocks" (shm, as if the ranks were processes that share a device), "paired"
/// (as if halves of messages waited for each other on devices).
inline std::vector<std::unique_ptr<Transport>> make_world(const std::string& transport, int64_t size) {
  if (transport == "local") return make_local_world(size);
  constexpr auto kPatience = std::chrono::seconds(20);
  const auto place = std::make_shared<MeetingPlace>();
  return connect_world(size, [&](Store& store, const std::string& name, int64_t rank) {
    std::vector<int64_t> all;
    std::vector<int64_t> alike;
    std::vector<bool> shares(static_cast<size_t>(size), false);
    for (int64_t peer = 0; peer < size; ++peer) {
      all.push_back(peer);
      if (peer % 2 == rank % 2) alike.push_back(peer);
      shares[static_cast<size_t>(peer)] = peer % 2 == rank % 2;
    }
    ShmSettings settings;
    settings.spin = std::chrono::microseconds(20);
    if (transport == "tiny-shm") settings.ring_bytes = 1024;
    if (transport == "shm" || transport == "tiny-shm") {
      return make_shm_transport(store, name, rank, size, all, kPatience, settings);
    }
    if (transport == "staged") {
      return make_staged_transport(make_shm_transport(store, name, rank, size, all, kPatience, settings),
                                   std::make_unique<LateCopies>());
    }
    if (transport == "paired") {
      std::vector<int64_t> tags(110);
      std::iota(tags.begin(), tags.end(), 0);
      return make_paired_transport(make_shm_transport(store, name, rank, size, all, kPatience, settings),
                                   std::make_unique<MeetingTransport>(place, rank, size),
                                   std::make_unique<LateLanes>(), links_between(size, tags));
    }
    if (transport == "blocks") {
      return make_block_transport(make_shm_transport(store, name, rank, size, all, kPatience, settings),
                                  std::make_unique<LateBlocks>());
    }
    auto gloo = make_gloo_transport(store, name, rank, size, "127.0.0.1", kPatience);
    if (transport == "gloo") return gloo;
    PW_CHECK(transport == "mixed", transport);
    auto shm = make_shm_transport(store, name + "/shm", rank, size, alike, kPatience, settings);
    return make_routed_transport(std::move(gloo), std::move(shm), std::move(shares));
  });
}

}  // namespace pipewright::testing
