#include "runtime/journal.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "graph/error.h"

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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// JSON has no NaN: such a number is null.

}  // namespace

std::string minibatch_line(int64_t minibatch, double loss, double elapsed_seconds) {
  Json json;
  json["kind"] = "minibatch";
  json["minibatch"] = minibatch;
  json["loss"] = finite_or_null(loss);
  json["elapsed_seconds"] = elapsed_seconds;
  return json.dump();
}

std::string evaluation_line(int64_t epoch, const EvaluatedMinibatch& minibatch) {
  Json json = minibatch.to_json();
  json["kind"] = "evaluation";
  json["epoch"] = epoch;
  return json.dump();
}

std::string rank_line(const RankSummary& rank) {
  Summary holder;  // the summary document is the one home of a rank's keys
  holder.status = "done";
  holder.ranks.push_back(rank);
  Json json;
  json["kind"] = "rank";
  json["summary"] = holder.to_json();
  return json.dump();
}

std::string trace_line(const std::string& document) {
  Json json;
  json["kind"] = "trace";
  json["document"] = document;
  return json.dump();
}

std::vector<std::string> metrics_history(const std::filesystem::path& file, int64_t next_minibatch,
                                         int64_t evaluated_epochs) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  int64_t expected = -1;  // minibatch of the next line of one
  std::string line;
  while (std::getline(in, line) && !in.eof()) {  // a line without its end is torn
    Json json;
    try {
      json = parse_json(line, file.string());
    } catch (const InputError&) {
      break;
    }
    if (!json.is_object()) break;
    if (json.contains("evaluation")) {
      const Json& evaluation = json["evaluation"];
      if (!evaluation.is_object() || !evaluation.contains("epoch")) break;
      const Json& epoch = evaluation["epoch"];
      if (epoch.is_number_integer() && epoch < evaluated_epochs) lines.push_back(line);
      continue;
    }
    const Json minibatch = json.value("minibatch", Json());
    if (!minibatch.is_number_integer() || !json.contains("loss") || !json.contains("elapsed_seconds")) break;
    if (expected >= 0 && minibatch != expected) break;
    if (minibatch >= next_minibatch) continue;  // evaluations may stand some lines off
    expected = minibatch.get<int64_t>() + 1;
    lines.push_back(line);
  }
  if (expected != next_minibatch) return {};
  return lines;
}

Journal::Journal(JournalSettings settings) : settings_(std::move(settings)) {
  const auto file = settings_.folder / "metrics.jsonl";
  std::string history;
  for (const std::string& line : settings_.history) {
    history += line + "\n";
    const Json json = parse_json(line, file.string());
    if (json.contains("evaluation")) {
      const Json& evaluation = json["evaluation"];
      last_evaluation_ = {number_or_nan(evaluation.at("loss")), number_or_nan(evaluation.at("top1")),
                          evaluation.at("samples").get<int64_t>()};
    } else {
      losses_.push_back(number_or_nan(json.at("loss")));
      elapsed_seconds_.push_back(json.at("elapsed_seconds").get<double>());
    }
  }
  if (!elapsed_seconds_.empty()) elapsed_before_ = elapsed_seconds_.back();
  next_minibatch_ = settings_.next_minibatch;
  if (next_minibatch_ > 0 && losses_.empty()) {
    std::fprintf(stderr, "the losses before minibatch %ld are not beside the checkpoint: %s begins there\n",
                 next_minibatch_, file.c_str());
  }
  write_file(file, history);
  metrics_.open(file, std::ios::app);
  if (!metrics_) {
    throw RunError(file.string() + ": cannot be written", "no right or no room? choose another --output");
  }
}

void Journal::write(const Json& line) {
  metrics_ << line.dump() << '\n' << std::flush;
  if (!metrics_) {
    throw RunError((settings_.folder / "metrics.jsonl").string() + ": cannot be written on",
                   "is the disk full? what was written before is intact");
  }
}

void Journal::take(int64_t, const std::string& text) {
  const Json line = parse_json(text, "line of a rank");
  const std::string kind = line.at("kind");
  if (kind == "minibatch") {
    take_minibatch(line);
  } else if (kind == "evaluation") {
    take_evaluation(line);
  } else if (kind == "rank") {
    JsonReader reader(line.at("summary"), "line of a rank");
    for (const RankSummary& rank : Summary::from_json(reader).ranks) ranks_.push_back(rank);
  } else {
    PW_CHECK(kind == "trace", kind);
    traces_.push_back(line.at("document"));
  }
}

void Journal::take_minibatch(const Json& line) {
  early_[line.at("minibatch").get<int64_t>()] = line;
  while (!early_.empty() && early_.begin()->first == next_minibatch_) {
    const Json next = std::move(early_.extract(early_.begin()).mapped());
    losses_.push_back(number_or_nan(next.at("loss")));
    elapsed_seconds_.push_back(elapsed_before_ + next.at("elapsed_seconds").get<double>());
    Json out;
    out["minibatch"] = next_minibatch_;
    out["epoch"] = next_minibatch_ / settings_.minibatches_per_epoch;
    out["loss"] = next.at("loss");
    out["samples"] = settings_.batch_size;
    out["elapsed_seconds"] = elapsed_seconds_.back();
    write(out);
    ++next_minibatch_;
  }
  show_progress(false);
}

