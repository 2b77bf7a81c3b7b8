// What the hosts of a run do together with the state that each keeps in its memory (kept_state.h): every rank
// has a rank of another host keep a copy of what it has written, and rank 0 tells all hosts when a state is
// whole. So each host has a part of every state, and any host may be lost.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/file_stream.h"
#include "runtime/checkpoint/host_ring.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Of a rank, while one plan is in force. All ranks of the plan have one. Threads of its own receive: one for
/// each rank whose copies this one keeps, and on the first rank of a host one for what rank 0 tells. They
/// end when their senders say so (end()), when the transport is aborted, and at an error, which check()
/// throws. Each holds one piece of a file.
class StateCopies {
 public:
  struct Settings {
    HostRing ring{std::vector<std::string>{}};  ///< of the ranks of the plan; several hosts
    bool copies = true;                         ///< false: each host has what its own ranks have written
    KeptFolder* folder = nullptr;               ///< this host's, borrowed
    int64_t first_tag = 0;                      ///< of 2 * kFileStreamTags
  };
  /// Borrows the transport.
  StateCopies(Transport& transport, Settings settings);
  StateCopies(const StateCopies&) = delete;
  StateCopies& operator=(const StateCopies&) = delete;
  ~StateCopies() { abandon(); }

  /// Files of the partial checkpoint of minibatch n, which this rank has written: returns when their copies
  /// are on another host. One thread. RunError if this host or that one has lost its folder, or has no room;
  /// PeerError, InputError.
  void copy(int64_t n, const std::vector<CheckpointFile>& files);
  /// Rank 0: the checkpoint of minibatch n is whole, by this manifest. Returns when every other host has
  /// taken it for its newest and has removed older ones, but for hosts that have lost their folder. One
  /// thread. PeerError.
  void tell_whole(int64_t n, const std::filesystem::path& manifest);
  /// Throws what has ended a receiving thread. Cheap.
  void check() const;
  /// Nothing is copied or told any more: returns when this is so on all ranks to and from which this one
  /// sent. `check` is called meanwhile, and may throw; then abandon() is left to be called.
  void end(const std::function<void()>& check);
  /// After a failure, from any thread: whoever waits for the transport of this rank stops waiting.
  void abandon() noexcept;

 private:
  void receive(int64_t peer, int64_t tag, const FileReceiver::Whole& whole);
  std::filesystem::path place_of(const TravellingFile& file) const;

  Transport& transport_;
  const Settings settings_;
  std::optional<FileSender> to_keeper_;
  std::vector<FileSender> to_hosts_;  // rank 0: the first ranks of the others
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::exception_ptr error_;  // of the first receiving thread that failed; protected by mutex_
  bool ended_ = false;
  std::vector<std::future<void>> receiving_;
  std::future<void> ending_;
};

}  // namespace pipewright
