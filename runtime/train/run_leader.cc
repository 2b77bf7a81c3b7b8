#include "runtime/train/run_leader.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "graph/delay_corrections.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_as_run.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/checkpoint/model_file.h"
#include "runtime/generation/evaluation.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/stage/stage_learning_rate.h"
#include "runtime/train/model_flops.h"
#include "runtime/train/run_results.h"
#include "runtime/transport/signed_store.h"

namespace pipewright {
namespace {

// What of the learning rate may surprise.
void tell_learning_rate(const Job& job, const TrainingData& data) {
  const LearningRateSettings settings =
      learning_rate_settings(data.rules_of(job.generation_at(data.first_minibatch())));
  std::vector<std::string> lines = learning_rate_remarks(settings);
  const std::string& correction = job.run.optimizer.delay_correction;
  if (delay_correction_facts(correction).kind == DelayCorrectionKind::kPipeMareRate)
    lines.push_back(
        correction +
        " divides it at first by the delay of a stage's updates; metrics.jsonl has the last stage's");
  if (job.resume) {
    const CheckpointManifest& earlier = job.resume->manifest;
    const int64_t total = earlier.run.minibatches > 0 ? earlier.run.minibatches
                                                      : earlier.run.epochs * earlier.minibatches_per_epoch;
    const std::string changed = changed_rate_text(settings, total, data.first_minibatch());
    if (!changed.empty()) lines.push_back(changed);
  }
  for (const std::string& line : lines) std::fprintf(stderr, "learning rate: %s\n", line.c_str());
}

}  // namespace

RunLeader::RunLeader(Settings settings)
    : settings_(std::move(settings)),
      folder_(settings_.job.run.output),
      links_([this](int64_t rank) { return settings_.measured.ranks.slowdown(rank); }) {}

std::optional<GroupServerAddress> RunLeader::serve_groups() {
  const std::string& sync = settings_.job.run.sync;
  if (!sync_facts(sync).groups_by_arrival && !shares_minibatches(sync)) return std::nullopt;
  GroupServer::Settings server;
  server.host = settings_.place.master_address;
  server.secret = new_secret();
  if (sync_facts(sync).kind == SyncKind::kPartialReduce) server.rules = partial_reduce_rules(sync);
  const auto guarded = [this](const auto& write) {
    try {
      write();
    } catch (const Error& error) {
      settings_.fail(error);
    }
  };
  const auto log = [this, guarded](const auto&... what) { guarded([&] { group_log_->write(what...); }); };
  server.decided = log;
  server.handed_out = log;
  server.met = log;
  server.left = [this, guarded](int64_t generation, int64_t stage) {
    guarded([&] { group_log_->write_left(generation, stage); });
  };
  const std::string secret = server.secret;
  group_server_ = std::make_unique<GroupServer>(std::move(server));
  return GroupServerAddress{group_server_->port(), secret};
}

int64_t RunLeader::stop_behind(int64_t last_begun) const {
  const Job& job = settings_.job;
  const auto place = [&](int64_t generation, int64_t last_of_plan) {
    const auto stop = [&](int64_t last) {
      return unplanned_stop(last, shape_of(job.plan_of(generation), job.gradient_accumulation_of(generation)),
                            settings_.data.length_of(generation));
    };
    return group_server_ && shares_minibatches(job.run.sync)
               ? group_server_->stop_handing_out(generation, last_of_plan, stop)
               : stop(last_of_plan);
  };
  return settings_.plans.stop_behind(last_begun, place);
}

void RunLeader::note_drained(int64_t generation, int64_t minibatch) {
  if (group_log_) group_log_->write_drained(generation, minibatch);
}

void RunLeader::begin() {
  prepare_folder();
  JournalSettings settings = journal_settings();
  add_past(settings);
  tell_start();
  settings_.checkpoints.keep();
  journal_ = std::make_unique<Journal>(std::move(settings));
  tells_plans_ = settings_.plans.may_change() || !journal_->summary().generations.empty();
  messages_ = std::make_unique<MessageThread>(
      [this](int64_t rank, const RankMessage& message) { take_in_order(rank, message); });
}

void RunLeader::prepare_folder() {
  const Job& job = settings_.job;
  const TrainingData& data = settings_.data;
  if (goes_on()) {
    tidy_run_folder(folder_, data.first_minibatch());
  } else {
    prepare_run_folder(folder_, job.resume, job.overwrite);
  }
  if (settings_.checkpoints.keeps_state())
    note_start(folder_, {job.attempt ? job.attempt->number : 0, data.first_minibatch()},
               /*first=*/!goes_on());
  if (group_server_) {
    group_log_ = std::make_unique<GroupLog>(folder_ / kGroupLogName, data.first_minibatch(), goes_on());
  } else {
    std::error_code ignored;
    std::filesystem::remove(folder_ / kGroupLogName, ignored);
  }
  write_document(folder_ / "run.json", job.run);
  write_file(folder_ / "plan.json", plan_text_as_given(job.plan, job.run.plan));
  settings_.plans.write_all(data.length().minibatches);
}

JournalSettings RunLeader::journal_settings() const {
  const Job& job = settings_.job;
  const TrainingData& data = settings_.data;
  JournalSettings settings;
  settings.folder = folder_;
  settings.batch_size = job.run.batch_size;
  settings.minibatches_per_epoch = data.length().minibatches_per_epoch;
  settings.total_minibatches = data.length().minibatches;
  if (settings_.evaluation_data) {
    const int64_t samples = Evaluation::samples(job.model, job.run.batch_size, *settings_.evaluation_data);
    settings.evaluation_minibatches = (samples + job.run.batch_size - 1) / job.run.batch_size;
  }
  settings.period_minibatches = data.length_of(job.generation_at(data.first_minibatch())).period;
  settings.end_of_span = [this](int64_t first) {
    return span_from(first, settings_.data.length_of(settings_.job.generation_at(first))).end();
  };
  settings.next_minibatch = data.first_minibatch();
  settings.heard_speed = [this](int64_t rank, const SpeedChange& change) {
    settings_.measured.ranks.take(rank, change);
  };
  settings.progress_on_terminal = isatty(STDERR_FILENO) || std::getenv("PIPEWRIGHT_PROGRESS_TERMINAL");
  settings.shows_progress = !std::getenv("PIPEWRIGHT_NO_PROGRESS");
  return settings;
}

// Of a run that goes on, from a checkpoint or after a loss.
void RunLeader::add_past(JournalSettings& settings) const {
  const Job& job = settings_.job;
  if (job.attempt) {
    settings.recovery =
        RecoverySummary{job.attempt->number, settings.next_minibatch,    0, job.attempt->reason,
                        job.recovered_from,  settings_.place.world_size, 0};
    settings.lost_at_seconds = job.attempt->lost_at_seconds;
    // Its time is that of all attempts.
    const auto starts = read_starts(folder_);
    settings.first_minibatch = starts.empty() ? 0 : starts.front().minibatch;
  }
  if (goes_on()) {
    settings.past = folder_ / "metrics.jsonl";
    // A rank 0 that was cut off on another host may come back and write on.
    settings.past_is_ours = hosts_of_kept_state(folder_).size() == 1;
  } else if (job.resume) {
    settings.past =
        std::filesystem::absolute(job.resume->folder).parent_path().parent_path() / "metrics.jsonl";
  }
  if (!settings.past.empty()) settings.evaluated_epochs = settings_.data.evaluated_epochs();
}

void RunLeader::tell_start() const {
  const Job& job = settings_.job;
  const TrainingData& data = settings_.data;
  if (!goes_on() && job.resume) {
    std::fprintf(stderr, "goes on from %s: %ld of %ld minibatches are done\n", job.resume->folder.c_str(),
                 data.first_minibatch(), data.length().minibatches);
  } else if (!goes_on() && !job.run.resume.empty()) {
    std::fprintf(stderr, "no checkpoint in %s yet: training starts from the beginning\n",
                 checkpoints_of(folder_).c_str());
  }
  tell_learning_rate(job, data);
  if (job.resume || job.run.initial_weights.empty()) return;
  const std::string taken =
      initial_weights_text(InitialWeights(job.run.initial_weights, job.model), job.model);
  if (!taken.empty()) std::fprintf(stderr, "initial weights: %s\n", taken.c_str());
}

void RunLeader::take(int64_t rank, RankMessage message) { messages_->put(rank, std::move(message)); }

// A checkpoint is complete when the journal has all that was told before it.
void RunLeader::take_in_order(int64_t rank, const RankMessage& message) {
  const auto take = [&]<typename T>(const T& told) {
    if constexpr (std::is_same_v<T, WeightsSaved>) {
      ++saved_stages_;
    } else if constexpr (std::is_same_v<T, MessageLog>) {
      for (const LinkChange& change : links_.take(rank, told)) {
        settings_.measured.links.take(change);
        journal_->take(change);
      }
    } else if constexpr (std::is_same_v<T, CoreSample>) {
      settings_.measured.cores.take(rank, told);
    } else if constexpr (std::is_same_v<T, CheckpointPart>) {
      settings_.checkpoints.take(told);
    } else if constexpr (requires { journal_->take(rank, told); }) {
      journal_->take(rank, told);
    } else {
      PW_CHECK(false, "rank " << rank << " tells in training what is of another task");
    }
  };
  std::visit(take, message);
}

void RunLeader::tidy() const {
  std::error_code ignored;
  std::filesystem::remove(folder_ / kModelFileName, ignored);
  if (!settings_.job.resume) settings_.plans.remove_others();
}

void RunLeader::close(const std::string& status, const Plan& plan, double wall_seconds) {
  if (!journal_) return;
  const Job& job = settings_.job;
  std::exception_ptr lost;
  try {
    messages_->finish();
    journal_->close();
    std::vector<std::string> written = {"run.json", "plan.json"};
    if (status == "done" && !job.run.no_save) written.push_back(kModelFileName);
    const std::filesystem::path& last = settings_.checkpoints.last();
    if (!last.empty()) written.push_back(last.lexically_relative(folder_));
    demand_run_files(folder_, written);
  } catch (const std::exception&) {
    lost = std::current_exception();
  }
  if (lost || status != "done") {
    settings_.checkpoints.settle();
    remove_weights_parts(folder_);
  }
  const Summary summary =
      write_results(folder_, plan, *journal_,
                    {lost ? "failed" : status, job.world_size(), wall_seconds, job.run.sync,
                     group_server_ ? group_server_->statistics() : GroupStatistics{},
                     count_flops(job.model.graph).training, job.run.emulate});
  if (lost && status != "failed") std::rethrow_exception(lost);
  for (const Dataset* data : {&settings_.data.dataset(), settings_.evaluation_data}) {
    if (!data) continue;
    for (const std::string& remark : data->remarks()) std::fprintf(stderr, "data: %s\n", remark.c_str());
  }
  if (status == "done") demand_equal_replicas(summary);
}

}  // namespace pipewright
