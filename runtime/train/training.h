// One rank's training run, from the start line to the summary: carries out what the training loop says
// (runtime/coordinator/training_loop.h). What lives for a plan is a PlanGeneration.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/memory/memory_meter.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/coordination.h"
#include "runtime/control/fault_points.h"
#include "runtime/control/standing_orders.h"
#include "runtime/coordinator/training_loop.h"
#include "runtime/generation/generation.h"
#include "runtime/generation/state_moves.h"
#include "runtime/generation/training_data.h"
#include "runtime/groups/group_client.h"
#include "runtime/job/job.h"
#include "runtime/launch/place.h"
#include "runtime/launch/rank_session.h"
#include "runtime/monitor/rank_monitor.h"
#include "runtime/schedule/draw.h"
#include "runtime/train/epoch_report.h"
#include "runtime/train/observers.h"
#include "runtime/train/run_cache.h"
#include "runtime/train/run_checkpoints.h"
#include "runtime/train/run_leader.h"
#include "runtime/train/run_plans.h"
#include "runtime/train/run_policy.h"
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
  void take(int64_t rank, RankMessage message) override;
  void prepare() override;
  void begin() override;
  void begin_here() override;
  void work() override;
  void post_last_words() override;
  void close(const std::string& status) override;
  void open_checkpoints();
  void open_leader();
  void open_cache();
  void prepare_to_follow();
  void listen_for_signals();
  std::vector<std::string> hosts_of_ranks();
  void save_model();
  void fault_point();

  // training_commands.cc: what the training loop says.
  void carry_out(const TrainSpan& command);
  void carry_out(const Drained& command);
  void carry_out(const TakeAgreedChange& command);
  void carry_out(const Decide& command);
  void carry_out(const TellEpoch& command);
  void carry_out(const Evaluate& command);
  void carry_out(const WriteCheckpoints& command);
  void carry_out(const EndGeneration& command);
  void carry_out(const AwaitEndOfGeneration& command);
  void carry_out(const ChangePlan& command);
  [[noreturn]] void carry_out(const StopRun& command);
  OrdersNow orders_now() const { return {orders_->stop_before(), orders_->signal()}; }
  void propose_change(int64_t minibatch);
  std::string awaited_decision(int64_t minibatch);
  void take_change(PlannedChange change, int64_t minibatch);
  void note_change(PlannedChange change, int64_t minibatch);
  void write_on_the_way(const TrainSpan& command, int64_t minibatch, StageReplica* stage);
  void for_each_state(int64_t minibatch, const EmulatedPlan::TakeState& take);
  CheckpointManifest manifest_of(int64_t next_minibatch, const std::string& cause) const;

  // training_spans.cc: a span, and who watches it.
  void train_span(const TrainSpan& command);
  WorkerHooks hooks();
  void add_observers(WorkerHooks& hooks, const std::shared_ptr<TimesObserver>& times);

  // training_generations.cc: from one plan to the next.
  void start_generation(int64_t number, StateSource* source);
  GroupClientSettings group_client_settings(int64_t generation);
  void connect_services(int64_t generation);
  NamedState moved_state(int64_t next, GenerationSummary& change);
  void tell_generation(GenerationSummary generation);

  void read_start();
  double elapsed_seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }
  double wall_seconds() const;
  Control& control() { return session_.control(); }
  bool stops_on_the_way() const { return job_.run.checkpoint.on_signal || job_.decides; }
  /// Also where a failure has come between two plans.
  const Plan& plan_in_force() const { return generation_ ? generation_->plan() : job_.plan; }

  Job job_;  // its changes grow, in plans_ alone
  const std::filesystem::path folder_;
  const TrainingData data_;
  const std::unique_ptr<Dataset> evaluation_data_;
  RunPlans plans_{job_};

  std::optional<RunFolderLock> lock_;  // rank 0, unless the launcher holds it
  MeasuredSpeeds measured_;
  std::unique_ptr<RunPolicy> policy_;  // if it decides on the way
  std::unique_ptr<StandingOrders> orders_;
  std::unique_ptr<Coordination> coordination_;  // rank 0; Control's thread uses it too
  RankSession session_;
  FaultPoints faults_{session_.place().rank};
  std::optional<TrainingLoop> loop_;
  std::unique_ptr<Groups> groups_;                // of the generation; null: none are made
  std::unique_ptr<MinibatchSource> minibatches_;  // of the generation; null: known beforehand
  std::unique_ptr<PlanGeneration> generation_;
  std::unique_ptr<RunCache> cache_;  // if the run keeps what frozen layers make; borrows generation_'s worker
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<RunLeader> leader_;  // rank 0; borrows checkpoints_

  // What this rank measures of itself.
  EarlierWorkers earlier_workers_;
  double drain_seconds_ = 0;  // of the last span, from the end of this rank's last forward on
  TraceWriter trace_;
  MemoryMeter memory_{job_.device.type()};
  Clock::time_point started_ = Clock::now();
  std::chrono::system_clock::time_point started_at_ = std::chrono::system_clock::now();  // the same moment
  RankMonitor monitor_;
  MeasuredTimes times_;  // but the busy seconds
  EpochReport epochs_;
};

}  // namespace pipewright
