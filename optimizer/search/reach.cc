#include "optimizer/search/reach.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

constexpr double kReachRounding = 1e-6;
constexpr int64_t kNone = -1;

}  // namespace

StageBounds::StageBounds(const Question& q, const Placement& placement)
    : q_(q), states_(*q.states), fastest_(placement.fastest()), pace_sum_(placement.pace_sum()) {
  const LevelCosts& costs = placement.costs();
  // With update intervals an exchange is not the dearer for a minibatch the fewer replicas there are.
  const bool counted = q.inputs.minibatches_per_update == 0 && q.inputs.speeds.empty();
  for (int64_t m = 0; m <= q.devices + 1; ++m)
    exchange_.push_back(counted ? least_exchange(placement, m) : 0);
  const bool counts = !q.inputs.levels[0].shared;
  for (int i = 0; i < states_.size(); ++i) {
    const StageLoad before = load_between(states_, 0, i);
    work_.push_back(least_work(before));
    gradients_.push_back(costs.gradient_bytes(before));
    cut_.push_back(counts && i > 0 && i < states_.last()
                       ? link_seconds(static_cast<double>(states_.states[i].cut_bytes),
                                      q.inputs.levels[0].bandwidth_bytes_per_second)
                       : 0);
  }
}

double StageBounds::least_work(const StageLoad& load) const {
  if (!q_.inputs.forward_only) return load.least_seconds;
  // Paces are those of forward and backward together.
  return q_.inputs.classes.empty() ? load.forward_seconds : 0;
}

double StageBounds::least_exchange(const Placement& placement, int64_t replicas) const {
  if (replicas < 2) return 0;
  double fastest_link = 0;
  for (const TopologyLevel& level : q_.inputs.levels)
    fastest_link = std::max(fastest_link, level.bandwidth_bytes_per_second);
  const LevelCosts& costs = placement.costs();
  double slowest = all_reduce_link_seconds(1, crossing_part(1, replicas), fastest_link);
  for (const GroupLink& link : costs.links()) {
    if (link.shared || replicas <= link.group) continue;
    // In a row, a group is filled, or the first and the last share them out.
    double crossing = crossing_part(std::min(link.group, replicas - link.group), replicas);
    if (placement.server() > 1) {  // evenly over as many servers as there are
      const auto all = static_cast<double>(replicas);
      const double copies = std::min(all, static_cast<double>(q_.devices / placement.server()));
      crossing = std::min(crossing, all / copies * (1 - 1 / copies));
    }
    slowest = std::max(slowest, all_reduce_link_seconds(1, crossing, link.bandwidth_bytes_per_second));
  }
  return slowest;
}

double StageBounds::least_period() const { return work_.back() / pace_sum_ * (1 - kTolerance); }

void StageBounds::set_period(double seconds) {
  period_ = seconds;
  per_period_ = (seconds > 0 ? 1 / seconds : 1e200) / fastest_ * (1 - kTolerance);
  fill_behind();
}

int64_t StageBounds::devices_of(double seconds) const {
  const double most = static_cast<double>(q_.devices) + 1;
  const double shared = seconds * per_period_ - kReachRounding;
  const double real = std::clamp(shared, 0.0, most);
  const auto whole = static_cast<int64_t>(real);
  return static_cast<double>(whole) < real ? whole + 1 : whole;  // std::ceil is a call
}

int64_t StageBounds::least_devices(int from, int to, int64_t most) const {
  const double seconds = work_[to] - work_[from];
  double link = cut_[from] + cut_[to];
  if (!q_.inputs.speeds.empty()) {
    link = 0;
  } else if (q_.inputs.forward_only) {
    link = std::max(cut_[from], cut_[to]);
  }
  // All pass on what crosses the cuts, and two or more exchange their gradients: the more they are, the more.
  int64_t least = std::max<int64_t>(1, devices_of(std::max(seconds, link)));
  const double bytes = gradients_[to] - gradients_[from];
  while (least <= most) {
    const int64_t needed = devices_of(seconds + bytes * exchange_[static_cast<size_t>(least)]);
    if (needed <= least) break;
    least = needed;
  }
  return least;
}

int64_t StageBounds::least_before(int state) const {
  return std::max<int64_t>(devices_of(work_[state]), state > 0 ? 1 : 0);
}

void StageBounds::fill_behind() {
  const int last = states_.last();
  behind_.assign(states_.size(), q_.devices + 1);
  behind_[last] = 0;
  for (int i = last - 1; i >= 0; --i) {
    const int64_t shared = devices_of(work_[last] - work_[i]);
    const int64_t most = q_.devices - least_before(i);
    int64_t fewest = q_.devices + 1;
    for (const int j : states_.after(i)) {
      const int64_t room = std::min(fewest - 1, most) - behind_[j];
      if (room <= 0) continue;
      const int64_t least = least_devices(i, j, room);
      if (least > room) continue;
      fewest = behind_[j] + least;
      if (fewest <= shared) break;  // it cannot be less
    }
    behind_[i] = std::max(fewest, shared);
  }
}

