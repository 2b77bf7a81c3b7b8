#include "runtime/journal/journal.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

#include "graph/atomic_file.h"
#include "graph/error.h"
#include "graph/units.h"
#include "runtime/journal/loss_text.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  }
  return text;
}

// Minibatches that the progress line speaks of.
constexpr size_t kProgressWindow = 50;
// Of a plan, before the next one: why it was changed shows in these.
constexpr int64_t kLastMinibatches = 16;

// Of an even number the mean of both in the middle. 0: there are none.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

Json to_json(const SpeedChange& change) {
  return {{"minibatch", change.minibatch},
          {"found", change.found},
          {"before_seconds", change.before_seconds},
          {"after_seconds", change.after_seconds},
          {"slowdown", change.slowdown}};
}

// "2.1 times as long as when the run was quiet since minibatch 812 (8.7 ms, before 4.1 ms a minibatch)"
std::string change_text(const SpeedChange& change, const std::string& quiet, const std::string& of) {
  char factor[64];
  std::snprintf(factor, sizeof factor, "%.*f times as long as when the run was quiet",
                change.slowdown < 10 ? 1 : 0, change.slowdown);
  return (change.slowdown == 1 ? quiet : factor) + " since minibatch " + std::to_string(change.minibatch) +
         " (" + format_seconds(change.after_seconds) + ", before " + format_seconds(change.before_seconds) +
         " " + of + ")";
}

}  // namespace

Journal::Journal(JournalSettings settings)
    : settings_(std::move(settings)),
      live_(settings_.folder, settings_.total_minibatches, settings_.minibatches_per_epoch),
      next_minibatch_(settings_.next_minibatch) {
  const auto file = settings_.folder / "metrics.jsonl";
  const int64_t known = start_with_past();
  if (settings_.next_minibatch > 0 && known == 0) {
    std::fprintf(stderr, "the losses before minibatch %ld are not beside the checkpoint: %s begins there\n",
                 settings_.next_minibatch, file.c_str());
  }
  metrics_ = std::make_unique<MetricsFile>(file);
  begin_plan(settings_.next_minibatch, settings_.period_minibatches);
}

// What is said of the plan in force is of minibatches from this one on.
void Journal::begin_plan(int64_t first_minibatch, int64_t period_minibatches) {
  steady_from_ = first_minibatch;
  settings_.period_minibatches = period_minibatches;
  recent_losses_.clear();
}

// A kill leaves the file whole, as it was or as it is then: cutting it is one call, a copy replaces it at
// once. Returns of how many minibatches there are lines.
int64_t Journal::start_with_past() {
  const auto own = settings_.folder / "metrics.jsonl";
  const std::optional<MetricsHistory> past =
      settings_.past.empty()
          ? std::nullopt
          : std::optional<MetricsHistory>(std::in_place, settings_.past, settings_.next_minibatch,
                                          settings_.evaluated_epochs);
  const bool cut = past && settings_.past_is_ours && past->bytes_kept() && std::filesystem::exists(own);
  std::optional<AtomicFile> copy;
  if (!cut) copy.emplace(own);
  int64_t known = 0;
  std::string lines;  // that are on their way into the copy
  constexpr size_t kPiece = 1 << 16;
  const auto write = [&] {
    if (copy) copy->write(lines.data(), lines.size());
    lines.clear();
  };
  const auto keep = [&](const MetricsLine& line) {
    if (copy) lines += line.text + "\n";
    if (lines.size() > kPiece) write();
    const Json& json = line.json;
    if (line.minibatch) {
      next_minibatch_ = line.minibatch->number;
      elapsed_before_ = line.minibatch->elapsed_seconds;
      remember(line.minibatch->loss, elapsed_before_);
      ++known;
    } else if (json.contains("speed") || json.contains("link") || json.contains("spread")) {
      // It stays as it is.
    } else if (json.contains("recovery")) {
      JsonReader reader(json["recovery"], "metrics.jsonl");
      recoveries_.push_back(RecoverySummary::from_json(reader));
    } else if (json.contains("generation")) {
      JsonReader reader(json["generation"], "metrics.jsonl");
      generations_.push_back(GenerationSummary::from_json(reader));
    } else {
      const Json& evaluation = json.at("evaluation");
      last_evaluation_ = {number_or_nan(evaluation.at("loss")), number_or_nan(evaluation.at("top1")),
                          evaluation.at("samples").get<int64_t>()};
      if (evaluation.contains("top5")) last_evaluation_->top5 = evaluation["top5"];
    }
  };
  if (past) past->read(keep);
  if (past && settings_.recovery) told_minibatches_ = past->told();
  write();
  if (copy) copy->commit();
  if (cut) cut_file(own, *past->bytes_kept());
  return known;
}

