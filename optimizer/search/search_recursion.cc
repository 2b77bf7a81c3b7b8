// PipeDream's recursion over two levels: the best pipeline of a server is a device of the level above.
#include <algorithm>

#include "graph/error.h"
#include "optimizer/cost/recursion.h"
#include "optimizer/search/search_levels.h"
#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

constexpr double kImpossible = 1e300;

class Recursion {
 public:
  explicit Recursion(const Question& q)
      : q_(q),
        states_(*q.states),
        size_(states_.size()),
        inner_(q.inputs.levels[0].count),
        outer_(q.inputs.levels[1].count),
        prices_(q.inputs) {
    for (const State& state : states_.states) {
      work_.push_back(state.forward_seconds + state.backward_seconds);
      bytes_.push_back(static_cast<double>(state.parameter_bytes));
      cut_.push_back(static_cast<double>(state.charged_bytes));
    }
    cut_.back() = 0;
    largest_before_ = work_;
    smallest_after_ = work_;
    for (int i = 1; i < size_; ++i) largest_before_[i] = std::max(largest_before_[i], largest_before_[i - 1]);
    for (int i = size_ - 1; i-- > 0;)
      smallest_after_[i] = std::min(smallest_after_[i], smallest_after_[i + 1]);

    const auto table = static_cast<size_t>(size_) * size_;
    later_.assign(inner_ + 1, std::vector<double>(table, kImpossible));
    server_.assign(table, kImpossible);
    for (int k = 0; k < size_; ++k) {
      for (const int j : states_.after(k)) {
        for (int64_t m = 1; m <= inner_; ++m) {
          later_[m][at(j, k)] = prices_.later(
              prices_.inside(least_between(states_, k, j), bytes_[j] - bytes_[k], m), cut_[k], cut_[j], 0, m);
        }
      }
    }
  }

  std::optional<Answer> answer() {
    // The whole model on all servers alike is a plan: what takes longer is in none that is better.
    fill_servers(0);
    achieved_ = prices_.first_above(server_[at(size_ - 1, 0)], bytes_.back() - bytes_[0], outer_, inner_) *
                (1 + 1e-12);
    for (int i = 1; i < size_; ++i) {
      if (may_begin_run(i)) fill_servers(i);
    }
    // The level above, from the front.
    std::vector<std::vector<double>> best(outer_ + 1, std::vector<double>(size_, kImpossible));
    std::vector<std::vector<std::pair<int, int64_t>>> from(
        outer_ + 1, std::vector<std::pair<int, int64_t>>(size_, {-1, 0}));
    for (int k = 0; k < size_; ++k) {
      for (const int j : states_.after(k)) {
        const double period = server_[at(j, k)];
        if (period >= kImpossible) continue;
        const double bytes = bytes_[j] - bytes_[k];
        for (int64_t m = 1; m <= outer_; ++m) {
          if (k == 0) {
            const double alone = prices_.first_above(period, bytes, m, inner_);
            if (alone < best[m][j]) best[m][j] = alone, from[m][j] = {0, m};
            continue;
          }
          const double mine = prices_.later(prices_.above(period, bytes, m), cut_[k], cut_[j], 1, m);
          for (int64_t all = m + 1; all <= outer_; ++all) {
            const double both = std::max(best[all - m][k], mine);
            if (both < best[all][j]) best[all][j] = both, from[all][j] = {k, m};
          }
        }
      }
    }
    if (best[outer_].back() >= kImpossible) return std::nullopt;

    Answer answer;
    answer.period_seconds = best[outer_].back();
    answer.bound_seconds = answer.period_seconds * (1 - kTolerance);
    answer.devices = q_.devices;
    int64_t servers = outer_;
    for (int j = size_ - 1; j > 0;) {
      const auto [k, m] = from[servers][j];
      add_servers(k, j, servers - m, m, &answer);
      servers -= m;
      j = k;
    }
    std::reverse(answer.stages.begin(), answer.stages.end());
    return answer;
  }

 private:
  size_t at(int j, int k) const { return static_cast<size_t>(j) * size_ + k; }

