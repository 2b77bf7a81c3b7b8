// metrics.jsonl on the disk: whole lines, whatever happens while one is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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

/// Calls `keep` with each line of an interrupted run's metrics.jsonl that tells of the minibatches before
/// `next_minibatch`, in order: their own lines, and those of evaluations before number
/// `evaluated_epochs` or within an epoch at `next_minibatch` or before, wherever they stand. A torn line and
/// all behind it, and what belongs to later minibatches, is left out. Returns false, and has called nothing,
/// where the lines of minibatches are not without a gap up to `next_minibatch`. Lines of recoveries are kept
/// all. `told`, if given, is set to the number behind the last minibatch of which the file tells. Reads line
/// by line.
bool read_metrics_history(const std::filesystem::path& file, int64_t next_minibatch, int64_t evaluated_epochs,
                          const std::function<void(const MetricsLine&)>& keep, int64_t* told = nullptr);

}  // namespace pipewright
