// A span of a run, and who watches a rank train it.
#include <algorithm>
#include <set>

#include "runtime/journal/minibatch_reports.h"
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
    if (leader_) leader_->check();
    checkpoints_->advance();
  };
  hooks.observers.insert(hooks.observers.begin(), std::make_shared<BetweenActions>(between));
  return hooks;
}

// What else watches a span; `times` is among it.
void Training::add_observers(WorkerHooks& hooks, const std::shared_ptr<TimesObserver>& times) {
  const Worker& worker = generation_->worker();
  const int64_t stage = worker.stage().stage(), rank = session_.place().rank;
  const auto add = [&](auto observer) { hooks.observers.push_back(std::move(observer)); };
  if (stops_on_the_way()) {
    add(std::make_shared<BeforeForwards>(stage, [this, stage](int64_t minibatch) {
      propose_change(minibatch);
      if (stage == 0) orders_->enter(minibatch, [this] { control().check(); });
    }));
  }
  add(times);
  add(std::make_shared<SplitObserver>(*times, epochs_.times()));
  add(std::make_shared<SpeedObserver>(monitor_, *times,
                                      [this](const SpeedChange& change) { control().post(change); }));
  // Of each plan the first ones that it trains here.
  const int64_t begin = std::max(data_.first_minibatch(), job_.first_minibatch_of(generation_->number()));
  add(std::make_shared<TraceObserver>(
      TraceObserver::Settings{rank, begin + job_.run.trace_minibatches, started_, *times, memory_}, trace_));
  // The host does not wait for what a GPU sends another: when such a message is there nobody knows.
  if (session_.transport() && job_.device.is_cpu()) {
    add(std::make_shared<MessageObserver>(MessageObserver::Settings{
        stage, generation_->number(), [this](MessageLog log) { control().post(std::move(log)); }}));
  }
  if (policy_ && policy_->reads_cores())
    add(std::make_shared<CoreObserver>(policy_->core_reader(),
                                       [this](CoreSample sample) { control().post(std::move(sample)); }));
  if (job_.disturbances.empty()) return;
  add(std::make_shared<Disturber>(
      Disturber::Settings{job_.disturbances, rank, worker.replica(), started_, [this] { control().check(); },
                          session_.message_delays()},
      times_));
}

void Training::train_span(const TrainSpan& command) {
  Worker& worker = generation_->worker();
  const Span span = command.span;
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
  if (stops_on_the_way()) hooks.stop_before = [this] { return orders_->stop_before(); };
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
  EmulatedPlan* const emulated = generation_->emulated();
  // Losses wait for their norm; those of a span that fails on the way go without.
  MinibatchReports reports(job_.run.gradient_clipping_norm > 0, part,
                           [this](MinibatchLoss loss) { control().post(std::move(loss)); });
  hooks.forward_done = [&](int64_t k, double loss, const std::vector<at::Tensor>&) {
    reports.loss(k, loss, elapsed_seconds(),
                 emulated ? emulated->learning_rate_of(k) : last.learning_rate_of(k));
  };
  if (LayerNorms* norms = policy_ ? policy_->layer_norms() : nullptr)
    hooks.averaged = [norms](StageReplica& stage) { norms->add(stage); };
  hooks.gradient_norm = [&](int64_t end, double norm) { reports.norm(end, norm); };
  std::set<int64_t> checkpoints;
  for (const auto& [kind, points] : command.checkpoints) checkpoints.insert(points.begin(), points.end());
  hooks.checkpoints.assign(checkpoints.begin(), checkpoints.end());
  hooks.checkpoint = [&](int64_t n, StageReplica& stage) { write_on_the_way(command, n, &stage); };
  const auto begin = Clock::now();
  try {
    if (emulated) {
      emulated->train(
          span, worker.stage().program().fields(), hooks,
          [&](int64_t n) { write_on_the_way(command, n, nullptr); }, loop_->pipeline_began());
    } else {
      worker.train(span, hooks, loop_->pipeline_began());
    }
  } catch (...) {
    reports.flush();
    throw;
  }
  times_.trained_seconds += seconds_since(begin);
  drain_seconds_ = last_forward->seconds_since();
}

}  // namespace pipewright
