#include <algorithm>
#include <set>

#include "runtime/journal/minibatch_reports.h"
#include "runtime/stage/not_finite_error.h"
#include "runtime/train/data_fault.h"
#include "runtime/train/observers.h"
#include "runtime/train/seconds_since.h"
#include "runtime/train/training.h"
#include "runtime/worker/prefix_feed.h"
#include "runtime/worker/stage_loaders.h"

namespace pipewright {

WorkerHooks Training::hooks() {
  WorkerHooks hooks = session_.hooks(generation_->plan(), generation_->shape().accumulation);
  const auto between = [this] {
    fault_point();
    advance_checkpoints();
  };
  hooks.observers.insert(hooks.observers.begin(), std::make_shared<BetweenActions>(between));
  return hooks;
}

// What else watches a span; `times` is among it.
void Training::add_observers(WorkerHooks& hooks, const std::shared_ptr<TimesObserver>& times) {
  const Worker& worker = generation_->worker();
  const int64_t stage = worker.stage().stage(), rank = session_.place().rank;
  const auto add = [&](auto observer) { hooks.observers.push_back(std::move(observer)); };
  if (stops_on_the_way_) {
    add(std::make_shared<BeforeForwards>(stage, [this, stage](int64_t minibatch) {
      ask_policy(minibatch);
      if (stage == 0) orders_->enter(minibatch, [this] { control().check(); });
    }));
  }
  add(times);
  add(std::make_shared<SplitObserver>(*times, split_));
  add(std::make_shared<SpeedObserver>(monitor_, *times,
                                      [this](const SpeedChange& change) { control().post(change); }));
  // Of each plan the first ones that it trains here.
  const int64_t begin = std::max(data_.first_minibatch(), job_.first_minibatch_of(generation_->number()));
  add(std::make_shared<TraceObserver>(
      TraceObserver::Settings{rank, begin + job_.run.trace_minibatches, started_}, trace_));
  // The host does not wait for what a GPU sends another: when such a message is there nobody knows.
  if (session_.transport() && job_.device.is_cpu()) {
    add(std::make_shared<MessageObserver>(MessageObserver::Settings{
        stage, generation_->number(), [this](MessageLog log) { control().post(std::move(log)); }}));
  }
  if (policy_ && policy_->reads_cores())
    add(std::make_shared<CoreObserver>(core_reader_.get(),
                                       [this](CoreSample sample) { control().post(std::move(sample)); }));
  if (job_.disturbances.empty()) return;
  add(std::make_shared<Disturber>(
      Disturber::Settings{job_.disturbances, rank, worker.replica(), started_, [this] { control().check(); },
                          session_.message_delays()},
      times_));
}

// From done_ on, until the run is over, another plan takes over, or a signal has stopped it.
void Training::train_generation() {
  const RunLength& length = generation_->length();
  while (done_ < end_of_generation()) {
    const Span span = span_from(done_, length);
    const PointsWithin within = points_within(span);
    try {
      train_span(span, within);
    } catch (const NotFiniteError& error) {
      throw_with_cause(error, data_fault(error, job_.model.graph, data_.dataset(),
                                         [this](int64_t k) { return data_.request(k); }));
    }
    const bool stops = stops_at(span.end());
    done_ = std::min(span.end(), orders_->stop_before());
    const bool cut_short = done_ < span.end();
    // A checkpoint of a signal can have minibatches in flight where replicas are equal without a drain.
    const bool drains = !stops || !sync_facts(job_.run.sync).keeps_replicas_equal;
    if (cut_short && drains) generation_->worker().end_span(done_);
    if (!cut_short || drains) {
      pipeline_began_ = done_;
      if (const auto spread = generation_->worker().drain_spread())
        control().post(DrainSpread{done_, *spread});
    }
    // Before anything can be written that lies behind it.
    if (has_decided_change() && orders_->stop_before() == done_) {
      take_decided_change();
    } else if (!cut_short && !stops) {
      decide_drained();
    }
    fault_point();
    tell_ended_epoch();
    evaluate_ended_epoch();
    if (evaluation_data_ && !cut_short && evaluation_within_epoch(done_, length))
      evaluate(done_ / length.minibatches_per_epoch, done_);
    fault_point();
    const auto was_written = [&](CheckpointSeries* series) {  // on the way
      const std::vector<int64_t>& points = within.at(series);
      return std::binary_search(points.begin(), points.end(), done_) && pipeline_began_ != done_;
    };
    std::vector<CheckpointSeries*> due = series_due(done_);
    const bool is_due = std::find(due.begin(), due.end(), checkpoints_.get()) != due.end();
    if (stops && !is_due) due.push_back(checkpoints_.get());
    std::erase_if(due, was_written);
    if (!due.empty()) {
      write_checkpoints(due, done_ == length.minibatches ? "end" : stops && !is_due ? "signal" : "interval");
    }
    if (stops) {
      tell_end_of_generation(/*stopped=*/true);
      stop();
    }
  }
  tell_end_of_generation(/*stopped=*/false);
}

Training::PointsWithin Training::points_within(Span span) const {
  PointsWithin within;
  for (CheckpointSeries* series : all_series()) {
    // Replicas that are not held equal are made so where the pipeline drains: what lies between says nothing.
    within[series] =
        sync_facts(job_.run.sync).keeps_replicas_equal
            ? checkpoints_within(span, series->points(), generation_->period(), generation_->length())
            : std::vector<int64_t>();
  }
  return within;
}

void Training::train_span(Span span, const PointsWithin& within) {
  Worker& worker = generation_->worker();
  monitor_.drained();
  std::optional<PrefixFeed> prefix;
  if (cache_ && cache_->prefix())
    prefix.emplace(*cache_->prefix(),
                   minibatches_of(worker.stage(), worker.stage().turns(), worker.open(span)));
  const Loading loading = session_.loading();
  StageLoaders loaders(
      data_.dataset(), worker, worker.open(span), [this](int64_t k) { return data_.request(k); }, loading,
      prefix ? std::optional<int64_t>(0) : std::nullopt);
  WorkerHooks hooks = this->hooks();
  const auto times = std::make_shared<TimesObserver>(worker.stage().stage(), times_);
  const auto last_forward = std::make_shared<LastForward>();
  add_observers(hooks, times);
  hooks.observers.push_back(last_forward);
  if (stops_on_the_way_) hooks.stop_before = [this] { return orders_->stop_before(); };
  hooks.fields = [&](int64_t stage, int64_t k) {
    std::vector<at::Tensor> fields;
    if (prefix && stage == 0) {
      times->wait_for_samples([&] {
        loading.begin(k);
        prefix->await(k);
        loading.end();
      });
      return prefix->fields(k);
    }
    times->wait_for_samples([&] { fields = loaders.next(stage, k); });
    return fields;
  };
  int64_t asked_for = 0;
  Loader of_losses(
      data_.dataset(), field_numbers(data_.dataset(), worker.loss_shares().fields()),
      [&] { return std::optional(data_.request(asked_for)); }, {.count = 0}, /*ahead=*/0);
  hooks.loss_fields = [&](int64_t k) {
    asked_for = k;
    return of_losses.next();
  };
  const StageReplica& last = worker.stage(worker.stage_count() - 1);
  const LossPart part = last.turns().splits() ? LossPart{last.place(), last.turns().replicas()} : LossPart{};
  // Losses wait for their norm; those of a span that fails on the way go without.
  MinibatchReports reports(job_.run.gradient_clipping_norm > 0, part,
                           [this](MinibatchLoss loss) { control().post(std::move(loss)); });
  hooks.forward_done = [&](int64_t k, double loss, const std::vector<at::Tensor>&) {
    reports.loss(k, loss, elapsed_seconds(), last.learning_rate_of(k));
  };
  if (layer_norms_) hooks.averaged = [this](StageReplica& stage) { layer_norms_->add(stage); };
  hooks.gradient_norm = [&](int64_t end, double norm) { reports.norm(end, norm); };
  std::set<int64_t> checkpoints;
  for (const auto& [series, points] : within) checkpoints.insert(points.begin(), points.end());
  hooks.checkpoints.assign(checkpoints.begin(), checkpoints.end());
  hooks.checkpoint = [this, &worker, &within](int64_t n, StageReplica& stage) {
    // Where another plan takes over the pipeline drains first.
    if (orders_->stop_before() == n && !stops_at(n)) return;
    session_.rest();  // a slow disk is no update that hangs
    std::vector<CheckpointSeries*> due;
    for (const auto& [series, points] : within)
      if (std::binary_search(points.begin(), points.end(), n)) due.push_back(series);
    if (&stage == &worker.stage())
      for (CheckpointSeries* series : due) series->begin([&] { return manifest_of(n, "interval"); });
    take_state(due, n, stage, /*drained=*/false);
  };
  const auto begin = Clock::now();
  try {
    worker.train(span, hooks, pipeline_began_);
  } catch (...) {
    reports.flush();
    throw;
  }
  times_.trained_seconds += seconds_since(begin);
  drain_seconds_ = last_forward->seconds_since();
}

// What this rank did in an epoch, where that or the run is over.
void Training::tell_ended_epoch() {
  const RunLength& length = generation_->length();
  if (done_ != length.minibatches && done_ % length.minibatches_per_epoch != 0) return;
  if (done_ == told_minibatches_) return;
  const PipelineShape& shape = generation_->shape();
  const Plan& plan = generation_->plan();
  EpochSummary epoch;
  epoch.epoch = (done_ - 1) / length.minibatches_per_epoch;
  epoch.minibatches = done_ - std::max(told_minibatches_, epoch.epoch * length.minibatches_per_epoch);
  epoch.plan = plan_file();
  epoch.frozen_layers = plan.frozen_layers;
  epoch.ranks = plan.world_size;
  for (int64_t s = shape.frozen_stages; s < shape.stages(); ++s)
    epoch.update_samples = std::max(epoch.update_samples, StageTurns(shape, s).round_length());
  epoch.update_samples *= job_.run.batch_size;
  epoch.times = std::exchange(split_, {});
  epoch.seconds = times_.trained_seconds - trained_before_seconds_ + epoch.times.change_seconds;
  if (cache_) {
    const CacheSummary now = cache_->summary();
    epoch.fetched = now.fetched - cache_before_.fetched;
    epoch.deepened = now.deepened - cache_before_.deepened;
    epoch.computed = now.computed - cache_before_.computed;
    epoch.times.cache_seconds = now.fetch_seconds - cache_before_.fetch_seconds;
    epoch.cache_bytes = now.memory_bytes + now.disk_bytes;
    cache_before_ = now;
  }
  trained_before_seconds_ = times_.trained_seconds;
  told_minibatches_ = done_;
  control().post(std::move(epoch));
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
  if (journal_) control().post(EvaluationBegins{epoch, minibatches});
  generation_->evaluation(job_.run, job_.model, *evaluation_data_)
      .run(hooks(), session_.loading(), [&](const EvaluatedMinibatch& done, const at::Tensor&) {
        control().post(EvaluationPart{epoch, minibatches, done});
      });
}

}  // namespace pipewright
