#include "optimizer/plan/row_seeds.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "optimizer/cost/formulas.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/search/few_cuts.h"
#include "optimizer/search/stage_places.h"

namespace pipewright {
namespace {

constexpr int kSomeCuts = 112;
constexpr double kNear = 2e-2;  // of the period
constexpr double kLonger[] = {1.1, 1.25, 1.5, 2, 3};

/// What a stage takes and holds wherever it stands, worked out once.
struct StageSums {
  StageLoad load;
  double step_seconds = 0;
  double sum_bytes = 0;    // of gradients
  double work_behind = 0;  // from the stage on, there and back
  double once_again = 0;   // of its work, a forward more
};

class AllStages {
 public:
  explicit AllStages(const Question& q) : q_(q), sums_(size() * size()) {}
  const StageSums& between(int i, int j) {
    std::unique_ptr<StageSums>& sums = sums_[static_cast<size_t>(i) * size() + static_cast<size_t>(j)];
    if (sums) return *sums;
    sums = std::make_unique<StageSums>();
    sums->load = load_between(*q_.states, i, j);
    sums->load.workspace = workspace_between(*q_.states, i, j);
    sums->step_seconds = step_seconds(sums->load, q_.inputs);
    sums->sum_bytes = exchanged_bytes(sums->load, q_.inputs);
    sums->work_behind = least_between(*q_.states, i, q_.states->last());
    const double work = sums->load.compute_seconds();
    sums->once_again = work > 0 ? sums->load.forward_seconds / work : 0;
    return *sums;
  }

 private:
  size_t size() const { return static_cast<size_t>(q_.states->size()); }
  const Question& q_;
  std::vector<std::unique_ptr<StageSums>> sums_;
};

/// For one order of the devices: the first stage's are the first.
class Row {
 public:
  Row(const Question& q, AllStages* stages, const StagePlaces& places, std::vector<int64_t> order,
      int64_t least_replicas, int64_t most_replicas, double careful, bool paced)
      : q_(q),
        stages_(*stages),
        places_(places),
        states_(*q.states),
        order_(std::move(order)),
        least_replicas_(least_replicas),
        most_replicas_(std::min(most_replicas, q.most_replicas)),
        paced_(paced),
        careful_(careful),
        sums_((order_.size() + 1) * (order_.size() + 1), 0) {}

  /// Of small periods, the smallest last found first tried; none if the memory holds none. What links and
  /// waiting make of a chain is not known here, so chains of longer periods, which ask less of them, are too.
  std::vector<Chain> chains() {
    std::vector<Chain> found;
    const auto tried = [&](double period) {
      std::optional<Chain> chain = within(period);
      if (chain) found.push_back(std::move(*chain));
      return chain.has_value();
    };
    if (!tried(kInfeasible)) return found;
    double rates = 0;
    for (const int64_t device : order_) rates += pace(device);
    double low = states_.states.back().least_seconds / rates, high = kInfeasible;
    for (double step = 0.02; high == kInfeasible && step < 1e6; step *= 2)
      (tried(low * (1 + step)) ? high : low) = low * (1 + step);
    if (high == kInfeasible) return found;
    for (const double longer : kLonger) tried(longer * high);
    while (high - low > kNear * high) {
      const double middle = low + (high - low) / 2;
      (tried(middle) ? high : low) = middle;
    }
    return found;
  }

 private:
  struct Way {
    int64_t devices = -1;  // of the suffix; -1: there is none
    int64_t skipped = 0;   // of these, devices before the stage's that the next stage takes too
    int next = -1;
    bool recompute = false;
  };

