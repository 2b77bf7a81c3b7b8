// Messages between ranks of one host, through memory that they share: one ring for each ordered pair, tags
// multiplexed in it. The sender copies a message in, the receiver copies it out, piece by piece and so at the
// same time; no thread and no system call in between while both are awake.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/process_state.h"
#include "runtime/transport/store.h"
#include "runtime/transport/transport.h"

namespace pipewright {

struct ShmSettings {
  /// Of each ring, a multiple of 64. A sender is free again as soon as its message is in the ring; what does
  /// not fit is pushed by a thread of its own.
  int64_t ring_bytes = int64_t{16} << 20;
  /// A wait looks so long before it sleeps, at most; 0 where ranks outnumber cores.
  std::chrono::microseconds spin{100};
  /// Called about once a second while peers are waited for; may throw.
  std::function<void()> check = [] {};
};

/// Connects the ranks `peers` (ascending, with this one; at least those of them that turn out to be
/// reachable) of a world; every one of them calls it. `name` keeps the keys of several worlds in one store
/// apart. `reachable`, if given, is set to the ranks that can be sent to, the same on both sides of a pair;
/// otherwise PeerError for a peer whose memory cannot be opened. Waits no longer than `timeout`.
std::unique_ptr<Transport> make_shm_transport(Store& store, const std::string& name, int64_t rank,
                                              int64_t world_size, const std::vector<int64_t>& peers,
                                              std::chrono::milliseconds timeout, const ShmSettings& settings,
                                              std::vector<bool>* reachable = nullptr);

}  // namespace pipewright
