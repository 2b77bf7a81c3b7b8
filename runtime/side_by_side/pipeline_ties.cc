#include "runtime/side_by_side/pipeline_ties.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "graph/error.h"
#include "graph/sync_rules.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/schedule/turns.h"
#include "runtime/side_by_side/connection_window.h"
#include "runtime/side_by_side/group_wait.h"
#include "runtime/side_by_side/lockstep_pairs.h"
#include "runtime/side_by_side/meetings.h"

namespace pipewright {
namespace {

using Key = std::pair<int64_t, int64_t>;  // stage, pipeline

// Each of `members` sends and receives 2 (n - 1) / n of the bytes.
double exchange_seconds(const PipelinesToSimulate& what, int64_t stage, size_t members) {
  const auto n = static_cast<double>(members), all = static_cast<double>(what.pipelines);
  if (members < 2) return 0;
  return what.times[static_cast<size_t>(stage)].reduce_seconds * ((n - 1) / n) / ((all - 1) / all);
}

// Updates that wait for those of others, and go on together.
class Together {
 public:
  Together(const PipelinesToSimulate& what, ResumePipeline resume)
      : what_(what), resume_(std::move(resume)) {}

  // The pipeline waits for the others of `group` at the stage; `number`: which meeting of those it is.
  bool wait(int64_t stage, int64_t pipeline, const std::vector<int64_t>& group, int64_t number, double now) {
    if (group.size() == 1) return true;
    std::vector<int64_t>& here = here_[{{stage, number}, group}];
    here.push_back(pipeline);
    if (here.size() < group.size()) return false;
    for (const int64_t member : here)
      resume_(stage, member, now + exchange_seconds(what_, stage, group.size()));
    here_.erase({{stage, number}, group});
    return false;
  }

 private:
  const PipelinesToSimulate& what_;
  const ResumePipeline resume_;
  std::map<std::pair<Key, std::vector<int64_t>>, std::vector<int64_t>> here_;
};

class NoTies : public PipelineTies {
 public:
  bool has_updated(int64_t, int64_t, int64_t, double) override { return true; }
};

// "all-reduce": whoever has a minibatch of the round, and "adpsgd-lockstep": pairs of them.
class RoundTies : public PipelineTies {
 public:
  RoundTies(const PipelinesToSimulate& what, ResumePipeline resume, bool pairs)
      : what_(what),
        in_pairs_(pairs),
        pairs_{what.seed, what.pipelines, StageTurns(what.pipeline, 0).round_length()},
        together_(what, std::move(resume)) {}

  bool has_updated(int64_t stage, int64_t pipeline, int64_t round, double now) override {
    const Span span{0, what_.minibatches};
    if (in_pairs_) return together_.wait(stage, pipeline, pairs_.group_of(pipeline, round, span), round, now);
    std::vector<int64_t> group;
    for (int64_t p = 0; p < what_.pipelines; ++p) {
      const Span own = PipelineTurn{p, what_.pipelines}.own(span);
      if (own.end() > round * pairs_.interval) group.push_back(p);
    }
    return together_.wait(stage, pipeline, group, round, now);
  }

 private:
  const PipelinesToSimulate& what_;
  const bool in_pairs_;
  const LockstepPairs pairs_;
  Together together_;
};

class ArrivalTies : public PipelineTies {
 public:
  ArrivalTies(const PipelinesToSimulate& what, ResumePipeline resume)
      : rules_(partial_reduce_rules(what.sync)),
        scheduler_(group_rules(what, rules_)),
        resume_(resume),
        together_(what, std::move(resume)) {}

  void begins_last_backward(int64_t stage, int64_t pipeline, double now) override {
    At& at = at_of({stage, pipeline});
    scheduler_.announce(stage, pipeline, time(now), at.wait.ready_in());
    at.announced_seconds = now;
  }

  bool has_updated(int64_t stage, int64_t pipeline, int64_t, double now) override {
    At& at = at_of({stage, pipeline});
    if (at.last_seconds) at.wait.took(now - *at.last_seconds);
    at.wait.was_ready_in(now - at.announced_seconds);
    hear(scheduler_.arrive(stage, pipeline, time(now), at.wait.now()), now);
    return false;
  }