  /// Whether some number of servers could do what comes before the cut, and the others the rest, in the time
  /// achieved.
  bool may_begin_run(int i) const {
    for (int64_t before = 1; before < outer_; ++before) {
      if (work_[i] <= achieved_ * static_cast<double>(before * inner_) &&
          work_.back() - work_[i] <= achieved_ * static_cast<double>((outer_ - before) * inner_))
        return true;
    }
    return false;
  }

  /// Best pipelines of i..j on m devices, for all j and m: by_devices_[m][j]; the whole server goes to
  /// `server_`.
  void fill_servers(int i) {
    by_devices_.assign(inner_ + 1, std::vector<double>(size_, kImpossible));
    // A run from here on may be replicated on all servers, or on all but one.
    const double longest = achieved_ * static_cast<double>(i == 0 ? outer_ : outer_ - 1);
    for (const int j : states_.after(i)) {
      const double work = least_between(states_, i, j);
      for (int64_t m = 1; m <= inner_; ++m) {
        if (work > longest * static_cast<double>(m)) continue;
        double best = std::min(longest, prices_.inside(work, bytes_[j] - bytes_[i], m));
        for (int64_t last = 1; last < m; ++last) {
          const double* later = &later_[last][at(j, 0)];
          const double* before = by_devices_[m - last].data();
          // Neither side of a better one has more work than it can do in that time.
          const double least = work_[j] - best * static_cast<double>(last);
          const double most = work_[i] + best * static_cast<double>(m - last);
          const auto begin = std::max<int64_t>(
              i + 1, std::lower_bound(largest_before_.begin(), largest_before_.end(), least * (1 - 1e-12)) -
                         largest_before_.begin());
          const auto end = std::min<int64_t>(
              j, std::upper_bound(smallest_after_.begin(), smallest_after_.end(), most * (1 + 1e-12)) -
                     smallest_after_.begin());
          for (int64_t k = begin; k < end; ++k) best = std::min(best, std::max(before[k], later[k]));
        }
        by_devices_[m][j] = best;
      }
      server_[at(j, i)] = by_devices_[inner_][j];
    }
  }

  void add_servers(int i, int end, int64_t first_server, int64_t servers, Answer* answer) {
    fill_servers(i);
    int64_t devices = inner_;
    for (int j = end; j > i;) {
      int from = i;
      int64_t replicas = devices;
      const double best = by_devices_[devices][j];
      if (prices_.inside(least_between(states_, i, j), bytes_[j] - bytes_[i], devices) > best) {
        for (int k = i + 1; k < j && from == i; ++k) {
          for (int64_t last = 1; last < devices && from == i; ++last) {
            if (std::max(by_devices_[devices - last][k], later_[last][at(j, k)]) <= best) {
              from = k;
              replicas = last;
            }
          }
        }
        PW_CHECK(from > i, "the table has a way to each of its values");
      }
      FoundStage stage{from, j, replicas * servers};
      for (int64_t r = 0; r < replicas; ++r) {
        for (int64_t s = 0; s < servers; ++s)
          stage.ranks.push_back((first_server + s) * inner_ + devices - replicas + r);
      }
      answer->stages.push_back(stage);
      devices -= replicas;
      j = from;
    }
  }

  const Question& q_;
  const States& states_;
  int size_;
  int64_t inner_;
  int64_t outer_;
  RecursionPrices prices_;
  std::vector<double> work_;
  std::vector<double> bytes_;
  std::vector<double> cut_;
  std::vector<double> largest_before_;
  std::vector<double> smallest_after_;
  std::vector<std::vector<double>> later_;  ///< by devices, then by (end, begin): a stage with one before it
  std::vector<std::vector<double>> by_devices_;  ///< by devices, then by end
  std::vector<double> server_;                   ///< by (end, begin)
  double achieved_ = kImpossible;                ///< period of a plan
};

}  // namespace

std::optional<Answer> search_recursion(const Question& q) { return Recursion(q).answer(); }

}  // namespace pipewright::search_detail
