// What the training loop says, carried out.
#include <algorithm>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "runtime/stage/not_finite_error.h"
#include "runtime/train/change_text.h"
#include "runtime/train/data_fault.h"
#include "runtime/train/training.h"

namespace pipewright {

void Training::carry_out(const TrainSpan& command) {
  try {
    train_span(command);
  } catch (const NotFiniteError& error) {
    throw_with_cause(error, data_fault(error, job_.model.graph, data_.dataset(),
                                       [this](int64_t k) { return data_.request(k); }));
  }
}

void Training::carry_out(const Drained& command) {
  Worker& worker = generation_->worker();
  if (command.early && generation_->emulated()) {
    generation_->emulated()->end_span(command.minibatch);
  } else if (command.early) {
    worker.end_span(command.minibatch);
  }
  if (leader_) leader_->note_drained(generation_->number(), command.minibatch);
  if (const auto spread = worker.drain_spread()) control().post(DrainSpread{command.minibatch, *spread});
}

// From now on it is a change like one that was known beforehand, and will be if the run goes on from here.
void Training::carry_out(const TakeAgreedChange& command) {
  take_change(change_from(orders_->change()), command.minibatch);
}

void Training::take_change(PlannedChange change, int64_t minibatch) {
  note_change(std::move(change), minibatch);
  if (leader_) plans_.tell_last();
}

void Training::note_change(PlannedChange change, int64_t minibatch) {
  plans_.add(std::move(change), minibatch);
  loop_->plan_added(minibatch);
}

// Rank 0 is about to begin the minibatch. What the run's past has decided is done before anything new.
void Training::propose_change(int64_t minibatch) {
  if (!leader_ || !policy_ || orders_->under_way() || loop_->knows_next_plan()) return;
  std::string change = policy_->decide_on_the_way(minibatch, generation_->plan());
  if (change.empty()) return;
  orders_->propose();
  coordination_->propose(std::move(change));
}

void Training::carry_out(const Decide& command) {
  session_.rest();
  if (cache_ && !cache_->can_keep()) control().post(PrefixImpure{});
  // Norms come behind what their rank has told before. So all tell them, be they none, where one may have
  // found that nothing can be kept.
  LayerNorms* norms = policy_->layer_norms();
  const bool awaits_ranks = norms || cache_rules(job_.run.cache).kind != CacheKind::kNone;
  if (awaits_ranks) {
    control().post(GradientNorms{command.minibatch, generation_->worker().stage().stage(),
                                 norms ? norms->take() : std::vector<double>()});
  }
  if (!leader_) {
    const std::string decided = awaited_decision(command.minibatch);
    if (!decided.empty()) take_change(change_from(decided), command.minibatch);
    return;
  }
  const auto asked = coordination_->await_decision(
      {command.minibatch, generation_->plan().world_size, awaits_ranks}, [this] { control().check(); });
  if (!asked) return;
  const std::string decided = policy_->decide_drained(
      *asked, generation_->number(), session_.place().world_size,
      cache_ && cache_->can_keep() ? std::optional(cache_rules(job_.run.cache)) : std::nullopt);
  if (!decided.empty()) note_change(change_from(decided), command.minibatch);
  coordination_->decided(command.minibatch, decided);
  if (!decided.empty()) plans_.tell_last();
}

// Rank 0 may be spans ahead where its stage is frozen: what it has decided there waits.
std::string Training::awaited_decision(int64_t minibatch) {
  control().await_orders(*session_.store(), session_.start_patience(),
                         [this] { return orders_->has_at_drain(); });
  const auto next = orders_->next_at_drain();
  const auto* decided = std::get_if<DrainDecided>(&*next);
  PW_CHECK(decided && decided->minibatch == minibatch,
           "rank 0 decides elsewhere than before minibatch " << minibatch);
  return decided->change;
}

void Training::carry_out(const TellEpoch& command) {
  EpochEnd end{generation_->plan(), plans_.file_of(generation_->number()),
               update_samples_of(generation_->shape(), job_.run.batch_size), times_.trained_seconds};
  if (cache_) end.cache = cache_->summary();
  control().post(epochs_.take(command, end));
}

void Training::carry_out(const Evaluate& command) {
  const int64_t epoch = command.epoch, minibatches = command.minibatches;
  if (leader_) control().post(EvaluationBegins{epoch, minibatches});
  if (generation_->emulated()) generation_->take_emulated();
  generation_->evaluation(job_.run, job_.model, *evaluation_data_)
      .run(hooks(), session_.loading(), [&](const EvaluatedMinibatch& done, const at::Tensor&) {
        control().post(EvaluationPart{epoch, minibatches, done});
      });
}

// All minibatches before it have come back, and none from it on has begun.
void Training::carry_out(const WriteCheckpoints& command) {
  checkpoints_->begin(command.kinds, [&] { return manifest_of(command.minibatch, command.cause); });
  const bool drained = loop_->pipeline_began() == command.minibatch;
  for_each_state(command.minibatch, [&](const StatePlace& place, const StageState& state) {
    checkpoints_->write(command.kinds, command.minibatch, place, state, drained);
  });
}

// Of what this process has part in, before the minibatch.
void Training::for_each_state(int64_t minibatch, const EmulatedPlan::TakeState& take) {
  if (const EmulatedPlan* emulated = generation_->emulated()) return emulated->states_before(minibatch, take);
  for_each_stage(generation_->worker(),
                 [&](StageReplica& stage) { take(stage, stage.state_before(minibatch)); });
}

// A checkpoint within a span, which goes on meanwhile: of the stage, or of all.
void Training::write_on_the_way(const TrainSpan& command, int64_t minibatch, StageReplica* stage) {
  // Where another plan takes over the pipeline drains first.
  const OrdersNow orders = orders_now();
  if (orders.stop_before == minibatch && !ends_before(orders, minibatch, data_.length())) return;
  session_.rest();  // a slow disk is no update that hangs
  std::vector<CheckpointKind> kinds;
  for (const auto& [kind, points] : command.checkpoints)
    if (std::binary_search(points.begin(), points.end(), minibatch)) kinds.push_back(kind);
  if (!stage || stage == &generation_->worker().stage())
    checkpoints_->begin(kinds, [&] { return manifest_of(minibatch, "interval"); });
  const auto write = [&](const StatePlace& place, const StageState& state) {
    checkpoints_->write(kinds, minibatch, place, state, /*drained=*/false);
  };
  if (stage) return write(*stage, stage->state_before(minibatch));
  for_each_state(minibatch, write);
}

// What is in it but for the stages, which their ranks write.
CheckpointManifest Training::manifest_of(int64_t next_minibatch, const std::string& cause) const {
  CheckpointManifest manifest;
  manifest.next_minibatch = next_minibatch;
  manifest.pipeline_began = loop_->pipeline_began();
  manifest.minibatches_per_epoch = data_.length().minibatches_per_epoch;
  manifest.evaluated_epochs = loop_->evaluated_epochs();
  manifest.cause = cause;
  manifest.libraries = {{"pipewright", PIPEWRIGHT_VERSION}, {"libtorch", PIPEWRIGHT_TORCH_VERSION}};
  manifest.graph_digest = document_digest(job_.model.graph);
  manifest.run = job_.run;
  manifest.plan = generation_->plan();
  return manifest;
}

// Rank 0 has part in every plan.
void Training::carry_out(const EndGeneration& command) {
  if (coordination_) coordination_->end_generation({command.how, generation_->plan().world_size});
}

void Training::carry_out(const AwaitEndOfGeneration&) {
  session_.rest();
  while (!orders_->has_at_drain()) {
    control().check();
    checkpoints_->advance();
    control().take_orders(*session_.store());
    if (!orders_->has_at_drain()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto told = orders_->next_at_drain();
  if (const auto* decided = std::get_if<DrainDecided>(&*told)) {
    take_change(change_from(decided->change), decided->minibatch);
  } else {
    loop_->generation_ended(std::get<GenerationEnded>(*told), orders_now());
  }
}

// All ranks have written the checkpoint of the same minibatch.
void Training::carry_out(const StopRun&) {
  checkpoints_->complete();
  checkpoints_->end_copies();
  control().barrier("stopped", session_.start_patience(), Meeting::kEnd);
  const Failure failure{session_.place().rank, exit_code_of_signal(orders_->signal()),
                        words_of_signal(orders_->signal()) +
                            (checkpoints_->last().empty() ? "" : "; left " + checkpoints_->last().string())};
  throw JobEnded(failure.code, failure.message, failure);
}

}  // namespace pipewright
