#include "runtime/coordinator/training_loop.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "graph/error.h"

namespace pipewright {

bool ends_before(const OrdersNow& orders, int64_t minibatch, const RunLength& length) {
  return orders.signal != 0 && orders.stop_before <= minibatch && orders.stop_before < length.minibatches;
}

TrainingLoop::TrainingLoop(LoopRules rules, LoopStart start)
    : rules_(std::move(rules)),
      plan_begins_(std::move(start.plan_begins)),
      done_(start.minibatch),
      pipeline_began_(start.pipeline_began),
      evaluated_epochs_(start.evaluated_epochs),
      told_up_to_(start.minibatch) {}

void TrainingLoop::begin_generation(int64_t number, const RunLength& length, bool takes_part) {
  const bool first = generation_ < 0;
  generation_ = number;
  length_ = length;
  takes_part_ = takes_part;
  generation_over_ = false;
  // The run was stopped between an epoch and its evaluation.
  if (first && takes_part)
    if (const auto evaluation = evaluation_of_ended_epoch()) coming_.emplace_back(*evaluation);
}

std::optional<LoopCommand> TrainingLoop::next(const OrdersNow& orders) {
  PW_CHECK(generation_ >= 0, "no plan is in force");
  if (current_) carried_out(*std::exchange(current_, {}), orders);
  if (coming_.empty()) {
    if (generation_over_) {
      if (done_ == length_.minibatches) return std::nullopt;
      PW_CHECK(knows_next_plan(), "nothing follows plan " << generation_ << " from minibatch " << done_);
      coming_.emplace_back(ChangePlan{generation_ + 1});
    } else if (!takes_part_) {
      coming_.emplace_back(AwaitEndOfGeneration{});
    } else if (done_ < end_of_generation()) {
      coming_.emplace_back(next_span());
    } else {
      coming_.emplace_back(EndGeneration{{generation_, /*stopped=*/false, done_}});
    }
  }
  current_ = std::move(coming_.front());
  coming_.pop_front();
  return current_;
}

void TrainingLoop::carried_out(const LoopCommand& command, const OrdersNow& orders) {
  const auto effect = [&]<typename T>(const T& what) {
    if constexpr (std::is_same_v<T, TrainSpan>) {
      span_trained(what, orders);
    } else if constexpr (std::is_same_v<T, TellEpoch>) {
      told_up_to_ = done_;
    } else if constexpr (std::is_same_v<T, Evaluate>) {
      if (what.minibatches == 0) evaluated_epochs_ = what.epoch + 1;
    } else if constexpr (std::is_same_v<T, EndGeneration>) {
      generation_over_ = true;
    } else if constexpr (std::is_same_v<T, ChangePlan>) {
      PW_CHECK_EQ(what.generation, generation_);
    } else if constexpr (std::is_same_v<T, StopRun>) {
      PW_CHECK(false, "the run has ended before minibatch " << done_);
    }
  };
  std::visit(effect, command);
}

void TrainingLoop::span_trained(const TrainSpan& trained, const OrdersNow& orders) {
  const bool stops = ends_before(orders, trained.span.end(), length_);
  done_ = std::min(trained.span.end(), orders.stop_before);
  const bool early = done_ < trained.span.end();
  // A checkpoint of a signal can have minibatches in flight where replicas are equal without a drain.
  if (!early || !stops || !rules_.keeps_replicas_equal) {
    pipeline_began_ = done_;
    coming_.emplace_back(Drained{done_, early});
  }
  // Before anything can be written that lies behind it.
  add_changes(!early && !stops, orders);
  add_end_of_epoch();
  if (rules_.evaluates && !early && evaluation_within_epoch(done_, length_))
    coming_.emplace_back(Evaluate{done_ / length_.minibatches_per_epoch, done_});
  add_checkpoints(trained, stops);
  if (!stops) return;
  coming_.emplace_back(EndGeneration{{generation_, /*stopped=*/true, done_}});
  coming_.emplace_back(StopRun{});
}

// `whole`: the span has come to its end, and no signal ends the run there.
void TrainingLoop::add_changes(bool whole, const OrdersNow& orders) {
  if (agreed_change(orders)) {
    coming_.emplace_back(TakeAgreedChange{done_});
  } else if (whole && rules_.decides_every && done_ < length_.minibatches && !knows_next_plan() &&
             decision_due(done_, *rules_.decides_every, length_)) {
    coming_.emplace_back(Decide{done_});
  }
}

bool TrainingLoop::agreed_change(const OrdersNow& orders) const {
  return orders.stop_before == done_ && orders.signal == 0 && !knows_next_plan() &&
         done_ < length_.minibatches;
}

void TrainingLoop::add_end_of_epoch() {
  const int64_t of_epoch = length_.minibatches_per_epoch;
  if (done_ != told_up_to_ && (done_ == length_.minibatches || done_ % of_epoch == 0)) {
    const int64_t epoch = (done_ - 1) / of_epoch;
    coming_.emplace_back(TellEpoch{epoch, done_ - std::max(told_up_to_, epoch * of_epoch)});
  }
  if (const auto evaluation = evaluation_of_ended_epoch()) coming_.emplace_back(*evaluation);
}

std::optional<Evaluate> TrainingLoop::evaluation_of_ended_epoch() const {
  const int64_t of_epoch = length_.minibatches_per_epoch;
  const int64_t epochs = (done_ + of_epoch - 1) / of_epoch;
  const bool at_end = done_ == length_.minibatches || done_ % of_epoch == 0;
  if (!rules_.evaluates || !at_end || evaluated_epochs_ >= epochs) return std::nullopt;
  return Evaluate{epochs - 1, 0};
}

void TrainingLoop::add_checkpoints(const TrainSpan& trained, bool stops) {
  WriteCheckpoints write{{}, done_, done_ == length_.minibatches ? "end" : "interval"};
  for (const auto& [kind, settings] : rules_.checkpoints) {
    // What cannot be kept between drains is kept at each.
    bool due = (kind == CheckpointKind::kKept && !rules_.keeps_replicas_equal) ||
               checkpoint_due(done_, settings, length_.period, length_);
    if (kind == CheckpointKind::kRun && stops && !due) {
      due = true;
      if (done_ != length_.minibatches) write.cause = "signal";
    }
    const std::vector<int64_t>& on_the_way = trained.checkpoints.at(kind);
    const bool was_written =
        pipeline_began_ != done_ && std::binary_search(on_the_way.begin(), on_the_way.end(), done_);
    if (due && !was_written) write.kinds.push_back(kind);
  }
  if (!write.kinds.empty()) coming_.emplace_back(std::move(write));
}

TrainSpan TrainingLoop::next_span() const {
  TrainSpan next{span_from(done_, length_), {}};
  for (const auto& [kind, settings] : rules_.checkpoints) {
    // Replicas that are not held equal are made so where the pipeline drains: what lies between says nothing.
    next.checkpoints[kind] = rules_.keeps_replicas_equal
                                 ? checkpoints_within(next.span, settings, length_.period, length_)
                                 : std::vector<int64_t>();
  }
  return next;
}

// As far as it is known. What orders say ends spans, and what comes of that is a plan that is added.
int64_t TrainingLoop::end_of_generation() const {
  int64_t end = std::min(length_.minibatches, length_.plan_end);
  if (knows_next_plan()) end = std::min(end, plan_begins_[static_cast<size_t>(generation_) + 1]);
  return end;
}

void TrainingLoop::plan_added(int64_t minibatch) {
  PW_CHECK(plan_begins_.empty() || plan_begins_.back() < minibatch || plan_begins_.back() == 0,
           "a plan from minibatch " << minibatch << " follows one from " << plan_begins_.back());
  plan_begins_.push_back(minibatch);
}

void TrainingLoop::generation_ended(const GenerationEnded& how, const OrdersNow& orders) {
  PW_CHECK_EQ(how.generation, generation_);
  done_ = pipeline_began_ = how.next_minibatch;
  if (agreed_change(orders)) coming_.emplace_back(TakeAgreedChange{done_});
  // An epoch that is over has been evaluated by the others.
  if (rules_.evaluates)
    evaluated_epochs_ = std::max(evaluated_epochs_, done_ / length_.minibatches_per_epoch);
  if (how.stopped) coming_.emplace_back(StopRun{});
  generation_over_ = true;
}

}  // namespace pipewright
