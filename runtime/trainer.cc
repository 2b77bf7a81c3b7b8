#include "runtime/trainer.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <map>
#include <thread>

#include "graph/document.h"
#include "graph/error.h"
#include "models/memory_meter.h"
#include "runtime/checkpoint_keeper.h"
#include "runtime/checkpoint_state.h"
#include "runtime/checkpoint_writer.h"
#include "runtime/data_fault.h"
#include "runtime/evaluation.h"
#include "runtime/fault_points.h"
#include "runtime/journal.h"
#include "runtime/line_thread.h"
#include "runtime/minibatch_reports.h"
#include "runtime/model_file.h"
#include "runtime/rank_session.h"
#include "runtime/run_folder.h"
#include "runtime/run_results.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/start_state.h"
#include "runtime/stop_agreement.h"
#include "runtime/training_data.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank tells rank 0 when it has written its part of the final weights of a stage.
constexpr const char* kSavedLine = "saved";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
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

class Training : private RankTask {
 public:
  Training(const Job& job, const Place& place);
  void run();

 private:
  void open() override;
  void take(int64_t rank, const std::string& line) override;
  void prepare() override;
  void work() override;
  void post_last_words() override;
  void close(const std::string& status) override;

  void train_span(Span span, std::vector<int64_t> checkpoints);
  void evaluate(int64_t epoch, int64_t minibatches = 0);
  void write_checkpoint(int64_t next_minibatch, const std::string& cause);
  void begin_checkpoint(int64_t next_minibatch, const std::string& cause);
  void advance_checkpoints();
  void complete_checkpoints();
  void save_model();
  void prepare_to_stop();
  void fault_point();
  [[noreturn]] void stop();
  double elapsed_seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }
  Control& control() { return session_.control(); }
  template <typename Function>
  void for_each_stage(Function function) {
    for (size_t i = 0; i < worker_->stage_count(); ++i) function(worker_->stage(i));
  }
  WorkerHooks hooks();

  const Job& job_;
  const std::filesystem::path folder_;
  const TrainingData data_;
  const std::unique_ptr<Dataset> evaluation_data_;
  const PipelineShape shape_;
  const int64_t period_;  // of rounds (runtime/checkpoint_points.h)

  std::optional<RunFolderLock> lock_;    // rank 0, unless the launcher holds it
  std::unique_ptr<StopAgreement> stop_;  // if a signal leaves a checkpoint; Control's thread calls it
  RankSession session_;
  FaultPoints faults_{session_.place().rank};
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Evaluation> evaluation_;
  std::unique_ptr<Journal> journal_;  // rank 0
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<CheckpointKeeper> keeper_;  // rank 0
  std::unique_ptr<LineThread> lines_;         // rank 0: what keeper and journal take
  std::atomic<int64_t> saved_stages_ = 0;     // rank 0: whose part of the final weights is on the disk
  std::filesystem::path last_checkpoint_;     // rank 0
  int64_t pipeline_began_ = 0;                // the minibatch before which the pipeline was last empty
  int64_t evaluated_epochs_ = 0;
  TraceWriter trace_;
  MemoryMeter memory_{job_.device.type()};
  Clock::time_point started_ = Clock::now();
  MeasuredTimes times_;              // but the busy seconds
  double action_began_seconds_ = 0;  // processor time of this thread
};

Training::Training(const Job& job, const Place& place)
    : job_(job),
      folder_(job.run.output),
      data_(job),
      evaluation_data_(open_evaluation_data(job)),
      shape_(shape_of(job.plan, job.run.gradient_accumulation)),
      period_(round_period(shape_)),
      session_(job, place) {}

void Training::run() {
  const MemoryMeter::Attached attached(memory_);
  session_.run(*this);
}

