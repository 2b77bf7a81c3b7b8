// Two ranks of a device that is none: each has a stream that it computes on, and a transport for the device's
// tensors over one of the host.
#pragma once

#include <memory>
#include <utility>

#include "runtime/transport/local.h"
#include "tests/support/late_copies.h"

namespace pipewright::testing {

/// Engine: what copies, made of the rank's stream; over: what makes a transport of the host's and of an
/// engine.
template <typename Engine, auto over>
struct LateRank {
  explicit LateRank(std::unique_ptr<Transport> host) {
    auto owned = std::make_unique<Engine>(compute);
    engine = owned.get();
    transport = over(std::move(host), std::move(owned));
  }
  std::shared_ptr<LateStream> compute = std::make_shared<LateStream>();
  Engine* engine = nullptr;  // of the transport
  std::unique_ptr<Transport> transport;
};

template <typename Engine, auto over>
auto two_late_ranks() {
  using Rank = LateRank<Engine, over>;
  auto world = make_local_world(2);
  return std::pair{std::make_unique<Rank>(std::move(world[0])), std::make_unique<Rank>(std::move(world[1]))};
}

}  // namespace pipewright::testing
