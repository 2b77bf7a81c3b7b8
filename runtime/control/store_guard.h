// Does the job's store still answer this rank?
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/control/board.h"
#include "runtime/control/failure_latch.h"
#include "runtime/control/progress.h"

namespace pipewright {

/// A request to a store whose process is stopped never returns and cannot be cancelled. So when the thread
/// that asks the store has not got through for the time-out, this one says that the job has failed, which
/// wakes the worker; and if the process has not ended by itself a little later, because one of its threads is
/// stuck in such a request, it is ended here.
class StoreGuard {
 public:
  using LastWords = std::function<void(const std::string& why)>;

  /// `failure` and `timeout` outlive the object.
  StoreGuard(int64_t rank, FailureLatch& failure, const std::atomic<std::chrono::milliseconds>& timeout);
  /// After end(), if it was begun.
  ~StoreGuard();
  /// Begins to look, every `interval`.
  void begin(std::chrono::milliseconds interval);
  /// The store has answered.
  void contact();
  /// Nobody asks the store any more.
  void end();

  /// What is said of this rank then, and called before the process is ended. `progress` outlives the object.
  void watch(Progress& progress, LastWords last_words);
  /// Who serves the store, if it is a rank.
  void store_is_served_by(RankReport server);
  /// Learns what that rank does now: once it has gone, nobody can ask.
  void heed_server(Board board);
  /// What is known without the store: "rank 0, which serves it: its process 12 on node3 has died; last heard
  /// of in forward of minibatch 7 since 0.1 s; here: rank 1, send activation of minibatch 6".
  std::string words_without_store() const;

 private:
  void run();

  const int64_t rank_;
  FailureLatch& failure_;
  const std::atomic<std::chrono::milliseconds>& timeout_;
  std::chrono::milliseconds interval_{};

  mutable std::mutex mutex_;  // protects what follows
  std::condition_variable changed_;
  bool ended_ = false;
  std::chrono::steady_clock::time_point last_contact_;
  Progress* progress_ = nullptr;
  LastWords last_words_;
  std::optional<RankReport> server_;

  std::thread thread_;
};

}  // namespace pipewright
