#include "runtime/side_by_side/simulate_pipelines.h"

#include <algorithm>
#include <map>
#include <memory>
#include <queue>
#include <tuple>

#include "graph/error.h"
#include "graph/sync_rules.h"
#include "runtime/schedule/disturbance.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/schedule/turns.h"
#include "runtime/side_by_side/minibatch_queue.h"
#include "runtime/side_by_side/pipeline_ties.h"

namespace pipewright {
namespace {

// What a pipeline trains, as it counts.
class Minibatches {
 public:
  Minibatches(const PipelinesToSimulate& what, int64_t interval)
      : turns_(what.pipelines), interval_(interval), span_{0, what.minibatches}, queue_(span_, interval) {
    shared_ = what.pipelines > 1 && shares_minibatches(what.sync);
  }
  // That it could train.
  Span listed(int64_t pipeline) const {
    if (!shared_) return PipelineTurn{pipeline, turns_}.own(span_);
    return {0, (span_.count + interval_ - 1) / interval_ * interval_};
  }
  // The run's number, which is asked for when it is needed first; nothing: another pipeline trains it.
  std::optional<int64_t> to_run(int64_t pipeline, int64_t own) {
    if (!shared_) return PipelineTurn{pipeline, turns_}.to_run(own);
    const Span part = queue_.part(pipeline, own / interval_).minibatches;
    if (own % interval_ >= part.count) return std::nullopt;
    return part.first + own % interval_;
  }

 private:
  const int64_t turns_, interval_;
  const Span span_;
  bool shared_ = false;
  MinibatchQueue queue_;
};

class PipelinesSimulation {
 public:
  explicit PipelinesSimulation(const PipelinesToSimulate& what)
      : what_(what),
        interval_(StageTurns(what.pipeline, 0).round_length()),
        minibatches_(what, interval_),
        ties_(make_ties(what, [this](int64_t stage, int64_t pipeline, double seconds) {
          push(seconds, stage * what_.pipelines + pipeline);
        })) {
    for (int64_t stage = 0; stage < what.pipeline.stages(); ++stage) {
      for (int64_t p = 0; p < what.pipelines; ++p) {
        Rank rank{stage, p, {}};
        rank.listed = minibatches_.listed(p);
        for (const Action& action : schedule_of_rank(what.schedule, what.pipeline, stage, 0, rank.listed)) {
          rank.actions.push_back(action);
          if (action.kind == ActionKind::kUpdate)
            rank.actions.push_back({ActionKind::kAverage, action.index});
        }
        ranks_.push_back(std::move(rank));
      }
    }
  }

  SimulatedPipelines run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) push(0, static_cast<int64_t>(rank));
    while (!queue_.empty()) {
      const double next = queue_.top().seconds;
      if (const auto deadline = ties_->deadline_seconds(); deadline && *deadline < next) {
        ties_->expire(now_ = *deadline);
        continue;
      }
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.seconds;
      go_on(ranks_[static_cast<size_t>(event.rank)]);
      if (!queue_.empty()) continue;
      if (const auto deadline = ties_->deadline_seconds()) ties_->expire(now_ = std::max(now_, *deadline));
    }
    return result();
  }

 private:
  struct Rank {
    int64_t stage, pipeline;
    std::vector<Action> actions;
    Span listed{};
    size_t position = 0;
    bool under_way = false;  // the action at `position` has begun
    double since = 0;
    double free[2] = {0, 0};  // its links, of activations and gradients
    bool done = false;
    int64_t updates = 0;
    double waited = 0;
  };
  struct Event {
    double seconds;
    int64_t order, rank;
    bool operator<(const Event& other) const {
      return std::tie(seconds, order) > std::tie(other.seconds, other.order);
    }
  };
  using Message = std::tuple<int64_t, int64_t, bool, int64_t>;  // to pipeline, stage; a gradient; minibatch

  void push(double seconds, int64_t rank) { queue_.push({seconds, ++order_, rank}); }
  int64_t number(const Rank& rank) const { return rank.stage * what_.pipelines + rank.pipeline; }
  const StageTimes& times_of(const Rank& rank) const {
    const auto& times =
        what_.own_times.empty() ? what_.times : what_.own_times[static_cast<size_t>(rank.pipeline)];
    return times[static_cast<size_t>(rank.stage)];
  }
  int64_t called(int64_t stage, int64_t pipeline) const {
    return what_.ranks[static_cast<size_t>(stage)][static_cast<size_t>(pipeline)];
  }
  int64_t first_minibatch(const Action& action) const {
    return is_of_round(action.kind) ? action.index * interval_ : action.index;
  }

  // Until something takes time or has to be waited for.
  void go_on(Rank& rank) {
    for (; rank.position < rank.actions.size(); ++rank.position) {
      const Action& action = rank.actions[rank.position];
      const auto of_run = minibatches_.to_run(rank.pipeline, first_minibatch(action));
      if (of_run && !step(rank, action, *of_run)) return;
      rank.under_way = false;
    }
    if (!rank.done) {
      rank.done = true;
      ties_->leaves(rank.stage, rank.pipeline, now_);
    }
  }