void Journal::take_evaluation(const Json& line) {
  const int64_t epoch = line.at("epoch");
  auto& minibatches = evaluations_[epoch];
  const EvaluatedMinibatch minibatch = EvaluatedMinibatch::from_json(line);
  minibatches[minibatch.minibatch] = minibatch;
  if (static_cast<int64_t>(minibatches.size()) < settings_.evaluation_minibatches) return;

  const EvaluationResult evaluation = summary_of(minibatches);
  last_evaluation_ = evaluation;
  evaluations_.erase(epoch);

  Json out;
  out["evaluation"] = {{"epoch", epoch},
                       {"loss", finite_or_null(evaluation.loss)},
                       {"top1", finite_or_null(evaluation.top1)},
                       {"samples", evaluation.samples}};
  if (std::isfinite(evaluation.perplexity)) out["evaluation"]["perplexity"] = evaluation.perplexity;
  write(out);
  if (line_open_) std::cerr << '\n';
  line_open_ = false;
  std::fprintf(stderr, "epoch %ld: evaluation loss %.4f", epoch + 1, evaluation.loss);
  if (!std::isnan(evaluation.top1)) std::fprintf(stderr, ", top-1 %.2f %%", 100 * evaluation.top1);
  if (!std::isnan(evaluation.perplexity)) std::fprintf(stderr, ", perplexity %.2f", evaluation.perplexity);
  std::fprintf(stderr, " (%ld samples)\n", evaluation.samples);
}

void Journal::show_progress(bool last) {
  const auto now = Clock::now();
  const auto every =
      settings_.progress_on_terminal ? std::chrono::milliseconds(250) : std::chrono::seconds(10);
  if (losses_.empty() || (!last && now - shown_ < every)) return;
  shown_ = now;
  // The rate of the last fifty minibatches; the estimate counts training only.
  const size_t done = losses_.size();
  const size_t window = std::min<size_t>(done, 50);
  double mean = 0;
  for (size_t i = done - window; i < done; ++i) mean += losses_[i] / static_cast<double>(window);
  const double spent = elapsed_seconds_[done - 1] - (done > window ? elapsed_seconds_[done - window - 1] : 0);
  const double rate = spent > 0 ? static_cast<double>(window) / spent : 0;
  const auto total = settings_.total_minibatches;
  std::fprintf(stderr, "%sepoch %ld  minibatch %ld/%ld  loss %.4f  %.0f samples/s  %s left%s",
               settings_.progress_on_terminal ? "\r" : "",
               (next_minibatch_ - 1) / settings_.minibatches_per_epoch + 1, next_minibatch_, total, mean,
               rate * static_cast<double>(settings_.batch_size),
               rate > 0 ? clock_text(static_cast<double>(total - next_minibatch_) / rate).c_str() : "?",
               settings_.progress_on_terminal ? "\033[K" : "\n");
  line_open_ = settings_.progress_on_terminal;
}

void Journal::close() {
  show_progress(true);
  if (line_open_) std::cerr << '\n';
  line_open_ = false;
}

double Journal::steady_minibatch_seconds() const {
  // Completions come in bursts of replicas, so a step is measured over whole periods of them, within an
  // epoch, leaving out the first quarter of each epoch where the pipeline fills.
  const auto period = static_cast<size_t>(settings_.period_minibatches);
  const auto epoch = static_cast<size_t>(settings_.minibatches_per_epoch);
  std::vector<double> steps;
  for (size_t first = 0; first < elapsed_seconds_.size(); first += epoch) {
    std::vector<double> times(
        elapsed_seconds_.begin() + static_cast<ptrdiff_t>(first),
        elapsed_seconds_.begin() + static_cast<ptrdiff_t>(std::min(first + epoch, elapsed_seconds_.size())));
    std::sort(times.begin(), times.end());
    for (size_t i = times.size() / 4; i + period < times.size(); ++i) {
      steps.push_back((times[i + period] - times[i]) / static_cast<double>(period));
    }
  }
  if (!steps.empty()) return median(std::move(steps));
  return elapsed_seconds_.empty() ? 0
                                  : *std::max_element(elapsed_seconds_.begin(), elapsed_seconds_.end()) /
                                        static_cast<double>(elapsed_seconds_.size());
}

Summary Journal::summary() const {
  Summary summary;
  summary.minibatches = next_minibatch_;
  summary.samples = summary.minibatches * settings_.batch_size;
  summary.minibatch_seconds = steady_minibatch_seconds();
  if (summary.minibatch_seconds > 0) {
    summary.samples_per_second = static_cast<double>(settings_.batch_size) / summary.minibatch_seconds;
  }
  if (!losses_.empty()) {
    const int64_t last_epoch = (summary.minibatches - 1) / settings_.minibatches_per_epoch;
    const int64_t first_known = next_minibatch_ - static_cast<int64_t>(losses_.size());
    const auto first =
        static_cast<size_t>(std::max<int64_t>(0, last_epoch * settings_.minibatches_per_epoch - first_known));
    double sum = 0;
    for (size_t i = first; i < losses_.size(); ++i) sum += losses_[i];
    summary.train_loss = sum / static_cast<double>(losses_.size() - first);
  }
  summary.evaluation = last_evaluation_;
  summary.ranks = ranks_;
  std::sort(summary.ranks.begin(), summary.ranks.end(),
            [](const RankSummary& a, const RankSummary& b) { return a.rank < b.rank; });
  return summary;
}

}  // namespace pipewright
