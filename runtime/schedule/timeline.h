// What a simulation adds up, whichever engine runs it.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/schedule/dry_run.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// CheckError unless there is one StageTimes a stage, all finite and not negative, and no part of the
/// backward longer than the whole.
void check_times(const PipelineShape& shape, const std::vector<StageTimes>& times);

/// What stages spend where some are frozen: these run forward and send activations, and get no gradients.
std::vector<StageTimes> times_with_frozen(const PipelineShape& shape, std::vector<StageTimes> times);

/// The lists of a simulation, and what their actions took.
class Timeline {
 public:
  /// Keeps each action if `actions` is not null. Errors as in simulate().
  Timeline(const std::string& schedule, const PipelineShape& shape, const std::vector<StageTimes>& times,
           Span span, std::vector<SimulatedAction>* actions);

  const PipelineShape& shape() const { return shape_; }
  Span span() const { return span_; }
  const RankLists& lists() const { return lists_; }
  const std::vector<Placement>& placements() const { return placements_; }
  const StageTimes& times_of(int64_t stage) const { return times_[stage]; }
  bool trains() const { return trains_; }
  int64_t stage_of(int64_t rank, const Action& action) const {
    return action.stage_or(placements_[rank].stage);
  }
  /// What the rank has of a minibatch at a stage that splits, as a part of what the replica with most has;
  /// else 1.
  double part_of(int64_t rank, int64_t stage) const { return part_.empty() ? 1 : part_in_split(rank, stage); }

  /// Of the rank, of a whole minibatch at a stage that splits.
  const ReplicaTimes& computing(int64_t rank, int64_t stage) const {
    const std::vector<ReplicaTimes>& replicas = computing_[stage];
    return replicas[replicas.size() == 1 ? 0 : placements_[rank].replica];
  }
  /// Of this one, which begins at `now`.
  double seconds_of(int64_t rank, const Action& action, int64_t stage, double now) const {
    const double part = action.kind == ActionKind::kUpdate ? 1 : part_of(rank, stage);
    const double alone = part * computing(rank, stage).seconds_of(action.kind);
    return disturbances_ == nullptr ? alone : alone + extra_seconds(rank, action, alone, now);
  }
  /// Of a message that `rank` sends at `stage`, beyond what its link takes anyway.
  double message_seconds(int64_t rank, const Action& action, int64_t stage) const {
    return disturbances_ == nullptr ? 0 : extra_message_seconds(rank, action, stage);
  }
  void disturb(const Disturbances* disturbances) { disturbances_ = disturbances; }

  /// Of what the ranks of these stages exchange before an update, all at once.
  double meeting_seconds(const std::vector<int64_t>& stages) const {
    std::vector<double> group(static_cast<size_t>(shape_.groups()), 0);
    for (const int64_t stage : stages) group[shape_.group_of(stage)] += times_[stage].tied_seconds;
    return *std::max_element(group.begin(), group.end());
  }