// Of next_minibatch_, which is then the one behind it.
void Journal::remember(double loss, double elapsed_seconds) {
  const auto push = [](std::deque<double>& last, double value, size_t most) {
    last.push_back(value);
    if (last.size() > most) last.pop_front();
  };
  push(elapsed_seconds_, elapsed_seconds, kRemembered);
  push(recent_losses_, loss, kProgressWindow);
  if (next_minibatch_ % settings_.minibatches_per_epoch == 0) {
    epoch_loss_ = 0;
    epoch_losses_ = 0;
  }
  epoch_loss_ += loss;
  ++epoch_losses_;
  ++next_minibatch_;
}

// Whether the file is in its place.
void Journal::look() {
  const auto now = Clock::now();
  if (now - looked_ <= std::chrono::seconds(1)) return;
  looked_ = now;
  metrics_->demand_in_place();
}

void Journal::take(int64_t, const EvaluationBegins& told) {
  look();
  begun_evaluations_.emplace_back(told.epoch, told.minibatches);
}

void Journal::take(int64_t, const GenerationSummary& told) {
  look();
  waiting_generations_.push_back(told);
  write_generations();
}

void Journal::take(int64_t rank, const DrainSpread& told) {
  look();
  Json json;
  json["spread"] = {{"rank", rank}, {"found", told.minibatch}, {"part", finite_or_null(told.spread)}};
  metrics_->append(json.dump());
}

void Journal::take(int64_t, const RankSummary& told) {
  look();
  std::erase_if(ranks_, [&](const RankSummary& said) { return said.rank == told.rank; });
  ranks_.push_back(told);
}

void Journal::take(int64_t, const TraceDocument& told) {
  look();
  traces_.push_back(told);
}

void Journal::take(int64_t rank, const EpochSummary& told) {
  look();
  Epoch& epoch = epochs_[told.epoch];
  EpochSummary& sum = epoch.sum;
  ++epoch.told;
  sum.epoch = told.epoch;
  sum.seconds = std::max(sum.seconds, told.seconds);
  sum.times += told.times;
  sum.fetched += told.fetched;
  sum.deepened += told.deepened;
  sum.computed += told.computed;
  epoch.cache_bytes[rank] = told.cache_bytes;
  if (rank == 0) {
    sum.minibatches = told.minibatches;
    sum.plan = told.plan;
    sum.frozen_layers = told.frozen_layers;
    sum.ranks = told.ranks;
    sum.update_samples = told.update_samples;
  }
  while (epochs_.size() > Summary::kMostEpochs) epochs_.erase(epochs_.begin());
}

// Ranks of a host tell of the same bytes: of several hosts it is those of the one with most.
std::vector<EpochSummary> Journal::epochs() const {
  std::vector<EpochSummary> result;
  for (const auto& [number, epoch] : epochs_) {
    if (epoch.told == 0) continue;
    EpochSummary sum = epoch.sum;
    const auto ranks = static_cast<double>(epoch.told);
    EpochTimes& times = sum.times;
    for (double* seconds :
         {&times.load_seconds, &times.forward_seconds, &times.backward_seconds, &times.update_seconds,
          &times.reduce_seconds, &times.receive_seconds, &times.change_seconds, &times.cache_seconds})
      *seconds /= ranks;
    for (const auto& [rank, bytes] : epoch.cache_bytes) sum.cache_bytes = std::max(sum.cache_bytes, bytes);
    sum.learning_rate = epoch.learning_rate;
    if (sum.seconds > 0)
      sum.samples_per_second = static_cast<double>(sum.minibatches * settings_.batch_size) / sum.seconds;
    result.push_back(std::move(sum));
  }
  return result;
}

