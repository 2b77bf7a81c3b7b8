#include "optimizer/search/row_search.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/search/few_cuts.h"
#include "optimizer/search/placement.h"
#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

constexpr int kSomeCuts = 64;
constexpr double kRoughProof = 1e-2;  // of the period, among them
constexpr double kRowProof = 1e-3;
constexpr int kMostPlaced = 200;  // stages tried on their devices, for each cut and period
// Steps (counted_work.h).
constexpr double kPairSteps = 2, kPlaceSteps = 60, kReplicaSteps = 2, kShareSteps = 4;

/// One period after the other.
class RowTable {
 public:
  RowTable(const Question& q, int64_t least_replicas, CountedWork* work)
      : q_(q), placement_(q, true), least_replicas_(least_replicas), work_(work), labels_(size(q)) {
    pace_before_.push_back(0);
    for (int64_t p = 0; p < q.devices; ++p) {
      const auto device = static_cast<size_t>(q.devices - 1 - p);
      pace_before_.push_back(pace_before_.back() + (q.inputs.paces.empty() ? 1 : q.inputs.paces[device]));
    }
    const LevelCosts& costs = placement_.costs();
    for (int64_t m = 0; m <= q.devices; ++m) {
      const double turns = static_cast<double>(q.inputs.speeds.empty() ? 1 : kMostShares) *
                           static_cast<double>(std::max<int64_t>(m, 1));
      exchange_per_byte_.push_back(m > 1 ? q_.inputs.exchange_factor * costs.exchange_seconds_per_byte(m, 0)
                                         : 0);
      updates_per_minibatch_.push_back(1 / costs.minibatches_of_update(turns));
    }
    for (const State& state : q.states->states) {
      work_before_.push_back(state.least_seconds);
      const bool end = message_seconds_.empty() || state.done.all();
      message_seconds_.push_back(
          end ? 0 : pipewright::message_seconds(static_cast<double>(state.cut_bytes), q.inputs));
    }
  }

  /// No stages take less.
  double least_period() const { return work_before_.back() / pace_before_.back(); }

  std::optional<Answer> within(double period) {
    placement_.set_period(period);
    period_ = period;
    const int last = q_.states->last();
    std::fill(labels_.begin(), labels_.end(), std::nullopt);
    labels_[static_cast<size_t>(last)].emplace();
    for (int i = last - 1; i >= 0; --i) {
      if (!work_->has()) return std::nullopt;
      find_label(i);
    }
    return labels_[0] ? std::optional<Answer>(answer()) : std::nullopt;
  }

 private:
  static size_t size(const Question& q) { return static_cast<size_t>(q.states->size()); }
  double pace(int64_t begin, int64_t end) const {
    return pace_before_[static_cast<size_t>(end)] - pace_before_[static_cast<size_t>(begin)];
  }
  double seconds_between(int i, int j) const {
    return work_before_[static_cast<size_t>(j)] - work_before_[static_cast<size_t>(i)];
  }

  /// Not more than the period of a stage, if its replicas shared the work as it suits them.
  double least_period_of(int i, int j, int64_t begin, int64_t replicas) const {
    const State &from = q_.states->states[static_cast<size_t>(i)],
                &to = q_.states->states[static_cast<size_t>(j)];
    const auto m = static_cast<size_t>(replicas);
    const auto bytes = static_cast<double>(to.trainable_bytes - from.trainable_bytes);
    const double once = step_seconds(bytes, q_.inputs) + bytes * exchange_per_byte_[m];
    const double messages =
        message_seconds_[static_cast<size_t>(i)] + message_seconds_[static_cast<size_t>(j)];
    return std::max(seconds_between(i, j) / pace(begin, begin + replicas) + once * updates_per_minibatch_[m],
                    messages / static_cast<double>(replicas));
  }

  /// Fewest replicas from `least` to `most` for which that is within the period; 0: there are none.
  int64_t fewest_replicas(int i, int j, int64_t begin, int64_t least, int64_t most) const {
    const double period = period_ * (1 + kTolerance);
    const auto within = [&](int64_t m) { return least_period_of(i, j, begin, m) <= period; };
    if (least == 1 && most >= 1 && within(1)) return 1;
    least = std::max<int64_t>(least, 2);
    if (least > most || !within(most)) return 0;
    return least_that(least, most, within);  // from 2 on it never grows with them
  }