  // Whether the action is over. It is called again when the time has come.
  bool step(Rank& rank, const Action& action, int64_t of_run) {
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        return receive(rank, action);
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        send(rank, action, of_run);
        return true;
      case ActionKind::kAverage:
        return average(rank, action.index);
      default:
        return compute(rank, action, of_run);
    }
  }

  bool compute(Rank& rank, const Action& action, int64_t of_run) {
    if (rank.under_way) {
      if (action.kind == ActionKind::kUpdate) count_update(rank);
      return true;
    }
    rank.under_way = true;
    const bool last_part = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
    if (last_part && StageTurns(what_.pipeline, rank.stage).is_last_of_round(action.index, known(rank)))
      ties_->begins_last_backward(rank.stage, rank.pipeline, now_);
    push(now_ + seconds_of(rank, action, of_run), number(rank));
    return false;
  }

  // Of the minibatches that it could train, those that it can still get.
  Span known(const Rank& rank) {
    int64_t end = rank.listed.end();
    const Action& action = rank.actions[rank.position];
    const int64_t round = action.index / interval_;
    end = std::min(end, (round + 1) * interval_);
    while (end > action.index + 1 && !minibatches_.to_run(rank.pipeline, end - 1)) --end;
    return {rank.listed.first, end - rank.listed.first};
  }

  double seconds_of(const Rank& rank, const Action& action, int64_t of_run) const {
    const StageTimes& times = times_of(rank);
    const double seconds = times.of(0).seconds_of(action.kind);
    if (action.kind == ActionKind::kUpdate) return seconds + times.tied_seconds;
    if (!what_.disturbances) return seconds;
    return seconds + what_.disturbances->extra_seconds({called(rank.stage, rank.pipeline),
                                                        rank.pipeline,
                                                        {action.kind, of_run, action.stage},
                                                        seconds,
                                                        now_});
  }

  bool receive(Rank& rank, const Action& action) {
    const Message message{rank.pipeline, rank.stage, action.kind == ActionKind::kReceiveGradient,
                          action.index};
    const auto there = arrivals_.find(message);
    if (there == arrivals_.end()) {
      awaited_[message] = number(rank);
      return false;
    }
    if (there->second > now_) {
      push(there->second, number(rank));
      return false;
    }
    arrivals_.erase(there);
    return true;
  }

  void send(Rank& rank, const Action& action, int64_t of_run) {
    const bool gradient = action.kind == ActionKind::kSendGradient;
    const StageTimes& times = times_of(rank);
    const int64_t to = rank.stage + (gradient ? -1 : 1);
    double& free = rank.free[gradient ? 1 : 0];
    free = std::max(free, now_) + (gradient ? times.send_gradient_seconds : times.send_activation_seconds);
    if (what_.disturbances)
      free += what_.disturbances->message_seconds(
          {called(rank.stage, rank.pipeline), called(to, rank.pipeline), of_run});
    const Message message{rank.pipeline, to, gradient, action.index};
    arrivals_[message] = free;
    if (const auto waiting = awaited_.extract(message)) push(free, waiting.mapped());
  }

  bool average(Rank& rank, int64_t round) {
    if (rank.under_way) {
      rank.waited += now_ - rank.since;
      return true;
    }
    rank.under_way = true;
    rank.since = now_;
    return what_.pipelines == 1 || ties_->has_updated(rank.stage, rank.pipeline, round, now_);
  }

  void count_update(Rank& rank) {
    ++rank.updates;
    if (rank.stage > 0) return;
    for (int64_t p = 0; p < what_.pipelines; ++p) {
      const Rank& other = ranks_[static_cast<size_t>(p)];
      if (!other.done) most_ahead_ = std::max(most_ahead_, rank.updates - other.updates);
    }
  }

  SimulatedPipelines result() {
    SimulatedPipelines result;
    double waited = 0;
    for (Rank& rank : ranks_) {
      PW_CHECK(rank.position == rank.actions.size(),
               "simulated pipeline " << rank.pipeline << " waits for ever at stage " << rank.stage);
      waited += rank.waited;
    }
    result.total_seconds = now_;
    for (int64_t p = 0; p < what_.pipelines; ++p) {
      const Span listed = minibatches_.listed(p);
      int64_t& trained = result.minibatches.emplace_back(0);
      for (int64_t own = listed.first; own < listed.end(); ++own)
        trained += minibatches_.to_run(p, own) ? 1 : 0;
    }
    if (now_ > 0) result.waiting_fraction = waited / (now_ * static_cast<double>(ranks_.size()));
    const GroupStatistics statistics = ties_->statistics();
    for (const auto& [size, count] : statistics.groups) {
      result.group_sizes.resize(static_cast<size_t>(size));
      result.group_sizes.back() = count;
    }
    result.longest_window_updates =
        static_cast<double>(statistics.longest_window_updates) / static_cast<double>(what_.pipelines);
    result.most_ahead_updates = most_ahead_;
    return result;
  }

  const PipelinesToSimulate& what_;
  const int64_t interval_;
  Minibatches minibatches_;
  std::unique_ptr<PipelineTies> ties_;
  std::vector<Rank> ranks_;  // by stage, by pipeline
  std::priority_queue<Event> queue_;
  std::map<Message, double> arrivals_;
  std::map<Message, int64_t> awaited_;  // rank
  double now_ = 0;
  int64_t order_ = 0, most_ahead_ = 0;
};

}  // namespace

SimulatedPipelines simulate_pipelines(const PipelinesToSimulate& what) {
  PW_CHECK_LE(1, what.pipelines);
  PW_CHECK_EQ(what.times.size(), static_cast<size_t>(what.pipeline.stages()));
  PW_CHECK_EQ(what.pipeline.stages_per_rank, 1);
  PW_CHECK(what.own_times.empty() || static_cast<int64_t>(what.own_times.size()) == what.pipelines,
           what.own_times.size() << " pipelines' times of " << what.pipelines);
  return PipelinesSimulation(what).run();
}

}  // namespace pipewright