// The whole minibatch, once all its parts are there: the sum of their losses, in order.
std::optional<MinibatchLoss> Journal::whole_minibatch(MinibatchLoss part) {
  if (part.part.count <= 1) return part;
  std::map<int64_t, MinibatchLoss>& parts = parts_[part.minibatch];
  parts[part.part.number] = part;
  if (static_cast<int64_t>(parts.size()) < part.part.count) return std::nullopt;
  MinibatchLoss whole = part;
  whole.loss = whole.elapsed_seconds = 0;
  for (const auto& [number, each] : parts) {
    whole.loss += each.loss;
    whole.elapsed_seconds = std::max(whole.elapsed_seconds, each.elapsed_seconds);
  }
  parts_.erase(part.minibatch);
  return whole;
}

void Journal::take(int64_t, MinibatchLoss told) {
  look();
  told.loss = finite_or_nan(told.loss);
  const std::optional<MinibatchLoss> whole = whole_minibatch(told);
  if (!whole) return;
  early_[whole->minibatch] = *whole;
  while (!early_.empty() && early_.begin()->first == next_minibatch_) {
    const MinibatchLoss next = early_.extract(early_.begin()).mapped();
    const double elapsed = elapsed_before_ + next.elapsed_seconds;
    Json out;
    out["minibatch"] = next_minibatch_;
    out["epoch"] = next_minibatch_ / settings_.minibatches_per_epoch;
    out["loss"] = finite_or_null(next.loss);
    out["samples"] = settings_.batch_size;
    out["elapsed_seconds"] = elapsed;
    if (settings_.recovery) write_recovery();
    if (next_minibatch_ < told_minibatches_) out["again"] = true;
    if (next.update.learning_rate) {
      out["learning_rate"] = *next.update.learning_rate;
      epochs_[next_minibatch_ / settings_.minibatches_per_epoch].learning_rate = *next.update.learning_rate;
    }
    if (next.update.gradient_norm) out["gradient_norm"] = finite_or_null(*next.update.gradient_norm);
    metrics_->append(out.dump());
    remember(finite_or_nan(next.loss), elapsed);
    write_generations();
  }
  show_progress(false);
}

// Before the first line of a minibatch.
void Journal::write_recovery() {
  RecoverySummary recovery = *std::exchange(settings_.recovery, std::nullopt);
  recovery.again_minibatches = std::max<int64_t>(0, told_minibatches_ - next_minibatch_);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  recovery.seconds = std::max(0.0, now - settings_.lost_at_seconds);
  metrics_->append(Json{{"recovery", recovery.to_json()}}.dump());
  const std::string where = recovery.from == "memory"       ? "from the state kept in memory"
                            : recovery.from == "checkpoint" ? "from a checkpoint"
                                                            : "from the run's start";
  say("goes on with minibatch " + std::to_string(recovery.next_minibatch) + " on " +
      std::to_string(recovery.ranks) + (recovery.ranks == 1 ? " rank " : " ranks ") + where + ", " +
      format_seconds(recovery.seconds) +
      " after the loss; minibatches done again: " + std::to_string(recovery.again_minibatches));
  recoveries_.push_back(std::move(recovery));
}

void Journal::write_generations() {
  while (!waiting_generations_.empty() && waiting_generations_.front().first_minibatch <= next_minibatch_) {
    const GenerationSummary next = std::move(waiting_generations_.front());
    waiting_generations_.pop_front();
    metrics_->append(Json{{"generation", next.to_json()}}.dump());
    generations_.push_back(next);
    begin_plan(next.first_minibatch, next.period_minibatches);
  }
}

// Written when it comes: that may be before the lines of the minibatches that it speaks of.
void Journal::take(int64_t rank, const SpeedChange& told) {
  look();
  Json speed = to_json(told);
  speed["rank"] = rank;
  metrics_->append(Json{{"speed", speed}}.dump());
  if (settings_.heard_speed) settings_.heard_speed(rank, told);
  say("rank " + std::to_string(rank) + " computes " +
      change_text(told, "as fast as when the run was quiet, again,", "a minibatch"));
}

// Written when it is found.
void Journal::take(const LinkChange& found) {
  Json link = to_json(found.change);
  link["from"] = found.sender;
  link["to"] = found.receiver;
  metrics_->append(Json{{"link", link}}.dump());
  say("link from rank " + std::to_string(found.sender) + " to rank " + std::to_string(found.receiver) +
      " takes " + change_text(found.change, "as long as when the run was quiet, again,", "a message"));
}

