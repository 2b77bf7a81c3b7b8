// Chrome trace events, as Perfetto (ui.perfetto.dev) and chrome://tracing read them: for simulated and for
// real runs. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: "JSON Object
// Format".
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

/// Something that took time, on one row of the drawing.
struct TraceSpan {
  int64_t process = 0;  ///< pid: the rank
  int64_t thread = 0;   ///< tid: rows of a process, in this order
  std::string name;     ///< "F3"
  std::string category;
  double begin_seconds = 0;  ///< from any zero that all ranks share
  double duration_seconds = 0;
  std::vector<std::pair<std::string, int64_t>> arguments = {};  ///< shown when the span is selected
};

/// Collects events; the document is made at the end. Not thread-safe.
class TraceWriter {
 public:
  void name_process(int64_t process, const std::string& name);
  void name_thread(int64_t process, int64_t thread, const std::string& name);
  /// CheckError if a time is not finite or the duration is negative.
  void add(const TraceSpan& span);
  /// Quantities of the process from `seconds` on, drawn one above the other. CheckError if the time is not
  /// finite.
  void add_counter(int64_t process, const std::string& name, double seconds,
                   const std::vector<std::pair<std::string, int64_t>>& values);
  /// All events of another writer's document (of another rank, say), whose time 0 is so much later than this
  /// one's. InputError if it is none.
  void append(const std::string& json, double later_seconds = 0);

  /// One event a line, in the order added; times in microseconds with nanoseconds as decimals.
  void write(std::ostream& out) const;
  std::string json() const;

 private:
  std::vector<std::string> events_;  // each its JSON text
};

}  // namespace pipewright
