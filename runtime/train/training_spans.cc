#include <algorithm>
#include <ctime>
#include <thread>

#include "runtime/journal/minibatch_reports.h"
#include "runtime/stage/not_finite_error.h"
#include "runtime/train/data_fault.h"
#include "runtime/train/training.h"
#include "runtime/worker/stage_loaders.h"

namespace pipewright {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of a core, that this thread has had.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

bool computes(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight ||
         kind == ActionKind::kUpdate;
}

}  // namespace

WorkerHooks Training::hooks() {
  WorkerHooks hooks = session_.hooks(generation_->plan());
  hooks.before = [this, before = std::move(hooks.before)](const Action& action) {
    fault_point();
    advance_checkpoints();
    before(action);
  };
  return hooks;
}

// Waits as --disturb says. In short steps, so that a failure elsewhere is heard of.
void Training::disturb(const DisturbedAction& action) {
  const double extra = job_.disturbances.extra_seconds(action);
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(extra));
  for (auto now = Clock::now(); now < until; now = Clock::now()) {
    control().check();
    std::this_thread::sleep_for(std::min<Clock::duration>(until - now, std::chrono::milliseconds(50)));
  }
  times_.injected_seconds += extra;
}

void Training::watch_speed(const Action& action, double seconds) {
  const double waited = times_.load_wait_seconds - action_waited_seconds_;
  if (const auto change = monitor_.ran(action, seconds - waited))
    control().post(speed_line(session_.place().rank, *change));
}

// From done_ on, until the run is over, another plan takes over, or a signal has stopped it.
void Training::train_generation() {
  const CheckpointSettings& settings = job_.run.checkpoint;
  const RunLength& length = generation_->length();
  while (done_ < end_of_generation()) {
    const Span span = span_from(done_, length);
    const auto within = checkpoints_within(span, settings, generation_->period(), length);
    try {
      train_span(span, within);
    } catch (const NotFiniteError& error) {
      throw_with_cause(error, data_fault(error, job_.model.graph, data_.dataset(),
                                         [this](int64_t k) { return data_.request(k); }));
    }
    const bool stops = stops_at(span.end());
    done_ = stop_ ? std::min(span.end(), stop_->stop_before()) : span.end();
    const bool cut_short = done_ < span.end();
    // A checkpoint of a signal can have minibatches in flight where replicas are equal without a drain.
    const bool drains = !stops || !sync_facts(job_.run.sync).keeps_replicas_equal;
    if (cut_short && drains) generation_->worker().end_span(done_);
    if (!cut_short || drains) pipeline_began_ = done_;
    // Before anything can be written that lies behind it.
    if (has_decided_change() && stop_->stop_before() == done_) take_decided_change();
    fault_point();
    evaluate_ended_epoch();
    if (evaluation_data_ && !cut_short && evaluation_within_epoch(done_, length))
      evaluate(done_ / length.minibatches_per_epoch, done_);
    fault_point();
    if (std::binary_search(within.begin(), within.end(), done_) && pipeline_began_ != done_) {
      // It was written on the way.
    } else if (checkpoint_due(done_, settings, generation_->period(), length)) {
      write_checkpoint(done_ == length.minibatches ? "end" : "interval");
    } else if (stops) {
      write_checkpoint("signal");
    }
    if (stops) {
      tell_end_of_generation(/*stopped=*/true);
      stop();
    }
  }
  tell_end_of_generation(/*stopped=*/false);
}

