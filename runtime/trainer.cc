#include "runtime/trainer.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <filesystem>

#include "graph/document.h"
#include "graph/error.h"
#include "models/memory_meter.h"
#include "runtime/checkpoint_keeper.h"
#include "runtime/checkpoint_points.h"
#include "runtime/checkpoint_state.h"
#include "runtime/control.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/evaluation.h"
#include "runtime/flight.h"
#include "runtime/initial_weights.h"
#include "runtime/journal.h"
#include "runtime/launch.h"
#include "runtime/progress.h"
#include "runtime/rendezvous.h"
#include "runtime/run_folder.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/stage_loaders.h"
#include "runtime/stop_agreement.h"
#include "runtime/transport/connect.h"
#include "runtime/worker.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

// After a failure rank 0 waits this long for what the others still have to say.
constexpr auto kLastWordsPatience = std::chrono::seconds(2);

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// The data of a checkpoint and of the run are of one size, and the run is longer.
void check_position(const Checkpoint& checkpoint, int64_t minibatches_per_epoch, int64_t total_minibatches) {
  const CheckpointManifest& manifest = checkpoint.manifest;
  const std::string where = "resume: " + checkpoint.folder.string();
  if (manifest.minibatches_per_epoch != minibatches_per_epoch) {
    throw InputError(
        where + ": an epoch had " + std::to_string(manifest.minibatches_per_epoch) +
            " minibatches, now it has " + std::to_string(minibatches_per_epoch),
        "The data set has changed: give the one of the checkpoint, or start anew without --resume.");
  }
  if (manifest.next_minibatch > total_minibatches) {
    throw InputError(where + ": " + std::to_string(manifest.next_minibatch) +
                         " minibatches are done, the run has " + std::to_string(total_minibatches),
                     "raise --epochs or --minibatches, or go on from an earlier checkpoint");
  }
}

class Training {
 public:
  Training(const Job& job, const Place& place);
  void run();

 private:
  void connect();
  void open_journal();
  void train_epochs();
  void train_span(int64_t epoch, Span span);
  void evaluate(int64_t epoch);
  void write_checkpoint(int64_t next_minibatch, const std::string& cause);
  void complete_checkpoint(bool wait);
  void prepare_to_stop(const RunLength& length, int64_t period);
  [[noreturn]] void stop();
  void post_rank_summary();
  void write_results(const std::string& status);
  void write_flight(const std::exception& error);
  double elapsed_seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }
  LoadObserver loading();
  template <typename Function>
  void for_each_stage(Function function) {
    for (size_t i = 0; i < worker_->stage_count(); ++i) function(worker_->stage(i));
  }
  WorkerHooks hooks();
  std::string where();
  static JobEnded seen_from_here(const Failure& failure, const std::string& here);
  template <typename Step>
  void guarded(Step step);

  const Job& job_;
  const Place place_;
  const std::filesystem::path folder_;
  std::unique_ptr<Dataset> data_;
  std::unique_ptr<Dataset> evaluation_data_;
  std::optional<Sampler> sampler_;
  int64_t total_minibatches_ = 0;

  std::optional<Store> server_;
  std::unique_ptr<StopAgreement> stop_;  // if a signal leaves a checkpoint; Control's thread calls it
  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
  std::mutex transport_mutex_;  // abort may come while transport_ is being made
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Evaluation> evaluation_;
  std::unique_ptr<Journal> journal_;          // rank 0
  std::unique_ptr<CheckpointKeeper> keeper_;  // rank 0
  std::filesystem::path last_checkpoint_;     // rank 0
  int64_t evaluated_epochs_ = 0;
  TraceWriter trace_;
  MemoryMeter memory_;
  Clock::time_point started_ = Clock::now();
  double trained_seconds_ = 0;
  Progress progress_;
  PipelineShape shape_;
};

