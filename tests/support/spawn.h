// N ranks as threads of a test.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "runtime/transport/gloo.h"
#include "runtime/transport/local.h"

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

/// A world of the named transport within this process.
inline std::vector<std::unique_ptr<Transport>> make_world(const std::string& transport, int64_t size) {
  if (transport == "local") return make_local_world(size);
  PW_CHECK(transport == "gloo", transport);
  static Store server = Store::serve(0);
  static int64_t worlds = 0;
  const std::string name = "world" + std::to_string(worlds++);
  std::vector<std::unique_ptr<Transport>> world(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const Store store = Store::join("127.0.0.1", server.port(), std::chrono::seconds(20));
      world[static_cast<size_t>(rank)] =
          make_gloo_transport(store, name, rank, size, "127.0.0.1", std::chrono::seconds(20));
    });
  }
  for (auto& thread : threads) thread.join();
  return world;
}

}  // namespace pipewright::testing
