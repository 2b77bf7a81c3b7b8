#include "runtime/watch/run_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_as_run.h"
#include "graph/regular_file.h"
#include "graph/units.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/flight.h"
#include "runtime/journal/loss_text.h"
#include "runtime/journal/predicted_times.h"
#include "runtime/journal/throughput.h"
#include "runtime/transport/process_state.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr size_t kLastMinibatches = 50;  // that speeds and the loss are of
constexpr double kHeardSeconds = 10;     // of what a rank said, to see how fast it gets on
constexpr double kRenewed = 3;           // live.json is, while ranks get on, far more often
constexpr size_t kMostEvents = 100;      // remembered
// Behind this nobody writes any more, where the process that held the folder has gone: its ranks end when
// they miss each other.
constexpr double kGoneSeconds = 10;
// An operation that uses the CPU may last so many times the run's time-out (runtime/control/progress.cc).
constexpr double kUnknownPatience = 10;

std::string number_text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string ranks_text(int64_t ranks) { return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"); }

// A document, if it is there and sound.
template <typename Document>
std::optional<Document> document_in(const fs::path& file) {
  try {
    if (!file_exists(file)) return {};
    return read_document<Document>(file);
  } catch (const Error&) {
    return {};
  }
}

// NaN where there is none.
double number_in(const Json& object, const char* key) {
  if (!object.is_object()) return std::nan("");
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
}

int64_t integer_in(const Json& object, const char* key) {
  const double value = number_in(object, key);
  return std::isfinite(value) ? static_cast<int64_t>(value) : -1;
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Since the file was last written; a year where it is not there.
double seconds_since_written(const fs::path& file) {
  std::error_code error;
  const auto time = fs::last_write_time(file, error);
  if (error) return 365 * 86400.0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
}

}  // namespace

RunReader::RunReader(fs::path folder) : folder_(std::move(folder)), metrics_(folder_ / "metrics.jsonl") {
  view_.folder = folder_.string();
}

// Another run is in the folder, or this one has gone back.
void RunReader::forget() {
  const int64_t told = view_.told_events;
  view_ = RunView();
  view_.folder = folder_.string();
  view_.told_events = told;
  last_.clear();
  slowdowns_.clear();
  heard_.clear();
  generation_plan_ = "plan.json";
}

const RunView& RunReader::look() {
  read_metrics();
  const RunView::Phase phase = phase_now();
  if (phase == RunView::Phase::kAbsent || phase == RunView::Phase::kStarting) {
    if (phase == RunView::Phase::kAbsent) forget();
    view_.phase = phase;
    return view_;
  }
  seen_running_ = true;
  view_.phase = phase;
  if (!run_ || phase == RunView::Phase::kRunning) run_ = document_in<Run>(folder_ / "run.json");
  if (run_) view_.model = run_->model;
  read_plan();
  read_live();
  show_speed();
  if (view_.has_ended()) {
    show_summary();
    if (phase != RunView::Phase::kDone) find_out_why();
  } else {
    show_live_ranks();
  }
  return view_;
}

void RunReader::read_metrics() {
  behind_ = metrics_.look([this] { forget(); }, [this](const std::string& line) { take_line(line); });
}

void RunReader::take_line(const std::string& line) {
  Json json;
  try {
    json = parse_json(line, "metrics.jsonl");
  } catch (const Error&) {
    return;
  }
  if (!json.is_object() || json.empty()) return;
  if (json.contains("minibatch")) return take_minibatch(json);
  const std::string kind = json.begin().key();
  const Json& told = json.begin().value();
  if (kind == "evaluation") {
    take_evaluation(told);
  } else if (kind == "speed") {
    const int64_t rank = integer_in(told, "rank");
    slowdowns_[rank] = number_in(told, "slowdown");
    take_slowdown(told, "rank " + std::to_string(rank) + " computes", "");
  } else if (kind == "link") {
    take_slowdown(told,
                  "link from rank " + std::to_string(integer_in(told, "from")) + " to rank " +
                      std::to_string(integer_in(told, "to")),
                  " takes");
  } else if (kind == "generation") {
    if (const std::string plan = text_in(told, "plan"); !plan.empty()) generation_plan_ = plan;
    heard_.clear();
    tell("minibatch " + std::to_string(integer_in(told, "first_minibatch")) + ": " + generation_plan_ +
         " on " + ranks_text(integer_in(told, "ranks")) + ": " + text_in(told, "reason"));
  } else if (kind == "recovery") {
    slowdowns_.clear();
    heard_.clear();
    tell("minibatch " + std::to_string(integer_in(told, "next_minibatch")) + ": " + text_in(told, "reason") +
         "; goes on with " + ranks_text(integer_in(told, "ranks")) + " after " +
         format_seconds(std::max(0.0, number_in(told, "seconds"))));
  }
}

void RunReader::take_minibatch(const Json& json) {
  const int64_t number = integer_in(json, "minibatch");
  if (number < 0) return;
  view_.done = number + 1;
  view_.epoch = std::max<int64_t>(0, integer_in(json, "epoch"));
  view_.learning_rate = number_in(json, "learning_rate");
  const Minibatch now{number_in(json, "elapsed_seconds"), number_in(json, "loss"),
                      number_in(json, "samples")};
  last_.push_back(now);
  if (last_.size() > kLastMinibatches + 1) last_.pop_front();
  view_.losses.add(number, now.loss);
}

void RunReader::take_evaluation(const Json& evaluation) {
  const double within = number_in(evaluation, "minibatches"), top1 = number_in(evaluation, "top1");
  std::string event = "epoch " + std::to_string(integer_in(evaluation, "epoch") + 1);
  if (std::isfinite(within)) event += ", minibatch " + number_text("%.0f", within);
  event += ": evaluation loss " + loss_text(number_in(evaluation, "loss"));
  if (std::isfinite(top1)) event += ", top-1 " + number_text("%.2f %%", 100 * top1);
  tell(event);
}

void RunReader::take_slowdown(const Json& change, const std::string& who, const std::string& verb) {
  const double slowdown = number_in(change, "slowdown");
  tell("minibatch " + std::to_string(integer_in(change, "minibatch")) + ": " + who + verb + " " +
       (slowdown > 1 ? number_text("%.1f times as long as when the run was quiet", slowdown)
                     : "as long as when the run was quiet, again"));
}

void RunReader::tell(const std::string& event) {
  view_.events.push_back(event);
  if (view_.events.size() > kMostEvents) view_.events.erase(view_.events.begin());
  ++view_.told_events;
}

void RunReader::read_plan() {
  std::error_code error;
  const auto time = fs::last_write_time(folder_ / generation_plan_, error);
  if (!error && (!plan_ || plan_file_ != generation_plan_ || plan_time_ != time)) {
    plan_ = document_in<Plan>(folder_ / generation_plan_);
    if (plan_ && run_) plan_ = plan_as_run(std::move(*plan_), *run_);
    plan_file_ = generation_plan_;
    plan_time_ = time;
  }
  if (!plan_) return;
  view_.plan = plan_->shape_text() + ", " + plan_->schedule + ", " + plan_->weights;
  view_.predicted_minibatch_seconds = plan_->predicted ? plan_->predicted->minibatch_seconds : 0;
}

void RunReader::read_live() {
  view_.evaluating = false;
  if (view_.has_ended()) return live_.reset();
  auto status = document_in<LiveStatus>(folder_ / LiveStatus::kFile);
  if (!status) return;  // the first has not come, or the last has gone
  if (!live_ || live_->at_seconds != status->at_seconds) live_since_ = Clock::now();
  live_ = std::move(status);
  view_.minibatches = live_->minibatches;
  view_.evaluating = live_->evaluating;
  for (const auto& [number, rank] : live_->ranks) {
    std::deque<LiveRank>& said = heard_[number];
    if (!said.empty() && said.back().heard_at_seconds == rank.heard_at_seconds) continue;
    const bool gone_back = !said.empty() && (rank.waited_seconds < said.back().waited_seconds ||
                                             rank.minibatch < said.back().minibatch);
    if (gone_back) said.clear();
    said.push_back(rank);
    while (said.size() > 2 && said[1].heard_at_seconds < rank.heard_at_seconds - kHeardSeconds)
      said.pop_front();
  }
}

// Does a process hold the folder, is something of a run there, and has it ended?
RunView::Phase RunReader::phase_now() {
  using Phase = RunView::Phase;
  const std::optional<ProcessName> holder = run_folder_holder(folder_);
  const ProcessState state = holder ? state_of(*holder) : ProcessState::kGone;
  const bool held = state != ProcessState::kGone;
  const bool began = file_exists(folder_ / "run.json") && file_exists(folder_ / "metrics.jsonl");
  summary_ = document_in<Summary>(folder_ / "summary.json");
  if (held && (summary_ || !began)) return summary_ && seen_running_ ? Phase::kRunning : Phase::kStarting;
  if (summary_)
    return summary_->status == "done"          ? Phase::kDone
           : summary_->status == "interrupted" ? Phase::kInterrupted
                                               : Phase::kFailed;
  if (!began) return Phase::kAbsent;
  if (held && state != ProcessState::kUnknown) return Phase::kRunning;
  // A run that writes lives, whatever its lock says: a file system may have none, its ranks live on a little
  // without their launcher. Of another host's process nobody knows here whether it has been killed.
  const double quiet = std::min(seconds_since_written(folder_ / LiveStatus::kFile),
                                seconds_since_written(folder_ / "metrics.jsonl"));
  if (!run_) run_ = document_in<Run>(folder_ / "run.json");
  const double timeout_seconds = run_ ? run_->timeout_seconds : 0;
  const double times = held ? kUnknownPatience : holder ? 0 : 1;
  return quiet < kGoneSeconds + times * timeout_seconds ? Phase::kRunning : Phase::kFailed;
}

void RunReader::find_out_why() {
  if (view_.phase == RunView::Phase::kInterrupted) {
    view_.why = "a signal has ended it";
    return;
  }
  if (!view_.why.empty()) return;
  view_.why = error_of_flights(folder_);
  if (view_.why.empty())
    view_.why =
        summary_ ? "see " + (folder_ / "rank-*.log").string() : "its processes have ended without a word";
}

std::vector<int64_t> RunReader::stages_of(int64_t rank) const {
  return plan_ ? stages_of_rank(*plan_, rank) : std::vector<int64_t>();
}

// Of its stage's samples the part that goes through this rank.
double RunReader::share_of(int64_t rank) const {
  const std::vector<int64_t> stages = stages_of(rank);
  if (stages.empty()) return 1;
  const Stage& stage = plan_->stages[static_cast<size_t>(stages.front())];
  const auto replica = std::find(stage.ranks.begin(), stage.ranks.end(), rank) - stage.ranks.begin();
  const std::vector<int64_t>& weights = stage.splits() ? stage.split : stage.shares;
  if (weights.empty()) return 1 / static_cast<double>(stage.ranks.size());
  double sum = 0;
  for (const int64_t weight : weights) sum += static_cast<double>(weight);
  return static_cast<double>(weights[static_cast<size_t>(replica)]) / sum;
}

void RunReader::show_live_ranks() {
  view_.ranks.clear();
  if (!live_) return;
  // Not written while no rank gets on. By this process's clock: hosts' differ.
  const double unchanged = std::chrono::duration<double>(Clock::now() - live_since_).count();
  for (const auto& [number, rank] : live_->ranks) {
    RankView row;
    row.rank = number;
    row.stages = stages_of(number);
    row.operation = rank.operation;
    row.operation_seconds = rank.operation_seconds + (unchanged > kRenewed ? unchanged : 0);
    row.minibatch = rank.minibatch;
    row.memory_bytes = rank.peak_memory_bytes;
    if (plan_ && plan_->predicted)
      for (const int64_t stage : row.stages)
        row.predicted_memory_bytes +=
            plan_->predicted->stages[static_cast<size_t>(stage)].memory.total_bytes();
    if (const auto slow = slowdowns_.find(number); slow != slowdowns_.end()) row.slowdown = slow->second;
    const std::deque<LiveRank>& said = heard_[number];
    const double seconds = said.empty() ? 0 : said.back().heard_at_seconds - said.front().heard_at_seconds;
    if (seconds > 0) {
      row.waiting =
          std::clamp((said.back().waited_seconds - said.front().waited_seconds) / seconds, 0.0, 1.0);
      const bool counts = said.front().minibatch && run_ && !view_.evaluating;
      if (counts)
        row.samples_per_second = static_cast<double>(*said.back().minibatch - *said.front().minibatch) /
                                 seconds * static_cast<double>(run_->batch_size) * share_of(number);
    }
    view_.ranks.push_back(std::move(row));
  }
}

// Of the last minibatches.
void RunReader::show_speed() {
  view_.samples_per_second = view_.minibatch_seconds = 0;
  view_.loss = std::nan("");
  if (last_.empty()) return;
  const size_t counted = std::min(last_.size(), kLastMinibatches);  // of one more it has the time
  double loss = 0, samples = 0;
  for (size_t i = 0; i < last_.size(); ++i) {
    loss += i + counted >= last_.size() ? last_[i].loss / static_cast<double>(counted) : 0;
    samples += i > 0 ? last_[i].samples : 0;
  }
  view_.loss = loss;
  const double seconds = last_.back().elapsed_seconds - last_.front().elapsed_seconds;
  if (!(seconds > 0)) return;
  view_.samples_per_second = samples / seconds;
  view_.minibatch_seconds = seconds / static_cast<double>(last_.size() - 1);
}

void RunReader::show_summary() {
  if (!summary_) return;
  const Summary& summary = *summary_;
  view_.done = summary.minibatches;
  view_.evaluating = false;
  view_.wall_seconds = summary.wall_seconds;
  view_.samples_per_second = samples_over_wall_time(summary);
  view_.minibatch_seconds = summary.minibatch_seconds;
  view_.predicted_minibatch_seconds = summary.predicted_minibatch_seconds;
  if (view_.phase == RunView::Phase::kDone) view_.minibatches = summary.minibatches;
  view_.ranks.clear();
  for (const RankSummary& rank : summary.ranks) {
    RankView row;
    row.rank = rank.rank;
    row.stages = stages_of(rank.rank);
    row.memory_bytes = rank.peak_memory_bytes;
    row.predicted_memory_bytes = rank.predicted_memory_bytes;
    if (const auto slow = slowdowns_.find(rank.rank); slow != slowdowns_.end()) row.slowdown = slow->second;
    if (rank.times && rank.times->trained_seconds > 0) {
      row.waiting = std::clamp(
          (rank.receive_wait_seconds + rank.sync_wait_seconds) / rank.times->trained_seconds, 0.0, 1.0);
      if (run_)
        row.samples_per_second =
            static_cast<double>(rank.times->minibatches * run_->batch_size) / rank.times->trained_seconds;
    }
    view_.ranks.push_back(std::move(row));
  }
}

}  // namespace pipewright
