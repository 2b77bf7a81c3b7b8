// Rank 0's book of a run: metrics.jsonl in order, live.json, the progress line, and the figures of the
// summary. Fed with what ranks tell; that may come in any order of ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/summary.h"
#include "runtime/journal/live_file.h"
#include "runtime/journal/metrics_file.h"
#include "runtime/messages/rank_message.h"
#include "runtime/monitor/link_judge.h"

namespace pipewright {

struct JournalSettings {
  std::filesystem::path folder;  ///< exists
  int64_t batch_size = 1;
  int64_t minibatches_per_epoch = 1;
  int64_t total_minibatches = 1;
  int64_t evaluation_minibatches = 0;
  /// Where the span ends that begins at a minibatch; empty: with the epoch.
  std::function<int64_t(int64_t first)> end_of_span;
  int64_t next_minibatch = 0;  ///< the first that will be reported
  /// The first of the job, earlier where its ranks have started anew; nothing: next_minibatch.
  std::optional<int64_t> first_minibatch{};
  /// Of a run that goes on: metrics.jsonl of its past, which may be the file that this one writes, and the
  /// epochs whose evaluation was over. "" = none.
  std::filesystem::path past;
  /// `past` is the file that this one writes, no other name leads to it, and no process has it open: what is
  /// left out at its end is cut off, and nothing is copied.
  bool past_is_ours = false;
  int64_t evaluated_epochs = 0;
  /// Of ranks that have started anew after a loss, which was noticed at `lost_at_seconds` (Unix time): how
  /// much is done again, and how long it took, the journal finds out.
  std::optional<RecoverySummary> recovery{};
  double lost_at_seconds = 0;
  /// Minibatches after which the pattern of completions repeats: least common multiple of the replica counts.
  /// Of the plan that the run begins with.
  int64_t period_minibatches = 1;
  /// Called for every change of a rank's speed; empty: nobody wants to know.
  std::function<void(int64_t rank, const SpeedChange&)> heard_speed;
  bool shows_progress = true;
  bool progress_on_terminal = false;  ///< rewrite one line; otherwise a line every few seconds
};

/// Used by one thread at a time. Needs as much memory for ten million minibatches as for a hundred thousand.
class Journal {
 public:
  /// Starts metrics.jsonl with the past's lines. RunError if it cannot be written.
  explicit Journal(JournalSettings settings);

  /// What `rank` tells (runtime/messages/rank_message.h). RunError if metrics.jsonl cannot be written on, or
  /// (looked at once a second) is not there any more.
  void take(int64_t rank, MinibatchLoss told);
  void take(int64_t rank, const EvaluationBegins& told);
  void take(int64_t rank, const EvaluationPart& told);
  void take(int64_t rank, const SpeedChange& told);
  void take(int64_t rank, const DrainSpread& told);
  void take(int64_t rank, const GenerationSummary& told);
  void take(int64_t rank, const EpochSummary& told);
  void take(int64_t rank, const RankSummary& told);
  void take(int64_t rank, const TraceDocument& told);
  void take(int64_t rank, const RankStatus& told) { live_.take(rank, told, !begun_evaluations_.empty()); }
  /// Likewise.
  void take(const LinkChange& change);
  /// Ends the progress line. Nothing may be taken afterwards. RunError if metrics.jsonl is not there any
  /// more.
  void close();

  /// What was told so far amounts to: minibatches, samples, losses, evaluation, steady state, ranks. The rest
  /// is the caller's. The steady state is that of the last plan: the median over windows, one behind the
  /// other, of JournalSettings::period_minibatches completions, without those of the first quarter of each
  /// span (a stretch that ends in a drain); but never slower than the mean over all its minibatches, which it
  /// is where no window fits. Of one minibatch there is none: 0.
  Summary summary() const;
  /// Documents of TraceWriter, one a rank that sent one.
  const std::vector<TraceDocument>& traces() const { return traces_; }

  /// Minibatches over whose times the steady state is taken, the last ones.
  static constexpr size_t kRemembered = 1 << 16;

 private:
  int64_t start_with_past();
  void remember(double loss, double elapsed_seconds);
  void look();
  std::optional<MinibatchLoss> whole_minibatch(MinibatchLoss part);
  void write_evaluation(std::pair<int64_t, int64_t> place);
  void write_generations();
  std::vector<EpochSummary> epochs() const;
  void say(const std::string& line);
  void show_progress(bool last);
  void write_recovery();
  void begin_plan(int64_t first_minibatch, int64_t period_minibatches);
  double mean_minibatch_seconds(int64_t from, int64_t end) const;
  double steady_minibatch_seconds(int64_t from, int64_t end, int64_t period_minibatches) const;
  std::vector<GenerationSummary> timed_generations() const;

  JournalSettings settings_;
  LiveFile live_;
  std::unique_ptr<MetricsFile> metrics_;
  std::map<int64_t, std::map<int64_t, MinibatchLoss>> parts_;  // by minibatch and part, until all are there
  std::map<int64_t, MinibatchLoss> early_;  // minibatches that came before one with a lower number
  int64_t next_minibatch_ = 0;
  double elapsed_before_ = 0;           // by the past
  std::deque<double> elapsed_seconds_;  // by minibatch, the last one next_minibatch_ - 1; kRemembered at most
  std::deque<double> recent_losses_;    // likewise, those of the progress line: of the plan in force
  double epoch_loss_ = 0;               // sum over the known minibatches of the last one's epoch
  int64_t epoch_losses_ = 0;            // how many
  std::deque<GenerationSummary> waiting_generations_;  // until all minibatches before theirs are written
  std::vector<GenerationSummary> generations_;
  std::vector<RecoverySummary> recoveries_;
  int64_t told_minibatches_ = 0;  // after a loss: the past tells of so many, some of which are done again
  int64_t steady_from_ = 0;       // the steady state is that of the last plan, since it is in force
  /// By epoch and minibatches, until complete.
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, EvaluatedMinibatch>> evaluations_;
  std::deque<std::pair<int64_t, int64_t>> begun_evaluations_;  // not written yet
  std::optional<EvaluationSummary> last_evaluation_;
  std::vector<RankSummary> ranks_;
  struct Epoch {
    EpochSummary sum;
    int64_t told = 0;  // by so many ranks
    std::map<int64_t, int64_t> cache_bytes;
    double learning_rate = 0;
  };
  std::map<int64_t, Epoch> epochs_;  // the last ones
  std::vector<TraceDocument> traces_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};
  std::chrono::steady_clock::time_point looked_ = started_;  // whether the file is in its place
  bool line_open_ = false;
};

}  // namespace pipewright