void Training::open() {
  const Place& place = session_.place();
  if (place.rank != 0) return;
  if (!place.launched) {  // else the launcher has
    lock_.emplace(folder_);
    prepare_run_folder(folder_, job_.resume, job_.overwrite);
  }
  write_document(folder_ / "run.json", job_.run);
  write_document(folder_ / "plan.json", job_.plan);
  JournalSettings settings;
  settings.folder = folder_;
  settings.batch_size = job_.run.batch_size;
  settings.minibatches_per_epoch = data_.length().minibatches_per_epoch;
  settings.total_minibatches = data_.length().minibatches;
  if (evaluation_data_) {
    settings.evaluation_minibatches =
        (Evaluation::samples(job_, *evaluation_data_) + job_.run.batch_size - 1) / job_.run.batch_size;
  }
  settings.period_minibatches = period_;
  settings.end_of_span = [length = data_.length()](int64_t first) { return span_from(first, length).end(); };
  settings.next_minibatch = data_.first_minibatch();
  if (job_.resume) {
    const auto past = std::filesystem::absolute(job_.resume->folder).parent_path().parent_path();
    settings.past = past / "metrics.jsonl";
    settings.evaluated_epochs = data_.evaluated_epochs();
    std::fprintf(stderr, "goes on from %s: %ld of %ld minibatches are done\n", job_.resume->folder.c_str(),
                 data_.first_minibatch(), data_.length().minibatches);
  } else if (!job_.run.resume.empty()) {
    std::fprintf(stderr, "no checkpoint in %s yet: training starts from the beginning\n",
                 checkpoints_of(folder_).c_str());
  }
  keeper_ = std::make_unique<CheckpointKeeper>(folder_, place.world_size, job_.run.checkpoint.keep);
  settings.progress_on_terminal = isatty(STDERR_FILENO) || std::getenv("PIPEWRIGHT_PROGRESS_TERMINAL");
  journal_ = std::make_unique<Journal>(std::move(settings));
  // A checkpoint is complete when the journal has all lines before its own.
  lines_ = std::make_unique<LineThread>([this](int64_t rank, const std::string& line) {
    if (line == kSavedLine) {
      ++saved_stages_;
    } else if (!keeper_->take(line)) {
      journal_->take(rank, line);
    }
  });
}

void Training::take(int64_t rank, const std::string& line) { lines_->put(rank, line); }

void Training::prepare() {
  worker_ = std::make_unique<Worker>(job_.model, job_.plan, session_.place().rank, session_.transport(),
                                     data_.rules());
  pipeline_began_ = data_.pipeline_began();
  for_each_stage([&](StageReplica& stage) {
    auto state = start_state(job_, stage.program());
    if (!state) return;
    if (pipeline_began_ < data_.first_minibatch()) add_in_flight_state(*job_.resume, stage, *state);
    stage.restore(std::move(*state));
  });
  writer_ = std::make_unique<CheckpointWriter>(CheckpointWriter::Settings{
      folder_, worker_->stage_count(), job_.run.checkpoint.versions == "exact",
      [this](std::string line) { control().post(std::move(line)); }, [this] { control().check(); }});
}

WorkerHooks Training::hooks() {
  WorkerHooks hooks = session_.hooks();
  hooks.before = [this, before = std::move(hooks.before)](const Action& action) {
    fault_point();
    advance_checkpoints();
    before(action);
  };
  return hooks;
}

void Training::work() {
  // Of an earlier run, whose weights this one may have begun with: all ranks have read them.
  std::error_code ignored;
  if (journal_) std::filesystem::remove(folder_ / kModelFileName, ignored);
  started_ = Clock::now();
  const auto several = static_cast<int64_t>(worker_->stage_count());
  const int64_t first = worker_->stage().stage();
  name_rank(trace_, session_.place().rank,
            {first, worker_->replica(), several, several > 1 ? worker_->stage(1).stage() - first : 0});
  const CheckpointSettings& settings = job_.run.checkpoint;
  const RunLength& length = data_.length();
  int64_t done = data_.first_minibatch();
  evaluated_epochs_ = data_.evaluated_epochs();

  const auto end_epoch = [&] {
    const int64_t epochs = (done + length.minibatches_per_epoch - 1) / length.minibatches_per_epoch;
    const bool at_end = done == length.minibatches || done % length.minibatches_per_epoch == 0;
    if (!evaluation_data_ || !at_end || evaluated_epochs_ >= epochs) return;
    evaluate(epochs - 1);
    evaluated_epochs_ = epochs;
  };
  prepare_to_stop();
  end_epoch();  // of a run that was stopped between an epoch and its evaluation
  while (done < length.minibatches) {
    const Span span = span_from(done, length);
    const auto within = checkpoints_within(span, settings, period_, length);
    try {
      train_span(span, within);
    } catch (const NotFiniteError& error) {
      throw_with_cause(error, data_fault(error, job_.model.graph, data_.dataset(),
                                         [this](int64_t k) { return data_.request(k); }));
    }
    const bool stops = stop_ && stop_->stop_before() < std::min(span.end() + 1, length.minibatches);
    done = stops ? stop_->stop_before() : span.end();
    if (done == span.end()) pipeline_began_ = done;
    fault_point();
    end_epoch();
    if (evaluation_data_ && done == span.end() && evaluation_within_epoch(done, length))
      evaluate(done / length.minibatches_per_epoch, done);
    fault_point();
    if (std::binary_search(within.begin(), within.end(), done)) {
      // It was written on the way.
    } else if (checkpoint_due(done, settings, period_, length)) {
      write_checkpoint(done, done == length.minibatches ? "end" : "interval");
    } else if (stops) {
      write_checkpoint(done, "signal");
    }
    if (stops) stop();
  }
  fault_point();
  if (!job_.run.no_save) save_model();
  complete_checkpoints();
}

