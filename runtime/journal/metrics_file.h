// metrics.jsonl on the disk: whole lines, whatever happens while one is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "graph/json.h"

namespace pipewright {

/// Appends lines to a file. All errors are RunErrors with the system's reason; the file then ends where its
/// last whole line does.
class MetricsFile {
 public:
  /// The file is there.
  explicit MetricsFile(std::filesystem::path file);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  /// `line` without its end.
  void append(const std::string& line);
  /// RunError unless the path still leads to the file that was opened: what is appended to one that was
  /// removed is lost.
  void demand_in_place() const;

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path file_;
  int descriptor_ = -1;
  bool regular_ = false;  // else a pipe or device
  int64_t bytes_ = 0;     // of whole lines
};

/// Of the file its first so many bytes stay. RunError.
void cut_file(const std::filesystem::path& file, int64_t bytes);

/// Calls `take` with each line of a finished run's metrics.jsonl, in order, and with what messages call it.
/// InputError if there is no such file, or a line is no JSON object with something in it.
void for_each_metrics_line(const std::filesystem::path& file,
                           const std::function<void(const Json& line, const std::string& where)>& take);

/// How many minibatches were trained before what a line of metrics.jsonl tells of.
class EpochEnds {
 public:
  /// Every line of the file, before the first question.
  void add(const Json& line);
  /// Of a line that tells of `kind`, its only key, with these numbers; 0 where the file does not say.
  int64_t trained_before(const std::string& kind, const Json& numbers) const;

 private:
  std::map<int64_t, int64_t> minibatches_;  // before the next epoch
};

/// A line of metrics.jsonl.
struct MetricsLine {
  const std::string& text;  ///< without its end
  /// Of a minibatch: they are many, so no more of them is read.
  struct Minibatch {
    int64_t number = 0;
    double loss = 0;  ///< NaN: it was not finite
    double elapsed_seconds = 0;
  };
  std::optional<Minibatch> minibatch;
  Json json;  ///< of other lines
};

/// The lines of an interrupted run's metrics.jsonl that tell of the minibatches before `next_minibatch`:
/// their own, and those of evaluations before number `evaluated_epochs` or within an epoch at
/// `next_minibatch` or before, wherever they stand. A torn line and all behind it, and what belongs to later
/// minibatches, is left out. Lines of recoveries are kept all. Nothing is kept where the lines of minibatches
/// are not without a gap up to `next_minibatch`. Reads line by line.
class MetricsHistory {
 public:
  MetricsHistory(std::filesystem::path file, int64_t next_minibatch, int64_t evaluated_epochs);
  /// Calls `keep` with each line that is kept, in order.
  void read(const std::function<void(const MetricsLine&)>& keep) const;

  bool whole() const { return whole_; }  ///< there is no gap
  /// The number behind the last minibatch of which the file tells.
  int64_t told() const { return told_; }
  /// What is kept are the first so many bytes of the file; nothing: lines that are left out stand between.
  std::optional<int64_t> bytes_kept() const { return bytes_kept_; }

 private:
  const std::filesystem::path file_;
  const int64_t next_minibatch_, evaluated_epochs_;
  bool whole_ = false;
  int64_t told_ = 0;
  std::optional<int64_t> bytes_kept_ = 0;
};

}  // namespace pipewright