  /// What a sum over the stage's replicas takes for a byte, on devices [begin, begin + m) of the row: of its
  /// own links and of those that groups have.
  double sum_seconds_per_byte(int64_t begin, int64_t m) {
    if (m < 2) return 0;
    double& known = sums_[static_cast<size_t>(begin * (size() + 1) + m)];
    if (known > 0) return known;
    known = all_reduce_link_seconds(1, crossing_part(1, m), q_.inputs.bandwidth_bytes_per_second);
    int64_t group = 1;
    for (size_t l = 0; l + 1 < q_.inputs.levels.size(); ++l) {
      group *= q_.inputs.levels[l].count;
      const TopologyLevel& level = q_.inputs.levels[l + 1];
      for (int64_t at = begin; at < begin + m;) {
        const int64_t end = std::min(begin + m, (at / group + 1) * group);
        known = std::max(known, all_reduce_link_seconds(1, crossing_part(end - at, m),
                                                        level.bandwidth_bytes_per_second / careful_));
        at = end;
      }
    }
    return known;
  }

  /// Of a message between two stages of which the later ends where the earlier begins: of the slowest link
  /// that it may pass.
  double cut_seconds(double bytes, int64_t boundary) const {
    double seconds = message_seconds(bytes, q_.inputs);
    int64_t group = 1;
    for (size_t l = 0; l + 1 < q_.inputs.levels.size(); ++l) {
      group *= q_.inputs.levels[l].count;
      if (boundary % group == 0)
        seconds = std::max(seconds, careful_ * bytes / q_.inputs.levels[l + 1].bandwidth_bytes_per_second);
    }
    return seconds;
  }

  double pace(int64_t device) const {
    return q_.inputs.paces.empty() ? 1 : q_.inputs.paces[static_cast<size_t>(device)];
  }
  int64_t size() const { return static_cast<int64_t>(order_.size()); }

  std::optional<Chain> within(double period) {
    period_ = period;
    ways_.assign(static_cast<size_t>(states_.size() * (places_.count() + 1)), {});
    for (int64_t place = 0; place <= places_.count(); ++place)
      if (places_.ends(place) && (place == places_.count() || places_.begins(place, states_.last())))
        way(place, states_.last()).devices = 0;
    for (int i = states_.last() - 1; i >= 0; --i)
      for (int64_t place = 0; place < places_.count(); ++place)
        for (const int j : states_.after(i))
          if (places_.begins(place, i) && way(places_.next(place), j).devices >= 0) try_stage(place, i, j);
    if (way(0, 0).devices < 0) return std::nullopt;
    Chain chain;
    int64_t place = 0, begin = size() - way(0, 0).devices;
    for (int i = 0; i != states_.last();) {
      const Way& way = this->way(place, i);
      place = places_.next(place);
      const int64_t end = size() - this->way(place, way.next).devices - way.skipped;
      FoundStage stage{i, way.next, end - begin};
      stage.ranks.assign(order_.begin() + begin, order_.begin() + end);
      stage.recompute = way.recompute;
      chain.stages.push_back(std::move(stage));
      begin = end;
      i = way.next;
    }
    return chain;
  }

  Way& way(int64_t place, int state) { return ways_[static_cast<size_t>(place * states_.size() + state)]; }

  /// The suffix that begins with stage i..j, if it takes fewer devices than what is known.
  void try_stage(int64_t place, int i, int j) {
    if (q_.least_stages > 1 && i == 0 && j == states_.last()) return;
    const int64_t after = this->way(places_.next(place), j).devices;
    if (place_stage(place, i, j, after, 0) || after == 0) return;
    // On devices of another kind, where the next ones do not do.
    int64_t skipped = 0;
    while (after + skipped < size() && q_.inputs.same_kind(at(after + skipped), at(after))) ++skipped;
    if (after + skipped < size()) place_stage(place, i, j, after, skipped);
  }

  /// The device that comes after so many from the end.
  int64_t at(int64_t behind) const { return order_[static_cast<size_t>(size() - 1 - behind)]; }

