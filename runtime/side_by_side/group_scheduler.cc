#include "runtime/side_by_side/group_scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

// Of an update's time, where the window ends. Tried in simulation with two to eight pipelines, one of them 2
// to 9 times as slow or all of them stalling now and then: 0.5 is as fast as 0.25 and needs fewer columns;
// with 2 and more the waiting costs more than the columns.
constexpr double kPatience = 0.5;

}  // namespace

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
  stage.expected.assign(pipelines, std::nullopt);
  stage.lead.assign(pipelines, Time(0));
  stage.component.resize(pipelines);
  std::iota(stage.component.begin(), stage.component.end(), 0);
  stage.present = rules_.pipelines;
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
    if (stage.present == 1) continue;  // it has nobody to connect with
    // If the next update of each pipeline ended the window.
    if (sum_next_ + rules_.pipelines - stage.sum_connected < window) continue;
    columns_.push_back(next_);
    return;
  }
}

bool GroupScheduler::column_is_here(const StageNow& stage, int64_t pipeline, int64_t update) const {
  const auto column = static_cast<size_t>(stage.column - first_column_);
  return column < columns_.size() && columns_[column][static_cast<size_t>(pipeline)] == update;
}

void GroupScheduler::check(int64_t stage, int64_t pipeline) const {
  PW_CHECK(0 <= stage && stage < rules_.stages, "stage " << stage << " of " << rules_.stages);
  PW_CHECK(0 <= pipeline && pipeline < rules_.pipelines,
           "pipeline " << pipeline << " of " << rules_.pipelines);
}

void GroupScheduler::announce(int64_t stage, int64_t pipeline, Time now, Time ready_in) {
  check(stage, pipeline);
  StageNow& here = at(stage);
  const auto p = static_cast<size_t>(pipeline);
  here.expected[p] = now + ready_in;
  here.lead[p] = ready_in;
}

std::vector<GroupDecision> GroupScheduler::arrive(int64_t stage, int64_t pipeline, Time now,
                                                  GroupPatience patience) {
  check(stage, pipeline);
  StageNow& here = at(stage);
  const auto p = static_cast<size_t>(pipeline);
  PW_CHECK(!here.gone[p], "pipeline " << pipeline << " has left stage " << stage);
  PW_CHECK_EQ(here.asked[p], here.decided[p]);
  const int64_t update = here.asked[p]++;
  here.expected[p].reset();
  std::vector<GroupDecision> decisions;
  if (!decides(stage)) {
    pass_on(stage, pipeline, decisions);
    return decisions;
  }
  sum_next_ += std::max<int64_t>(0, update + 1 - next_[p]);
  next_[p] = std::max(next_[p], update + 1);
  for (Waiting& each : here.waiting) each.only_to_connect = each.deadline <= now;
  if (column_is_here(here, pipeline, update)) {
    here.at_column.push_back(pipeline);
  } else {
    const Time deadline = now + patience.wait;
    here.waiting.push_back(
        {pipeline, deadline, std::max(deadline, now + patience_of(here, pipeline, patience.update))});
  }
  lay_columns();
  close_if_due(stage, now, decisions);
  return decisions;
}

GroupScheduler::Time GroupScheduler::patience_of(const StageNow& here, int64_t pipeline, Time update) const {
  const auto p = static_cast<size_t>(pipeline);
  const int64_t updates = here.sum_decided - here.sum_connected;  // of the window
  if ((here.decided[p] - here.connected[p]) * rules_.pipelines > updates) return Time(0);
  const double gone =
      static_cast<double>(updates) / static_cast<double>(rules_.pipelines * rules_.window_updates);
  return Time(static_cast<int64_t>(kPatience * std::min(1.0, gone) * static_cast<double>(update.count())));
}

