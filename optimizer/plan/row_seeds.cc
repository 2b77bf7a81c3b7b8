#include "optimizer/plan/row_seeds.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "optimizer/cost/formulas.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/search/few_cuts.h"
#include "optimizer/search/stage_places.h"

namespace pipewright {
namespace {

constexpr int kSomeCuts = 112, kCutsOfDevice = 4;  // the more of the two
constexpr double kNear = 2e-2;                     // of the period: moves follow
constexpr double kRowRounding = 1e-9;              // of sums in another order
constexpr double kLonger[] = {1.1, 1.25, 1.5, 2, 3};
constexpr double kRowPairSteps = 4, kRowReplicaSteps = 7, kSumSteps = 200;  // counted_work.h

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
  explicit AllStages(const Problem& q) : q_(q), sums_(size() * size()) {}
  const StageSums& between(int i, int j, CountedWork* work) {
    std::unique_ptr<StageSums>& sums = sums_[static_cast<size_t>(i) * size() + static_cast<size_t>(j)];
    if (sums) return *sums;
    work->spend(kSumSteps);
    sums = std::make_unique<StageSums>();
    sums->load = load_between(*q_.states, i, j);
    sums->load.workspace = workspace_between(*q_.states, i, j);
    sums->step_seconds = step_seconds(sums->load, q_.inputs);
    sums->sum_bytes = exchanged_bytes(sums->load, q_.inputs);
    sums->work_behind = least_between(*q_.states, i, q_.states->last());
    const double seconds = sums->load.compute_seconds();
    sums->once_again = seconds > 0 ? sums->load.forward_seconds / seconds : 0;
    return *sums;
  }

 private:
  size_t size() const { return static_cast<size_t>(q_.states->size()); }
  const Problem& q_;
  std::vector<std::unique_ptr<StageSums>> sums_;
};

/// For one order of the devices: the first stage's are the first.
class Row {
 public:
  Row(const Problem& q, AllStages* stages, const StagePlaces& places, const RowProblem& row, bool paced,
      CountedWork* work)
      : q_(q),
        stages_(*stages),
        places_(places),
        states_(*q.states),
        costs_(q.inputs),
        row_(row),
        paced_(paced),
        work_(*work),
        order_(row.order),
        head_(size() - row.tail),
        sums_((order_.size() + 1) * (order_.size() + 1), 0),
        paces_{0},
        alike_(order_.size()) {
    for (int64_t behind = 0; behind < size(); ++behind)
      paces_.push_back(paces_.back() + static_cast<double>(copies_of(behind)) * pace(at(behind)));
    for (int64_t behind = size(); behind-- > 0;) {
      const bool ends = behind + 1 == size() || !q.inputs.same_kind(at(behind), at(behind + 1));
      alike_[static_cast<size_t>(behind)] = ends ? 1 : 1 + alike_[static_cast<size_t>(behind) + 1];
    }
  }

