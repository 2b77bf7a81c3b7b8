// One rank's training run, from the start line to the summary: what lives for the process. What lives for a
// plan is a PlanGeneration.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/memory/memory_meter.h"
#include "runtime/checkpoint/checkpoint_series.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/coordination.h"
#include "runtime/control/fault_points.h"
#include "runtime/control/standing_orders.h"
#include "runtime/generation/generation.h"
#include "runtime/generation/training_data.h"
#include "runtime/groups/group_client.h"
#include "runtime/groups/group_log.h"
#include "runtime/groups/group_server.h"
#include "runtime/job/adapt.h"
#include "runtime/job/job.h"
#include "runtime/journal/journal.h"
#include "runtime/journal/message_thread.h"
#include "runtime/launch/place.h"
#include "runtime/launch/rank_session.h"
#include "runtime/messages/rank_message.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/monitor/link_judge.h"
#include "runtime/monitor/link_speeds.h"
#include "runtime/monitor/rank_monitor.h"
#include "runtime/monitor/rank_speeds.h"
#include "runtime/schedule/draw.h"
#include "runtime/train/layer_norms.h"
#include "runtime/train/observers.h"
#include "runtime/train/run_cache.h"
#include "runtime/train/run_results.h"

namespace pipewright {

/// Trains `job` as the rank that `place` says and writes the run folder (docs/formats.md); rank 0 reports
/// progress on standard error. Throws what ended the run: JobEnded with the exit code of an interruption,
/// PeerError when another rank failed, this rank's own error otherwise. Whatever was written before stays.
/// Sets the number of compute threads of the process.
void train(const Job& job, const Place& place);

/// The ranks' common task; train() runs it.
class Training : private RankTask {
 public:
  Training(const Job& job, const Place& place);
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  // training.cc: from the run folder to the summary.
  void open() override;
  void tell_learning_rate() const;
  void take(int64_t rank, RankMessage message) override;
  void take_in_order(int64_t rank, const RankMessage& message);
  void prepare() override;
  void begin() override;
  void begin_here() override;
  void work() override;
  void post_last_words() override;
  void close(const std::string& status) override;
  [[noreturn]] void stop();
  void serve_groups();
  void save_model();
  void fault_point();

  // training_spans.cc: what is done under one plan.
  void train_generation();
  /// The minibatches within a span before which a checkpoint is due, by series.
  using PointsWithin = std::map<CheckpointSeries*, std::vector<int64_t>>;
  PointsWithin points_within(Span span) const;
  void train_span(Span span, const PointsWithin& within);
  void tell_ended_epoch();
  void evaluate_ended_epoch();
  void evaluate(int64_t epoch, int64_t minibatches = 0);
  WorkerHooks hooks();
  void add_observers(WorkerHooks& hooks, const std::shared_ptr<TimesObserver>& times);

  // training_changes.cc: from one plan to the next.
  void write_changes();
  void write_list_of_changes();
  void prepare_to_follow();
  void prepare_to_stop();
  void ask_policy(int64_t minibatch);
  bool has_decided_change() const;
  void take_decided_change();
  void take_change(PlannedChange change, int64_t minibatch);
  void note_change(PlannedChange change, int64_t minibatch);
  void tell_change();
  int64_t end_of_generation() const;
  void start_generation(int64_t number, StateSource* source);
  GroupClientSettings group_client_settings(int64_t generation);
  void connect_services(int64_t generation);
  void open_cache();
  void change_plan();
  void wait_for_end_of_generation();
  void tell_end_of_generation(bool stopped);
  void tell_generation(GenerationSummary generation);
  std::string plan_file() const;

  // training_decisions.cc: where the pipeline is empty.
  bool decides_here() const;
  void decide_drained();
  std::string decision_of_policy(const AskPolicy& asked);
  std::string awaited_decision();

  // training_checkpoints.cc
  void open_checkpoints();
  int64_t kept_attempt() const { return job_.attempt ? job_.attempt->number : 0; }
  int64_t kept_bytes() const;
  void make_room_for_kept();
  void remove_kept();
  void begin_copies();
  void tell_newest_kept(int64_t minibatch);
  std::vector<CheckpointSeries*> all_series() const;
  std::vector<CheckpointSeries*> series_due(int64_t n) const;
  void write_checkpoints(const std::vector<CheckpointSeries*>& series, const std::string& cause);
  void take_state(const std::vector<CheckpointSeries*>& series, int64_t next_minibatch, StageReplica& stage,
                  bool drained);
  CheckpointManifest manifest_of(int64_t next_minibatch, const std::string& cause) const;
  void advance_checkpoints();