Training::Training(const Job& job, const Place& place)
    : job_(job),
      place_(place),
      folder_(job.run.output),
      shape_(shape_of(job.plan, job.run.gradient_accumulation)) {
  data_ = open_dataset(job.run.data, "train");
  check_dataset_for_graph(*data_, job.model.graph, job.run.data);
  sampler_.emplace(data_->size(), job.run.batch_size, static_cast<uint64_t>(job.run.seed), /*shuffle=*/true);
  const int64_t per_epoch = sampler_->minibatches_per_epoch();
  if (per_epoch == 0) {
    throw InputError("data '" + job.run.data + "' has " + std::to_string(data_->size()) +
                         " samples, fewer than one minibatch of " + std::to_string(job.run.batch_size),
                     "give a smaller --batch-size");
  }
  total_minibatches_ = job.run.minibatches > 0 ? job.run.minibatches : job.run.epochs * per_epoch;
  if (job.resume) check_position(*job.resume, per_epoch, total_minibatches_);
  if (!job.run.evaluation_data.empty()) {
    evaluation_data_ = open_dataset(job.run.evaluation_data, "evaluation");
    check_dataset_for_graph(*evaluation_data_, job.model.graph, job.run.evaluation_data);
  }
}

void Training::run() {
  guarded([this] {
    open_journal();
    connect();
    worker_ = std::make_unique<Worker>(
        job_.model, job_.plan, place_.rank, transport_.get(),
        TrainingRules{job_.run.optimizer, job_.run.learning_rate_policy, job_.run.learning_rate_scaling,
                      job_.run.gradient_accumulation, job_.run.gradient_bucket_bytes,
                      job_.run.gradient_clipping_norm, job_.run.nan_guard,
                      static_cast<uint64_t>(job_.run.seed), sampler_->minibatches_per_epoch(),
                      total_minibatches_});
    if (job_.resume) {
      for_each_stage([&](StageReplica& stage) {
        stage.restore(load_stage_state(*job_.resume, stage.program(), job_.run.optimizer));
      });
      evaluated_epochs_ = job_.resume->manifest.evaluated_epochs;
    } else if (!job_.run.initial_weights.empty()) {
      const TensorFiles files(job_.run.initial_weights);
      for_each_stage([&](StageReplica& stage) {
        stage.restore(initial_state_from(files, job_.model.graph, stage.program()));
      });
    }
    control_->watch(progress_, [this](const std::string& why) {
      pipewright::write_flight(folder_, place_.rank, why, progress_);
    });
    if (place_.world_size > 1 && !place_.store_is_served) control_->store_is_served_by(0);
    control_->barrier("start", kStartPatience);
    train_epochs();
    post_rank_summary();
    progress_.begin({"end of training", {}, /*done=*/true});
    control_->barrier("end", kStartPatience);
  });
  control_->finish(kStartPatience);
  write_results(control_->failure() ? "failed" : "done");
  control_->check();  // a rank may have died between the last barrier and its last words
}

// "rank 2, receive activation of minibatch 17 since 12.0 s", "" between operations.
std::string Training::where() {
  const ProgressNow now = progress_.now();
  if (now.activity.operation.empty()) return "";
  return "rank " + std::to_string(place_.rank) + ", " + now.activity.operation + " since " +
         seconds_words(now.seconds);
}

// A failure of another rank, for this rank's last line: the cause, and where it met this rank.
JobEnded Training::seen_from_here(const Failure& failure, const std::string& here) {
  return JobEnded(ExitCode::kPeerLost, here.empty() ? failure.message : failure.message + "; here: " + here,
                  failure);
}

