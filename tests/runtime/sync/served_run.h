// Pipelines side by side that ask somebody for groups or minibatches, or tell him of meetings: what he
// decided and heard is kept for the serial program.
#pragma once

#include "runtime/groups/group_client.h"
#include "runtime/groups/group_server.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/runtime/sync/random_delays.h"

namespace pipewright::testing {

/// Of the transport's name; none for one rank.
inline std::vector<std::unique_ptr<Transport>> world_of(const std::string& transport, const Plan& plan) {
  if (plan.world_size == 1) return {};
  return make_world(transport, plan.world_size);
}

/// Serves the groups of one run, and keeps what it decided and was told.
class ServedGroups {
 public:
  ServedGroups(const Plan& plan, const std::string& sync)
      : stages_(static_cast<int64_t>(plan.stages.size())),
        pipelines_(static_cast<int64_t>(plan.stages[0].ranks.size())),
        of_whole_pipelines_(averages_whole_pipelines(sync)),
        groups_(plan.stages.size()) {
    GroupServer::Settings settings;
    settings.secret = "test";
    if (sync_facts(sync).kind == SyncKind::kPartialReduce) settings.rules = partial_reduce_rules(sync);
    settings.handed_out = [this](int64_t, const Span& span, int64_t pipeline, const Span& part) {
      minibatches_[span.first][pipeline].push_back(part);
    };
    settings.decided = [this](int64_t, const GroupDecision& decision) {
      if (!decision.passed_on) groups_[static_cast<size_t>(decision.stage)].push_back(decision.pipelines);
    };
    settings.met = [this](int64_t, int64_t stage, int64_t span, const WeightMeeting& meeting) {
      auto& stages = meetings_[span];
      stages.resize(groups_.size());
      stages[static_cast<size_t>(stage)].push_back(meeting);
    };
    server_ = std::make_unique<GroupServer>(std::move(settings));
  }

  GroupClientSettings client() const {
    GroupClientSettings settings;
    settings.host = "127.0.0.1";
    settings.server = {server_->port(), "test"};
    settings.stages = stages_;
    settings.pipelines = pipelines_;
    return settings;
  }

  /// Behind the run.
  GroupsByStage groups() {
    server_.reset();
    if (of_whole_pipelines_) return GroupsByStage(groups_.size(), groups_.back());
    return groups_;
  }
  /// Behind groups().
  const PartsBySpan& minibatches() const { return minibatches_; }
  const MeetingsBySpan& meetings() const { return meetings_; }

 private:
  const int64_t stages_, pipelines_;
  const bool of_whole_pipelines_;
  GroupsByStage groups_;
  PartsBySpan minibatches_;
  MeetingsBySpan meetings_;
  std::unique_ptr<GroupServer> server_;
};

struct Ran {
  PipelineRun run;
  GroupsByStage groups;
  PartsBySpan minibatches;
  MeetingsBySpan meetings;

  /// What the serial program repeats.
  PlanSpans part(const Plan& plan, const std::vector<Span>& spans) const {
    PlanSpans part{plan, spans, groups, minibatches, meetings};
    const auto is_empty = [](const auto& stage) { return stage.empty(); };
    if (plan.stages[0].ranks.size() == 1 || std::all_of(groups.begin(), groups.end(), is_empty))
      part.groups.clear();
    return part;
  }
};

/// `delays`: ranks sleep now and then, so that groups are of all sizes.
inline Ran run(const Model& model, const Plan& plan, const TrainingRules& rules,
               const std::vector<Span>& spans, const std::vector<MinibatchFields>& minibatches,
               std::vector<std::unique_ptr<Transport>> world, uint64_t delays = 0) {
  ServedGroups served(plan, rules.sync);
  RankExtras extras;
  if (sync_facts(rules.sync).groups_by_arrival)
    extras.groups = [&](int64_t) { return connect_groups(served.client()); };
  if (shares_minibatches(rules.sync))
    extras.minibatches = [&](int64_t) { return connect_minibatches(served.client()); };
  Ran ran;
  ran.run = run_pipeline(model, plan, rules, spans, minibatches, std::move(world),
                         random_delays(plan.world_size, delays), extras);
  ran.groups = served.groups();
  ran.minibatches = served.minibatches();
  ran.meetings = served.meetings();
  return ran;
}

}  // namespace pipewright::testing
