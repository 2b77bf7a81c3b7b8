#include <algorithm>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_changes.h"
#include "models/definition/frozen.h"
#include "runtime/generation/state_moves.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/train/change_text.h"
#include "runtime/train/seconds_since.h"
#include "runtime/train/training.h"

namespace pipewright {
namespace {

// Its plan says what is frozen.
PlanChange recorded(const PlannedChange& change, const std::string& plan) {
  return {change.minibatch, plan, {}, change.gradient_accumulation, change.learning_rate_scale};
}

}  // namespace

// What `verify --run` and a run that goes on read, and who looks at the figures of a generation.
void Training::write_changes() {
  if (job_.changes.empty() && !job_.decides) return;
  for (int64_t k = 0; k < job_.generations(); ++k)
    write_document(folder_ / generation_plan_name(k), job_.plan_of(k));
  write_list_of_changes();
  const int64_t minibatches = data_.length().minibatches;
  if (!job_.changes.empty() && job_.changes.back().minibatch >= minibatches) {
    std::fprintf(stderr, "the run ends at minibatch %ld: it does not come to the change at minibatch %ld\n",
                 minibatches, job_.changes.back().minibatch);
  }
}

void Training::write_list_of_changes() {
  std::error_code ignored;
  if (job_.changes.empty()) {
    std::filesystem::remove(folder_ / kChangesName, ignored);
    return;
  }
  std::vector<PlanChange> changes;
  for (int64_t k = 1; k < job_.generations(); ++k)
    changes.push_back(recorded(job_.changes[static_cast<size_t>(k) - 1], generation_plan_name(k)));
  write_file(folder_ / kChangesName, plan_changes_text(changes));
}

// Before any rank tells rank 0 anything, and rank 0 the others.
void Training::prepare_to_follow() {
  const Place& place = session_.place();
  const bool heeds_signals = job_.run.checkpoint.on_signal;
  stops_on_the_way_ = heeds_signals || job_.decides;
  orders_ = std::make_unique<StandingOrders>(
      StandingOrders::Settings{data_.first_minibatch(), heeds_signals, place.world_size == 1,
                               [this](RankMessage message) { control().post(std::move(message)); }});
  control().set_order_sink([this](const Order& order) { orders_->take(order); });
  if (place.rank != 0) return;
  const auto stop_under = [this](int64_t generation, int64_t last_begun) {
    const auto stop = [&](int64_t last) {
      return unplanned_stop(last,
                            shape_of(job_.plan_of(generation), job_.gradient_accumulation_of(generation)),
                            data_.length_of(generation));
    };
    return group_server_ && shares_minibatches(job_.run.sync)
               ? group_server_->stop_handing_out(generation, last_begun, stop)
               : stop(last_begun);
  };
  const auto end_of = [this](int64_t generation) {
    return generation + 1 < job_.generations() ? std::optional(job_.first_minibatch_of(generation + 1))
                                               : std::nullopt;
  };
  const auto stop_behind = [this, stop_under, end_of](int64_t last_begun) {
    const std::lock_guard lock(changes_mutex_);
    return place_within_plan(job_.generation_at(last_begun + 1), last_begun, stop_under, end_of);
  };
  coordination_ = std::make_unique<Coordination>(Coordination::Settings{
      {place.world_size, heeds_signals},
      [this](int64_t first, int64_t end, const Order& order) { control().tell(first, end, order); },
      stop_behind});
}

void Training::prepare_to_stop() {
  if (!stops_on_the_way_) return;
  if (policy_ && policy_->reads_cores()) core_reader_ = core_reader_of(job_.device);
  if (policy_ && policy_->reads_gradients()) layer_norms_.emplace(job_.model.graph);
  if (job_.run.checkpoint.on_signal) control().hold_signals();
  control().call_often([this] {
    const bool waits = orders_->look_for_signal();
    return waits || (coordination_ && coordination_->waits());
  });
}

// Rank 0 is about to begin the minibatch. What the run's past has decided is done before anything new.
void Training::ask_policy(int64_t minibatch) {
  if (session_.place().rank != 0 || !policy_ || orders_->under_way() ||
      generation_->number() + 1 < job_.generations())
    return;
  try {
    auto decision = policy_->decide({minibatch, generation_->plan(), job_.plan, speeds_.last(),
                                     data_.length().minibatches - minibatch,
                                     data_.length().minibatches_per_epoch, link_speeds_.slow(),
                                     policy_->reads_cores() ? cores_.take_all() : decltype(RunNow::cores){}});
    if (!decision) return;
    std::string change = text_of(settled_change(job_, std::move(*decision)));
    orders_->propose();
    coordination_->propose(std::move(change));
  } catch (const Error& error) {
    const std::string remedy = error.remedy().empty() ? "" : "\n  " + error.remedy();
    std::fprintf(stderr, "adapt: refused, training goes on under the plan in force: %s%s\n", error.what(),
                 remedy.c_str());
  }
}

bool Training::has_decided_change() const {
  return orders_->stop_before() != StandingOrders::kNever && orders_->signal() == 0 &&
         generation_->number() + 1 == job_.generations() &&
         orders_->stop_before() < data_.length().minibatches;
}

// From now on it is a change like one that was known beforehand, and will be if the run goes on from here.
void Training::take_decided_change() { take_change(change_from(orders_->change()), orders_->stop_before()); }

void Training::take_change(PlannedChange change, int64_t minibatch) {
  note_change(std::move(change), minibatch);
  tell_change();
}

void Training::note_change(PlannedChange change, int64_t minibatch) {
  change.minibatch = minibatch;
  const std::lock_guard lock(changes_mutex_);
  job_.changes.push_back(std::move(change));
}

// The last one, to who reads the run folder and the terminal.
void Training::tell_change() {
  if (!journal_) return;
  const int64_t number = job_.generations() - 1;
  write_document(folder_ / generation_plan_name(number), job_.plan_of(number));
  write_list_of_changes();
  const PlannedChange& taken = job_.changes.back();
  const std::string plan = taken.file.empty() ? "" : taken.file + " ";
  const std::string frozen = taken.freeze ? std::to_string(*taken.freeze) + " layers frozen " : "";
  std::fprintf(stderr, "from minibatch %ld on: %s%s(%s)\n", taken.minibatch, plan.c_str(), frozen.c_str(),
               taken.reason.c_str());
}

// Of minibatches, as far as it is known.
int64_t Training::end_of_generation() const {
  const RunLength& length = generation_->length();
  int64_t end = std::min(length.minibatches, length.plan_end);
  const int64_t next = generation_->number() + 1;
  if (next < job_.generations()) end = std::min(end, job_.first_minibatch_of(next));
  return orders_->signal() == 0 ? std::min(end, orders_->stop_before()) : end;
}

// Rank 0 has part in every plan.
void Training::tell_end_of_generation(bool stopped) {
  if (coordination_)
    coordination_->end_generation({{generation_->number(), stopped, done_}, generation_->plan().world_size});
}

// Of a generation in which this rank has no part.
void Training::wait_for_end_of_generation() {
  session_.rest();
  while (true) {
    control().check();
    advance_checkpoints();
    control().take_orders(*session_.store());
    while (const auto next = orders_->next_at_drain()) {
      if (const auto* decided = std::get_if<DrainDecided>(&*next)) {
        take_change(change_from(decided->change), decided->minibatch);
        continue;
      }
      const auto& ended = std::get<GenerationEnded>(*next);
      PW_CHECK_EQ(ended.generation, generation_->number());
      if (has_decided_change()) take_decided_change();
      done_ = ended.next_minibatch;
      pipeline_began_ = done_;
      // An epoch that is over has been evaluated by the others.
      const int64_t epochs = done_ / data_.length().minibatches_per_epoch;
      if (evaluation_data_) evaluated_epochs_ = std::max(evaluated_epochs_, epochs);
      if (ended.stopped) stop();
      return;
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
  if (kept_) kept_->end_copies();
  const Graph graph = frozen_graph(job_.model.graph, next_plan.frozen_layers);
  const auto moves = state_moves(graph, job_.run.optimizer, last_plan, next_plan);
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
  if (kept_) begin_copies();
  change.start_seconds = seconds_since(begin);
  split_.change_seconds += change.move_seconds + change.start_seconds;
  change.drain_seconds = drain_seconds_;
  change.reason = job_.reason_of(next);
  tell_generation(change);
  if (orders_->stop_before() == done_ && orders_->signal() == 0) orders_->go_on();
  fault_point();
}

void Training::start_generation(int64_t number, StateSource* source) {
  monitor_.plan_changed(policy_ ? policy_->work_seconds(job_.plan_of(number), session_.place().rank) : 0);
  if (generation_ && generation_->takes_part()) earlier_workers_.add(generation_->worker());
  const bool changes = generation_ != nullptr;
  if (cache_) cache_->end();
  generation_.reset();
  connect_services(number);
  const Plan& plan = job_.plan_of(number);
  const int64_t rank = session_.place().rank;
  if (changes) session_.connect_for(plan, number);
  std::unique_ptr<Worker> worker;
  if (rank < plan.world_size) {
    worker = std::make_unique<Worker>(job_.model_of(number), plan, rank, session_.transport(),
                                      data_.rules_of(number), source,
                                      PipelineServices{groups_.get(), minibatches_.get()});
  }
  generation_ = std::make_unique<PlanGeneration>(number, plan, job_.gradient_accumulation_of(number),
                                                 data_.length_of(number), std::move(worker));
  if (!generation_->takes_part()) return;
  for (CheckpointSeries* series : all_series()) series->set_stages(generation_->worker().stage_count());
  if (!cache_) return;
  std::vector<const Plan*> before;
  for (int64_t earlier = 0; earlier < number; ++earlier) before.push_back(&job_.plan_of(earlier));
  cache_->begin(job_.model_of(number), plan, before, generation_->worker());
}

void Training::open_cache() {
  cache_ = RunCache::make(job_.run,
                          {data_, session_.store(), session_.start_patience(), [this] { control().check(); },
                           [rank = session_.place().rank](const std::string& line) {
                             std::fprintf(stderr, "rank %ld: %s\n", rank, line.c_str());
                           }});
}

GroupClientSettings Training::group_client_settings(int64_t generation) {
  const Plan& plan = job_.plan_of(generation);
  GroupClientSettings settings;
  settings.check = [this] { control().check(); };
  settings.host = session_.place().master_address;
  settings.server = parse_group_server_address(
      session_.store()->get(kGroupsKey, session_.start_patience(), settings.check));
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

// Of the plan in force, in the run folder.
std::string Training::plan_file() const {
  return job_.changes.empty() && !job_.decides ? "plan.json" : generation_plan_name(generation_->number());
}

void Training::tell_generation(GenerationSummary generation) {
  if (!tells_plans_) return;
  generation.number = generation_->number();
  generation.first_minibatch = done_;
  generation.plan = plan_file();
  generation.ranks = generation_->plan().world_size;
  generation.frozen_layers = generation_->plan().frozen_layers;
  generation.period_minibatches = generation_->period();
  if (generation_->plan().predicted)
    generation.predicted_minibatch_seconds = generation_->plan().predicted->minibatch_seconds;
  control().post(std::move(generation));
}

}  // namespace pipewright
