// What holds the ranks of a job together beside the tensors: a start line, heartbeats, the watchdog, the
// first failure, messages to rank 0 and its orders. One background thread a rank, over the job's store.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "graph/error.h"
#include "runtime/control/barrier.h"
#include "runtime/control/failure.h"
#include "runtime/control/failure_latch.h"
#include "runtime/control/heart.h"
#include "runtime/control/heartbeat.h"
#include "runtime/control/progress.h"
#include "runtime/control/rank_channel.h"
#include "runtime/control/signals.h"
#include "runtime/control/store_guard.h"
#include "runtime/control/watchdog.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// Thrown on every rank but the failed one when the job has failed elsewhere, and on all when it is
/// interrupted.
class JobEnded : public Error {
 public:
  JobEnded(ExitCode code, const std::string& what, Failure failure)
      : Error(code, what), failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

/// Within `timeout` of a rank's death, freeze or error every other rank's `on_failure` has run. How: each
/// rank sets a heartbeat in the store and watches the next rank's (and, on one host, its process); a rank
/// whose connection to a peer breaks, or that fails itself, says so in the store; all look there several
/// times a second. A rank that cannot reach the store for `timeout` gives the store's host up. The watchdog:
/// a rank whose main thread does not get on for `timeout`, or whose waiting peers wait for each other, is a
/// failure too.
class Control {
 public:
  /// Without a store (one process) messages go straight to the sink and there is nobody to watch.
  /// `on_failure` runs once, on a thread of Control, when the job has ended early for a reason that did not
  /// come from this thread: it should wake the worker (Transport::abort).
  Control(std::optional<Store> store, int64_t rank, int64_t world_size, std::chrono::milliseconds timeout,
          std::function<void(const std::string& why)> on_failure);
  ~Control();

  /// Rank 0 only, before the ranks meet: gets every message of every rank, each rank's in order; on
  /// Control's thread (or, without a store, on the caller's).
  void set_sink(RankChannel::Sink sink);
  /// Gets what rank 0 tells this rank, in order, also what it has told before; on Control's thread or one
  /// that takes orders (without a store, on that of tell()).
  void set_order_sink(RankChannel::OrderSink sink);
  /// From now on SIGINT and SIGTERM do not end the job here: what call_often() calls sees to them.
  void hold_signals() { signals_held_ = true; }
  /// `tick` is called several times a second on Control's thread, if there is a store; after it has returned
  /// true, again within milliseconds, and messages and orders are looked for as often.
  void call_often(std::function<bool()> tick);
  /// Heartbeats say from now on what the rank does, and the watchdog watches it. `progress` outlives Control.
  /// `last_words` is called before Control ends the process because a request to the store holds the main
  /// thread.
  void watch(Progress& progress, std::function<void(const std::string& why)> last_words = nullptr);
  /// `told` gets about once a second, on Control's thread, what the rank does; without a store it does not.
  void call_at_beats(std::function<void(const ProgressNow&)> told);
  /// A store that has gone then means that this rank has. After all ranks have begun.
  void store_is_served_by(int64_t rank);
  /// From now on this is the time-out. While a job starts, ranks that share cores may take long to say
  /// anything.
  void set_timeout(std::chrono::milliseconds timeout);
  /// All ranks meet. JobEnded if the job ends meanwhile; PeerError, which names the missing ones, if not all
  /// come within `patience`.
  void barrier(const std::string& name, std::chrono::milliseconds patience,
               Meeting meeting = Meeting::kPlain);

  /// Sends a message to rank 0's sink. Does not block.
  void post(RankMessage message);
  /// Rank 0: an order to ranks `first_rank` to `end_rank` - 1. Does not block.
  void tell(int64_t first_rank, int64_t end_rank, const Order& order);
  /// Other ranks: takes in, on this thread, what rank 0 has told; `store` is this thread's. For who waits for
  /// it.
  void take_orders(Store& store) { channel_.take_orders(store); }
  /// Likewise, until `done`. JobEnded, PeerError after `patience`.
  void await_orders(Store& store, std::chrono::milliseconds patience, const std::function<bool()>& done);
  /// The last call: hands over all messages and says that no more will come. Rank 0 then waits for the other
  /// ranks' last messages, `patience` at most. Heartbeats and watching end. Never throws; also for a job that
  /// has failed.
  void finish(std::chrono::milliseconds patience);

  bool finishing() const;  ///< finish() has been called
  /// Throws JobEnded if the job has ended early. Cheap: call it between actions.
  void check() const;
  /// Says that this rank fails. Returns the failure that counts: an earlier one if there is one.
  Failure fail(Failure failure);
  /// A PeerError of the transport as the whole job sees it: the failure that was announced first, waiting a
  /// moment for one; otherwise announces that `message`'s peer is lost.
  Failure peer_lost(const std::string& message);
  std::optional<Failure> failure() const;

 private:
  void hurry();
  void run();                  // the background thread
  void talk_to(Store& store);  // what it does until it is to end
  void beat_and_watch(Store& store);

  std::optional<Store> store_;  // the worker thread's; the background thread has a clone
  const int64_t rank_;
  const int64_t world_size_;
  const std::chrono::milliseconds interval_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<bool> signals_held_ = false;

  FailureLatch failure_;
  RankChannel channel_;
  Heart heart_;
  NeighbourWatch neighbour_;
  StoreGuard guard_;

  // State below is protected by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<bool()> tick_;
  std::function<void(const ProgressNow&)> at_beats_;
  bool hurry_ = false;          // something is to be sent now
  bool finishing_ = false;      // no more messages will be posted
  bool stop_ = false;           // the background thread is to end
  bool collected_all_ = false;  // rank 0: everybody has finished

  std::thread thread_;
};

}  // namespace pipewright