bool Reach::fill(int64_t most_devices) {
  const States& states = *q_.states;
  const int64_t largest = placement_.largest();
  row_ = static_cast<size_t>(largest);
  most_.assign(static_cast<size_t>(states.size()) * row_, kNone);
  most_of_any_.assign(states.size(), kNone);
  if (placement_.server() > 1) {
    copies_ = q_.devices / placement_.server();
    blocks_.assign(block_at(states.size(), 0, 0), kNone);
    most_of_any_block_.assign(states.size(), kNone);
  }
  if (bounds_.least_behind(0) > most_devices) return false;
  const bool all = q_.all_devices || placement_.reversed();
  for (int64_t d = all ? q_.devices : 0; d <= most_devices; ++d) raise(0, d);
  for (int i = 0; i < states.last(); ++i) {
    const int64_t most =
        std::max(most_of_any_[i], placement_.server() > 1 ? most_of_any_block_[i] + q_.devices : kNone);
    if (most <= 0 || bounds_.least_behind(i) > most) continue;
    for (const int j : states.after(i)) {
      if (stage_allowed(q_, i, j)) extend(i, j);
    }
  }
  return most_[static_cast<size_t>(states.last()) * row_] >= 0;
}

void Reach::raise(int state, int64_t devices) {
  int64_t& most =
      most_[static_cast<size_t>(state) * row_ + static_cast<size_t>(devices % placement_.largest())];
  most = std::max(most, devices);
  most_of_any_[state] = std::max(most_of_any_[state], devices);
  // The block that ends here is begun from the front.
  if (placement_.server() < 2 || devices % placement_.server() != 0) return;
  for (int64_t copies = 2; copies <= copies_ && copies * placement_.server() <= devices; ++copies)
    raise_block(state, copies, placement_.server(), devices - copies * placement_.server());
}

void Reach::raise_block(int state, int64_t copies, int64_t filled, int64_t devices) {
  int64_t& most = blocks_[block_at(state, copies, filled)];
  most = std::max(most, devices);
  most_of_any_block_[state] = std::max(most_of_any_block_[state], devices);
}

void Reach::extend(int i, int j) {
  const int64_t behind = bounds_.least_behind(j);
  int64_t room = most_of_any_[i] - behind;
  if (placement_.server() > 1 && most_of_any_block_[i] >= 0) room = q_.devices;
  if (room <= 0) return;
  const int64_t least = bounds_.least_devices(i, j, room);
  if (least > room) return;
  const bool at_end = j == q_.states->last();  // there the suffix has no devices, or whole rounds of groups
  std::optional<PlacedStage> stage;
  const auto the_stage = [&]() -> const PlacedStage& {
    if (!stage) stage = placement_.stage(i, j);
    return *stage;
  };
  if (most_of_any_[i] - least >= behind) {
    for (size_t r = 0; r < row_; ++r) {
      const int64_t end = most_[static_cast<size_t>(i) * row_ + r];
      for (int64_t m = least; m <= q_.most_replicas && end - m >= behind; ++m) {
        if (at_end && (end - m) % placement_.largest() != 0) continue;
        // Fewer devices behind it leave the stage more memory.
        for (int64_t begin = end - m; begin >= behind && begin > most(j, begin);
             begin -= placement_.largest()) {
          if (placement_.possible_alone(the_stage(), begin, m)) raise(j, begin);
          if (!placement_.limited_memory()) break;
        }
      }
    }
  }
  if (placement_.server() < 2 || most_of_any_block_[i] < 0) return;
  const int64_t server = placement_.server();
  for (int64_t copies = 2; copies <= copies_; ++copies) {
    for (int64_t filled = server; filled > 0; --filled) {
      const int64_t devices = blocks_[block_at(i, copies, filled)];
      if (devices < 0) continue;
      const int64_t needed = (least + copies - 1) / copies;
      for (int64_t m = std::max<int64_t>(1, needed); m <= filled; ++m) {
        if (m == server || m * copies > q_.most_replicas) break;  // one stage is no block
        if (devices + (filled - m) * copies < behind) break;
        if (filled == m && at_end && devices % placement_.largest() != 0) continue;
        if (filled > m ? blocks_[block_at(j, copies, filled - m)] >= devices : most(j, devices) >= devices)
          continue;
        if (!placement_.possible_in_block(the_stage(), copies, filled - m, m)) continue;
        if (filled > m) {
          raise_block(j, copies, filled - m, devices);
        } else {
          raise(j, devices);
        }
      }
    }
  }
}

}  // namespace pipewright::search_detail
