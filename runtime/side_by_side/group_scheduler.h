// Which pipelines average their weights with each other under partial reduce: decided by who is ready when.
// No clock, no thread and no socket in here (runtime/groups/group_server.h has them).
//
// A pipeline asks at each stage after each of its updates. Those that wait at a stage are a group as soon as
// no other can come in time, or when the first of them has waited as long as it wants to: a group of one is
// one, too. All members of a group are there, so it can always go ahead. Who announces its update when the
// backward before it begins is waited for only where it can be there in time; it is not bound, because who
// stalls in that backward would hold up all others of the group.
//
// So that no pipeline drifts away, the groups of a stage must connect all pipelines (but those that have made
// their last update of a span, at whose end all are averaged) within every window of
// `window_updates` updates a pipeline, in the mean over all (SDPipe's assumption 1).
//
// - Whoever is behind the others and finds nobody new is *patient*: it waits a little longer, the more of the
//   window has gone, for somebody whom nothing connects with it yet. A slow pipeline so finds a fast one,
//   which comes by soon; a fast one does not wait for a slow one.
// - Where that has not been enough in time, a *column* is: one update of each pipeline at which all of them
//   wait for all others, at every stage. It is laid where no stage of a pipeline has asked yet, so every
//   stage meets it in the same update of the pipeline, and stages cannot wait for each other in a circle:
//   whoever waits at a column waits for earlier updates only. With a window of 1 every update is one.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "runtime/side_by_side/group_patience.h"

namespace pipewright {

struct GroupRules {
  int64_t stages = 1;
  int64_t pipelines = 2;
  int64_t window_updates = 10;  ///< of a pipeline
  int64_t pairs_above = 8;      ///< pipelines; with more, groups are pairs
  /// Only the last stage decides: the others get its groups, update by update.
  bool of_whole_pipelines = false;
};

struct GroupDecision {
  int64_t stage = 0;
  std::vector<int64_t> pipelines;  ///< ascending
  std::vector<int64_t> heard_by;   ///< who hears of it now: all of them, if it was made for this stage
  bool passed_on = false;          ///< it was not: the last stage has made it, for all
};

struct GroupStatistics {
  std::map<int64_t, int64_t> groups;   ///< how many of each size
  int64_t columns = 0;                 ///< groups that had to wait for all
  int64_t longest_window_updates = 0;  ///< of all pipelines, at one stage, until they were connected
};

class GroupScheduler {
 public:
  using Time = std::chrono::nanoseconds;  ///< of a steady clock, since whenever
  explicit GroupScheduler(GroupRules rules);

  /// The pipeline will have made its next update at the stage in `ready_in`, by its experience. Binds nobody.
  void announce(int64_t stage, int64_t pipeline, Time now, Time ready_in);
  /// The pipeline has made an update at the stage: the groups that are decided now. It does not ask there
  /// again before it has heard, nor after it has left, until all have left.
  std::vector<GroupDecision> arrive(int64_t stage, int64_t pipeline, Time now, GroupPatience patience);
  /// The pipeline makes no more updates at the stage in this span: nobody waits for it. When all have left
  /// the stage, they are equal and the next span begins there. All stages of a pipeline make as many updates.
  std::vector<GroupDecision> leave(int64_t stage, int64_t pipeline, Time now);
  /// When expire() will decide something if nobody comes; nothing: nobody waits for a time.
  std::optional<Time> deadline() const;
  std::vector<GroupDecision> expire(Time now);

  const GroupRules& rules() const { return rules_; }
  /// Of all that was decided.
  const GroupStatistics& statistics() const { return statistics_; }

 private:
  struct Waiting {
    int64_t pipeline;
    Time deadline;                 // it waits so long in any case
    Time patient_until;            // for somebody whom nothing connects with it yet
    bool only_to_connect = false;  // the deadline had passed when somebody else came
  };
  struct StageNow {
    std::vector<int64_t> asked;  // updates, by pipeline
    std::vector<bool> gone;      // by pipeline
    std::vector<Waiting> waiting;
    std::vector<std::optional<Time>> expected;  // by pipeline: announced, has not arrived
    std::vector<Time> lead;                     // by pipeline: as last announced
    std::vector<int64_t> at_column;             // pipelines
    int64_t column = 0;                         // the next one here
    std::vector<int64_t> component;             // by pipeline, of the groups since all were connected last
    std::vector<int64_t> decided;               // updates, by pipeline
    std::vector<int64_t> connected;             // `decided` at that time
    // What every request asks of these: how many are not gone, and sums over all pipelines.
    int64_t present = 0, sum_decided = 0, sum_connected = 0;
    std::optional<Time> closes;  // those that wait are a group then, if nobody comes
  };
  StageNow& at(int64_t stage) { return stages_[static_cast<size_t>(stage)]; }
  int64_t deciding_stage() const { return rules_.stages - 1; }
  bool decides(int64_t stage) const { return !rules_.of_whole_pipelines || stage == deciding_stage(); }
  void check(int64_t stage, int64_t pipeline) const;
  void lay_columns();
  bool column_is_here(const StageNow& stage, int64_t pipeline, int64_t update) const;
  Time patience_of(const StageNow& here, int64_t pipeline, Time update) const;
  std::optional<Time> closes_at(const StageNow& here) const;
  bool can_come_until(const StageNow& here, Time now, Time until) const;
  void close_if_due(int64_t stage, Time now, std::vector<GroupDecision>& decisions);
  void close_column(int64_t stage, std::vector<GroupDecision>& decisions);
  void close(int64_t stage, std::vector<GroupDecision>& decisions);
  void decide(int64_t stage, std::vector<int64_t> group, std::vector<GroupDecision>& decisions);
  void note_connection(StageNow& stage);
  void begin_window(StageNow& stage);
  void pass_on(int64_t stage, int64_t pipeline, std::vector<GroupDecision>& decisions);

  const GroupRules rules_;
  std::vector<StageNow> stages_;
  std::vector<int64_t> next_;                 // by pipeline: the first update that no stage has asked for
  int64_t sum_next_ = 0;                      // over all pipelines
  std::deque<std::vector<int64_t>> columns_;  // by pipeline: which update; those before are forgotten
  int64_t first_column_ = 0;                  // number of columns_[0]
  // Of whole pipelines, by pipeline: the last stage's groups for updates that other stages have not had.
  std::vector<std::map<int64_t, std::vector<int64_t>>> to_pass_on_;
  GroupStatistics statistics_;
};

}  // namespace pipewright