  /// Each rank's in the order of its list, but sends when they are known.
  void computed(int64_t rank, const Action& action, int64_t stage, double begin, double end) {
    Rank& at = ranks_[rank];
    at.busy += end - begin;
    at.end = end;
    if (action.kind == ActionKind::kForward) {
      at.peak_in_flight = std::max(at.peak_in_flight, ++at.in_flight);
      if (!trains_) {
        --at.in_flight;
        if (stage + 1 == shape_.stages()) complete(action.index - span_.first, end);
      }
    } else if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) {
      --at.in_flight;
      if (stage == shape_.frozen_stages) complete(action.index - span_.first, end);
    }
    keep(rank, action, begin, end);
  }
  void received(int64_t rank, const Action& action, double begin, double end) {
    ranks_[rank].receive_wait += end - begin;
    ranks_[rank].end = end;
    keep(rank, action, begin, end);
  }
  void sent(int64_t rank, const Action& action, double begin, double end) {
    ranks_[rank].last_sent = std::max(ranks_[rank].last_sent, end);
    keep(rank, action, begin, end);
  }
  void waited_to_send(int64_t rank, double begin, double end) {
    ranks_[rank].send_wait += end - begin;
    ranks_[rank].end = end;
  }
  /// For the ranks of its meeting (meetings.h), and for what these exchange.
  void waited_to_update(int64_t rank, double begin, double end) {
    ranks_[rank].reduce += end - begin;
    ranks_[rank].end = end;
  }
  void reduced(int64_t rank, const Action& action, double reached, double begin, double end) {
    ranks_[rank].reduce += end - reached;
    ranks_[rank].end = end;
    keep(rank, action, begin, end);
  }

  /// How many minibatches are complete so far, and all before them.
  int64_t completed() const { return all_completed_; }

  /// CheckError unless every rank's list is done.
  void check_done(const std::vector<size_t>& position) const;

  double total_seconds() const;
  double steady_seconds() const;
  /// The same over the completions [begin, end) of the span; nothing if there are not two.
  std::optional<double> pace_seconds(int64_t begin, int64_t end) const;
  /// Completions from here on belong to the drain: the first trained stage has no more forwards to run.
  int64_t drain_begin() const;
  std::vector<SimulatedRank> ranks() const;

 private:
  struct Rank {
    double end = 0, last_sent = 0;
    double busy = 0, receive_wait = 0, send_wait = 0, reduce = 0;
    int64_t in_flight = 0, peak_in_flight = 0;
  };

  void complete(int64_t minibatch, double end) {
    completed_[minibatch] = end;
    while (all_completed_ < span_.count && completed_[all_completed_] >= 0) ++all_completed_;
  }
  double part_in_split(int64_t rank, int64_t stage) const;
  double extra_seconds(int64_t rank, const Action& action, double seconds, double now) const;
  double extra_message_seconds(int64_t rank, const Action& action, int64_t stage) const;
  void keep(int64_t rank, const Action& action, double begin, double end) {
    if (actions_) actions_->push_back({rank, action, begin, end});
  }

  PipelineShape shape_;
  Span span_;
  std::vector<StageTimes> times_;
  std::vector<std::vector<ReplicaTimes>> computing_;  // by stage and replica; one where all are alike
  std::vector<std::vector<double>> part_;             // by stage and replica; empty: no stage splits
  bool trains_;
  RankLists lists_;
  std::vector<Placement> placements_;
  std::vector<Rank> ranks_;
  std::vector<double> completed_;  // by minibatch of the span; negative: not yet
  int64_t all_completed_ = 0;      // the first so many
  std::vector<SimulatedAction>* actions_;
  const Disturbances* disturbances_ = nullptr;
};

/// Without network and queues no rank influences another but through the messages themselves, so one pass
/// over the lists suffices.
void run_sweep(Timeline& timeline, bool blocking_transfers);
/// Events in the order of time. A network or queues need it; without, it gives what run_sweep() gives.
void run_events(Timeline& timeline, const SimulationOptions& options);
/// What every rank and link does, by minibatches completed, and what is left of it: of equal states of a run
/// the same follows, so that it repeats for ever what lies between.
struct RunState {
  std::vector<int64_t> at;
  std::vector<double> left;  ///< seconds, or the part of a message
};
/// The same, part by part.
class EventRun {
 public:
  /// Borrows both.
  EventRun(Timeline& timeline, const SimulationOptions& options);
  ~EventRun();
  /// Goes on until so many minibatches of the span are complete, or to the end.
  void run_until(int64_t completed);
  double now() const;
  /// False where that is not known, or a list has ended.
  bool state(RunState* state) const;

 private:
  std::unique_ptr<class Events> events_;
};
/// Whether ranks influence each other beside their messages: then times come of events alone.
bool shares_anything(const PipelineShape& shape, const SimulationOptions& options);
/// The one of both that the options need. Where a stage splits its minibatches the first, whatever they say:
/// links are the ranks' own then.
void run_timeline(Timeline& timeline, const SimulationOptions& options);

}  // namespace pipewright
