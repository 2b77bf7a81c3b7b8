#include "optimizer/search/placed_table.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "optimizer/cost/placed.h"
#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

/// Beyond so many labels tried per period the search looks at fewer placements.
constexpr double kMostTries = 3e8;
constexpr int kNearCuts = 40;    // then: a stage ends at one of the next cuts, or with the model
constexpr int64_t kFewMore = 3;  // then: replicas beyond those needed

double tries(const Question& q, int64_t largest) {
  return std::pow(static_cast<double>(q.states->size()), 2) * static_cast<double>(largest) *
         std::sqrt(static_cast<double>(q.devices));
}

}  // namespace

PlacedTable::PlacedTable(const Question& q, const StagePlaces& places, bool reversed)
    : q_(q),
      places_(places),
      placement_(q, reversed),
      bounds_(q, placement_),
      reach_(q, placement_, bounds_),
      dominance_(placement_, q.inputs.forward_only),
      limited_(tries(q, placement_.largest()) > kMostTries) {}

bool PlacedTable::possible(double period, int64_t most_devices) {
  placement_.set_period(period);
  bounds_.set_period(period);
  if (limited_) return bounds_.least_behind(0) <= most_devices;
  return reach_.fill(most_devices);
}

std::optional<Answer> PlacedTable::within(double period, int64_t most_devices) {
  if (!possible(period, most_devices)) return std::nullopt;
  const States& states = *q_.states;
  const int last = states.last();
  labels_.assign(static_cast<size_t>(places_.count() + 1) * states.size(), {});
  for (int64_t place = 0; place <= places_.count(); ++place) {
    if (places_.ends(place)) at(place, last).add({}, dominance_, 0, limited_);
  }
  for (int i = last - 1; i >= 0; --i) {
    int near = 0;
    for (const int j : states.after(i)) {
      if (limited_ && ++near > kNearCuts && j != last) continue;
      if (!stage_allowed(q_, i, j)) continue;
      for (int64_t place = 0; place < places_.count(); ++place) {
        if (places_.begins(place, i) && places_.begins(places_.next(place), j)) extend(place, i, j);
      }
    }
  }
  const Label* best = nullptr;
  for (const Label& label : at(0, 0).labels()) {
    if (label.copies > 1 || (q_.replicated && !label.replicated)) continue;
    if ((q_.all_devices || placement_.reversed()) && label.devices != q_.devices) continue;
    if (label.devices > most_devices) continue;
    if (best == nullptr || better(label, *best)) best = &label;
  }
  if (best == nullptr) return std::nullopt;
  latency_seconds_ = best->latency_seconds;
  return answer_of(*best);
}

bool PlacedTable::better(const Label& a, const Label& b) const {
  if (a.latency_seconds < b.latency_seconds * (1 - kTolerance)) return true;
  return a.latency_seconds <= b.latency_seconds * (1 + kTolerance) && a.devices < b.devices;
}

/// Whether the stages before it still have room.
bool PlacedTable::may_begin(int state, const Label& label) const {
  if (limited_) return true;
  if (label.copies > 1) return label.devices <= reach_.most_behind_block(state, label.copies, label.filled);
  return label.devices <= reach_.most(state, label.devices);
}

void PlacedTable::extend(int64_t place, int i, int j) {
  const LabelSet& behind = at(places_.next(place), j);
  if (behind.empty()) return;
  int64_t most = q_.devices - bounds_.least_before(i);
  if (!limited_) {
    const bool in_blocks = placement_.server() > 1 && reach_.most_behind_any_block(i) >= 0;
    if (!in_blocks) most = std::min(most, reach_.most_of_any(i));
  }
  const int64_t room = most - behind.least_devices();
  const int64_t least = room > 0 ? bounds_.least_devices(i, j, room) : 1;
  if (least > room) return;
  const PlacedStage stage = placement_.stage(i, j);
  const int64_t wanted = places_.replicas(place);
  // The set of (place, j) does not change: stages lead to larger cuts.
  for (size_t n = 0; n < behind.labels().size(); ++n) {
    const Label& after = behind.labels()[n];
    const auto rest = static_cast<int>(n);
    if (after.copies > 1) {
      fill_block(place, stage, after, rest, least);
      continue;
    }
    int64_t largest = std::min(most - after.devices, q_.most_replicas);
    if (limited_ && wanted == 0) largest = std::min(largest, least + kFewMore);
    for (int64_t m = wanted > 0 ? std::max(least, wanted) : least; m <= largest; ++m) {
      if (wanted > 0 && m > wanted) break;
      if (!limited_ && after.devices + m > reach_.most(i, after.devices + m)) continue;
      add(place, stage, rest, placement_.place(stage, after, m));
    }
    if (placement_.server() > 1 && after.devices % placement_.server() == 0)
      add_blocks(place, stage, after, rest, least);
  }
}

