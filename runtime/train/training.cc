#include "runtime/train/training.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

#include "graph/document.h"
#include "graph/error.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/checkpoint/model_file.h"
#include "runtime/generation/state_source.h"
#include "runtime/groups/group_client.h"
#include "runtime/stage/stage_learning_rate.h"
#include "runtime/train/model_flops.h"
#include "runtime/transport/signed_store.h"

namespace pipewright {
Training::Training(const Job& job, const Place& place)
    : job_(job),
      folder_(job_.run.output),
      data_(job_),
      evaluation_data_(open_evaluation_data(job_.run, job_.model)),
      session_(job_, place) {}

void Training::run() {
  const MemoryMeter::Attached attached(memory_);
  session_.run(*this);
}

void Training::open() {
  const Place& place = session_.place();
  if (place.rank == 0 && !place.launched) lock_.emplace(folder_);  // else the launcher has
}

void Training::begin() {
  const bool goes_on = job_.attempt && job_.attempt->began;
  if (goes_on) {
    tidy_run_folder(folder_, data_.first_minibatch());
  } else {
    prepare_run_folder(folder_, job_.resume, job_.overwrite);
  }
  if (kept_) note_start(folder_, {kept_attempt(), data_.first_minibatch()}, /*first=*/!goes_on);
  std::error_code ignored;
  std::filesystem::remove(folder_ / kGroupLogName, ignored);
  if (group_server_) group_log_ = std::make_unique<GroupLog>(folder_ / kGroupLogName, done_);
  write_document(folder_ / "run.json", job_.run);
  write_document(folder_ / "plan.json", job_.plan);
  write_changes();
  JournalSettings settings;
  settings.folder = folder_;
  settings.batch_size = job_.run.batch_size;
  settings.minibatches_per_epoch = data_.length().minibatches_per_epoch;
  settings.total_minibatches = data_.length().minibatches;
  if (evaluation_data_) {
    settings.evaluation_minibatches =
        (Evaluation::samples(job_.model, job_.run.batch_size, *evaluation_data_) + job_.run.batch_size - 1) /
        job_.run.batch_size;
  }
  const int64_t generation = job_.generation_at(data_.first_minibatch());
  settings.period_minibatches = data_.length_of(generation).period;
  settings.end_of_span = [this](int64_t first) {
    return span_from(first, data_.length_of(job_.generation_at(first))).end();
  };
  settings.next_minibatch = data_.first_minibatch();
  if (job_.attempt) {
    settings.recovery =
        RecoverySummary{job_.attempt->number, data_.first_minibatch(),     0, job_.attempt->reason,
                        job_.recovered_from,  session_.place().world_size, 0};
    settings.lost_at_seconds = job_.attempt->lost_at_seconds;
  }
  if (goes_on) {
    settings.past = folder_ / "metrics.jsonl";
    settings.evaluated_epochs = data_.evaluated_epochs();
  } else if (job_.resume) {
    const auto past = std::filesystem::absolute(job_.resume->folder).parent_path().parent_path();
    settings.past = past / "metrics.jsonl";
    settings.evaluated_epochs = data_.evaluated_epochs();
    std::fprintf(stderr, "goes on from %s: %ld of %ld minibatches are done\n", job_.resume->folder.c_str(),
                 data_.first_minibatch(), data_.length().minibatches);
  } else if (!job_.run.resume.empty()) {
    std::fprintf(stderr, "no checkpoint in %s yet: training starts from the beginning\n",
                 checkpoints_of(folder_).c_str());
  }
  tell_learning_rate();
  if (!job_.resume && !job_.run.initial_weights.empty()) {
    const std::string taken =
        initial_weights_text(InitialWeights(job_.run.initial_weights, job_.model), job_.model);
    if (!taken.empty()) std::fprintf(stderr, "initial weights: %s\n", taken.c_str());
  }
  for (CheckpointSeries* series : all_series()) series->keep();
  settings.heard_speed = [this](int64_t rank, const SpeedChange& change) { speeds_.take(rank, change); };
  settings.progress_on_terminal = isatty(STDERR_FILENO) || std::getenv("PIPEWRIGHT_PROGRESS_TERMINAL");
  journal_ = std::make_unique<Journal>(std::move(settings));
  tells_plans_ = job_.decides || !job_.changes.empty() || !journal_->summary().generations.empty();
  messages_ = std::make_unique<MessageThread>(
      [this](int64_t rank, const RankMessage& message) { take_in_order(rank, message); });
}

// A checkpoint is complete when the journal has all that was told before it.
void Training::take_in_order(int64_t rank, const RankMessage& message) {
  const auto take = [&]<typename T>(const T& told) {
    if constexpr (std::is_same_v<T, WeightsSaved>) {
      ++saved_stages_;
    } else if constexpr (std::is_same_v<T, MessageLog>) {
      for (const LinkChange& change : links_.take(rank, told)) {
        link_speeds_.take(change);
        journal_->take(change);
      }
    } else if constexpr (std::is_same_v<T, CoreSample>) {
      cores_.take(rank, told);
    } else if constexpr (std::is_same_v<T, CheckpointPart>) {
      for (CheckpointSeries* series : all_series()) series->take(told);
    } else if constexpr (requires { journal_->take(rank, told); }) {
      journal_->take(rank, told);
    } else {
      PW_CHECK(false, "rank " << rank << " tells in training what is of another task");
    }
  };
  std::visit(take, message);
}

void Training::begin_here() {
  if (!kept_) return;
  make_room_for_kept();
  begin_copies();
}

// What of it may surprise.
void Training::tell_learning_rate() const {
  const LearningRateSettings settings =
      learning_rate_settings(data_.rules_of(job_.generation_at(data_.first_minibatch())));
  std::vector<std::string> lines = learning_rate_remarks(settings);
  if (job_.resume) {
    const CheckpointManifest& earlier = job_.resume->manifest;
    const int64_t total = earlier.run.minibatches > 0 ? earlier.run.minibatches
                                                      : earlier.run.epochs * earlier.minibatches_per_epoch;
    const std::string changed = changed_rate_text(settings, total, data_.first_minibatch());
    if (!changed.empty()) lines.push_back(changed);
  }
  for (const std::string& line : lines) std::fprintf(stderr, "learning rate: %s\n", line.c_str());
}

void Training::take(int64_t rank, RankMessage message) {
  if (auto agreement = agreement_in(message)) return coordination_->take(rank, std::move(*agreement));
  messages_->put(rank, std::move(message));
}

void Training::prepare() {
  done_ = data_.first_minibatch();
  told_minibatches_ = done_;
  pipeline_began_ = data_.pipeline_began();
  evaluated_epochs_ = data_.evaluated_epochs();
  open_checkpoints();
  if (job_.decides) policy_ = make_adapt_policy(job_.run.adapt);
  serve_groups();
  prepare_to_follow();
  open_cache();
  const auto source = start_of(job_.run, job_.model, job_.resume, /*in_flight=*/pipeline_began_ < done_);
  start_generation(job_.generation_at(done_), source.get());
}

// Before any rank asks where.
void Training::serve_groups() {
  if (!session_.store() || session_.place().rank != 0) return;
  const bool groups = sync_facts(job_.run.sync).groups_by_arrival;
  if (!groups && !shares_minibatches(job_.run.sync)) return;
  GroupServer::Settings settings;
  settings.host = session_.place().master_address;
  settings.secret = new_secret();
  if (sync_facts(job_.run.sync).kind == SyncKind::kPartialReduce)
    settings.rules = partial_reduce_rules(job_.run.sync);
  const auto log = [this](const auto&... what) {
    try {
      group_log_->write(what...);
    } catch (const Error& error) {
      control().fail({session_.place().rank, error.code(), error.what(), error.remedy()});
    }
  };
  settings.decided = log;
  settings.handed_out = log;
  settings.met = log;
  const std::string secret = settings.secret;
  group_server_ = std::make_unique<GroupServer>(std::move(settings));
  session_.store()->set(kGroupsKey, to_text(GroupServerAddress{group_server_->port(), secret}));
}

void Training::work() {
  // Of an earlier run, whose weights this one may have begun with: all ranks have read them.
  std::error_code ignored;
  if (journal_) std::filesystem::remove(folder_ / kModelFileName, ignored);
  if (journal_ && !job_.resume) {
    const bool own = job_.decides || !job_.changes.empty();
    for (const auto& name : plans_of_changes_in(folder_, own ? job_.generations() : 0))
      std::filesystem::remove(folder_ / name, ignored);
  }
  started_ = Clock::now();
  if (generation_->takes_part()) {
    const Worker& worker = generation_->worker();
    const auto several = static_cast<int64_t>(worker.stage_count());
    const int64_t first = worker.stage().stage();
    name_rank(trace_, session_.place().rank,
              {first, worker.replica(), several, several > 1 ? worker.stage(1).stage() - first : 0});
  }
  prepare_to_stop();
  GenerationSummary start;
  start.reason = job_.attempt ? kLossReason + job_.attempt->reason : job_.resume ? "resume" : "start";
  tell_generation(start);
  if (generation_->takes_part()) evaluate_ended_epoch();
  while (true) {
    if (generation_->takes_part()) {
      train_generation();
    } else {
      wait_for_end_of_generation();
    }
    if (done_ == data_.length().minibatches) break;
    change_plan();
  }
  fault_point();
  if (!job_.run.no_save) save_model();
  for (CheckpointSeries* series : all_series()) series->complete();
  if (kept_) kept_->end_copies();
}

// The pipeline is empty: buffers are the replicas' average.
void Training::save_model() {
  std::map<int64_t, NamedTensors> own;
  if (!generation_->takes_part()) return;
  for_each_stage(generation_->worker(), [&](StageReplica& stage) {
    if (stage.replica() != 0) return;
    NamedTensors& tensors = own[stage.stage()];
    const StageProgram& program = stage.program();
    for (size_t i = 0; i < program.parameters().size(); ++i)
      tensors.emplace_back(program.parameters()[i], stage.weights()[i]);
    for (size_t i = 0; i < program.buffers().size(); ++i)
      tensors.emplace_back(program.buffers()[i], stage.buffers()[i]);
  });
  if (session_.place().rank != 0) {
    for (const auto& [stage, tensors] : own) {
      write_weights_part(folder_, stage, tensors);
      control().post(WeightsSaved{});
    }
    return;
  }
  const int64_t stages = generation_->shape().stages();
  const auto others = stages - static_cast<int64_t>(own.size());
  while (saved_stages_ < others) {
    control().check();
    messages_->check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  write_final_model(folder_, stages, own, job_.model, data_.length().minibatches);
}

// Between two actions, and around what is done between spans.
void Training::fault_point() {
  if (!faults_.next() || !stops_on_the_way_ || session_.place().world_size == 1) return;
  // The signal is heard before this rank goes on, or the change that comes before it.
  while (!orders_->under_way()) {
    control().check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// All ranks have written the checkpoint of the same minibatch.
void Training::stop() {
  for (CheckpointSeries* series : all_series()) series->complete();
  if (kept_) kept_->end_copies();
  control().barrier("stopped", session_.start_patience(), Meeting::kEnd);
  const Failure failure{session_.place().rank, exit_code_of_signal(orders_->signal()),
                        words_of_signal(orders_->signal()) +
                            (checkpoints_->last().empty() ? "" : "; left " + checkpoints_->last().string())};
  throw JobEnded(failure.code, failure.message, failure);
}

void Training::post_last_words() {
  fault_point();
  for (CheckpointSeries* series : all_series()) series->settle_writer();
  const Worker* worker = generation_ && generation_->takes_part() ? &generation_->worker() : nullptr;
  RankSummary rank = summary_of_rank(session_.place().rank, plan_in_force(), worker, earlier_workers_,
                                     memory_, times_, job_.device);
  if (worker && cuda_graphs_of(job_) != "off") rank.cuda_graphs = cuda_graphs_text(*worker);
  if (cache_) rank.cache = cache_->summary();
  if (job_.run.cuda_graphs == "on" && !rank.cuda_graphs.empty() && rank.cuda_graphs != "used")
    std::fprintf(stderr, "rank %ld: CUDA graphs: %s\n", session_.place().rank, rank.cuda_graphs.c_str());
  control().post(std::move(rank));
  control().post(TraceDocument{trace_.json()});
}

// Of the job, with the attempts before this one.
double Training::wall_seconds() const {
  if (!job_.attempt) return elapsed_seconds();
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
         job_.attempt->job_began_at_seconds;
}

void Training::close(const std::string& status) {
  session_.rest();  // a slow disk is nothing that hangs
  if (status == "done" && kept_) remove_kept();
  if (!journal_) return;
  std::exception_ptr lost;
  try {
    messages_->finish();
    journal_->close();
    std::vector<std::string> written = {"run.json", "plan.json"};
    if (status == "done" && !job_.run.no_save) written.push_back(kModelFileName);
    if (!checkpoints_->last().empty()) written.push_back(checkpoints_->last().lexically_relative(folder_));
    demand_run_files(folder_, written);
  } catch (const std::exception&) {
    lost = std::current_exception();
  }
  if (lost || status != "done") {
    for (CheckpointSeries* series : all_series()) series->settle();
    remove_weights_parts(folder_);
  }
  const Summary summary =
      write_results(folder_, plan_in_force(), *journal_,
                    {lost ? "failed" : status, job_.world_size(), wall_seconds(), job_.run.sync,
                     group_server_ ? group_server_->statistics() : GroupStatistics{},
                     count_flops(job_.model.graph).training});
  if (lost && status != "failed") std::rethrow_exception(lost);
  for (const Dataset* data : {&data_.dataset(), static_cast<const Dataset*>(evaluation_data_.get())}) {
    if (!data) continue;
    for (const std::string& remark : data->remarks()) std::fprintf(stderr, "data: %s\n", remark.c_str());
  }
  if (status == "done") demand_equal_replicas(summary);
}

void train(const Job& job, const Place& place) {
  at::set_num_threads(static_cast<int>(job.run.threads));
  Training training(job, place);
  training.run();
}

}  // namespace pipewright
