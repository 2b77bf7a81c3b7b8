// Rank 0's book of a run: metrics.jsonl in order, the progress line, and the figures of the summary. Fed with
// the lines that ranks post; what they say may come in any order of ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/summary.h"
#include "runtime/evaluated_minibatch.h"

namespace pipewright {

/// Lines as ranks post them. One JSON object each.
std::string minibatch_line(int64_t minibatch, double loss, double elapsed_seconds);
std::string evaluation_line(int64_t epoch, const EvaluatedMinibatch& minibatch);
std::string rank_line(const RankSummary& summary);
std::string trace_line(const std::string& document);  ///< a TraceWriter's

/// What metrics.jsonl of an interrupted run says of the minibatches before `next_minibatch`, line by line. A
/// torn line, and all that is behind it or belongs to later minibatches or to evaluations from number
/// `evaluated_epochs` on, is left out. Empty where no minibatch up to the last but `next_minibatch` is left.
std::vector<std::string> metrics_history(const std::filesystem::path& file, int64_t next_minibatch,
                                         int64_t evaluated_epochs);

struct JournalSettings {
  std::filesystem::path folder;  ///< exists
  int64_t batch_size = 1;
  int64_t minibatches_per_epoch = 1;
  int64_t total_minibatches = 1;
  int64_t evaluation_minibatches = 0;
  int64_t next_minibatch = 0;        ///< the first that will be reported
  std::vector<std::string> history;  ///< lines of metrics.jsonl before it: metrics_history()
  /// Minibatches after which the pattern of completions repeats: least common multiple of the replica counts.
  int64_t period_minibatches = 1;
  bool progress_on_terminal = false;  ///< rewrite one line; otherwise a line every few seconds
};

/// Used by one thread at a time.
class Journal {
 public:
  /// Starts metrics.jsonl with the history. RunError if it cannot be written.
  explicit Journal(JournalSettings settings);

  void take(int64_t rank, const std::string& line);
  /// Ends the progress line. No line may be taken afterwards.
  void close();

  /// What the lines so far amount to: minibatches, samples, losses, evaluation, steady state, ranks. The rest
  /// is the caller's.
  Summary summary() const;
  /// Documents of TraceWriter, one a rank that sent one.
  const std::vector<std::string>& traces() const { return traces_; }

 private:
  void take_minibatch(const Json& line);
  void take_evaluation(const Json& line);
  void write(const Json& line);
  void show_progress(bool last);
  double steady_minibatch_seconds() const;

  JournalSettings settings_;
  std::ofstream metrics_;
  std::map<int64_t, Json> early_;  // minibatches that came before one with a lower number
  int64_t next_minibatch_ = 0;
  double elapsed_before_ = 0;            // by the history
  std::vector<double> elapsed_seconds_;  // by minibatch, the last one next_minibatch_ - 1
  std::vector<double> losses_;           // likewise
  std::map<int64_t, std::map<int64_t, EvaluatedMinibatch>> evaluations_;  // by epoch until complete
  std::optional<EvaluationSummary> last_evaluation_;
  std::vector<RankSummary> ranks_;
  std::vector<std::string> traces_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};
  bool line_open_ = false;
};

}  // namespace pipewright
