// Which groups averaged their weights in a run, who met whom, and who trained which minibatches: groups.jsonl
// in its folder (docs/formats.md). Who repeats the run needs it: both depend on who was ready when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/schedule/shape.h"
#include "runtime/side_by_side/group_scheduler.h"
#include "runtime/side_by_side/meetings.h"

namespace pipewright {

/// By stage: its groups, each the pipelines in it, in an order in which members of several are in them.
using GroupsByStage = std::vector<std::vector<std::vector<int64_t>>>;

/// By the first minibatch of a span, by pipeline: the parts of the span that were handed out to it.
using PartsBySpan = std::map<int64_t, std::map<int64_t, std::vector<Span>>>;

/// By the first minibatch of a span, by stage, in any order.
using MeetingsBySpan = std::map<int64_t, std::vector<std::vector<WeightMeeting>>>;

/// Lines of JSON: {"first_minibatch"} of the run, then, each with the "generation" of the plan,
///   "stage", "group"                   pipelines, ascending, that averaged their weights;
///   "span", "stage", "meeting", ...    [active, passive] of a meeting (runtime/side_by_side/meetings.h);
///   "span", "pipeline", "minibatches"  [first, how many] that were handed out, in the span from "span" on;
///   "stage", "left"                    all pipelines have left the stage at the end of a span;
///   "drained"                          the next minibatch: who goes on there keeps the lines before it.
inline constexpr const char* kGroupLogName = "groups.jsonl";

/// Several threads.
class GroupLog {
 public:
  /// A new file, of what is trained from `first_minibatch` on. `goes_on`: by the run that wrote the file:
  /// what that says of minibatches before stays, if they had all drained there. RunError if it cannot be
  /// written, here and later.
  GroupLog(std::filesystem::path file, int64_t first_minibatch, bool goes_on = false);
  /// A line for what was decided for its own stage. It is in the file when this returns: a checkpoint may be
  /// written behind it.
  void write(int64_t generation, const GroupDecision& decision);
  /// Likewise for a part of the span that was handed out.
  void write(int64_t generation, const Span& span, int64_t pipeline, const Span& part);
  /// Likewise for a meeting at a stage, in the span that begins with `span`.
  void write(int64_t generation, int64_t stage, int64_t span, const WeightMeeting& meeting);
  /// All have left the stage: what is decided there from now on is of the next span.
  void write_left(int64_t generation, int64_t stage);
  /// The pipelines had drained before the minibatch: a run may go on from there. For each span once, behind
  /// write_left() of one stage at least.
  void write_drained(int64_t generation, int64_t minibatch);

 private:
  void write_line(const std::string& line);

  const std::filesystem::path file_;
  std::mutex mutex_;
  std::ofstream stream_;  // protected by mutex_
};

struct LoggedGroups {
  int64_t first_minibatch = 0;  ///< the groups are those of updates from there on
  std::map<int64_t, GroupsByStage> generations;
  std::map<int64_t, PartsBySpan> parts;  ///< by generation
  std::map<int64_t, MeetingsBySpan> meetings;
};
/// InputError with the line if the file is not one.
LoggedGroups read_group_log(const std::filesystem::path& file);

}  // namespace pipewright
