// One rank of a job among the others, from the start line to its last words. What it does there is a task:
// training, evaluation.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/control/control.h"
#include "runtime/control/exchange.h"
#include "runtime/control/progress.h"
#include "runtime/job/job.h"
#include "runtime/launch/message_delays.h"
#include "runtime/launch/place.h"
#include "runtime/messages/rank_message.h"
#include "runtime/transport/store.h"
#include "runtime/transport/transport.h"
#include "runtime/worker/stage_loaders.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// What the ranks of a job do together. All calls but take() come from the thread that runs the session.
class RankTask {
 public:
  virtual ~RankTask() = default;
  /// This rank has its place in the job, and nothing has been written; the others may not be there yet.
  virtual void open() {}
  /// Rank 0: a message that a rank has posted, each rank's in order; on a thread of Control.
  virtual void take(int64_t rank, RankMessage message) = 0;
  /// The ranks are connected. None begins its work before all are prepared.
  virtual void prepare() = 0;
  /// Rank 0: all ranks are prepared, so that nothing is wrong that can be known before the work, and nothing
  /// has been written. Messages are taken from here on.
  virtual void begin() {}
  /// Every rank, on rank 0 behind begin(): all are prepared, and none has begun its work.
  virtual void begin_here() {}
  virtual void work() = 0;
  /// Posts what rank 0 is to know at the end, also of work that failed. Called once at most, and not before
  /// the ranks are connected.
  virtual void post_last_words() {}
  /// The last call, whatever has failed before, open() and post_last_words() too: what was posted has come,
  /// after a failure as far as it could, and take() is not called any more. `status` is "done", "failed" or
  /// "interrupted".
  virtual void close(const std::string& status) = 0;
};

class RankSession {
 public:
  /// Borrows the job. A rank that fails leaves its flight record in the job's run folder, once that is the
  /// job's: begin() has returned on rank 0.
  RankSession(const Job& job, const Place& place);

  /// From open() to close(). Throws what ended the work early: JobEnded with the exit code of an
  /// interruption, PeerError when another rank failed, this rank's own error otherwise.
  void run(RankTask& task);

  const Place& place() const { return place_; }
  /// How long ranks wait for each other where they meet.
  std::chrono::milliseconds start_patience() const;
  /// For the task, from prepare() on.
  Control& control() { return *control_; }
  Transport* transport() { return transport_.get(); }                 ///< null in a world of one rank
  MessageDelays& message_delays() { return message_delays_; }         ///< without any, nothing asks them
  Store* store() { return store_ ? &*store_ : nullptr; }              ///< likewise; the session's thread's
  Exchange* exchange() { return exchange_ ? &*exchange_ : nullptr; }  ///< likewise; all say their hosts in it
  /// All ranks call it when another plan comes into force and nothing of theirs travels any more. What
  /// belongs to devices is connected for the plan; the host's links stay.
  void connect_for(const Plan& plan, int64_t generation);
  /// Hooks for every walk of this rank under a plan: failures elsewhere end it, and heartbeats say what it
  /// does. They borrow the plan.
  WorkerHooks hooks(const Plan& plan, int64_t gradient_accumulation);
  /// The rank is between two operations from now on, as it is after each action: what it does is not watched.
  void rest() { progress_.end(); }
  /// It does from now on what is no action of a walk.
  void begin(Activity activity) { progress_.begin(std::move(activity)); }
  /// From now on `tell` gets about once a second what the rank does, on a thread of its own, and must not
  /// wait. It is not called any more when run() has returned.
  void tell_progress(std::function<void(const ProgressNow&)> tell);
  /// By the rank's workers; samples are waited for within a forward.
  Loading loading();

 private:
  void connect(RankTask& task);
  void begin(RankTask& task);
  void connect_links(const Plan& plan, const std::string& name);
  std::string where();
  template <typename Step>
  void guarded(RankTask& task, Step step);
  void post_last_words(RankTask& task);
  void write_flight(const std::string& error);
  Error as_error(const std::exception& own) const;
  void say(const ProgressNow& now);

  const Job& job_;
  const Place place_;
  const std::filesystem::path folder_;
  MessageDelays message_delays_;
  std::mutex tell_mutex_;
  std::function<void(const ProgressNow&)> tell_;  // protected by tell_mutex_
  std::optional<Store> server_;
  std::optional<Store> store_;
  std::optional<Exchange> exchange_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
  std::mutex transport_mutex_;  // abort may come while transport_ is being made
  bool folder_is_ours_ = false;
  bool has_last_words_ = false;  // prepared, and they have not been posted
  Progress progress_;
};

}  // namespace pipewright