  bool place_stage(int64_t place, int i, int j, int64_t after, int64_t skipped) {
    Way& way = this->way(place, i);
    const int64_t given = places_.replicas(place), begin = after + skipped;
    const int64_t least = given > 0 ? given : least_replicas_;
    int64_t most = std::min(size() - begin, given > 0 ? given : most_replicas_);
    if (way.devices >= 0) most = std::min(most, way.devices - 1 - begin);
    if (most < least) return false;
    const StageSums& stage = stages_.between(i, j);
    const StageLoad& load = stage.load;
    const auto in = static_cast<double>(load.in_bytes), out = static_cast<double>(load.out_bytes);
    const double behind = j == states_.last() ? 0 : cut_seconds(out, begin);
    if (!(behind <= period_)) return false;
    double rate = 0;
    int64_t limit = q_.inputs.memories.empty() ? q_.memory_bytes : 0;
    for (int64_t m = 1; m <= most; ++m) {
      const int64_t device = at(begin + m - 1);
      rate += 1 / compute_seconds_on(load, q_.inputs, device);
      if (!q_.inputs.memories.empty())
        limit = tighter_limit(limit, q_.inputs.memories[static_cast<size_t>(device)]);
      if (m < least) continue;
      double seconds = 1 / rate;
      const double round = q_.inputs.minibatches_per_update > 0
                               ? static_cast<double>(q_.inputs.minibatches_per_update)
                               : static_cast<double>(m);
      const double sum = stage.sum_bytes * sum_seconds_per_byte(begin, m) +
                         (m > 1 ? all_reduce_latency_seconds(q_.inputs.latency_seconds) : 0);
      seconds += (stage.step_seconds + sum) / round;
      if (!(seconds <= period_)) continue;
      const double before = i == 0 ? 0 : cut_seconds(in, begin + m);
      if (!((before + behind) / static_cast<double>(m) <= period_) || !(before <= period_)) continue;
      const std::optional<bool> recompute = fit(stage, m, after, limit);
      if (!recompute) continue;
      if (*recompute && !(seconds + stage.once_again / rate <= period_)) continue;
      way = {begin + m, skipped, j, *recompute};
      return true;
    }
    return false;
  }

  /// Whether it recomputes; nothing if it does not fit.
  std::optional<bool> fit(const StageSums& stage, int64_t replicas, int64_t later, int64_t limit) const {
    const bool always = q_.recompute == Recompute::kAlways;
    if (limit == 0) return always;
    StageLoad load = stage.load;
    load.recompute = always;
    int64_t depth = assumed_in_flight(q_, later, replicas);
    if (paced_ && !q_.whole_interval) {  // Little's law
      const double least =
          std::ceil(stage.work_behind / (period_ * static_cast<double>(replicas)) * (1 - 1e-9));
      depth = std::min(depth, static_cast<int64_t>(std::max(least, 1.0)));
    }
    const auto fits = [&] { return in_flight_that_fits(load, replicas, depth, limit, q_.inputs) >= depth; };
    if (fits()) return load.recompute;
    if (q_.recompute != Recompute::kWhereNeeded) return std::nullopt;
    load.recompute = true;
    return fits() ? std::optional<bool>(true) : std::nullopt;
  }

  const Question& q_;
  AllStages& stages_;
  const StagePlaces& places_;
  const States& states_;
  const std::vector<int64_t> order_;
  const int64_t least_replicas_, most_replicas_;
  const bool paced_;          // memory is kept for the least depths with which a plan has the period
  const double careful_;      // links between groups are taken to be so many times as slow
  std::vector<double> sums_;  // by begin and replicas
  double period_ = 0;
  std::vector<Way> ways_;  // by place and state
};

std::vector<std::vector<int64_t>> orders(const Question& q) {
  std::vector<int64_t> row(static_cast<size_t>(q.devices));
  std::iota(row.begin(), row.end(), int64_t{0});
  std::vector<std::vector<int64_t>> all = {row};
  const auto add = [&](const std::vector<int64_t>& order) {
    if (std::find(all.begin(), all.end(), order) == all.end()) all.push_back(order);
  };
  if (!q.inputs.devices_differ()) return all;
  add({row.rbegin(), row.rend()});
  if (q.inputs.levels.size() > 1) return all;
  for (const bool fastest_first : {true, false}) {
    std::vector<int64_t> order = row;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      const auto kind = [&](int64_t d) {
        return std::pair(q.inputs.paces[static_cast<size_t>(d)], q.inputs.memories[static_cast<size_t>(d)]);
      };
      const auto ours = kind(a), theirs = kind(b);
      return fastest_first ? ours > theirs : ours < theirs;
    });
    add(order);
  }
  return all;
}

