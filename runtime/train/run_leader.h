// What rank 0 has besides its part in the training: the run folder, the journal of all that ranks tell, and
// the server of pipelines that ask for groups or minibatches.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "graph/error.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/data/dataset.h"
#include "runtime/generation/training_data.h"
#include "runtime/groups/group_client.h"
#include "runtime/groups/group_log.h"
#include "runtime/groups/group_server.h"
#include "runtime/job/job.h"
#include "runtime/journal/journal.h"
#include "runtime/journal/message_thread.h"
#include "runtime/launch/place.h"
#include "runtime/messages/rank_message.h"
#include "runtime/monitor/link_judge.h"
#include "runtime/train/run_checkpoints.h"
#include "runtime/train/run_plans.h"
#include "runtime/train/run_policy.h"

namespace pipewright {

/// Called by the thread that trains, if nothing else is said.
class RunLeader {
 public:
  struct Settings {  // all borrowed
    const Job& job;
    const TrainingData& data;
    const Dataset* evaluation_data = nullptr;
    const RunPlans& plans;
    RunCheckpoints& checkpoints;
    MeasuredSpeeds& measured;
    Place place;
    std::function<void(const Error&)> fail;  ///< any thread: the job ends for this
  };
  explicit RunLeader(Settings settings);

  /// Where pipelines side by side of the job ask for groups or minibatches; nothing: they do not.
  std::optional<GroupServerAddress> serve_groups();
  /// A minibatch before which all ranks can stop (Coordination::Settings::stop_behind). Any thread.
  int64_t stop_behind(int64_t last_begun) const;

  /// The run folder becomes the run's: documents are written, and what ranks tell is taken from now on.
  void begin();
  /// This rank has drained before the minibatch: all have left its stages.
  void note_drained(int64_t generation, int64_t minibatch);
  /// What a rank tells; does not wait for a disk. Any thread, from begin() on.
  void take(int64_t rank, RankMessage message);
  /// Throws what went wrong with what was told.
  void check() const {
    if (messages_) messages_->check();
  }
  /// All ranks are about to train: what a run before left in the folder, and they may have begun with, goes.
  void tidy() const;
  /// Other ranks' parts of the final weights, so far on the disk.
  int64_t saved_stages() const { return saved_stages_; }
  /// The run has further plans than one, or its past had.
  bool tells_plans() const { return tells_plans_; }

  /// The last call: all that was told is written. Nothing that was written may be missing; `plan`: in force
  /// at the end. A failure of its own is the run's, unless that has failed anyway.
  void close(const std::string& status, const Plan& plan, double wall_seconds);

 private:
  void prepare_folder();
  JournalSettings journal_settings() const;
  void add_past(JournalSettings& settings) const;
  void tell_start() const;
  void take_in_order(int64_t rank, const RankMessage& message);
  bool goes_on() const { return settings_.job.attempt && settings_.job.attempt->began; }

  const Settings settings_;
  const std::filesystem::path folder_;
  std::unique_ptr<GroupLog> group_log_;  // where pipelines ask for groups or minibatches; and so the next
  std::unique_ptr<GroupServer> group_server_;
  LinkJudge links_;  // of messages_ alone
  std::atomic<int64_t> saved_stages_ = 0;
  bool tells_plans_ = false;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<MessageThread> messages_;  // what checkpoints and journal take
};

}  // namespace pipewright
