#include "runtime/side_by_side/group_scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/error.h"

namespace pipewright {

GroupScheduler::GroupScheduler(GroupRules rules) : rules_(rules) {
  PW_CHECK_LE(1, rules.stages);
  PW_CHECK_LE(1, rules.pipelines);
  PW_CHECK_LE(1, rules.window_updates);
  const auto pipelines = static_cast<size_t>(rules_.pipelines);
  StageNow stage;
  stage.asked.assign(pipelines, 0);
  stage.decided.assign(pipelines, 0);
  stage.connected.assign(pipelines, 0);
  stage.gone.assign(pipelines, false);
  stage.component.resize(pipelines);
  std::iota(stage.component.begin(), stage.component.end(), 0);
  stages_.assign(static_cast<size_t>(rules_.stages), stage);
  next_.assign(pipelines, 0);
  to_pass_on_.assign(pipelines, {});
  lay_columns();
}

// Where a stage would come to the end of its window without one.
void GroupScheduler::lay_columns() {
  if (rules_.pipelines == 1) return;
  const int64_t window = rules_.pipelines * rules_.window_updates;
  const int64_t laid = first_column_ + static_cast<int64_t>(columns_.size());
  for (int64_t s = 0; s < rules_.stages; ++s) {
    const StageNow& stage = at(s);
    if (!decides(s) || stage.column < laid) continue;
    if (std::count(stage.gone.begin(), stage.gone.end(), false) == 1)
      continue;           // it has nobody to connect with
    int64_t updates = 0;  // of the window, if the next one of each pipeline ended it
    for (size_t p = 0; p < next_.size(); ++p) updates += next_[p] + 1 - stage.connected[p];
    if (updates < window) continue;
    columns_.push_back(next_);
    return;
  }
}

bool GroupScheduler::column_is_here(const StageNow& stage, int64_t pipeline, int64_t update) const {
  const auto column = static_cast<size_t>(stage.column - first_column_);
  return column < columns_.size() && columns_[column][static_cast<size_t>(pipeline)] == update;
}

std::vector<GroupDecision> GroupScheduler::arrive(int64_t stage, int64_t pipeline, Time now, Time wait) {
  PW_CHECK(0 <= stage && stage < rules_.stages, "stage " << stage << " of " << rules_.stages);
  PW_CHECK(0 <= pipeline && pipeline < rules_.pipelines,
           "pipeline " << pipeline << " of " << rules_.pipelines);
  StageNow& here = at(stage);
  const auto p = static_cast<size_t>(pipeline);
  PW_CHECK(!here.gone[p], "pipeline " << pipeline << " has left stage " << stage);
  PW_CHECK_EQ(here.asked[p], here.decided[p]);
  const int64_t update = here.asked[p]++;
  std::vector<GroupDecision> decisions;
  if (!decides(stage)) {
    pass_on(stage, pipeline, decisions);
    return decisions;
  }
  next_[p] = std::max(next_[p], update + 1);
  if (column_is_here(here, pipeline, update)) {
    here.at_column.push_back(pipeline);
  } else {
    if (here.waiting.empty()) here.deadline = now + wait;
    here.waiting.push_back(pipeline);
  }
  lay_columns();
  close_if_complete(stage, decisions);
  return decisions;
}

std::vector<GroupDecision> GroupScheduler::leave(int64_t stage, int64_t pipeline) {
  StageNow& here = at(stage);
  const auto p = static_cast<size_t>(pipeline);
  PW_CHECK(!here.gone[p], "pipeline " << pipeline << " has left stage " << stage);
  PW_CHECK_EQ(here.asked[p], here.decided[p]);
  here.gone[p] = true;
  std::vector<GroupDecision> decisions;
  if (decides(stage)) close_if_complete(stage, decisions);
  const bool next_span = here.all_have_left();
  if (next_span) here.gone.assign(here.gone.size(), false);
  if (decides(stage)) {
    if (next_span) {
      begin_window(here);
    } else {
      note_connection(here);
    }
  }
  lay_columns();
  return decisions;
}

std::optional<GroupScheduler::Time> GroupScheduler::deadline() const {
  std::optional<Time> first;
  for (const StageNow& stage : stages_)
    if (!stage.waiting.empty() && (!first || stage.deadline < *first)) first = stage.deadline;
  return first;
}

std::vector<GroupDecision> GroupScheduler::expire(Time now) {
  std::vector<GroupDecision> decisions;
  for (int64_t s = 0; s < rules_.stages; ++s)
    if (!at(s).waiting.empty() && at(s).deadline <= now) close(s, decisions);
  return decisions;
}

// Nobody else can come: all others have left or wait at the column.
void GroupScheduler::close_if_complete(int64_t stage, std::vector<GroupDecision>& decisions) {
  StageNow& here = at(stage);
  const auto present = static_cast<size_t>(std::count(here.gone.begin(), here.gone.end(), false));
  if (!here.waiting.empty() && here.waiting.size() + here.at_column.size() == present)
    close(stage, decisions);
  if (here.at_column.empty() || here.at_column.size() != present) return;
  ++here.column;
  ++statistics_.columns;
  decide(stage, std::exchange(here.at_column, {}), decisions);
  // All stages that decide have had it.
  const auto behind = [&](const StageNow& each) { return each.column == first_column_; };
  if (rules_.of_whole_pipelines || std::none_of(stages_.begin(), stages_.end(), behind)) {
    columns_.pop_front();
    ++first_column_;
  }
  lay_columns();
}

void GroupScheduler::close(int64_t stage, std::vector<GroupDecision>& decisions) {
  StageNow& here = at(stage);
  std::vector<int64_t> waiting = std::exchange(here.waiting, {});
  if (rules_.pipelines <= rules_.pairs_above) {
    decide(stage, std::move(waiting), decisions);
    return;
  }
  // Pairs of pipelines that nothing connects yet, as far as there are some: neighbours in this order are
  // connected, those half the list apart are not.
  std::sort(waiting.begin(), waiting.end(), [&](int64_t a, int64_t b) {
    return std::pair(here.component[static_cast<size_t>(a)], a) <
           std::pair(here.component[static_cast<size_t>(b)], b);
  });
  const size_t pairs = waiting.size() / 2;
  for (size_t i = 0; i < pairs; ++i) decide(stage, {waiting[i], waiting[i + pairs]}, decisions);
  if (waiting.size() % 2 == 1) decide(stage, {waiting.back()}, decisions);
}

void GroupScheduler::decide(int64_t stage, std::vector<int64_t> group,
                            std::vector<GroupDecision>& decisions) {
  StageNow& here = at(stage);
  std::sort(group.begin(), group.end());
  if (rules_.of_whole_pipelines)
    for (const int64_t pipeline : group)
      to_pass_on_[static_cast<size_t>(pipeline)][here.decided[static_cast<size_t>(pipeline)]] = group;
  for (const int64_t pipeline : group) ++here.decided[static_cast<size_t>(pipeline)];
  ++statistics_.groups[static_cast<int64_t>(group.size())];
  for (const int64_t pipeline : group) {
    const int64_t from = here.component[static_cast<size_t>(pipeline)];
    std::replace(here.component.begin(), here.component.end(), from,
                 here.component[static_cast<size_t>(group[0])]);
  }
  note_connection(here);
  lay_columns();
  decisions.push_back({stage, group, group});
  if (!rules_.of_whole_pipelines) return;
  for (int64_t s = 0; s < deciding_stage(); ++s)
    for (const int64_t pipeline : group) {
      const StageNow& other = at(s);
      const auto p = static_cast<size_t>(pipeline);
      if (other.asked[p] > other.decided[p]) pass_on(s, pipeline, decisions);
    }
}

// Whether those that go on are connected.
void GroupScheduler::note_connection(StageNow& stage) {
  std::optional<int64_t> first;
  for (size_t p = 0; p < stage.gone.size(); ++p) {
    if (stage.gone[p]) continue;
    if (first && stage.component[p] != *first) return;
    first = stage.component[p];
  }
  begin_window(stage);
}

void GroupScheduler::begin_window(StageNow& stage) {
  int64_t window = 0;
  for (size_t p = 0; p < stage.decided.size(); ++p) window += stage.decided[p] - stage.connected[p];
  statistics_.longest_window_updates = std::max(statistics_.longest_window_updates, window);
  stage.connected = stage.decided;
  std::iota(stage.component.begin(), stage.component.end(), 0);
}

// What the last stage has decided, if it has, for the update that the pipeline asks for here.
void GroupScheduler::pass_on(int64_t stage, int64_t pipeline, std::vector<GroupDecision>& decisions) {
  StageNow& here = at(stage);
  const auto p = static_cast<size_t>(pipeline);
  auto& known = to_pass_on_[p];
  const auto found = known.find(here.decided[p]);
  if (found == known.end()) return;
  decisions.push_back({stage, found->second, {pipeline}, /*passed_on=*/true});
  ++here.decided[p];
  int64_t had_by_all = here.decided[p];
  for (const StageNow& each : stages_) had_by_all = std::min(had_by_all, each.decided[p]);
  known.erase(known.begin(), known.lower_bound(had_by_all));
}

}  // namespace pipewright
