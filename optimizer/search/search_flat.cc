#include "optimizer/search/search_flat.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

/// Room for rounding where a real number of devices is compared with a whole one.
constexpr double kRounding = 1e-6;
/// Beyond so many cuts the lists of all stages' periods would take too much room: slack is then no aim.
constexpr int kMostListed = 2048;

}  // namespace

FewestDevices::FewestDevices(const Problem& problem)
    : q_(problem), states_(*problem.states), size_(states_.size()), tables_(problem.replicated ? 2 : 1) {
  work_.resize(size_);
  exchange_.resize(size_);
  link_in_.resize(size_);
  link_out_.resize(size_);
  const int blocks = (size_ + kBlock - 1) / kBlock;
  block_exchange_.assign(blocks, kNoLimit);
  block_work_.assign(blocks, kNoLimit);
  for (int i = 0; i < size_; ++i) {
    StageLoad before = load_of(q_, 0, i);
    before.first = before.last = false;
    before.in_bytes = before.out_bytes;
    const StageTerms terms = stage_terms(before, q_.inputs);
    work_[i] = terms.compute_seconds + terms.step_seconds;
    exchange_[i] = terms.exchange_seconds;
    link_in_[i] = terms.link_in_seconds;
    link_out_[i] = i + 1 < size_ ? terms.link_out_seconds : 0;
    latency_ = std::max(latency_, terms.exchange_latency_seconds);
    link_takes_both_ = terms.link_takes_both;
    block_exchange_[i / kBlock] = std::min(block_exchange_[i / kBlock], exchange_[i]);
    block_work_[i / kBlock] = std::min(block_work_[i / kBlock], work_[i]);
  }
}

std::optional<Solution> FewestDevices::within(double period) {
  period_ = period;
  q_.depth_period_seconds = period;
  per_period_ = period > 0 ? 1 / period : 1e200;
  fewest_.assign(static_cast<size_t>(tables_) * size_, kImpossible);
  ways_.assign(fewest_.size(), {});
  waste_.assign(size_, kNoLimit);
  block_waste_.assign(block_work_.size(), kNoLimit);
  const int last = size_ - 1;
  fewest(0, last) = 0;
  waste_[last] = 0;
  block_waste_[last / kBlock] = 0;
  for (int i = last - 1; i >= 0; --i) extend(i);

  int table = tables_ - 1;
  if (fewest(table, 0) >= kImpossible) return std::nullopt;
  Solution solution;
  for (int i = 0; i != last;) {
    const Way& way = ways_[static_cast<size_t>(table) * size_ + i];
    solution.stages.push_back({i, way.next, way.replicas});
    table = way.rest;
    i = way.next;
  }
  finish(q_, &solution);
  return solution;
}

// m replicas exchange (m - 1) / m of it, and they are at least two and at least work / period.
double FewestDevices::extra_devices(int i, double work, double exchange) const {
  const double mine = work - work_[i];
  if (!(mine > period_ * (1 + kTolerance))) return 0;
  return (exchange - exchange_[i]) * std::max(0.5, 1 - period_ / mine) * per_period_ * (1 - kTolerance);
}

