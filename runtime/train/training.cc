#include "runtime/train/training.h"

#include <ATen/Parallel.h>

#include <map>
#include <thread>
#include <utility>
#include <variant>

#include "graph/error.h"
#include "graph/plan_as_run.h"
#include "runtime/checkpoint/model_file.h"
#include "runtime/control/board.h"
#include "runtime/generation/state_source.h"

namespace pipewright {

Training::Training(const Job& job, const Place& place)
    : job_(job),
      folder_(job_.run.output),
      data_(job_),
      evaluation_data_(open_evaluation_data(job_.run, job_.model)),
      measured_(place.world_size),
      session_(job_, place) {}

void Training::run() {
  const MemoryMeter::Attached attached(memory_);
  session_.run(*this);
}

void Training::open() {
  const Place& place = session_.place();
  if (place.rank == 0 && !place.launched) lock_.emplace(folder_);  // else the launcher has
}

void Training::prepare() {
  open_checkpoints();
  if (job_.decides) policy_ = std::make_unique<RunPolicy>(job_, data_, measured_);
  loop_.emplace(
      LoopRules{evaluation_data_ != nullptr, sync_facts(job_.run.sync).keeps_replicas_equal,
                checkpoints_->points(), policy_ ? policy_->decides_every() : std::nullopt},
      LoopStart{data_.first_minibatch(), data_.pipeline_began(), data_.evaluated_epochs(), plans_.begins()});
  if (session_.place().rank == 0) open_leader();
  prepare_to_follow();
  open_cache();
  const bool in_flight = loop_->pipeline_began() < loop_->done();
  const auto source = start_of(job_.run, job_.model, job_.resume, in_flight);
  start_generation(job_.generation_at(loop_->done()), source.get());
}

void Training::open_checkpoints() {
  checkpoints_ = std::make_unique<RunCheckpoints>(RunCheckpoints::Settings{
      job_, session_.place(), data_.first_minibatch(),
      [this](CheckpointPart part) { control().post(std::move(part)); },
      [this] {
        control().check();
        if (leader_) leader_->check();
      },
      [this](int64_t minibatch) { Board(*session_.store()).set_newest_kept(minibatch); }});
}

void Training::open_leader() {
  leader_ = std::make_unique<RunLeader>(RunLeader::Settings{
      job_, data_, evaluation_data_.get(), plans_, *checkpoints_, measured_, session_.place(),
      [this](const Error& error) {
        control().fail({session_.place().rank, error.code(), error.what(), error.remedy()});
      }});
  if (!session_.exchange()) return;
  if (const auto server = leader_->serve_groups())
    session_.exchange()->say(Topic::kGroupServer, to_text(*server));
}

void Training::open_cache() {
  cache_ = RunCache::make(
      job_.run, {data_, session_.exchange(), [rank = session_.place().rank](const std::string& line) {
                   std::fprintf(stderr, "rank %ld: %s\n", rank, line.c_str());
                 }});
}

// Before any rank tells rank 0 anything, and rank 0 the others.
void Training::prepare_to_follow() {
  const Place& place = session_.place();
  const bool heeds_signals = job_.run.checkpoint.on_signal;
  orders_ = std::make_unique<StandingOrders>(
      StandingOrders::Settings{data_.first_minibatch(), heeds_signals, place.world_size == 1,
                               [this](RankMessage message) { control().post(std::move(message)); }});
  control().set_order_sink([this](const Order& order) { orders_->take(order); });
  if (!leader_) return;
  coordination_ = std::make_unique<Coordination>(Coordination::Settings{
      {place.world_size, heeds_signals},
      [this](int64_t first, int64_t end, const Order& order) { control().tell(first, end, order); },
      [this](int64_t last_begun) { return leader_->stop_behind(last_begun); }});
}

void Training::begin() { leader_->begin(); }

void Training::begin_here() {
  session_.tell_progress([this](const ProgressNow& now) {
    control().post(RankStatus{now.activity.operation, now.seconds, now.minibatch, now.waited_seconds,
                              memory_.peak_bytes()});
  });
  if (!checkpoints_->keeps_state()) return;
  checkpoints_->make_room(hosts_of_ranks());
  if (generation_->takes_part()) checkpoints_->begin_copies(generation_->plan(), session_.transport());
}

// None where all are on this one.
std::vector<std::string> Training::hosts_of_ranks() {
  const Place& place = session_.place();
  if (place.local_ranks == place.world_size) return {};
  return session_.exchange()->said_by_all(Topic::kHost);
}

void Training::take(int64_t rank, RankMessage message) {
  if (auto agreement = agreement_in(message)) return coordination_->take(rank, std::move(*agreement));
  if (!std::holds_alternative<PrefixImpure>(message)) return leader_->take(rank, std::move(message));
  if (cache_) cache_->hear_impure();
}

// Two clocks are read one after the other, and the process may lose its core between: the closest of some.
void Training::read_start() {
  auto closest = Clock::duration::max();
  for (int i = 0; i < 8; ++i) {
    const Clock::time_point before = Clock::now();
    const auto at = std::chrono::system_clock::now();
    const Clock::duration between = Clock::now() - before;
    if (between >= closest) continue;
    closest = between;
    started_ = before;
    started_at_ = at;
  }
}

void Training::work() {
  if (leader_) leader_->tidy();
  read_start();
  if (generation_->takes_part()) {
    const Worker& worker = generation_->worker();
    const auto several = static_cast<int64_t>(worker.stage_count());
    const int64_t first = worker.stage().stage();
    name_rank(trace_, session_.place().rank,
              {first, worker.replica(), several, several > 1 ? worker.stage(1).stage() - first : 0});
  }
  if (stops_on_the_way()) listen_for_signals();
  GenerationSummary start;
  start.reason = job_.attempt ? kLossReason + job_.attempt->reason : job_.resume ? "resume" : "start";
  tell_generation(start);
  while (const auto command = loop_->next(orders_now())) {
    std::visit([this](const auto& what) { carry_out(what); }, *command);
    fault_point();
  }
  if (!job_.run.no_save) save_model();
  checkpoints_->complete();
  checkpoints_->end_copies();
}

void Training::listen_for_signals() {
  if (job_.run.checkpoint.on_signal) control().hold_signals();
  control().call_often([this] {
    const bool waits = orders_->look_for_signal();
    return waits || (coordination_ && coordination_->waits());
  });
}

// The pipeline is empty: buffers are the replicas' average.
void Training::save_model() {
  std::map<int64_t, NamedTensors> own;
  if (!generation_->takes_part()) return;
  const EmulatedPlan* const emulated = generation_->emulated();
  for (int64_t s = 0; emulated && s < emulated->stages(); ++s)
    own[s] = emulated->tensors_of(static_cast<size_t>(s));
  for_each_stage(generation_->worker(), [&](StageReplica& stage) {
    if (emulated || stage.replica() != 0) return;
    NamedTensors& tensors = own[stage.stage()];
    const StageProgram& program = stage.program();
    for (size_t i = 0; i < program.parameters().size(); ++i)
      tensors.emplace_back(program.parameters()[i], stage.weights()[i]);
    for (size_t i = 0; i < program.buffers().size(); ++i)
      tensors.emplace_back(program.buffers()[i], stage.buffers()[i]);
  });
  if (!leader_) {
    for (const auto& [stage, tensors] : own) {
      write_weights_part(folder_, stage, tensors);
      control().post(WeightsSaved{});
    }
    return;
  }
  const int64_t stages = generation_->shape().stages();
  const auto others = stages - static_cast<int64_t>(own.size());
  while (leader_->saved_stages() < others) {
    control().check();
    leader_->check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  write_final_model(folder_, stages, own, job_.model, data_.length().minibatches);
}

// Between two actions, and between two commands.
void Training::fault_point() {
  if (!faults_.next() || !stops_on_the_way() || session_.place().world_size == 1) return;
  // The signal is heard before this rank goes on, or the change that comes before it.
  while (!orders_->under_way()) {
    control().check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Training::post_last_words() {
  fault_point();
  checkpoints_->settle_writers();
  const int64_t number = session_.place().rank;
  const bool takes_part = generation_ && generation_->takes_part();
  const Worker* worker = takes_part ? &generation_->worker() : nullptr;
  const EmulatedPlan* emulated = takes_part ? generation_->emulated() : nullptr;
  if (emulated) generation_->take_emulated();
  RankSummary rank = summary_of_rank(number, plan_as_run(plan_in_force(), job_.run), worker, earlier_workers_,
                                     memory_, times_, job_.device, emulated);
  if (worker && cuda_graphs_of(job_) != "off") rank.cuda_graphs = cuda_graphs_text(*worker);
  if (cache_) rank.cache = cache_->summary();
  if (job_.run.cuda_graphs == "on" && !rank.cuda_graphs.empty() && rank.cuda_graphs != "used")
    std::fprintf(stderr, "rank %ld: CUDA graphs: %s\n", number, rank.cuda_graphs.c_str());
  control().post(std::move(rank));
  const auto since_1970 = started_at_.time_since_epoch();
  control().post(TraceDocument{trace_.json(),
                               std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count()});
}

// Of the job, with the attempts before this one.
double Training::wall_seconds() const {
  if (!job_.attempt) return elapsed_seconds();
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
         job_.attempt->job_began_at_seconds;
}

void Training::close(const std::string& status) {
  session_.rest();  // a slow disk is nothing that hangs
  if (status == "done") checkpoints_->remove_kept();
  if (leader_) leader_->close(status, plan_as_run(plan_in_force(), job_.run), wall_seconds());
}

void train(const Job& job, const Place& place) {
  at::set_num_threads(static_cast<int>(job.run.threads));
  Training training(job, place);
  training.run();
}

}  // namespace pipewright