// A line of its own, beside those of the progress.
void Journal::say(const std::string& line) {
  if (line_open_) std::cerr << '\n';
  line_open_ = false;
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Journal::take(int64_t, const EvaluationPart& told) {
  look();
  const std::pair place{told.epoch, told.minibatches};
  auto& minibatches = evaluations_[place];
  minibatches[told.evaluated.minibatch] = told.evaluated;
  const auto complete = [this](const auto& of) {
    return static_cast<int64_t>(of.size()) >= settings_.evaluation_minibatches;
  };
  if (std::find(begun_evaluations_.begin(), begun_evaluations_.end(), place) == begun_evaluations_.end()) {
    if (complete(minibatches)) write_evaluation(place);
    return;
  }
  while (!begun_evaluations_.empty() && complete(evaluations_[begun_evaluations_.front()])) {
    write_evaluation(begun_evaluations_.front());
    begun_evaluations_.pop_front();
  }
}

void Journal::write_evaluation(std::pair<int64_t, int64_t> place) {
  const auto [epoch, within] = place;
  const EvaluationResult evaluation = summary_of(evaluations_.at(place));
  last_evaluation_ = evaluation;
  evaluations_.erase(place);

  Json out;
  out["evaluation"] = {{"epoch", epoch},
                       {"loss", finite_or_null(evaluation.loss)},
                       {"top1", finite_or_null(evaluation.top1)},
                       {"samples", evaluation.samples}};
  if (std::isfinite(evaluation.top5)) out["evaluation"]["top5"] = evaluation.top5;
  if (within > 0) out["evaluation"]["minibatches"] = within;
  if (std::isfinite(evaluation.perplexity)) out["evaluation"]["perplexity"] = evaluation.perplexity;
  if (std::isfinite(evaluation.exact_match)) {
    out["evaluation"]["exact_match"] = evaluation.exact_match;
    out["evaluation"]["f1"] = evaluation.f1;
  }
  metrics_->append(out.dump());
  if (line_open_) std::cerr << '\n';
  line_open_ = false;
  std::fprintf(stderr, "epoch %ld%s: evaluation loss %s", epoch + 1,
               within > 0 ? (", minibatch " + std::to_string(within)).c_str() : "",
               loss_text(evaluation.loss).c_str());
  if (!std::isnan(evaluation.top1)) std::fprintf(stderr, ", top-1 %.2f %%", 100 * evaluation.top1);
  if (!std::isnan(evaluation.top5)) std::fprintf(stderr, ", top-5 %.2f %%", 100 * evaluation.top5);
  if (!std::isnan(evaluation.perplexity))
    std::fprintf(stderr, ", perplexity %s", loss_text(evaluation.perplexity, 2).c_str());
  std::fprintf(stderr, "%s (%ld samples)\n", evaluation.answers_text().c_str(), evaluation.samples);
}

void Journal::show_progress(bool last) {
  const auto now = Clock::now();
  const auto every =
      settings_.progress_on_terminal ? std::chrono::milliseconds(250) : std::chrono::seconds(10);
  if (!settings_.shows_progress || recent_losses_.empty() || (!last && now - shown_ < every)) return;
  shown_ = now;
  // The rate of the last minibatches; the estimate counts training only.
  const size_t known = elapsed_seconds_.size();
  const size_t window = recent_losses_.size();
  double mean = 0;
  for (const double loss : recent_losses_) mean += loss / static_cast<double>(window);
  const double spent = elapsed_seconds_.back() - (known > window ? elapsed_seconds_[known - window - 1] : 0);
  const double rate = spent > 0 ? static_cast<double>(window) / spent : 0;
  const auto total = settings_.total_minibatches;
  std::fprintf(stderr, "%sepoch %ld  minibatch %ld/%ld  loss %s  %.0f samples/s  %s left%s",
               settings_.progress_on_terminal ? "\r" : "",
               (next_minibatch_ - 1) / settings_.minibatches_per_epoch + 1, next_minibatch_, total,
               loss_text(mean).c_str(), rate * static_cast<double>(settings_.batch_size),
               rate > 0 ? clock_text(static_cast<double>(total - next_minibatch_) / rate).c_str() : "?",
               settings_.progress_on_terminal ? "\033[K" : "\n");
  line_open_ = settings_.progress_on_terminal;
}

void Journal::close() {
  if (settings_.recovery) write_recovery();  // nothing was left to be trained
  metrics_->demand_in_place();
  show_progress(true);
  if (line_open_) std::cerr << '\n';
  line_open_ = false;
}

// Of minibatches from..end - 1, all of them: filling, draining and what came between counts too. 0 of one
// minibatch, which has no pace.
double Journal::mean_minibatch_seconds(int64_t from, int64_t end) const {
  const int64_t first_known = next_minibatch_ - static_cast<int64_t>(elapsed_seconds_.size());
  const bool forgot = elapsed_seconds_.size() == kRemembered;  // when the first one began
  from = std::max(from, first_known + (forgot ? 1 : 0));
  if (end - from < 2) return 0;
  const auto at = [&](int64_t minibatch) { return elapsed_seconds_.begin() + (minibatch - first_known); };
  const double begun = from > first_known ? *at(from - 1) : 0;
  return (*std::max_element(at(from), at(end)) - begun) / static_cast<double>(end - from);
}

// Likewise; 0 where no window fits. Completions come in bursts of replicas and rounds, so a window is a whole
// period of them, from the end of a round to that of another, within a span, behind its first quarter, where
// the pipeline fills. Windows that overlap would each have a part of a slow round, and so most would be slow.
double Journal::steady_minibatch_seconds(int64_t from, int64_t end, int64_t period_minibatches) const {
  const auto period = static_cast<size_t>(period_minibatches);
  const int64_t first_known = next_minibatch_ - static_cast<int64_t>(elapsed_seconds_.size());
  std::vector<double> windows;
  for (int64_t first = std::max(first_known, from); first < end;) {
    const int64_t end_of_span = settings_.end_of_span ? settings_.end_of_span(first)
                                                      : (first / settings_.minibatches_per_epoch + 1) *
                                                            settings_.minibatches_per_epoch;
    const int64_t last = std::min(end_of_span, end);
    std::vector<double> times(elapsed_seconds_.begin() + (first - first_known),
                              elapsed_seconds_.begin() + (last - first_known));
    std::sort(times.begin(), times.end());
    size_t i = times.size() / 4;
    while ((static_cast<size_t>(first) + i + 1) % period != 0) ++i;
    first = last;
    for (; i + period < times.size(); i += period)
      windows.push_back((times[i + period] - times[i]) / static_cast<double>(period));
  }
  const double steady = median(std::move(windows)), mean = mean_minibatch_seconds(from, end);
  return mean > 0 ? std::min(steady, mean) : steady;
}

// A stretch ends where the next one begins.
std::vector<GenerationSummary> Journal::timed_generations() const {
  std::vector<GenerationSummary> timed = generations_;
  for (size_t g = 0; g < timed.size(); ++g) {
    GenerationSummary& each = timed[g];
    const int64_t next = g + 1 < timed.size() ? timed[g + 1].first_minibatch : next_minibatch_;
    const int64_t end = std::min(next, next_minibatch_);
    each.minibatches = std::max<int64_t>(0, end - each.first_minibatch);
    each.minibatch_seconds = steady_minibatch_seconds(each.first_minibatch, end, each.period_minibatches);
    const int64_t last = std::max(kLastMinibatches, 4 * each.period_minibatches);
    each.last_minibatch_seconds =
        steady_minibatch_seconds(std::max(each.first_minibatch, end - last), end, each.period_minibatches);
  }
  return timed;
}

Summary Journal::summary() const {
  Summary summary;
  summary.minibatches = next_minibatch_;
  summary.first_minibatch =
      std::min(settings_.first_minibatch.value_or(settings_.next_minibatch), next_minibatch_);
  summary.samples = summary.minibatches * settings_.batch_size;
  summary.minibatch_seconds =
      steady_minibatch_seconds(steady_from_, next_minibatch_, settings_.period_minibatches);
  if (summary.minibatch_seconds == 0)
    summary.minibatch_seconds = mean_minibatch_seconds(steady_from_, next_minibatch_);
  if (summary.minibatch_seconds > 0) {
    summary.samples_per_second = static_cast<double>(settings_.batch_size) / summary.minibatch_seconds;
  }
  if (epoch_losses_ > 0) summary.train_loss = epoch_loss_ / static_cast<double>(epoch_losses_);
  summary.evaluation = last_evaluation_;
  summary.generations = timed_generations();
  summary.recoveries = recoveries_;
  summary.epochs = epochs();
  summary.ranks = ranks_;
  std::sort(summary.ranks.begin(), summary.ranks.end(),
            [](const RankSummary& a, const RankSummary& b) { return a.rank < b.rank; });
  return summary;
}

}  // namespace pipewright