  /// Of small periods, the smallest last found first tried; none if the memory holds none. What links and
  /// waiting make of a chain is not known here, so chains of longer periods, which ask less of them, are too.
  std::vector<Chain> chains() {
    std::vector<Chain> found;
    const auto tried = [&](double period) {
      if (!work_.has()) return false;
      std::optional<Chain> chain = within(period);
      if (chain) found.push_back(std::move(*chain));
      return chain.has_value();
    };
    if (q_.memory_bytes > 0 && !tried(kInfeasible)) return found;
    double low = states_.states.back().least_seconds / paces_.back(), high = kInfeasible;
    for (double step = 0.02; high == kInfeasible && step < 1e6 && work_.has(); step *= 2)
      (tried(low * (1 + step)) ? high : low) = low * (1 + step);
    if (high == kInfeasible) return found;
    for (const double longer : kLonger) tried(longer * high);
    while (high - low > kNear * high && work_.has()) {
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
    const int64_t copies = copies_of(begin);
    if (m * copies < 2) return 0;
    double& known = sums_[static_cast<size_t>(begin * (size() + 1) + m)];
    if (known > 0) return known;
    std::vector<int64_t> positions;
    for (int64_t copy = 0; copy < copies; ++copy)
      for (int64_t at = begin; at < begin + m; ++at) positions.push_back(copy * head_ + at);
    known = costs_.exchange_seconds_per_byte(positions, row_.careful);
    return known;
  }

  /// What a stage on devices [begin, begin + m) of the row takes for a minibatch of the busiest link between
  /// groups, with messages from and to the rest of the row: those of its replicas that are in another group
  /// than the devices beside it.
  double common_link_seconds(int64_t begin, int64_t m, double in_bytes, double out_bytes, double sum_bytes,
                             double round) const {
    double most = 0;
    int64_t group = 1;
    for (size_t l = 0; l + 1 < q_.inputs.levels.size(); ++l) {
      group *= q_.inputs.levels[l].count;
      const auto within = [&](int64_t device) {  // of the stage's, as many as are in the device's group
        const int64_t first = std::clamp(device, int64_t{0}, size() - 1) / group * group;
        return std::max<int64_t>(0, std::min(begin + m, first + group) - std::max(begin, first));
      };
      const int64_t with_next = within(begin - 1), with_before = within(begin + m);
      const auto part = [&](int64_t inside) {
        return 1 - static_cast<double>(inside) / static_cast<double>(m);
      };
      const double crossing = std::max(crossing_part(with_next, m), crossing_part(with_before, m));
      const double messages = out_bytes * part(with_next) + in_bytes * part(with_before);
      const double bytes =
          messages / static_cast<double>(copies_of(begin)) + 2 * crossing * sum_bytes / round;
      most = std::max(most, link_seconds(bytes, q_.inputs.levels[l + 1].bandwidth_bytes_per_second));
    }
    return row_.careful * most;
  }

  double pace(int64_t device) const {
    return q_.inputs.paces.empty() ? 1 : q_.inputs.paces[static_cast<size_t>(device)];
  }
  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  /// Of the device that comes after so many from the end.
  int64_t copies_of(int64_t behind) const { return behind < row_.tail ? 1 : row_.copies; }
  /// The last so many of the row, all copies of them.
  int64_t devices(int64_t last) const {
    const int64_t of_tail = std::min(last, row_.tail);
    return of_tail + (last - of_tail) * row_.copies;
  }

  /// Of devices that come after so many from the end, and of all copies.
  double pace_between(int64_t begin, int64_t end) const {
    return paces_[static_cast<size_t>(end)] - paces_[static_cast<size_t>(begin)];
  }

  std::optional<Chain> within(double period) {
    period_ = period;
    ways_.assign(static_cast<size_t>(states_.size() * (places_.count() + 1)), {});
    for (int64_t place = 0; place <= places_.count(); ++place)
      if (places_.ends(place) && (place == places_.count() || places_.begins(place, states_.last())))
        way(place, states_.last()).devices = 0;
    for (int i = states_.last() - 1; i >= 0; --i) {
      // The rest of the devices is needed for what comes before.
      const double before =
          states_.states[static_cast<size_t>(i)].least_seconds / period * (1 - kRowRounding);
      const int64_t most =
          std::upper_bound(paces_.begin(), paces_.end(), paces_.back() - before) - paces_.begin() - 1;
      for (int64_t place = 0; place < places_.count(); ++place) {
        if (!places_.begins(place, i)) continue;
        for (const int j : states_.after(i)) {
          const int64_t behind = way(places_.next(place), j).devices;
          if (behind >= 0 && behind < most) try_stage(place, i, j, most);
        }
      }
    }
    if (way(0, 0).devices < 0) return std::nullopt;
    Chain chain;
    int64_t place = 0, begin = size() - way(0, 0).devices;
    for (int i = 0; i != states_.last();) {
      const Way& way = this->way(place, i);
      place = places_.next(place);
      const int64_t end = size() - this->way(place, way.next).devices - way.skipped;
      FoundStage stage{i, way.next, end - begin};
      for (int64_t copy = 0; copy < copies_of(size() - end); ++copy)
        for (int64_t at = begin; at < end; ++at)
          stage.ranks.push_back(order_[static_cast<size_t>(at)] + copy * head_);
      stage.replicas = static_cast<int64_t>(stage.ranks.size());
      stage.recompute = way.recompute;
      chain.stages.push_back(std::move(stage));
      begin = end;
      i = way.next;
    }
    return chain;
  }

  Way& way(int64_t place, int state) { return ways_[static_cast<size_t>(place * states_.size() + state)]; }

  /// The suffix that begins with stage i..j, if it takes fewer devices than what is known, and no more than
  /// `most`.
  void try_stage(int64_t place, int i, int j, int64_t most) {
    work_.spend(kRowPairSteps);
    if (q_.least_stages > 1 && i == 0 && j == states_.last()) return;
    const int64_t after = this->way(places_.next(place), j).devices;
    const bool placed = place_stage(place, i, j, after, 0, most);
    if (after == 0) return;
    // Where it would stand in two groups, in the next one alone.
    int64_t group = 1;
    for (size_t l = 0; l + 1 < q_.inputs.levels.size(); ++l) {
      group *= q_.inputs.levels[l].count;
      const int64_t skipped = (group - after % group) % group;
      if (skipped > 0 && after + skipped < most) place_stage(place, i, j, after, skipped, most);
    }
    if (placed) return;
    // On devices of another kind, where the next ones do not do.
    const int64_t alike = alike_[static_cast<size_t>(after)];
    if (after + alike < most) place_stage(place, i, j, after, alike, most);
  }

  /// The device that comes after so many from the end.
  int64_t at(int64_t behind) const { return order_[static_cast<size_t>(size() - 1 - behind)]; }

  bool place_stage(int64_t place, int i, int j, int64_t after, int64_t skipped, int64_t most_used) {
    Way& way = this->way(place, i);
    const int64_t given = places_.replicas(place), begin = after + skipped, copies = copies_of(begin);
    const int64_t least = given > 0 ? given : row_.least_replicas;
    int64_t most = std::min(most_used - begin,
                            given > 0 ? given : std::min(row_.most_replicas, q_.most_replicas / copies));
    if (begin < row_.tail) most = std::min(most, row_.tail - begin);
    if (way.devices >= 0) most = std::min(most, way.devices - 1 - begin);
    if (most < least) return false;
    const double slowest = least_between(states_, i, j) / period_ * (1 - kRowRounding);
    if (pace_between(begin, begin + most) < slowest) return false;
    const StageSums& stage = stages_.between(i, j, &work_);
    const StageLoad& load = stage.load;
    const auto in = static_cast<double>(load.in_bytes), out = static_cast<double>(load.out_bytes);
    const double behind = j == states_.last() ? 0 : message_seconds(out, q_.inputs);
    const double before = i == 0 ? 0 : message_seconds(in, q_.inputs);
    double rate = 0;
    int64_t limit = q_.inputs.memories.empty() ? q_.memory_bytes : 0;
    for (int64_t m = 1; m <= most; ++m) {
      const int64_t device = at(begin + m - 1);
      if (!q_.inputs.memories.empty())
        limit = tighter_limit(limit, q_.inputs.memories[static_cast<size_t>(device)]);
      if (!q_.inputs.classes.empty()) rate += 1 / compute_seconds_on(load, q_.inputs, device);
      if (m < least || pace_between(begin, begin + m) < slowest) continue;
      work_.spend(kRowReplicaSteps);
      const auto times = static_cast<double>(copies);
      if (q_.inputs.classes.empty()) rate = pace_between(begin, begin + m) / times / load.compute_seconds();
      double seconds = 1 / (times * rate);
      const auto round = static_cast<double>(minibatches_of_update(m * copies, devices(begin), q_.inputs));
      const double sum = stage.sum_bytes * sum_seconds_per_byte(begin, m) +
                         (m * copies > 1 ? all_reduce_latency_seconds(q_.inputs.latency_seconds) : 0);
      seconds += (stage.step_seconds + sum) / round;
      if (!(seconds <= period_)) continue;
      // A copy has so many periods for each of its minibatches.
      if (!((before + behind) / static_cast<double>(m) <= times * period_)) continue;
      if (!(common_link_seconds(begin, m, i == 0 ? 0 : in, j == states_.last() ? 0 : out, stage.sum_bytes,
                                round) <= period_))
        continue;
      const std::optional<bool> recompute = fit(stage, m * copies, devices(after), limit);
      if (!recompute) continue;
      if (*recompute && !(seconds + stage.once_again / (times * rate) <= period_)) continue;
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
          std::ceil(stage.work_behind / (period_ * static_cast<double>(replicas)) * (1 - kRowRounding));
      depth = std::min(depth, static_cast<int64_t>(std::max(least, 1.0)));
    }
    const auto fits = [&] { return in_flight_that_fits(load, replicas, depth, limit, q_.inputs) >= depth; };
    if (fits()) return load.recompute;
    if (q_.recompute != Recompute::kWhereNeeded) return std::nullopt;
    load.recompute = true;
    return fits() ? std::optional<bool>(true) : std::nullopt;
  }

  const Problem& q_;
  AllStages& stages_;
  const StagePlaces& places_;
  const States& states_;
  const LevelCosts costs_;
  const RowProblem& row_;
  const bool paced_;  // memory is kept for the least depths with which a plan has the period
  CountedWork& work_;
  const std::vector<int64_t>& order_;
  const int64_t head_;          // devices of a group before the tail
  std::vector<double> sums_;    // by begin and replicas
  std::vector<double> paces_;   // of so many from the end, together
  std::vector<int64_t> alike_;  // from the one after so many from the end on, of its kind
  double period_ = 0;
  std::vector<Way> ways_;  // by place and state
};

/// All devices, those of the stages first, as these come upon them.
std::vector<int64_t> order_of(const std::vector<FoundStage>& stages, int64_t devices) {
  std::vector<int64_t> order;
  std::vector<bool> met(static_cast<size_t>(devices));
  const auto meet = [&](int64_t device) {
    if (!met[static_cast<size_t>(device)]) order.push_back(device);
    met[static_cast<size_t>(device)] = true;
  };
  for (const FoundStage& stage : stages)
    for (const int64_t device : stage.ranks)
      if (device < devices) meet(device);
  for (int64_t device = 0; device < devices; ++device) meet(device);
  return order;
}

std::vector<std::vector<int64_t>> orders(const Problem& q, const std::vector<Solution>& known) {
  std::vector<std::vector<int64_t>> all;
  const auto add = [&](const std::vector<int64_t>& order) {
    if (std::find(all.begin(), all.end(), order) == all.end()) all.push_back(order);
  };
  const bool differ = q.inputs.devices_differ(), one_level = q.inputs.levels.size() < 2;
  if (differ && one_level)
    for (const Solution& solution : known) add(order_of(solution.stages, q.devices));
  add(order_of({}, q.devices));
  if (!differ) return all;
  for (size_t i = 0, count = all.size(); i < count; ++i) add({all[i].rbegin(), all[i].rend()});
  if (!one_level || q.inputs.speeds.empty()) return all;
  for (const bool fastest_first : {true, false}) {
    std::vector<int64_t> order = all.front();
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
std::vector<StagePlaces> places_of(const Problem& q, const States& some, const std::vector<int>& numbers) {
  if (q.places != nullptr) return {q.places->among(numbers)};
  std::vector<StagePlaces> all;
  if (facts_of(q.inputs.weights).drains())
    for (const int64_t most : {2, 3, 4, 6}) {
      StageConstraints stages;
      stages.most_stages = most;
      if (most < q.devices) all.emplace_back(some, stages, std::vector<NodeSet>{}, q.least_stages);
    }
  all.emplace_back(some, StageConstraints{}, std::vector<NodeSet>{}, q.least_stages);
  return all;
}

}  // namespace

struct RowSearch::Parts {
  explicit Parts(const Problem& problem)
      : numbers(
            thinned(*problem.states, std::max(kSomeCuts, kCutsOfDevice * static_cast<int>(problem.devices)))),
        some(some_of(*problem.states, numbers)),
        few(problem),
        all(problem),
        ways_to_number(places_of(problem, some, numbers)),
        stages((few.states = &some, few.places = nullptr, few)) {}

  const std::vector<int> numbers;  // of the cuts
  const States some;
  Problem few;  // along these
  const Problem& all;
  const std::vector<StagePlaces> ways_to_number;
  AllStages stages;
};

RowSearch::RowSearch(const Problem& problem) : parts_(std::make_unique<Parts>(problem)) {}
RowSearch::~RowSearch() = default;

std::vector<Chain> RowSearch::chains(const RowProblem& asked, CountedWork* work) {
  const Problem& problem = parts_->all;
  const std::vector<int>& numbers = parts_->numbers;
  const std::vector<StagePlaces>& ways_to_number = parts_->ways_to_number;
  std::vector<Chain> found_chains;
  const std::vector<int64_t>& row = asked.order;
  const auto numbered = [&](Chain chain) {
    for (FoundStage& stage : chain.stages) {
      stage.from = numbers[static_cast<size_t>(stage.from)];
      stage.to = numbers[static_cast<size_t>(stage.to)];
    }
    return chain;
  };
  for (size_t way = 0; way < ways_to_number.size() * (problem.memory_bytes > 0 ? 2 : 1); ++way) {
    const StagePlaces& places = ways_to_number[way % ways_to_number.size()];
    const bool paced = way >= ways_to_number.size();
    for (Chain& found : Row(parts_->few, &parts_->stages, places, asked, paced, work).chains()) {
      if (asked.copies > 1) {
        found_chains.push_back(numbered(std::move(found)));
        continue;
      }
      const int64_t used = found.devices();
      const auto used_last = *std::max_element(row.end() - static_cast<std::ptrdiff_t>(used), row.end());
      Chain all = found;
      const bool has_room = problem.all_devices || used_last >= used;
      if (has_room) {  // the first stage takes what is left
        FoundStage& first = all.stages.front();
        first.ranks.insert(first.ranks.end(), row.begin(), row.end() - static_cast<std::ptrdiff_t>(used));
        first.replicas = static_cast<int64_t>(first.ranks.size());
      }
      if (has_room &&
          !problem.inputs.devices_differ()) {  // and as it is: turned round, it is on the first devices
        for (FoundStage& stage : found.stages)
          for (int64_t& rank : stage.ranks) rank = std::ssize(row) - 1 - rank;
      }
      for (Chain* chain : {&all, &found}) {
        found_chains.push_back(numbered(std::move(*chain)));
        if (!problem.all_devices && problem.inputs.devices_differ()) break;
      }
    }
  }
  return found_chains;
}

std::vector<Chain> row_seeds(const Problem& problem, const std::vector<Solution>& known, CountedWork* work) {
  RowSearch search(problem);
  std::vector<Chain> seeds;
  const auto add = [&](const RowProblem& asked) {
    for (Chain& chain : search.chains(asked, work)) seeds.push_back(std::move(chain));
  };
  const std::vector<std::vector<int64_t>> all = orders(problem, known);
  const auto along_rows = [&](int64_t devices, double careful) {
    const auto along_all = [&](int64_t least_replicas, int64_t most_replicas) {
      for (const std::vector<int64_t>& order : all) {
        RowProblem asked;
        for (const int64_t device : order)
          if (device < devices) asked.order.push_back(device);
        asked.careful = careful;
        asked.least_replicas = least_replicas;
        asked.most_replicas = most_replicas;
        add(asked);
      }
    };
    along_all(1, 1);
    for (int64_t least = 1; least <= devices; least *= 2) along_all(least, problem.devices);
  };
  const auto in_groups = [&](double careful) {
    RowProblem asked;
    asked.careful = careful;
    asked.most_replicas = problem.devices;
    int64_t group = 1;
    for (size_t l = 0; l + 1 < problem.inputs.levels.size(); ++l) {
      group *= problem.inputs.levels[l].count;
      for (int64_t device = std::ssize(asked.order); device < group; ++device) asked.order.push_back(device);
      for (asked.copies = problem.devices / group; asked.copies > 1; asked.copies /= 2) add(asked);
      // What comes last may be heavy with parameters: in groups of its own.
      RowProblem tailed = asked;
      for (tailed.tail = group; 2 * tailed.tail < problem.devices; tailed.tail *= 2) {
        tailed.copies = (problem.devices - tailed.tail) / group;
        tailed.order.resize(static_cast<size_t>(group));
        for (int64_t device = problem.devices - tailed.tail; device < problem.devices; ++device)
          tailed.order.push_back(device);
        add(tailed);
      }
    }
  };
  const bool alike = !problem.inputs.devices_differ() && problem.places == nullptr;
  for (const double careful : {1.0, 2.0}) {
    along_rows(problem.devices, careful);
    if (alike) in_groups(careful);
    if (problem.inputs.levels.size() < 2) break;
  }
  // Where devices stay idle they are the last ones.
  for (int64_t devices = problem.devices / 2; !problem.all_devices && devices >= 1; devices /= 2) {
    for (const double careful : {1.0, 2.0}) {
      along_rows(devices, careful);
      if (problem.inputs.levels.size() < 2) break;
    }
  }
  return seeds;
}

}  // namespace pipewright