// The pipeline is empty: buffers are the replicas' average.
void Training::save_model() {
  std::map<int64_t, NamedTensors> own;
  for_each_stage([&](StageReplica& stage) {
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
      control().post(kSavedLine);
    }
    return;
  }
  const auto others = shape_.stages() - static_cast<int64_t>(own.size());
  while (saved_stages_ < others) {
    control().check();
    lines_->check();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  write_final_model(folder_, shape_.stages(), own, job_.model, data_.length().minibatches);
}

// Between two actions, and around what is done between spans.
void Training::fault_point() {
  if (!faults_.next() || !stop_ || session_.place().world_size == 1) return;
  // The signal is heard before this rank goes on.
  while (stop_->signal() == 0) {
    control().check();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Training::prepare_to_stop() {
  if (!job_.run.checkpoint.on_signal) return;
  // A rank may be waiting for its next minibatch: one of the cycle after the last that the first stage began.
  int64_t longest_cycle = 1;
  for (int64_t stage = 0; stage < shape_.stages(); ++stage)
    longest_cycle = std::max(longest_cycle, StageTurns(shape_, stage).cycle_length());
  stop_ = std::make_unique<StopAgreement>(
      session_.place().rank, session_.place().world_size, data_.first_minibatch(),
      job_.plan.stages.front().ranks, [=, this](int64_t last_started) {
        const RunLength& length = data_.length();
        return next_stop(std::min(last_started + 1 + longest_cycle, length.minibatches), period_, length);
      });
  control().hold_signals([this](Store& store) { stop_->tick(store); });
}

// All ranks have written the checkpoint of the same minibatch.
void Training::stop() {
  complete_checkpoints();
  control().barrier("stopped", session_.start_patience(), Meeting::kEnd);
  const Failure failure{session_.place().rank, exit_code_of_signal(stop_->signal()),
                        words_of_signal(stop_->signal()) +
                            (last_checkpoint_.empty() ? "" : "; left " + last_checkpoint_.string())};
  throw JobEnded(failure.code, failure.message, failure);
}

// All minibatches before the next one have come back, and none from it on has begun.
void Training::write_checkpoint(int64_t next_minibatch, const std::string& cause) {
  begin_checkpoint(next_minibatch, cause);
  for_each_stage([&](StageReplica& stage) {
    writer_->take(next_minibatch, stage, stage.state_before(next_minibatch),
                  /*drained=*/pipeline_began_ == next_minibatch);
  });
}

// Rank 0: what the manifest says; it is written when all ranks have written their parts. One checkpoint at a
// time. Waiting for the one before stops no other rank on its way there: it lies behind this rank.
void Training::begin_checkpoint(int64_t next_minibatch, const std::string& cause) {
  if (!keeper_) return;
  complete_checkpoints();
  CheckpointManifest manifest;
  manifest.next_minibatch = next_minibatch;
  manifest.pipeline_began = pipeline_began_;
  manifest.minibatches_per_epoch = data_.length().minibatches_per_epoch;
  manifest.evaluated_epochs = evaluated_epochs_;
  manifest.cause = cause;
  manifest.libraries = {{"pipewright", PIPEWRIGHT_VERSION}, {"libtorch", PIPEWRIGHT_TORCH_VERSION}};
  manifest.graph_digest = document_digest(job_.model.graph);
  manifest.run = job_.run;
  manifest.plan = job_.plan;
  keeper_->begin(std::move(manifest));
}

// Between two actions: what has been written meanwhile is told, and completed.
void Training::advance_checkpoints() {
  writer_->poll();
  if (!keeper_) return;
  lines_->check();
  if (const auto folder = keeper_->poll()) last_checkpoint_ = *folder;
}

void Training::complete_checkpoints() {
  writer_->wait();
  while (keeper_ && keeper_->pending()) {
    const auto check = [this] {
      control().check();
      lines_->check();
    };
    if (const auto folder = keeper_->wait(check)) last_checkpoint_ = *folder;
  }
}

void Training::train_span(Span span, std::vector<int64_t> checkpoints) {
  StageLoaders loaders(
      data_.dataset(), *worker_, span, [this](int64_t k) { return data_.request(k); }, session_.loading());
  WorkerHooks hooks = this->hooks();
  if (stop_) {
    hooks.stop_before = [this] { return stop_->stop_before(); };
    hooks.before = [this, before = std::move(hooks.before)](const Action& action) {
      before(action);
      if (action.kind == ActionKind::kForward && action.stage_or(worker_->stage().stage()) == 0)
        stop_->enter(action.index, [this] { control().check(); });
    };
  }
  hooks.before = [this, before = std::move(hooks.before)](const Action& action) {
    before(action);
    action_began_seconds_ = processor_seconds();
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
    const StageReplica& last = worker_->stage(worker_->stage_count() - 1);
    reports.loss(k, loss, elapsed_seconds(), last.learning_rate(last.turns().round_of(k)));
  };
  hooks.gradient_norm = [&](int64_t end, double norm) { reports.norm(end, norm); };
  hooks.after = [this, ended = std::move(hooks.after)](const Action& action, Clock::time_point begin,
                                                       Clock::time_point end) {
    if (computes(action.kind)) times_.processor_seconds += processor_seconds() - action_began_seconds_;
    if (action.kind == ActionKind::kForward &&
        action.stage_or(worker_->stage().stage()) == worker_->stage().stage())
      ++times_.minibatches;
    ended(action, begin, end);
    const int64_t round = is_of_round(action.kind) ? worker_->stage().turns().round_length() : 1;
    if (action.index * round >= job_.run.trace_minibatches) return;
    const auto since_start = [this](Clock::time_point time) {
      return std::chrono::duration<double>(time - started_).count();
    };
    trace_.add(trace_span(session_.place().rank, action, since_start(begin), since_start(end)));
  };
  hooks.checkpoints = std::move(checkpoints);
  hooks.checkpoint = [this](int64_t n, StageReplica& stage) {
    session_.rest();  // a slow disk is no update that hangs
    if (&stage == &worker_->stage()) begin_checkpoint(n, "interval");
    writer_->take(n, stage, stage.state_before(n), /*drained=*/false);
  };
  const auto begin = Clock::now();
  try {
    worker_->train(span, hooks, pipeline_began_);
  } catch (...) {
    reports.flush();
    throw;
  }
  times_.trained_seconds += seconds_since(begin);
}

// `minibatches`: trained before, within an epoch; 0: at its end.
void Training::evaluate(int64_t epoch, int64_t minibatches) {
  if (!evaluation_) evaluation_ = std::make_unique<Evaluation>(job_, *evaluation_data_, *worker_);
  evaluation_->run(hooks(), session_.loading(), [&](const EvaluatedMinibatch& done, const ScoredSamples&) {
    control().post(evaluation_line(epoch, done, minibatches));
  });
}

void Training::post_last_words() {
  fault_point();
  writer_->settle();
  const RankSummary rank = summary_of_rank(job_, session_.place(), *worker_, memory_, times_);
  if (!rank.cuda_graphs.empty() && rank.cuda_graphs != "used")
    std::fprintf(stderr, "rank %ld: CUDA graphs: %s\n", session_.place().rank, rank.cuda_graphs.c_str());
  control().post(rank_line(rank));
  control().post(trace_line(trace_.json()));
}

void Training::close(const std::string& status) {
  session_.rest();  // a slow disk is nothing that hangs
  if (!journal_) return;
  std::exception_ptr lost;
  try {
    lines_->finish();
    journal_->close();
    std::vector<std::string> written = {"run.json", "plan.json"};
    if (status == "done" && !job_.run.no_save) written.push_back(kModelFileName);
    if (!last_checkpoint_.empty()) written.push_back(last_checkpoint_.lexically_relative(folder_));
    demand_run_files(folder_, written);
  } catch (const std::exception&) {
    lost = std::current_exception();
  }
  if (lost || status != "done") {
    keeper_->settle();
    remove_weights_parts(folder_);
  }
  const Summary summary =
      write_results(folder_, job_, *journal_, lost ? "failed" : status, elapsed_seconds());
  if (lost && status != "failed") std::rethrow_exception(lost);
  for (const Dataset* data : {&data_.dataset(), static_cast<const Dataset*>(evaluation_data_.get())}) {
    if (!data) continue;
    for (const std::string& remark : data->remarks()) std::fprintf(stderr, "data: %s\n", remark.c_str());
  }
  if (status == "done") demand_equal_replicas(summary);
}

}  // namespace

void train(const Job& job, const Place& place) {
  at::set_num_threads(static_cast<int>(job.run.threads));
  Training training(job, place);
  training.run();
}

}  // namespace pipewright