// Runs `step`; what ends it early is told to the other ranks, the run folder is completed as far as it goes,
// and the error that counts for the whole job is thrown.
template <typename Step>
void Training::guarded(Step step) {
  std::exception_ptr error;
  std::string status = "failed";
  std::string here;  // what this rank was in
  const MemoryMeter::Attached attached(memory_);
  try {
    try {
      step();
      return;
    } catch (...) {
      here = where();
      throw;
    }
  } catch (const JobEnded& ended) {
    if (ended.code() != ExitCode::kPeerLost) status = "interrupted";
    error = std::current_exception();
    if (ended.code() == ExitCode::kPeerLost) {
      write_flight(ended);
      error = std::make_exception_ptr(seen_from_here(ended.failure(), here));
    }
  } catch (const PeerError& lost) {
    write_flight(lost);
    error = std::current_exception();
    if (control_) {
      const Failure failure = control_->peer_lost(here.empty() ? lost.what() : here + ": " + lost.what());
      const bool interrupted =
          failure.code == ExitCode::kInterrupted || failure.code == ExitCode::kTerminated;
      if (interrupted) status = "interrupted";
      error = std::make_exception_ptr(interrupted ? JobEnded(failure.code, failure.message, failure)
                                                  : seen_from_here(failure, here));
    }
  } catch (const std::exception& own) {
    write_flight(own);
    error = std::current_exception();
    const auto* coded = dynamic_cast<const Error*>(&own);
    if (control_) {
      control_->fail({place_.rank, coded ? coded->code() : ExitCode::kFailed,
                      "rank " + std::to_string(place_.rank) + ": " + own.what()});
    }
  }
  // Whatever goes wrong from here on must not hide the cause.
  try {
    if (control_) {
      if (worker_) post_rank_summary();
      control_->finish(kLastWordsPatience);
    }
    if (place_.rank == 0) remove_partial_checkpoints(folder_);
    write_results(status);
  } catch (const std::exception& later) {
    std::fprintf(stderr, "pipewright-runtime: while ending after a failure: %s\n", later.what());
  }
  std::rethrow_exception(error);
}

void Training::open_journal() {
  if (place_.rank != 0) return;
  // Else the launcher has.
  if (!place_.store_is_served || place_.world_size == 1) make_run_folder(folder_, job_.resume);
  write_document(folder_ / "run.json", job_.run);
  write_document(folder_ / "plan.json", job_.plan);
  JournalSettings settings;
  settings.folder = folder_;
  settings.batch_size = job_.run.batch_size;
  settings.minibatches_per_epoch = sampler_->minibatches_per_epoch();
  settings.total_minibatches = total_minibatches_;
  if (evaluation_data_) {
    settings.evaluation_minibatches =
        (evaluation_data_->size() + job_.run.batch_size - 1) / job_.run.batch_size;
  }
  settings.period_minibatches = round_period(shape_of(job_.plan, job_.run.gradient_accumulation));
  if (job_.resume) {
    const CheckpointManifest& manifest = job_.resume->manifest;
    settings.next_minibatch = manifest.next_minibatch;
    // An epoch that goes on is evaluated again at its end.
    const int64_t evaluated =
        manifest.next_minibatch == total_minibatches_
            ? manifest.evaluated_epochs
            : std::min(manifest.evaluated_epochs, manifest.next_minibatch / settings.minibatches_per_epoch);
    const auto past = std::filesystem::absolute(job_.resume->folder).parent_path().parent_path();
    settings.history = metrics_history(past / "metrics.jsonl", manifest.next_minibatch, evaluated);
    std::fprintf(stderr, "goes on from %s: %ld of %ld minibatches are done\n", job_.resume->folder.c_str(),
                 manifest.next_minibatch, total_minibatches_);
  } else if (!job_.run.resume.empty()) {
    std::fprintf(stderr, "no checkpoint in %s yet: training starts from the beginning\n",
                 checkpoints_of(folder_).c_str());
  }
  keeper_ = std::make_unique<CheckpointKeeper>(folder_, place_.world_size, job_.run.checkpoint.keep);
  settings.progress_on_terminal = isatty(STDERR_FILENO) || std::getenv("PIPEWRIGHT_PROGRESS_TERMINAL");
  journal_ = std::make_unique<Journal>(std::move(settings));
}