// No plan from i on has fewer devices than the work shared out, what is wasted behind j and what the stage's
// exchange adds.
void FewestDevices::extend(int i) {
  const double shared = (work_.back() - work_[i]) * per_period_;
  // More than this and nothing is left for what is before i.
  const auto before = static_cast<int64_t>(std::ceil(work_[i] * per_period_ * (1 - kTolerance) - kRounding));
  const int64_t limit = q_.devices - std::max<int64_t>(before, i > 0 ? 1 : 0) + 1;
  for (int t = 0; t < tables_; ++t) fewest(t, i) = std::max<int64_t>(limit, 0);
  const auto least = static_cast<int64_t>(std::ceil(shared * (1 - kTolerance) - kRounding));

  // What may be wasted from j on, so that fewer devices are needed than with what was found.
  double room = 0;
  const auto update_room = [&] {
    room = static_cast<double>(fewest(tables_ - 1, i)) - 1 + kRounding - shared;
  };
  update_room();
  if (states_.nested) {
    for (int begin = i + 1; begin < size_;) {
      const int block = begin / kBlock;
      const int end = std::min(size_, (block + 1) * kBlock);
      const double extra = extra_devices(i, block_work_[block], block_exchange_[block]);
      if (extra > room) break;  // and more for every larger stage
      if (block_waste_[block] + extra <= room) {
        for (int j = begin; j < end; ++j) {
          if (waste_[j] > room || waste_[j] + extra_devices(i, work_[j], exchange_[j]) > room) continue;
          try_stage(i, j);
          update_room();
        }
        if (tables_ == 1 && fewest(0, i) <= least) break;  // there is no better
      }
      begin = end;
    }
  } else {
    for (const int j : states_.after(i)) {
      if (waste_[j] > room || waste_[j] + extra_devices(i, work_[j], exchange_[j]) > room) continue;
      try_stage(i, j);
      update_room();
      if (tables_ == 1 && fewest(0, i) <= least) break;
    }
  }

  for (int t = 0; t < tables_; ++t) {
    if (fewest(t, i) >= limit || fewest(t, i) <= 0) fewest(t, i) = kImpossible;
  }
  if (fewest(0, i) < kImpossible) {
    waste_[i] = static_cast<double>(fewest(0, i)) - shared;
    block_waste_[i / kBlock] = std::min(block_waste_[i / kBlock], waste_[i]);
  }
}

// The larger root of T m^2 - (w + l + X) m + X >= 0, from two replicas on: w computes and updates, l are the
// latencies of an all-reduce of W bytes, X is 2 W / B.
int64_t FewestDevices::replicas_alone(int i, int j, int64_t least, int64_t most, int64_t after) const {
  if (most < least) return 0;
  if (q_.memory_bytes > 0 || q_.inputs.minibatches_per_update > 0 || i == 0 || !(period_ > 0) ||
      period_ == kNoLimit) {
    return fewest_replicas(q_, option_of(q_, i, j), least, most, after, period_);
  }
  const double work = work_[j] - work_[i];
  const double link = link_takes_both_ ? link_in_[i] + link_out_[j] : std::max(link_in_[i], link_out_[j]);
  const double most_work = static_cast<double>(most) * period_ * (1 + kTolerance);
  if (work > most_work || link > most_work) return 0;
  const double exchange = exchange_[j] - exchange_[i];
  const auto in_time = [&](int64_t m) {
    const auto replicas = static_cast<double>(m);
    const double sync = m > 1 && exchange > 0 ? latency_ + exchange * ((replicas - 1) / replicas) : 0;
    return work + sync <= period_ * replicas && link <= period_ * replicas;
  };
  if (least == 1) {
    if (in_time(1)) return 1;
    least = 2;
  }
  const double all = work + exchange + (exchange > 0 ? latency_ : 0);
  const double under_root = all * all - 4 * period_ * exchange;
  double root = link * per_period_;
  if (under_root > 0) root = std::max(root, (all + std::sqrt(under_root)) / 2 * per_period_);
  if (root > static_cast<double>(most) + 1) return 0;
  int64_t replicas = std::max(least, static_cast<int64_t>(root));
  while (replicas <= most && !in_time(replicas)) ++replicas;  // once or twice
  return replicas <= most ? replicas : 0;
}

int64_t FewestDevices::replicas_of(int i, int j, int64_t least, int64_t most, int64_t after) const {
  int64_t replicas = replicas_alone(i, j, least, most, after);
  if (q_.least_exchange_seconds_per_byte.empty() || replicas == 0) return replicas;
  const double mine = work_[j] - work_[i];
  const auto bytes =
      static_cast<double>(states_.states[j].trainable_bytes - states_.states[i].trainable_bytes);
  const auto interval = static_cast<double>(q_.inputs.minibatches_per_update);
  const double step = interval > 0 ? step_seconds(bytes, q_.inputs) : 0;  // else it is in `mine`
  for (; replicas <= most; ++replicas) {
    const auto m = static_cast<double>(replicas);
    const double update = step + bytes * q_.least_exchange_seconds_per_byte[static_cast<size_t>(replicas)];
    const double period = mine / m + update / (interval > 0 ? interval : m);
    if (period * (1 - kTolerance) <= period_) return replicas;
  }
  return 0;
}