void Training::train_span(Span span, std::vector<int64_t> checkpoints) {
  Worker& worker = generation_->worker();
  monitor_.drained();
  StageLoaders loaders(
      data_.dataset(), worker, span, [this](int64_t k) { return data_.request(k); }, session_.loading());
  WorkerHooks hooks = this->hooks();
  if (stop_) {
    hooks.stop_before = [this] { return stop_->stop_before(); };
    hooks.before = [this, &worker, before = std::move(hooks.before)](const Action& action) {
      before(action);
      if (action.kind != ActionKind::kForward) return;
      const int64_t first = worker.stage().stage(), stage = action.stage_or(first);
      if (stage == first) ask_policy(action.index);
      if (stage == 0) stop_->enter(action.index, [this] { control().check(); });
    };
  }
  hooks.before = [this, before = std::move(hooks.before)](const Action& action) {
    before(action);
    action_began_seconds_ = processor_seconds();
    action_waited_seconds_ = times_.load_wait_seconds;
  };
  hooks.fields = [&](int64_t stage, int64_t k) {
    const auto waits = Clock::now();
    const double processor = processor_seconds();
    auto fields = loaders.next(stage, k);
    times_.load_wait_seconds += seconds_since(waits);
    times_.processor_seconds -= processor_seconds() - processor;
    return fields;
  };
  // Lines wait for their norm; those of a span that fails on the way go without.
  MinibatchReports reports(job_.run.gradient_clipping_norm > 0,
                           [this](std::string line) { control().post(std::move(line)); });
  hooks.forward_done = [&](int64_t k, double loss, const at::Tensor&) {
    const StageReplica& last = worker.stage(worker.stage_count() - 1);
    reports.loss(k, loss, elapsed_seconds(), last.learning_rate_of(k));
  };
  hooks.gradient_norm = [&](int64_t end, double norm) { reports.norm(end, norm); };
  const int64_t round_length = StageTurns(generation_->shape(), worker.stage().stage()).round_length();
  hooks.after = [this, &worker, round_length, ended = std::move(hooks.after)](
                    const Action& action, Clock::time_point begin, Clock::time_point end) {
    if (computes(action.kind)) times_.processor_seconds += processor_seconds() - action_began_seconds_;
    if (action.kind == ActionKind::kForward &&
        action.stage_or(worker.stage().stage()) == worker.stage().stage())
      ++times_.minibatches;
    watch_speed(action, std::chrono::duration<double>(end - begin).count());
    ended(action, begin, end);
    if (action.index * (is_of_round(action.kind) ? round_length : 1) >= job_.run.trace_minibatches) return;
    const auto since_start = [this](Clock::time_point time) {
      return std::chrono::duration<double>(time - started_).count();
    };
    trace_.add(trace_span(session_.place().rank, action, since_start(begin), since_start(end)));
  };
  auto last_forward = Clock::now();
  hooks.after = [&, ended = std::move(hooks.after)](const Action& action, Clock::time_point begin,
                                                    Clock::time_point end) {
    if (action.kind == ActionKind::kForward) last_forward = end;
    ended(action, begin, end);
  };
  if (!job_.disturbances.empty()) {
    hooks.prolong = [this, &worker](const Action& action, Clock::time_point begin) {
      disturb({session_.place().rank, worker.replica(), action, seconds_since(begin),
               std::chrono::duration<double>(begin - started_).count()});
    };
  }
  hooks.checkpoints = std::move(checkpoints);
  hooks.checkpoint = [this, &worker](int64_t n, StageReplica& stage) {
    // Where another plan takes over the pipeline drains first.
    if (stop_ && stop_->stop_before() == n && !stops_at(n)) return;
    session_.rest();  // a slow disk is no update that hangs
    if (&stage == &worker.stage()) begin_checkpoint(n, "interval");
    take_state(n, stage, /*drained=*/false);
  };
  const auto begin = Clock::now();
  try {
    worker.train(span, hooks, pipeline_began_);
  } catch (...) {
    reports.flush();
    throw;
  }
  times_.trained_seconds += seconds_since(begin);
  drain_seconds_ = seconds_since(last_forward);
}

// Where an epoch or the run is over; also of a run that was stopped between an epoch and its evaluation.
void Training::evaluate_ended_epoch() {
  const RunLength& length = generation_->length();
  const int64_t epochs = (done_ + length.minibatches_per_epoch - 1) / length.minibatches_per_epoch;
  const bool at_end = done_ == length.minibatches || done_ % length.minibatches_per_epoch == 0;
  if (!evaluation_data_ || !at_end || evaluated_epochs_ >= epochs) return;
  evaluate(epochs - 1);
  evaluated_epochs_ = epochs;
}

// `minibatches`: trained before, within an epoch; 0: at its end.
void Training::evaluate(int64_t epoch, int64_t minibatches) {
  if (journal_) control().post(evaluation_begins_line(epoch, minibatches));
  generation_->evaluation(*evaluation_data_)
      .run(hooks(), session_.loading(), [&](const EvaluatedMinibatch& done, const ScoredSamples&) {
        control().post(evaluation_line(epoch, done, minibatches));
      });
}

}  // namespace pipewright