void PlacedTable::add_blocks(int64_t place, const PlacedStage& stage, const Label& after, int rest,
                             int64_t least) {
  const int64_t most = (q_.devices - after.devices) / placement_.server();
  for (int64_t copies = 2; copies <= most; ++copies)
    fill_block(place, stage, placement_.begin_block(after, copies, stage.out_bytes), rest, least);
}

/// The stage as the next part of a pipeline that stands in several servers alike.
void PlacedTable::fill_block(int64_t place, const PlacedStage& stage, const Label& after, int rest,
                             int64_t least) {
  const int64_t copies = after.copies;
  const int64_t wanted = places_.replicas(place);
  const int64_t most =
      placement_.server() - after.filled - (after.filled == 0 ? 1 : 0);  // one stage is no block
  for (int64_t m = std::max<int64_t>(1, (least + copies - 1) / copies); m <= most; ++m) {
    if (m * copies > q_.most_replicas) break;
    if (wanted > 0 && m * copies != wanted) continue;
    const bool full = after.filled + m == placement_.server();
    if (stage.from == 0 && !full) continue;  // the servers would not be full
    if (!limited_) {
      const int64_t room = full ? reach_.most(stage.from, after.devices + copies * placement_.server()) -
                                      copies * placement_.server()
                                : reach_.most_behind_block(stage.from, copies, after.filled + m);
      if (after.devices > room) continue;
    }
    add(place, stage, rest, placement_.place_in_block(stage, after, m));
  }
}

void PlacedTable::add(int64_t place, const PlacedStage& stage, int rest, std::optional<Label> label) {
  if (!label || !may_begin(stage.from, *label)) return;
  label->next_place = places_.next(place);
  label->rest = rest;
  at(place, stage.from).add(std::move(*label), dominance_, stage.in_bytes, limited_);
}

Answer PlacedTable::answer_of(const Label& first) {
  Answer answer;
  answer.devices = first.devices;
  answer.exact = !limited_;
  const States& states = *q_.states;
  std::vector<StageLoad> loads;
  std::vector<Stage> stages;
  const bool aligned = !q_.inputs.devices_differ() && first.devices % placement_.costs().sizes().back() == 0;
  const bool turned = aligned || placement_.reversed();
  int i = 0;
  for (const Label* label = &first; label->next >= 0;) {
    Stage stage;
    for (int64_t r = 0; r < label->replicas; ++r) {
      for (int64_t c = 0; c < label->stage_copies; ++c) {
        const int64_t position = label->begin + c * placement_.server() + r;
        stage.ranks.push_back(turned ? first.devices - 1 - position : position);
      }
    }
    // Replica q runs minibatches q, q + m, ...: with copies, each server has its own part of them.
    if (label->stage_copies == 1) std::sort(stage.ranks.begin(), stage.ranks.end());
    stage.shares = label->shares;
    if (placement_.reversed()) std::reverse(stage.shares.begin(), stage.shares.end());
    if (std::all_of(stage.shares.begin(), stage.shares.end(), [](int64_t s) { return s == 1; }))
      stage.shares.clear();
    answer.stages.push_back(
        {i, label->next, label->replicas * label->stage_copies, stage.ranks, stage.shares, label->recompute});
    loads.push_back(load_between(states, i, label->next));
    loads.back().recompute = label->recompute;
    stages.push_back(stage);
    i = label->next;
    label = &at(label->next_place, i).labels()[static_cast<size_t>(label->rest)];
  }
  answer.period_seconds = price_placed(loads, stages, q_.inputs).total_seconds();
  return answer;
}

}  // namespace pipewright::search_detail
