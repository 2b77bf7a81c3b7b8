// From one plan to the next.
#include <utility>

#include "graph/plan_as_run.h"
#include "models/definition/frozen.h"
#include "runtime/train/seconds_since.h"
#include "runtime/train/training.h"

namespace pipewright {

// The pipeline is empty, and the plan in force has trained all that it should.
void Training::carry_out(const ChangePlan& command) {
  const int64_t next = command.generation;
  fault_point();
  checkpoints_->end_copies();
  GenerationSummary change;
  auto begin = Clock::now();
  NamedState state = moved_state(next, change);
  change.move_seconds = seconds_since(begin);
  fault_point();
  begin = Clock::now();
  const auto source = state_from_peers(std::move(state), job_.run.optimizer);
  start_generation(next, source.get());
  if (generation_->takes_part()) checkpoints_->begin_copies(generation_->plan(), session_.transport());
  change.start_seconds = seconds_since(begin);
  epochs_.times().change_seconds += change.move_seconds + change.start_seconds;
  change.drain_seconds = drain_seconds_;
  change.reason = job_.reason_of(next);
  tell_generation(change);
  if (orders_->stop_before() == loop_->done() && orders_->signal() == 0) orders_->go_on();
}

// What this rank has of the model under the next plan, from whoever has it.
NamedState Training::moved_state(int64_t next, GenerationSummary& change) {
  if (const EmulatedPlan* emulated = generation_->emulated())
    return emulated->drained_state(generation_->worker().stage().program());
  const Plan& next_plan = job_.plan_of(next);
  const Graph graph = frozen_graph(job_.model.graph, next_plan.frozen_layers);
  const auto moves = state_moves(graph, job_.run.optimizer, generation_->plan(), next_plan);
  const int64_t rank = session_.place().rank, done = loop_->done();
  Activity activity{"move weights to the plan of minibatch " + std::to_string(done), {}, false};
  for (const StateMove& move : moves) {
    change.moved_bytes += move.bytes();
    if (move.to == rank) activity.peers.push_back(move.from);
    if (move.from == rank) activity.peers.push_back(move.to);
  }
  session_.begin(activity);
  NamedState state;
  if (generation_->takes_part()) state = state_of(generation_->worker(), done);
  state = move_state(session_.transport(), moves, state, [this] {
    fault_point();
    control().check();
  });
  session_.rest();
  return state;
}

void Training::start_generation(int64_t number, StateSource* source) {
  const Plan& plan = job_.plan_of(number);
  const int64_t rank = session_.place().rank;
  monitor_.plan_changed(policy_ ? policy_->work_seconds(plan, rank) : 0);
  if (generation_ && generation_->takes_part())
    earlier_workers_.add(generation_->worker(), generation_->emulated());
  const bool changes = generation_ != nullptr;
  if (cache_) cache_->end();
  generation_.reset();
  connect_services(number);
  if (changes) session_.connect_for(plan, number);
  std::unique_ptr<Worker> worker;
  std::unique_ptr<EmulatedPlan> emulated;
  if (job_.run.emulate) {
    const Model model = job_.model_of(number);
    emulated = std::make_unique<EmulatedPlan>(model, plan, data_.rules_of(number), *source);
    worker = std::make_unique<Worker>(model, emulated->whole(), rank, nullptr, data_.rules_of(number));
    emulated->demand_memory();
  } else if (rank < plan.world_size) {
    worker = std::make_unique<Worker>(job_.model_of(number), plan, rank, session_.transport(),
                                      data_.rules_of(number), source,
                                      PipelineServices{groups_.get(), minibatches_.get()});
  }
  generation_ =
      std::make_unique<PlanGeneration>(number, plan, job_.gradient_accumulation_of(number),
                                       data_.length_of(number), std::move(worker), std::move(emulated));
  loop_->begin_generation(number, generation_->length(), generation_->takes_part());
  if (!generation_->takes_part()) return;
  checkpoints_->set_stages(generation_->emulated() ? generation_->emulated()->places()
                                                   : generation_->worker().stage_count());
  if (!cache_) return;
  std::vector<const Plan*> before;
  for (int64_t earlier = 0; earlier < number; ++earlier) before.push_back(&job_.plan_of(earlier));
  cache_->begin(job_.model_of(number), plan, before, generation_->worker());
}

GroupClientSettings Training::group_client_settings(int64_t generation) {
  const Plan& plan = job_.plan_of(generation);
  GroupClientSettings settings;
  settings.check = [this] { control().check(); };
  settings.host = session_.place().master_address;
  settings.server = parse_group_server_address(session_.exchange()->said_by(0, Topic::kGroupServer));
  settings.generation = generation;
  settings.stages = static_cast<int64_t>(plan.stages.size());
  settings.pipelines = static_cast<int64_t>(plan.stages.front().ranks.size());
  settings.timeout = session_.start_patience();
  return settings;
}

// What pipelines side by side ask of rank 0.
void Training::connect_services(int64_t generation) {
  groups_.reset();
  minibatches_.reset();
  const Plan& plan = job_.plan_of(generation);
  const bool groups = sync_facts(job_.run.sync).groups_by_arrival;
  const bool shares = shares_minibatches(job_.run.sync);
  const bool several = plan.stages.front().ranks.size() > 1;
  if ((!groups && !shares) || !several || session_.place().rank >= plan.world_size) return;
  const GroupClientSettings settings = group_client_settings(generation);
  if (groups) groups_ = connect_groups(settings);
  if (shares) minibatches_ = connect_minibatches(settings);
}

void Training::tell_generation(GenerationSummary generation) {
  if (!leader_ || !leader_->tells_plans()) return;
  const Plan& plan = generation_->plan();
  generation.number = generation_->number();
  generation.first_minibatch = loop_->done();
  generation.plan = plans_.file_of(generation_->number());
  generation.ranks = plan.world_size;
  generation.frozen_layers = plan.frozen_layers;
  generation.period_minibatches = generation_->period();
  if (const Plan told = plan_as_run(plan, job_.run); told.predicted)
    generation.predicted_minibatch_seconds = told.predicted->minibatch_seconds;
  control().post(std::move(generation));
}

}  // namespace pipewright
