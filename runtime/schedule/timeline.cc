#include "runtime/schedule/timeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "runtime/schedule/disturbance.h"

namespace pipewright {

bool shares_anything(const PipelineShape& shape, const SimulationOptions& options) {
  return !options.network.empty() || options.cores.too_few_for(shape.ranks());
}

void run_timeline(Timeline& timeline, const SimulationOptions& options) {
  timeline.disturb(options.disturbances);
  // A frozen stage waits for room, which is the only thing that holds it back.
  const bool waits_for_room = options.send_queue > 0 || timeline.shape().frozen_stages > 0;
  if (timeline.shape().any_splits() || (!shares_anything(timeline.shape(), options) && !waits_for_room))
    run_sweep(timeline, options.blocking_transfers);
  else
    run_events(timeline, options);
}

void check_times(const PipelineShape& shape, const std::vector<StageTimes>& times) {
  PW_CHECK_EQ(times.size(), shape.replicas.size());
  const auto check_each = [](std::initializer_list<double> all) {
    for (const double seconds : all)
      PW_CHECK(std::isfinite(seconds) && seconds >= 0, "a time of " << seconds << " seconds");
  };
  const auto check_computing = [&](const ReplicaTimes& t) {
    check_each({t.forward_seconds, t.backward_seconds, t.backward_weight_seconds, t.recompute_seconds,
                t.step_seconds});
    PW_CHECK_LE(t.backward_weight_seconds, t.backward_seconds);
  };
  for (size_t stage = 0; stage < times.size(); ++stage) {
    StageTimes t = times[stage];
    check_each({t.reduce_seconds, t.send_activation_seconds, t.send_gradient_seconds, t.tied_seconds});
    for (const ReplicaTimes& replica : t.replicas) check_computing(replica);
    PW_CHECK(t.replicas.empty() || t.replicas.size() == static_cast<size_t>(shape.replicas[stage]),
             "times of " << t.replicas.size() << " replicas of " << shape.replicas[stage]);
    t.replicas.clear();
    check_computing(t.of(0));
  }
}

std::vector<StageTimes> times_with_frozen(const PipelineShape& shape, std::vector<StageTimes> times) {
  for (int64_t stage = 0; stage < shape.frozen_stages; ++stage) {
    StageTimes& t = times[static_cast<size_t>(stage)];
    StageTimes kept;
    kept.forward_seconds = t.forward_seconds;
    kept.send_activation_seconds = t.send_activation_seconds;
    for (const ReplicaTimes& replica : t.replicas) kept.replicas.push_back({replica.forward_seconds});
    t = std::move(kept);
  }
  if (shape.frozen_stages > 0) times[static_cast<size_t>(shape.frozen_stages)].send_gradient_seconds = 0;
  return times;
}

namespace {

size_t action_count(const RankLists& lists) {
  return std::accumulate(lists.begin(), lists.end(), size_t{0},
                         [](size_t n, const auto& list) { return n + list.size(); });
}

}  // namespace

Timeline::Timeline(const std::string& schedule, const PipelineShape& shape,
                   const std::vector<StageTimes>& times, Span span, std::vector<SimulatedAction>* actions)
    : shape_(shape),
      span_(span),
      times_(times_with_frozen(shape, times)),
      trains_(schedule_named(schedule).trains()),
      lists_(schedule_of_all(schedule, shape, span)),
      placements_(pipewright::placements(shape)),
      ranks_(placements_.size()),
      completed_(span.count, -1),
      actions_(actions) {
  check_times(shape, times);
  for (const StageTimes& t : times_)
    computing_.push_back(t.replicas.empty() ? std::vector<ReplicaTimes>{t.of(0)} : t.replicas);
  for (int64_t stage = 0; shape.any_splits() && stage < shape.stages(); ++stage) {
    part_.emplace_back();
    if (!shape.splits(stage)) continue;
    const auto& weights = shape.split[static_cast<size_t>(stage)];
    const auto most = static_cast<double>(*std::max_element(weights.begin(), weights.end()));
    for (const int64_t weight : weights) part_.back().push_back(static_cast<double>(weight) / most);
  }
  if (actions_) actions_->reserve(action_count(lists_));
}

void Timeline::check_done(const std::vector<size_t>& position) const {
  for (size_t rank = 0; rank < lists_.size(); ++rank)
    PW_CHECK(position[rank] == lists_[rank].size(),
             "deadlock at " << to_text(lists_[rank][position[rank]]) << " of "
                            << rank_label(shape_.number_of(static_cast<int64_t>(rank)), placements_[rank]));
}

double Timeline::part_in_split(int64_t rank, int64_t stage) const {
  const std::vector<double>& parts = part_[static_cast<size_t>(stage)];
  return parts.empty() ? 1 : parts[static_cast<size_t>(placements_[static_cast<size_t>(rank)].replica)];
}

double Timeline::extra_seconds(int64_t rank, const Action& action, double seconds, double now) const {
  return disturbances_->extra_seconds(
      {shape_.number_of(rank), placements_[static_cast<size_t>(rank)].replica, action, seconds, now});
}

double Timeline::extra_message_seconds(int64_t rank, const Action& action, int64_t stage) const {
  const int64_t other = stage + (action.kind == ActionKind::kSendGradient ? -1 : 1);
  const int64_t receiver =
      first_ranks(shape_)[static_cast<size_t>(other)] +
      (shape_.splits(other)  // the first of those that get a part of it
           ? parts_met(shape_, stage, placements_[static_cast<size_t>(rank)].replica, other).first
           : StageTurns(shape_, other).replica_of(action.index));
  return disturbances_->message_seconds({shape_.number_of(rank), shape_.number_of(receiver), action.index});
}

double Timeline::total_seconds() const {
  double total = 0;
  for (const Rank& rank : ranks_) total = std::max({total, rank.end, rank.last_sent});
  return total;
}

int64_t Timeline::drain_begin() const {
  int64_t draining = 0;  // minibatches that the first trained stage runs backward after its last forward
  const int64_t first = shape_.frozen_stages, first_rank = first_ranks(shape_)[first];
  if (trains_)
    for (int64_t replica = 0; replica < shape_.replicas[first]; ++replica)
      draining += ranks_[first_rank + replica].peak_in_flight;
  return span_.count - draining;
}

std::optional<double> Timeline::pace_seconds(int64_t begin, int64_t end) const {
  const int64_t completions = std::max<int64_t>(0, end - begin);
  const int64_t period = pipeline_period(shape_, span_.count).value_or(span_.count + 1);
  int64_t apart = completions / 2 / period * period;
  if (apart == 0) apart = completions / 2;
  if (apart == 0) return std::nullopt;
  double sum = 0;
  const int64_t pairs = completions - apart;
  for (int64_t i = begin; i < begin + pairs; ++i) sum += completed_[i + apart] - completed_[i];
  return sum / static_cast<double>(pairs * apart);
}

double Timeline::steady_seconds() const {
  if (span_.count == 0) return 0;
  const std::optional<double> pace = pace_seconds(span_.count / 2, drain_begin());
  return pace ? *pace : total_seconds() / static_cast<double>(span_.count);
}

std::vector<SimulatedRank> Timeline::ranks() const {
  std::vector<SimulatedRank> all;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& at = ranks_[rank];
    all.push_back({placements_[rank], at.busy, at.receive_wait, at.send_wait, at.reduce, at.peak_in_flight,
                   shape_.number_of(static_cast<int64_t>(rank))});
  }
  return all;
}

}  // namespace pipewright
