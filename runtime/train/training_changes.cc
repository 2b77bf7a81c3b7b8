#include <thread>

#include "runtime/generation/state_moves.h"
#include "runtime/train/training.h"

namespace pipewright {
namespace {

// In the store: the number of the generation that ended last and how, for ranks that had no part in it.
constexpr const char* kEndedKey = "generation/ended";

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string ended_text(int64_t generation, bool stopped, int64_t next_minibatch) {
  Json json;
  json["generation"] = generation;
  json["stopped"] = stopped;
  json["next_minibatch"] = next_minibatch;
  return json.dump();
}

}  // namespace

// Rank 0 has part in every plan.
void Training::tell_end_of_generation(bool stopped) {
  if (session_.place().rank == 0 && generation_->plan().world_size < session_.place().world_size)
    session_.store()->set(kEndedKey, ended_text(generation_->number(), stopped, done_));
}

// Of a generation in which this rank has no part.
void Training::wait_for_end_of_generation() {
  session_.rest();
  while (true) {
    control().check();
    advance_checkpoints();
    if (const auto text = session_.store()->try_get(kEndedKey)) {
      const Json ended = parse_json(*text, "end of a generation");
      const int64_t number = ended.at("generation").get<int64_t>();
      if (number >= generation_->number()) {
        // In one that has ended since then this rank had no part either: it could not have gone on without.
        if (number > generation_->number()) start_generation(number, nullptr);
        done_ = ended.at("next_minibatch").get<int64_t>();
        pipeline_began_ = done_;
        // An epoch that is over has been evaluated by the others.
        const int64_t epochs = done_ / data_.length().minibatches_per_epoch;
        if (evaluation_data_) evaluated_epochs_ = std::max(evaluated_epochs_, epochs);
        if (ended.at("stopped").get<bool>()) stop();
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The pipeline is empty, and the plan in force has trained all that it should.
void Training::change_plan() {
  const int64_t next = generation_->number() + 1;
  const Plan& last_plan = generation_->plan();
  const Plan& next_plan = job_.plan_of(next);
  fault_point();
  const auto moves = state_moves(job_.model.graph, job_.run.optimizer, last_plan, next_plan);
  GenerationSummary change;
  Activity activity{"move weights to the plan of minibatch " + std::to_string(done_), {}, false};
  for (const StateMove& move : moves) {
    change.moved_bytes += move.bytes();
    if (move.to == session_.place().rank) activity.peers.push_back(move.from);
    if (move.from == session_.place().rank) activity.peers.push_back(move.to);
  }
  session_.begin(activity);
  auto begin = Clock::now();
  NamedState state;
  if (generation_->takes_part()) state = state_of(generation_->worker(), done_);
  state = move_state(session_.transport(), moves, state, [this] {
    fault_point();
    control().check();
  });
  session_.rest();
  change.move_seconds = seconds_since(begin);
  fault_point();
  begin = Clock::now();
  const auto source = state_from_peers(std::move(state), job_.run.optimizer);
  start_generation(next, source.get());
  change.start_seconds = seconds_since(begin);
  change.drain_seconds = drain_seconds_;
  change.reason = job_.reason_of(next);
  tell_generation(change);
  fault_point();
}

void Training::start_generation(int64_t number, StateSource* source) {
  monitor_.plan_changed();
  if (generation_ && generation_->takes_part()) earlier_workers_.add(generation_->worker());
  const bool changes = generation_ != nullptr;
  generation_.reset();
  if (changes) session_.connect_for(job_.plan_of(number), number);
  generation_ = std::make_unique<PlanGeneration>(job_, data_, number, session_.place().rank,
                                                 session_.transport(), source);
  if (generation_->takes_part()) writer_->set_stages(generation_->worker().stage_count());
}

void Training::tell_generation(GenerationSummary generation) {
  if (!tells_plans_) return;
  generation.number = generation_->number();
  generation.first_minibatch = done_;
  generation.plan = job_.changes.empty() ? "plan.json" : generation_plan_name(generation.number);
  generation.ranks = generation_->plan().world_size;
  control().post(generation_line(generation, generation_->period()));
}

}  // namespace pipewright