void Training::connect() {
  const auto timeout = milliseconds_of(job_.run.timeout_seconds);
  std::optional<Store> store;
  if (place_.world_size > 1) {
    if (place_.rank == 0 && !place_.store_is_served) server_ = Store::serve(place_.master_port);
    store = join_store(place_);
  }
  const auto wake = [this](const std::string& why) {
    const std::lock_guard lock(transport_mutex_);
    if (transport_) transport_->abort(why);
  };
  if (store) claim_rank(*store, place_);
  std::optional<Store> for_control;
  if (store) for_control = store->clone();
  control_ = std::make_unique<Control>(std::move(for_control), place_.rank, place_.world_size, timeout, wake);
  if (journal_) {
    control_->set_sink([this](int64_t rank, const std::string& line) {
      if (!keeper_->take(line)) journal_->take(rank, line);
    });
  }
  if (!store) return;

  // Ranks that were started with different plans, runs or libraries must not train together.
  const std::string mine = job_fingerprint(job_);
  if (place_.rank == 0) store->set("fingerprint", mine);
  control_->barrier("arrival", kStartPatience);
  const std::string first = store->get("fingerprint", timeout);
  if (mine != first) {
    throw PlanError("rank " + std::to_string(place_.rank) +
                        " was started with another job than rank 0: " + fingerprint_difference(mine, first),
                    "give every rank the same plan, run and version of Pipewright");
  }
  ConnectSettings settings;
  settings.transport = job_.run.transport;
  settings.gloo_address = gloo_address_of(place_);
  // All ranks have arrived: connecting takes no longer than any other answer.
  settings.timeout = std::max<std::chrono::milliseconds>(timeout, std::chrono::seconds(10));
  settings.cores = host_cores();
  auto transport = connect_ranks(*store, "links", place_.rank, place_.world_size, settings);
  {
    const std::lock_guard lock(transport_mutex_);
    transport_ = std::move(transport);
    if (const auto failure = control_->failure()) transport_->abort(failure->message);
  }
  warm_links(*transport_);  // from here on a wait can be woken
}

// Samples are waited for within a forward.
LoadObserver Training::loading() {
  const auto forward = std::make_shared<Activity>();
  return {[this, forward](int64_t minibatch) {
            *forward = progress_.now().activity;
            progress_.begin({"load samples of minibatch " + std::to_string(minibatch), {}, false});
          },
          [this, forward] { progress_.begin(*forward); }};
}

WorkerHooks Training::hooks() {
  WorkerHooks hooks;
  hooks.before = [this](const Action& action) {
    control_->check();
    complete_checkpoint(/*wait=*/false);
    progress_.begin(activity_of(action, shape_, place_.rank));
  };
  hooks.after = [this](const Action&, Clock::time_point, Clock::time_point) { progress_.end(); };
  return hooks;
}

void Training::train_epochs() {
  started_ = Clock::now();
  const auto several = static_cast<int64_t>(worker_->stage_count());
  const int64_t first = worker_->stage().stage();
  name_rank(trace_, place_.rank,
            {first, worker_->replica(), several, several > 1 ? worker_->stage(1).stage() - first : 0});
  const CheckpointSettings& settings = job_.run.checkpoint;
  const RunLength length{total_minibatches_, sampler_->minibatches_per_epoch()};
  const int64_t period = round_period(shape_of(job_.plan, job_.run.gradient_accumulation));
  int64_t done = job_.resume ? job_.resume->manifest.next_minibatch : 0;

  const auto end_epoch = [&] {
    const int64_t epochs = (done + length.minibatches_per_epoch - 1) / length.minibatches_per_epoch;
    const bool at_end = done == length.minibatches || done % length.minibatches_per_epoch == 0;
    if (!evaluation_data_ || !at_end || evaluated_epochs_ >= epochs) return;
    evaluate(epochs - 1);
    evaluated_epochs_ = epochs;
  };
  prepare_to_stop(length, period);

  // A run that was stopped between an epoch and its evaluation; one that is extended is evaluated again.
  evaluated_epochs_ = done == length.minibatches
                          ? evaluated_epochs_
                          : std::min(evaluated_epochs_, done / length.minibatches_per_epoch);
  end_epoch();
  for (int64_t epoch = done / length.minibatches_per_epoch; done < length.minibatches; ++epoch) {
    for (const Span& span : spans_of_epoch(epoch, done, settings, period, length)) {
      train_span(epoch, span);
      const bool stops = stop_ && stop_->stop_before() < std::min(span.end() + 1, length.minibatches);
      done = stops ? stop_->stop_before() : span.end();
      end_epoch();
      if (checkpoint_due(done, settings, period, length)) {
        write_checkpoint(done, done == length.minibatches ? "end" : "interval");
      } else if (stops) {
        write_checkpoint(done, "signal");
      }
      if (stops) stop();
    }
  }
  complete_checkpoint(/*wait=*/true);
}