  double elapsed_seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }
  double wall_seconds() const;
  Control& control() { return session_.control(); }
  /// Also where a failure has come between two plans.
  const Plan& plan_in_force() const { return generation_ ? generation_->plan() : job_.plan; }
  /// A signal ends the run there.
  bool stops_at(int64_t minibatch) const {
    return orders_->stop_before() <= minibatch && orders_->signal() != 0 &&
           orders_->stop_before() < data_.length().minibatches;
  }

  Job job_;                   // its changes grow when the policy decides
  std::mutex changes_mutex_;  // while they grow, and while a thread of Control reads them
  const std::filesystem::path folder_;
  const TrainingData data_;
  const std::unique_ptr<Dataset> evaluation_data_;

  std::optional<RunFolderLock> lock_;              // rank 0, unless the launcher holds it
  std::unique_ptr<AdaptPolicy> policy_;            // if it decides on the way; rank 0 asks it
  std::unique_ptr<const CoreReader> core_reader_;  // if the policy reads cores and there is something to read
  std::optional<LayerNorms> layer_norms_;          // if the policy reads gradients
  std::unique_ptr<StandingOrders> orders_;
  bool stops_on_the_way_ = false;               // a signal leaves a checkpoint, or the policy decides
  std::unique_ptr<Coordination> coordination_;  // rank 0; Control's thread uses it too
  RankSession session_;
  FaultPoints faults_{session_.place().rank};
  std::unique_ptr<GroupLog> group_log_;           // rank 0, where pipelines ask it for groups or minibatches
  std::unique_ptr<GroupServer> group_server_;     // likewise
  std::unique_ptr<Groups> groups_;                // of the generation; null: none are made
  std::unique_ptr<MinibatchSource> minibatches_;  // of the generation; null: pipelines take turns
  std::unique_ptr<PlanGeneration> generation_;
  std::unique_ptr<RunCache> cache_;  // if the run keeps what frozen layers make; borrows generation_'s worker
  std::unique_ptr<Journal> journal_;                // rank 0
  std::unique_ptr<CheckpointSeries> checkpoints_;   // the run folder's
  std::unique_ptr<CheckpointSeries> kept_;          // of the state for lost ranks, where one is recovered
  std::vector<std::string> hosts_;                  // likewise: by rank, where they are on several
  std::filesystem::path told_kept_;                 // rank 0: of which the launcher has heard
  RankSpeeds speeds_{session_.place().world_size};  // rank 0: what all have said
  LinkJudge links_{[this](int64_t rank) { return speeds_.slowdown(rank); }};  // rank 0's messages_ alone
  LinkSpeeds link_speeds_;                                                    // rank 0: what they have found
  CoreSamples cores_{session_.place().world_size};  // rank 0: what all have told of their cores
  std::unique_ptr<MessageThread> messages_;         // rank 0: what keeper and journal take
  std::atomic<int64_t> saved_stages_ = 0;           // rank 0: whose part of the final weights is on the disk
  int64_t done_ = 0;                                // minibatches: the next one is the first that is not
  int64_t pipeline_began_ = 0;                      // the minibatch before which the pipeline was last empty
  int64_t evaluated_epochs_ = 0;
  bool tells_plans_ = false;  // rank 0: the plan of this run changes or may, or that of its past did
  EarlierWorkers earlier_workers_;
  double drain_seconds_ = 0;  // of the last span, from the end of this rank's last forward on
  TraceWriter trace_;
  MemoryMeter memory_{job_.device.type()};
  Clock::time_point started_ = Clock::now();
  RankMonitor monitor_;
  MeasuredTimes times_;  // but the busy seconds
  // Since the last epoch that was told.
  EpochTimes split_;
  double trained_before_seconds_ = 0;  // of times_.trained_seconds, by then
  int64_t told_minibatches_ = 0;       // done_ by then
  CacheSummary cache_before_;
};

}  // namespace pipewright