void FewestDevices::try_stage(int i, int j) {
  if (!stage_allowed(q_, i, j)) return;
  for (int wanted = 0; wanted < tables_; ++wanted) {  // the suffix from i must hold a replicated stage
    for (int rest = wanted; rest >= 0; --rest) {      // the suffix from j holds it
      const int64_t after = fewest(rest, j);
      if (after >= kImpossible) continue;
      const int64_t most = std::min(q_.most_replicas, fewest(wanted, i) - 1 - after);
      const int64_t replicas = replicas_of(i, j, wanted > rest ? 2 : 1, most, after);
      if (replicas == 0) continue;
      fewest(wanted, i) = after + replicas;
      ways_[static_cast<size_t>(wanted) * size_ + i] = {j, rest, replicas};
    }
  }
}

Solution FewestDevices::best_of_fewest(double period, double levels_of) const {
  PW_CHECK(period == period_, "the table is of another period");
  struct Edge {
    int table, from, next, rest;
    int64_t replicas;
  };
  // Only what a plan of fewest devices can be made of: from the front, along stages that lead from fewest to
  // fewest.
  std::vector<Edge> edges;
  std::vector<char> reached(fewest_.size(), 0);
  reached[static_cast<size_t>(tables_ - 1) * size_] = 1;
  const int last = size_ - 1;
  for (int i = 0; i < last; ++i) {
    for (int wanted = 0; wanted < tables_; ++wanted) {
      if (!reached[static_cast<size_t>(wanted) * size_ + i]) continue;
      const int64_t most_total = fewest(wanted, i);
      const double shared = (work_[last] - work_[i]) * per_period_;
      for (const int j : states_.after(i)) {
        if (shared + waste_[j] > static_cast<double>(most_total) + kRounding) continue;
        if (!stage_allowed(q_, i, j)) continue;
        for (int rest = wanted; rest >= 0; --rest) {
          if (fewest(rest, j) >= most_total) continue;
          const int64_t replicas = most_total - fewest(rest, j);
          if (replicas > q_.most_replicas) continue;
          if (replicas_of(i, j, wanted > rest ? 2 : 1, replicas, fewest(rest, j)) == 0) continue;
          edges.push_back({wanted, i, j, rest, replicas});
          reached[static_cast<size_t>(rest) * size_ + j] = 1;
        }
      }
    }
  }

  std::vector<Suffix> best(fewest_.size());
  best[last].possible = true;
  // Edges of one state stand together, the best stage first met wins: go through them state by state.
  for (size_t end = edges.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && edges[begin - 1].from == edges[end - 1].from) --begin;
    for (size_t e = begin; e < end; ++e) {
      const Edge& edge = edges[e];
      const Suffix& after = best[static_cast<size_t>(edge.rest) * size_ + edge.next];
      if (!after.possible) continue;
      Suffix found;
      found.possible = true;
      if (size_ <= kMostListed) {
        const double mine =
            fitted_period(q_, load_of(q_, edge.from, edge.next), edge.replicas, fewest(edge.rest, edge.next));
        found.add_level(level_of(mine, levels_of), after.levels);
      }
      found.stages = after.stages + 1;
      found.bytes = after.bytes + states_.states[edge.from].cut_bytes;
      found.next = edge.next;
      found.replicas = edge.replicas;
      found.rest_replicated = edge.rest == 1;
      Suffix& held = best[static_cast<size_t>(edge.table) * size_ + edge.from];
      if (found.better_than(held)) held = std::move(found);
    }
    end = begin;
  }

  Solution solution;
  int table = tables_ - 1;
  for (int i = 0; i != last;) {
    const Suffix& suffix = best[static_cast<size_t>(table) * size_ + i];
    PW_CHECK(suffix.possible, "what was reached leads to the end");
    solution.stages.push_back({i, suffix.next, suffix.replicas});
    table = suffix.rest_replicated ? 1 : 0;
    i = suffix.next;
  }
  finish(q_, &solution);
  return solution;
}

}  // namespace pipewright::search_detail