std::vector<GroupDecision> GroupScheduler::leave(int64_t stage, int64_t pipeline, Time now) {
  check(stage, pipeline);
  StageNow& here = at(stage);
  const auto p = static_cast<size_t>(pipeline);
  PW_CHECK(!here.gone[p], "pipeline " << pipeline << " has left stage " << stage);
  PW_CHECK_EQ(here.asked[p], here.decided[p]);
  here.gone[p] = true;
  --here.present;
  here.expected[p].reset();
  std::vector<GroupDecision> decisions;
  if (decides(stage)) close_if_due(stage, now, decisions);
  const bool next_span = here.present == 0;
  if (next_span) {
    here.gone.assign(here.gone.size(), false);
    here.present = rules_.pipelines;
  }
  if (decides(stage)) {
    if (next_span) {
      begin_window(here);
    } else {
      note_connection(here);
    }
    here.closes = closes_at(here);
  }
  lay_columns();
  return decisions;
}

std::optional<GroupScheduler::Time> GroupScheduler::deadline() const {
  std::optional<Time> first;
  for (const StageNow& stage : stages_)
    if (stage.closes && (!first || *stage.closes < *first)) first = stage.closes;
  return first;
}

std::vector<GroupDecision> GroupScheduler::expire(Time now) {
  std::vector<GroupDecision> decisions;
  for (int64_t s = 0; s < rules_.stages; ++s)
    if (at(s).closes && *at(s).closes <= now) close_if_due(s, now, decisions);
  return decisions;
}

// Somebody who is not there yet: as announced, or with an announcement from now on.
bool GroupScheduler::can_come_until(const StageNow& here, Time now, Time until) const {
  for (size_t p = 0; p < here.gone.size(); ++p) {
    if (here.gone[p] || here.asked[p] > here.decided[p]) continue;
    if (here.expected[p].value_or(now + here.lead[p]) <= until) return true;
  }
  return false;
}

// When those that wait are a group if nobody else comes.
std::optional<GroupScheduler::Time> GroupScheduler::closes_at(const StageNow& here) const {
  if (here.waiting.empty()) return std::nullopt;
  const auto part = [&](const Waiting& each) { return here.component[static_cast<size_t>(each.pipeline)]; };
  const bool linked = std::any_of(here.waiting.begin(), here.waiting.end(), [&](const Waiting& each) {
    return part(each) != part(here.waiting.front());
  });
  std::optional<Time> first;
  for (const Waiting& each : here.waiting) {
    if (linked && each.only_to_connect) continue;
    const Time until = linked ? each.deadline : std::max(each.deadline, each.patient_until);
    if (!first || until < *first) first = until;
  }
  return first ? first : Time(0);  // at once
}

void GroupScheduler::close_if_due(int64_t stage, Time now, std::vector<GroupDecision>& decisions) {
  StageNow& here = at(stage);
  here.closes = closes_at(here);
  if (here.closes) {
    // All others have left or wait at the column.
    const bool complete = here.waiting.size() + here.at_column.size() == static_cast<size_t>(here.present);
    if (complete || *here.closes <= now || !can_come_until(here, now, *here.closes)) close(stage, decisions);
  }
  close_column(stage, decisions);
}

void GroupScheduler::close_column(int64_t stage, std::vector<GroupDecision>& decisions) {
  StageNow& here = at(stage);
  if (here.at_column.empty() || here.at_column.size() != static_cast<size_t>(here.present)) return;
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
  std::vector<int64_t> waiting;
  for (const Waiting& each : here.waiting) waiting.push_back(each.pipeline);
  here.waiting.clear();
  here.closes.reset();
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
  here.sum_decided += static_cast<int64_t>(group.size());
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
  statistics_.longest_window_updates =
      std::max(statistics_.longest_window_updates, stage.sum_decided - stage.sum_connected);
  stage.connected = stage.decided;
  stage.sum_connected = stage.sum_decided;
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
  ++here.sum_decided;
  int64_t had_by_all = here.decided[p];
  for (const StageNow& each : stages_) had_by_all = std::min(had_by_all, each.decided[p]);
  known.erase(known.begin(), known.lower_bound(had_by_all));
}

}  // namespace pipewright