  /// Of all ways to begin the suffix from state `i`, by fewest devices, the first that is within the period.
  void find_label(int i) {
    ways_.assign(static_cast<size_t>(q_.devices) + 1, {});
    const int64_t room = most_devices_behind(i);
    int pairs = 0;
    for (const int j : q_.states->after(i)) {
      ++pairs;
      const std::optional<Label>& after = labels_[static_cast<size_t>(j)];
      if (!after || !stage_allowed(q_, i, j)) continue;
      const int64_t most = std::min(room - after->devices, q_.most_replicas);
      const int64_t replicas = fewest_replicas(i, j, after->devices, least_replicas_, most);
      if (replicas > 0) ways_[static_cast<size_t>(after->devices + replicas)].push_back(j);
    }
    work_->spend(kPairSteps * pairs);
    int placed = 0;
    for (int64_t end = 1; end <= room; ++end) {
      // Those that fail here are tried with more devices.
      std::vector<int> here = std::move(ways_[static_cast<size_t>(end)]);
      for (const int j : here) {
        if (++placed > kMostPlaced) return;
        const Label& after = *labels_[static_cast<size_t>(j)];
        const int64_t replicas = end - after.devices;
        work_->spend(kPlaceSteps + kReplicaSteps * static_cast<double>(replicas) +
                     (q_.inputs.speeds.empty() ? 0 : kShareSteps * static_cast<double>(replicas * replicas)));
        if (std::optional<Label> label = placement_.place(placement_.stage(i, j), after, replicas)) {
          labels_[static_cast<size_t>(i)] = std::move(label);
          return;
        }
        const int64_t more = end + std::max<int64_t>(1, replicas / 8);
        if (more <= room && more - after.devices <= q_.most_replicas)
          ways_[static_cast<size_t>(more)].push_back(j);
      }
    }
  }

  /// The devices after these are needed for what comes before.
  int64_t most_devices_behind(int i) const {
    const double wanted =
        pace_before_.back() - work_before_[static_cast<size_t>(i)] / period_ * (1 - kTolerance);
    return std::upper_bound(pace_before_.begin(), pace_before_.end(), wanted) - pace_before_.begin() - 1;
  }

  Answer answer() const {
    Answer answer;
    answer.exact = false;
    std::vector<StageLoad> loads;
    std::vector<Stage> stages;
    for (int i = 0; i != q_.states->last();) {
      const Label& label = *labels_[static_cast<size_t>(i)];
      Stage stage;
      for (int64_t r = label.replicas; r-- > 0;) stage.ranks.push_back(q_.devices - 1 - (label.begin + r));
      stage.shares.assign(label.shares.rbegin(), label.shares.rend());
      if (std::all_of(stage.shares.begin(), stage.shares.end(), [](int64_t s) { return s == 1; }))
        stage.shares.clear();
      answer.stages.push_back({i, label.next, label.replicas, stage.ranks, stage.shares, label.recompute});
      answer.devices += label.replicas;
      loads.push_back(load_between(*q_.states, i, label.next));
      loads.back().recompute = label.recompute;
      stages.push_back(std::move(stage));
      i = label.next;
    }
    answer.period_seconds = price_placed(loads, stages, q_.inputs).total_seconds();
    return answer;
  }

  const Question& q_;
  Placement placement_;
  int64_t least_replicas_;
  CountedWork* work_;
  double period_ = 0;
  std::vector<std::optional<Label>> labels_;  // by state
  std::vector<std::vector<int>> ways_;        // by the devices then used: states where the stage ends
  std::vector<double> pace_before_;           // by position in the row, last stage first
  std::vector<double> work_before_;           // by state
  std::vector<double> message_seconds_;       // by state
  std::vector<double> exchange_per_byte_, updates_per_minibatch_;  // by replicas
};

/// Between a period that is too short and one that was achieved.
std::optional<Answer> bisected(const Question& q, int64_t least_replicas, double most_seconds, double proof,
                               CountedWork* work) {
  RowTable table(q, least_replicas, work);
  std::optional<Answer> best;
  double low = table.least_period();
  double high = most_seconds;
  if (low >= high) return std::nullopt;
  const auto tried = [&](double period) {
    std::optional<Answer> found = table.within(period);
    if (!found || found->period_seconds >= high) {
      low = std::max(low, period);
      return false;
    }
    high = found->period_seconds;
    best = std::move(found);
    return true;
  };
  if (high == kNoLimit) {
    // Whether the memory holds any; then from below: a long period has many ways, a short one few.
    if (!tried(kNoLimit)) return std::nullopt;
    const double from = low;
    for (double step = 0.02; from * (1 + step) < high && work->has(); step *= 2)
      if (tried(from * (1 + step))) break;
  }
  while (high - low > proof * high && work->has()) tried(low + (high - low) / 2);
  return best;
}

}  // namespace
}  // namespace pipewright::search_detail

namespace pipewright {

namespace {

/// There is a link, if only one.
Question with_levels(Question q) {
  if (q.inputs.levels.empty())
    q.inputs.levels = {{q.devices, q.inputs.bandwidth_bytes_per_second, q.inputs.latency_seconds, false}};
  return q;
}

}  // namespace

std::optional<Answer> rough_row_answer(const Question& question, int64_t least_replicas, CountedWork* work) {
  using namespace search_detail;
  Question q = with_levels(question);
  const std::vector<int> some = thinned(*q.states, kSomeCuts);
  const States states = some_of(*q.states, some);
  q.states = &states;
  std::optional<Answer> found = bisected(q, least_replicas, kNoLimit, kRoughProof, work);
  if (found) found = named_as(some, std::move(*found));
  return found;
}

std::optional<Answer> row_answer(const Question& question, int64_t least_replicas, double most_seconds,
                                 CountedWork* work) {
  using namespace search_detail;
  return bisected(with_levels(question), least_replicas, most_seconds, kRowProof, work);
}

}  // namespace pipewright