  void leaves(int64_t stage, int64_t pipeline, double now) override {
    hear(scheduler_.leave(stage, pipeline, time(now)), now);
  }

  std::optional<double> deadline_seconds() const override {
    const auto deadline = scheduler_.deadline();
    if (!deadline) return std::nullopt;
    return static_cast<double>(deadline->count()) / 1e9;
  }
  void expire(double now) override { hear(scheduler_.expire(time(now)), now); }
  GroupStatistics statistics() const override { return scheduler_.statistics(); }

 private:
  // A pipeline at a stage.
  struct At {
    explicit At(const PartialReduceRules& rules) : wait(rules) {}
    GroupWait wait;
    double announced_seconds = 0;
    std::optional<double> last_seconds;
  };

  static GroupRules group_rules(const PipelinesToSimulate& what, const PartialReduceRules& rules) {
    GroupRules result;
    result.stages = what.pipeline.stages();
    result.pipelines = what.pipelines;
    result.window_updates = rules.window_updates;
    result.pairs_above = rules.pairs_above;
    result.of_whole_pipelines = rules.of_whole_pipelines;
    return result;
  }
  static GroupScheduler::Time time(double seconds) {
    return GroupScheduler::Time(static_cast<int64_t>(std::ceil(seconds * 1e9)));
  }

  At& at_of(Key key) { return at_.try_emplace(key, rules_).first->second; }

  void hear(const std::vector<GroupDecision>& decisions, double now) {
    for (const GroupDecision& decision : decisions) {
      // A group of whole pipelines is heard of piece by piece: what all of it have in common is who met how
      // often.
      for (const int64_t pipeline : decision.heard_by) {
        meet({decision.stage, pipeline}, decision.pipelines, now);
      }
    }
  }

  void meet(Key key, const std::vector<int64_t>& group, double now) {
    At& at = at_of(key);
    at.wait.found(static_cast<int64_t>(group.size()));
    at.last_seconds = now;  // the exchange comes on top
    if (together_.wait(key.first, key.second, group, met_[{key, group}]++, now))
      resume_(key.first, key.second, now);
  }

  const PartialReduceRules rules_;
  GroupScheduler scheduler_;
  const ResumePipeline resume_;
  Together together_;
  std::map<Key, At> at_;
  std::map<std::pair<Key, std::vector<int64_t>>, int64_t> met_;
};

// Nobody waits: what takes time is beside training.
class MeetingTies : public PipelineTies {
 public:
  explicit MeetingTies(const PipelinesToSimulate& what)
      : what_(what),
        windows_(static_cast<size_t>(what.pipeline.stages()), ConnectionWindow(what.pipelines)) {}

  bool has_updated(int64_t stage, int64_t pipeline, int64_t, double now) override {
    At& at = at_[{stage, pipeline}];
    ConnectionWindow& window = windows_[static_cast<size_t>(stage)];
    window.reached(pipeline, ++at.updates);
    if (!MeetingPartners::is_active(pipeline) || now < at.busy_until) return true;
    at.busy_until = now + exchange_seconds(what_, stage, 2);
    window.connect(pipeline,
                   MeetingPartners{what_.seed, stage, what_.pipelines}.drawn(pipeline, 0, at.updates));
    ++meetings_;
    return true;
  }
  GroupStatistics statistics() const override {
    GroupStatistics statistics;
    if (meetings_ > 0) statistics.groups[2] = meetings_;
    for (const ConnectionWindow& window : windows_)
      statistics.longest_window_updates =
          std::max(statistics.longest_window_updates, window.longest_updates());
    return statistics;
  }