void Training::prepare_to_stop(const RunLength& length, int64_t period) {
  if (!job_.run.checkpoint.on_signal) return;
  const PipelineShape shape = shape_of(job_.plan, job_.run.gradient_accumulation);
  // A rank may be waiting for its next minibatch: one of the cycle after the last that the first stage began.
  int64_t longest_cycle = 1;
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    longest_cycle = std::max(longest_cycle, StageTurns(shape, stage).cycle_length());
  stop_ = std::make_unique<StopAgreement>(
      place_.rank, place_.world_size, job_.plan.stages.front().ranks, [=](int64_t last_started) {
        return next_stop(std::min(last_started + 1 + longest_cycle, length.minibatches), period, length);
      });
  control_->hold_signals([this](Store& store) { stop_->tick(store); });
}

// All ranks have written the checkpoint of the same minibatch.
void Training::stop() {
  complete_checkpoint(/*wait=*/true);
  control_->barrier("stopped", kStartPatience);
  const bool interrupt = stop_->signal() == SIGINT;
  const Failure failure{place_.rank, interrupt ? ExitCode::kInterrupted : ExitCode::kTerminated,
                        std::string(interrupt ? "interrupted (SIGINT)" : "terminated (SIGTERM)") +
                            (last_checkpoint_.empty() ? "" : "; left " + last_checkpoint_.string())};
  throw JobEnded(failure.code, failure.message, failure);
}

// Between two spans: the pipeline has drained.
void Training::write_checkpoint(int64_t next_minibatch, const std::string& cause) {
  complete_checkpoint(/*wait=*/true);
  std::map<int64_t, CheckpointFile> files;
  if (worker_->replica() == 0) {
    for_each_stage([&](const StageReplica& stage) {
      const StageState state = stage.state();
      files[stage.stage()] = write_stage_file(folder_, next_minibatch, stage.stage(),
                                              stage_tensors(stage.program(), state), state.updates);
    });
  }
  control_->post(checkpoint_line(next_minibatch, files));
  if (!keeper_) return;
  CheckpointManifest manifest;
  manifest.next_minibatch = next_minibatch;
  manifest.minibatches_per_epoch = sampler_->minibatches_per_epoch();
  manifest.evaluated_epochs = evaluated_epochs_;
  manifest.cause = cause;
  manifest.libraries = {{"pipewright", PIPEWRIGHT_VERSION}, {"libtorch", PIPEWRIGHT_TORCH_VERSION}};
  manifest.graph_digest = document_digest(job_.model.graph);
  manifest.run = job_.run;
  manifest.plan = job_.plan;
  keeper_->begin(std::move(manifest));
}

// Rank 0: the manifest, once all ranks have written. Training goes on until then.
void Training::complete_checkpoint(bool wait) {
  if (!keeper_ || !keeper_->pending()) return;
  const auto folder = wait ? keeper_->wait([this] { control_->check(); }) : keeper_->poll();
  if (folder) last_checkpoint_ = *folder;
}