/// The problem's constraints on stages by their number; where pipelines drain, fewer stages are better than
/// the period says, so each of several numbers.
std::vector<StagePlaces> places_of(const Question& q, const States& some, const std::vector<int>& numbers) {
  if (q.places != nullptr) return {q.places->among(numbers)};
  std::vector<StagePlaces> all;
  if (facts_of(q.inputs.weights).drains())
    for (const int64_t most : {2, 3, 4, 6}) {
      StageDemands stages;
      stages.most_stages = most;
      if (most < q.devices) all.emplace_back(some, stages, std::vector<NodeSet>{}, q.least_stages);
    }
  all.emplace_back(some, StageDemands{}, std::vector<NodeSet>{}, q.least_stages);
  return all;
}

}  // namespace

std::vector<Chain> row_seeds(const Question& question) {
  const std::vector<int> numbers = thinned(*question.states, kSomeCuts);
  const States some = some_of(*question.states, numbers);
  const std::vector<StagePlaces> ways_to_number = places_of(question, some, numbers);
  Question few = question;
  few.states = &some;
  few.places = nullptr;
  std::vector<Chain> seeds;
  AllStages stages(few);
  const auto add = [&](const std::vector<int64_t>& row, int64_t least, int64_t most, double careful) {
    for (size_t way = 0; way < ways_to_number.size() * (question.memory_bytes > 0 ? 2 : 1); ++way) {
      const StagePlaces& places = ways_to_number[way % ways_to_number.size()];
      for (Chain& found :
           Row(few, &stages, places, row, least, most, careful, way >= ways_to_number.size()).chains()) {
        const auto used_last =
            *std::max_element(row.end() - static_cast<std::ptrdiff_t>(found.devices()), row.end());
        Chain all = found;
        if (question.all_devices || used_last >= found.devices()) {  // the first stage takes what is left
          FoundStage& first = all.stages.front();
          const auto idle =
              static_cast<std::ptrdiff_t>(row.size()) - static_cast<std::ptrdiff_t>(found.devices());
          first.ranks.insert(first.ranks.end(), row.begin(), row.begin() + idle);
          first.replicas = static_cast<int64_t>(first.ranks.size());
        }
        for (Chain* chain : {&all, &found}) {
          for (FoundStage& stage : chain->stages) {
            stage.from = numbers[static_cast<size_t>(stage.from)];
            stage.to = numbers[static_cast<size_t>(stage.to)];
          }
          seeds.push_back(std::move(*chain));
          if (!question.all_devices) break;
        }
      }
    }
  };
  for (const std::vector<int64_t>& order : orders(question)) {
    // Where devices stay idle they are the last ones.
    for (int64_t devices = question.devices; devices >= 1; devices /= 2) {
      std::vector<int64_t> row;
      for (const int64_t device : order)
        if (device < devices) row.push_back(device);
      for (const double careful : {1.0, 2.0}) {
        for (int64_t least = 1; least <= devices; least *= 2) add(row, least, question.devices, careful);
        add(row, 1, 1, careful);
        if (question.inputs.levels.size() < 2) break;
      }
      if (question.all_devices) break;
    }
  }
  return seeds;
}

}  // namespace pipewright