 private:
  struct At {
    int64_t updates = 0;
    double busy_until = 0;  // of an active one
  };
  const PipelinesToSimulate& what_;
  std::map<Key, At> at_;
  std::vector<ConnectionWindow> windows_;  // by stage
  int64_t meetings_ = 0;
};

class WaveTies : public PipelineTies {
 public:
  WaveTies(const PipelinesToSimulate& what, ResumePipeline resume)
      : what_(what), rules_(hetpipe_rules(what.sync)), resume_(std::move(resume)) {
    const int64_t interval = StageTurns(what.pipeline, 0).round_length();
    if (rules_.wave_updates == 0)
      rules_.wave_updates = (what.pipeline.in_flight[0] + interval - 1) / interval;
    stages_.resize(static_cast<size_t>(what.pipeline.stages()));
    for (Stage& stage : stages_) {
      stage.updates.assign(static_cast<size_t>(what.pipelines), 0);
      stage.waits.assign(static_cast<size_t>(what.pipelines), false);
      stage.gone.assign(static_cast<size_t>(what.pipelines), false);
    }
  }

  bool has_updated(int64_t stage, int64_t pipeline, int64_t, double now) override {
    Stage& here = stages_[static_cast<size_t>(stage)];
    const auto p = static_cast<size_t>(pipeline);
    if (++here.updates[p] % rules_.wave_updates != 0) return true;
    here.waits[p] = true;
    let_go(stage, now);
    return false;
  }
  void leaves(int64_t stage, int64_t pipeline, double now) override {
    stages_[static_cast<size_t>(stage)].gone[static_cast<size_t>(pipeline)] = true;
    let_go(stage, now);
  }

 private:
  struct Stage {
    std::vector<int64_t> updates;  // by pipeline
    std::vector<bool> waits, gone;
    std::vector<double> sums;  // by wave that all have ended: when it was summed
  };

  void let_go(int64_t stage, double now) {
    Stage& here = stages_[static_cast<size_t>(stage)];
    const auto waves = [&](size_t p) {
      return here.gone[p] ? std::numeric_limits<int64_t>::max() : here.updates[p] / rules_.wave_updates;
    };
    int64_t of_all = std::numeric_limits<int64_t>::max();
    for (size_t p = 0; p < here.updates.size(); ++p) of_all = std::min(of_all, waves(p));
    const double sum_seconds = exchange_seconds(what_, stage, static_cast<size_t>(what_.pipelines));
    const int64_t ended = *std::max_element(here.updates.begin(), here.updates.end()) / rules_.wave_updates;
    while (static_cast<int64_t>(here.sums.size()) < std::min(of_all, ended))
      here.sums.push_back(std::max(now, here.sums.empty() ? 0 : here.sums.back()) + sum_seconds);
    for (size_t p = 0; p < here.updates.size(); ++p) {
      const int64_t due = here.updates[p] / rules_.wave_updates - rules_.distance;
      if (!here.waits[p] || due > of_all) continue;
      here.waits[p] = false;
      resume_(stage, static_cast<int64_t>(p),
              due > 0 ? std::max(now, here.sums[static_cast<size_t>(due - 1)]) : now);
    }
  }

  const PipelinesToSimulate& what_;
  HetPipeRules rules_;
  const ResumePipeline resume_;
  std::vector<Stage> stages_;
};

}  // namespace

std::unique_ptr<PipelineTies> make_ties(const PipelinesToSimulate& what, ResumePipeline resume) {
  switch (sync_facts(what.sync).kind) {
    case SyncKind::kAllReduce:
      return std::make_unique<RoundTies>(what, std::move(resume), /*pairs=*/false);
    case SyncKind::kAdpsgdLockstep:
      return std::make_unique<RoundTies>(what, std::move(resume), /*pairs=*/true);
    case SyncKind::kPartialReduce:
      return std::make_unique<ArrivalTies>(what, std::move(resume));
    case SyncKind::kAdpsgd:
      return std::make_unique<MeetingTies>(what);
    case SyncKind::kHetPipe:
      return std::make_unique<WaveTies>(what, std::move(resume));
    case SyncKind::kNone:
      return std::make_unique<NoTies>();
  }
  PW_CHECK(false, "sync " << what.sync);
  return nullptr;
}

}  // namespace pipewright