void Training::train_span(int64_t epoch, Span span) {
  StageLoaders loaders(
      *data_, *worker_, span,
      [&](int64_t k) {
        return LoadRequest{sampler_->indices(k), {static_cast<uint64_t>(job_.run.seed), epoch}};
      },
      loading());
  WorkerHooks hooks = this->hooks();
  if (stop_) {
    hooks.stop_before = [this] { return stop_->stop_before(); };
    hooks.before = [this, before = std::move(hooks.before)](const Action& action) {
      before(action);
      if (action.kind == ActionKind::kForward && action.stage_or(worker_->stage().stage()) == 0)
        stop_->enter(action.index, [this] { control_->check(); });
    };
  }
  hooks.fields = [&](int64_t stage, int64_t k) { return loaders.next(stage, k); };
  hooks.forward_done = [this](int64_t k, double loss, const at::Tensor&) {
    control_->post(minibatch_line(k, loss, elapsed_seconds()));
  };
  hooks.after = [this](const Action& action, Clock::time_point begin, Clock::time_point end) {
    progress_.end();
    const int64_t round = is_of_round(action.kind) ? worker_->stage().turns().round_length() : 1;
    if (action.index * round >= job_.run.trace_minibatches) return;
    const auto since_start = [this](Clock::time_point time) {
      return std::chrono::duration<double>(time - started_).count();
    };
    trace_.add(trace_span(place_.rank, action, since_start(begin), since_start(end)));
  };
  const auto begin = Clock::now();
  worker_->train(span, hooks);
  trained_seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

void Training::evaluate(int64_t epoch) {
  if (!evaluation_) evaluation_ = std::make_unique<Evaluation>(job_, *evaluation_data_, *worker_);
  evaluation_->run(hooks(), loading(), [&](const EvaluatedMinibatch& done) {
    control_->post(
        evaluation_line(epoch, done.minibatch, done.loss, done.correct, done.scored, done.samples));
  });
}

void Training::post_rank_summary() {
  RankSummary rank;
  const WorkerCounts& counts = worker_->counts();
  rank.rank = place_.rank;
  rank.stage = worker_->stage().stage();
  rank.replica = worker_->replica();
  rank.host = this_process().host;
  if (trained_seconds_ > 0) rank.busy_fraction = std::min(1.0, counts.busy_seconds / trained_seconds_);
  rank.receive_wait_seconds = counts.receive_wait_seconds;
  rank.sync_wait_seconds = counts.sync_wait_seconds;
  rank.peak_memory_bytes = memory_.peak_bytes();
  const auto memory = memory_.peak_bytes_by_purpose();
  const auto peak = [&](MemoryPurpose purpose) { return memory[static_cast<size_t>(purpose)]; };
  rank.memory = {peak(MemoryPurpose::kWeights),     peak(MemoryPurpose::kVersions),
                 peak(MemoryPurpose::kGradients),   peak(MemoryPurpose::kOptimizer),
                 peak(MemoryPurpose::kActivations), peak(MemoryPurpose::kMessages),
                 peak(MemoryPurpose::kOther)};
  rank.sent_bytes = counts.sent_bytes;
  // Of several stages: memory adds up; of what is counted, the largest is told.
  for_each_stage([&](const StageReplica& stage) {
    rank.peak_in_flight = std::max(rank.peak_in_flight, stage.peak_in_flight());
    rank.peak_weight_versions = std::max(rank.peak_weight_versions, stage.versions().peak_live());
    rank.updates = std::max(rank.updates, stage.versions().updates());
    if (!job_.plan.predicted) return;
    const StageMemory& predicted = job_.plan.predicted->stages[static_cast<size_t>(stage.stage())].memory;
    rank.predicted_memory_bytes += predicted.total_bytes();
    if (!rank.predicted_memory) rank.predicted_memory.emplace();
    *rank.predicted_memory += predicted;
  });
  control_->post(rank_line(rank));
  control_->post(trace_line(trace_.json()));
}

void Training::write_results(const std::string& status) {
  if (!journal_) return;
  journal_->close();
  Summary summary = journal_->summary();
  summary.status = status;
  summary.world_size = place_.world_size;
  summary.strategy = job_.plan.strategy;
  summary.schedule = job_.plan.schedule;
  summary.weights = job_.plan.weights;
  summary.cores = host_cores();
  summary.wall_seconds = elapsed_seconds();
  if (job_.plan.predicted) summary.predicted_minibatch_seconds = job_.plan.predicted->minibatch_seconds;
  write_document(folder_ / "summary.json", summary);
  TraceWriter trace;
  for (const std::string& document : journal_->traces()) trace.append(document);
  write_file(folder_ / "trace.json", trace.json());
  for (const Dataset* data : {data_.get(), evaluation_data_.get()}) {
    if (!data) continue;
    for (const std::string& remark : data->remarks()) std::fprintf(stderr, "data: %s\n", remark.c_str());
  }
}

void Training::write_flight(const std::exception& error) {
  pipewright::write_flight(folder_, place_.rank, error.what(), progress_);
}

}  // namespace

void train(const Job& job, const Place& place) {
  at::set_num_threads(static_cast<int>(job.run.threads));
  Training training(job, place);
  training.run();
}

}  // namespace pipewright
