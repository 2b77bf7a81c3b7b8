#include "optimizer/search_levels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "graph/limits.h"
#include "optimizer/levels.h"
#include "optimizer/recursion.h"
#include "optimizer/search_stage.h"

namespace pipewright::search_detail {
namespace {

constexpr size_t kMostLinks = 4;  // kinds of links in common
constexpr double kProof = 1e-12;
constexpr double kRounding = 1e-6;
/// Beyond so many labels tried per period the search looks at fewer placements.
constexpr double kMostTries = 3e8;
constexpr int kNearCuts = 40;     // then: a stage ends at one of the next cuts, or with the model
constexpr size_t kFewLabels = 4;  // then: of each state those of fewest devices
constexpr int64_t kFewMore = 3;   // then: replicas beyond those needed

using Loads = std::array<double, kMostLinks>;

/// A way to run the model from a state to its end.
struct Label {
  int64_t devices = 0;
  int64_t first_replicas = 0;  ///< of the first stage; in a server, inside a block
  int64_t copies = 1;          ///< servers of the block that is being filled; 1: none is
  int64_t filled = 0;          ///< devices of each of its servers
  bool replicated = false;
  std::vector<int64_t> shares;  ///< of the first stage's replicas, where devices differ
  Loads loads{};  ///< of the links of the groups that are half filled, without the cut before the first stage
  // The first stage, and where it continues.
  int next = -1;
  int rest = -1;
  int64_t begin = 0;
  int64_t replicas = 0;  ///< in each copy
  int64_t stage_copies = 1;
  bool recompute = false;
};

/// Numbers of a stage that do not depend on its place.
struct Priced {
  StageLoad load;
  double step = 0;
  double gradient_bytes = 0;
  double in_bytes = 0;
  double out_bytes = 0;
};

class PlacedSearch {
 public:
  PlacedSearch(const Question& q, bool reversed)
      : q_(q), states_(*q.states), costs_(*q.model, q.inputs), reversed_(reversed) {
    const auto& levels = q.inputs.levels;
    const auto& links = costs_.links();
    PW_CHECK_LE(links.size(), kMostLinks);
    largest_ = costs_.sizes().back();
    // A link of all devices is never full, devices that differ have no period.
    const bool all_alike = q.inputs.speeds.empty() && q.inputs.memories.empty();
    if (levels.back().shared || !all_alike || q.all_devices) largest_ = q.devices;
    if (levels.size() == 2 && !levels[0].shared && !levels[1].shared && all_alike && q.most_replicas > 1) {
      server_ = costs_.sizes()[1];
      most_copies_ = q.devices / server_;
    }
    // What no placement escapes: exchange and cuts at the speed of the fastest link.
    double fastest_link = 0;
    for (const TopologyLevel& level : levels)
      fastest_link = std::max(fastest_link, level.bandwidth_bytes_per_second);
    for (int i = 0; i < states_.size(); ++i) {
      const StageLoad before = load_between(states_, 0, i);
      exchange_.push_back((costs_.half_duplex() ? 4 : 2) * costs_.gradient_bytes(before) / fastest_link);
      const bool counts = !costs_.half_duplex() && !levels[0].shared && i > 0 && i < states_.last();
      const double cut =
          counts ? static_cast<double>(states_.states[i].charged_bytes) / levels[0].bandwidth_bytes_per_second
                 : 0;
      cut_in_.push_back(cut);
      cut_out_.push_back(cut);
    }
    work_.resize(states_.size());
    for (int i = 0; i < states_.size(); ++i) work_[i] = compute_between(states_, 0, i);
    fastest_ = 1;
    speed_sum_ = static_cast<double>(q.devices);
    if (!q.inputs.speeds.empty()) {
      fastest_ = *std::max_element(q.inputs.speeds.begin(), q.inputs.speeds.end());
      speed_sum_ = std::accumulate(q.inputs.speeds.begin(), q.inputs.speeds.end(), 0.0);
    }
    const double tries = std::pow(static_cast<double>(states_.size()), 2) * static_cast<double>(largest_) *
                         std::sqrt(static_cast<double>(q.devices));
    limited_ = tries > kMostTries;
  }

  bool limited() const { return limited_; }
  double least_period() const { return work_.back() / speed_sum_ * (1 - kTolerance); }

  std::optional<Answer> within(double period) {
    period_ = period;
    per_period_ = period > 0 ? 1 / period : 1e200;
    labels_.assign(states_.size(), {});
    least_.assign(states_.size(), int64_t{1} << 40);
    labels_[states_.last()].push_back({});
    least_[states_.last()] = 0;
    for (int i = states_.last() - 1; i >= 0; --i) {
      int near = 0;
      for (const int j : states_.after(i)) {
        if (limited_ && ++near > kNearCuts && j != states_.last()) continue;
        if (!labels_[j].empty() && stage_allowed(q_, i, j)) extend(i, j);
      }
    }
    const Label* best = nullptr;
    for (const Label& label : labels_[0]) {
      if (label.copies > 1 || (q_.replicated && !label.replicated)) continue;
      if ((q_.all_devices || reversed_) && label.devices != q_.devices) continue;
      if (best == nullptr || label.devices < best->devices) best = &label;
    }
    if (best == nullptr) return std::nullopt;
    return answer_of(*best);
  }

 private:
  double speed_of(int64_t position) const {
    if (q_.inputs.speeds.empty()) return 1;
    return q_.inputs.speeds[reversed_ ? q_.devices - 1 - position : position];
  }
  int64_t memory_of(int64_t begin, int64_t end) const {
    int64_t memory = q_.memory_bytes;
    if (q_.inputs.memories.empty()) return memory;
    memory = 0;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t own = q_.inputs.memories[reversed_ ? q_.devices - 1 - p : p];
      if (own > 0 && (memory == 0 || own < memory)) memory = own;
    }
    return memory;
  }
  bool within_period(double seconds) const { return seconds <= period_; }

  Priced priced(int i, int j) const {
    Priced stage;
    stage.load = load_of(q_, i, j);
    if (q_.memory_bytes == 0 && !q_.inputs.memories.empty())
      stage.load.workspace_bytes = workspace_between(states_, i, j);
    stage.step = costs_.step_seconds(stage.load);
    stage.gradient_bytes = costs_.gradient_bytes(stage.load);
    stage.in_bytes = stage.load.first ? 0 : static_cast<double>(stage.load.charged_in_bytes);
    stage.out_bytes = stage.load.last ? 0 : static_cast<double>(stage.load.charged_out_bytes);
    return stage;
  }

  void extend(int i, int j) {
    const double compute = compute_between(states_, i, j);
    const double most_devices = static_cast<double>(q_.devices) + 1;
    const auto devices_of = [&](double seconds) {
      const double shared = seconds / fastest_ * per_period_ * (1 - kTolerance) - kRounding;
      return static_cast<int64_t>(std::ceil(std::clamp(shared, 0.0, most_devices)));
    };
    const int64_t end = q_.devices - std::max<int64_t>(devices_of(work_[i]), i > 0 ? 1 : 0);
    int64_t least = std::max<int64_t>(devices_of(compute), 1);
    if (least_[j] + least > end) return;
    // Two or more exchange their gradients, and all pass on what crosses the cuts.
    if (compute > period_ * (1 + kTolerance) && q_.inputs.speeds.empty()) {
      const double extra = (exchange_[j] - exchange_[i]) * std::max(0.5, 1 - period_ / compute);
      least = std::max(least, devices_of(compute + extra));
    }
    if (q_.inputs.speeds.empty()) least = std::max(least, devices_of(cut_in_[i] + cut_out_[j]));
    if (least_[j] + least > end) return;
    const Priced stage = priced(i, j);
    for (size_t n = 0; n < labels_[j].size(); ++n) {
      const Label& after = labels_[j][n];
      if (after.copies > 1) {
        fill_block(i, j, stage, after, static_cast<int>(n), least);
        continue;
      }
      int64_t most = std::min(end - after.devices, q_.most_replicas);
      if (limited_) most = std::min(most, least + kFewMore);
      for (int64_t m = least; m <= most; ++m) place(i, j, stage, after, static_cast<int>(n), m);
      if (server_ > 1 && after.devices % server_ == 0) {
        for (int64_t copies = 2; after.devices + copies * server_ <= q_.devices; ++copies) {
          Label start = after;
          start.copies = copies;
          start.filled = 0;
          start.loads[0] = costs_.cut_link_seconds(costs_.links()[0], stage.out_bytes,
                                                   1 / static_cast<double>(copies), 0, 0, 0);
          fill_block(i, j, stage, start, static_cast<int>(n), least);
        }
      }
    }
  }

  /// Ranks [begin, end) of a stage of `all`, by groups of `size`: what crosses.
  static double crossing_between(int64_t begin, int64_t end, int64_t size, int64_t all) {
    const int64_t first = std::min(end, (begin / size + 1) * size) - begin;
    double sum = LevelCosts::crossing(first, all);
    const int64_t rest = end - begin - first;
    sum += static_cast<double>(rest / size) * LevelCosts::crossing(size, all);
    if (rest % size > 0) sum += LevelCosts::crossing(rest % size, all);
    return sum;
  }

  /// Part of the suffix's first stage that stands in the half-filled group of `size`.
  static double part_in(const Label& after, int64_t size) {
    const int64_t there = std::min(after.devices % size, after.first_replicas);
    if (there == 0) return 0;
    if (after.shares.empty()) return static_cast<double>(there) / static_cast<double>(after.first_replicas);
    return static_cast<double>(std::accumulate(after.shares.end() - there, after.shares.end(), int64_t{0})) /
           static_cast<double>(std::accumulate(after.shares.begin(), after.shares.end(), int64_t{0}));
  }

  /// The stage i..j on devices [D, D + m), before a suffix on [0, D).
  void place(int i, int j, const Priced& stage, const Label& after, int rest, int64_t m) {
    const int64_t begin = after.devices;
    const int64_t end = begin + m;
    const auto replicas = static_cast<double>(m);
    const auto& links = costs_.links();
    if (!within_period(stage.load.compute_seconds() / (replicas * fastest_) * (1 - kTolerance))) return;

    if (q_.inputs.speeds.empty() && m > 1) {
      const double exchange = (exchange_[j] - exchange_[i]) * (replicas - 1) / replicas;
      const double work = stage.load.compute_seconds() + exchange;
      if (!within_period(work / replicas * (1 - kTolerance))) return;
    }
    StageLoad load = stage.load;
    const auto recompute = recompute_to_fit(q_, load, m, begin, memory_of(begin, end));
    if (!recompute) return;
    load.recompute = *recompute;
    const int64_t server = costs_.sizes().size() > 1 ? costs_.sizes()[1] : int64_t{1} << 40;
    const int64_t servers = (end - 1) / server - begin / server + 1;
    const int64_t first_inside = std::min(end, (begin / server + 1) * server) - begin;
    const int64_t most_inside =
        std::max(first_inside,
                 std::min(server, servers > 1 ? std::max((end - 1) % server + 1, servers > 2 ? server : 0)
                                              : first_inside));
    const int span = costs_.level_between(begin, end - 1);

    // Groups that the stage stands in: the first, one of those that it fills, the last.
    struct Piece {
      size_t link;
      int64_t begin, end;
      bool complete;  // with what stands before the stage, the group is full
      double exchange_seconds;
    };
    std::array<Piece, 3 * kMostLinks> pieces;
    size_t piece_count = 0;
    double slowest = 0;
    for (size_t l = 0; l < links.size(); ++l) {
      const GroupLink& link = links[l];
      for (int64_t from = begin; from < end;) {
        const int64_t group_end = (from / link.group + 1) * link.group;
        const int64_t to = std::min(end, group_end);
        double crossing = LevelCosts::crossing(to - from, m);
        if (link.shared) crossing += crossing_between(from, to, link.member, m);
        const double seconds = costs_.exchange_link_seconds(link, stage.gradient_bytes, crossing, servers);
        pieces[piece_count++] = {l, from, to, to == group_end, seconds};
        slowest = std::max(slowest, seconds);
        if (from > begin && end - to >= link.group) {
          from = end - (end - to) % link.group;  // all that it fills are alike
        } else {
          from = to;
        }
      }
    }
    const double exchange =
        costs_.exchange_seconds(stage.gradient_bytes, m, most_inside, servers, slowest, span);
    const int out_level = begin > 0 ? std::max(span, costs_.level_between(begin - 1, begin)) : span;
    const int in_level = end < q_.devices ? std::max(span, costs_.level_between(end - 1, end)) : span;
    const double device_link = costs_.device_link_seconds(stage.load, in_level, out_level);
    std::vector<int64_t> shares;
    double round = replicas;
    if (q_.inputs.speeds.empty()) {
      if (!within_period((load.compute_seconds() + stage.step + exchange) / replicas) ||
          !within_period(device_link / replicas))
        return;
    } else {
      std::vector<double> seconds;
      for (int64_t p = begin; p < end; ++p) seconds.push_back(load.compute_seconds() / speed_of(p));
      shares = best_shares(seconds, exchange + stage.step);
      round = static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0}));
      const auto largest = static_cast<double>(*std::max_element(shares.begin(), shares.end()));
      if (!within_period(shared_period(seconds, shares, exchange + stage.step)) ||
          !within_period(device_link * largest / round))
        return;
    }
    const auto part = [&](int64_t from, int64_t to) {
      if (shares.empty()) return static_cast<double>(to - from) / replicas;
      return static_cast<double>(std::accumulate(shares.begin() + (from - begin),
                                                 shares.begin() + (to - begin), int64_t{0})) /
             round;
    };

    Loads loads{};
    for (size_t n = 0; n < piece_count; ++n) {
      const Piece& piece = pieces[n];
      const GroupLink& link = links[piece.link];
      const double ours = part(piece.begin, piece.end);
      const bool with_rest = piece.begin == begin && begin % link.group != 0;
      const double theirs = with_rest ? part_in(after, link.group) : 0;
      double member_product = 0;
      if (link.shared && piece.begin == begin && begin % link.member != 0) {
        const int64_t member_end = std::min(end, (begin / link.member + 1) * link.member);
        member_product = part(begin, member_end) * part_in(after, link.member);
      }
      double load = piece.exchange_seconds / round + (with_rest ? after.loads[piece.link] : 0);
      load += costs_.cut_link_seconds(link, stage.out_bytes, ours, theirs, ours * theirs, member_product);
      // If complete, what comes next stands elsewhere.
      if (piece.complete) load += costs_.cut_link_seconds(link, stage.in_bytes, ours, 0, 0, 0);
      if (!within_period(load)) return;
      if (!piece.complete) loads[piece.link] = load;
    }
    if (costs_.half_duplex() && !stage.load.last && begin % server != 0) {
      const int64_t theirs = std::min(begin % server, after.first_replicas);
      const double inside =
          costs_.inner_cut_seconds(stage.out_bytes, first_inside, m, theirs, after.first_replicas);
      if (!within_period(inside)) return;
    }

    Label label;
    label.devices = end;
    label.first_replicas = m;
    label.replicated = after.replicated || m > 1;
    label.loads = loads;
    label.shares = std::move(shares);
    label.next = j;
    label.rest = rest;
    label.begin = begin;
    label.replicas = m;
    label.recompute = *recompute;
    add(i, std::move(label));
  }

  /// The stage i..j as the next part of a pipeline that stands in several servers alike.
  void fill_block(int i, int j, const Priced& stage, const Label& after, int rest, int64_t least) {
    const int64_t copies = after.copies;
    const GroupLink& nic = costs_.links()[0];
    const int64_t most = server_ - after.filled - (after.filled == 0 ? 1 : 0);  // one stage is no block
    for (int64_t m = std::max<int64_t>(1, (least + copies - 1) / copies); m <= most; ++m) {
      const int64_t all = m * copies;
      if (all > q_.most_replicas) break;
      const auto replicas = static_cast<double>(all);
      const int64_t filled = after.filled + m;
      const double crossing = LevelCosts::crossing(m, all);
      const double on_link = costs_.exchange_link_seconds(nic, stage.gradient_bytes, crossing, copies);
      const double exchange = costs_.exchange_seconds(stage.gradient_bytes, all, m, copies, on_link, 1);
      const int64_t later = after.devices + after.filled * copies;
      const auto recompute = recompute_to_fit(q_, stage.load, all, later, q_.memory_bytes);
      if (!recompute) continue;
      StageLoad load = stage.load;
      load.recompute = *recompute;
      if (!within_period((load.compute_seconds() + stage.step + exchange) / replicas)) continue;
      const int out_level = after.filled == 0 ? 1 : 0;
      const int in_level = filled == server_ ? 1 : 0;
      if (!within_period(costs_.device_link_seconds(stage.load, in_level, out_level) / replicas)) continue;
      if (after.filled > 0 &&
          !within_period(costs_.inner_cut_seconds(stage.out_bytes * static_cast<double>(copies), m, all,
                                                  after.first_replicas, after.first_replicas * copies)))
        continue;
      Label label = after;
      label.loads[0] += on_link / replicas;
      if (filled == server_) {
        label.loads[0] +=
            costs_.cut_link_seconds(nic, stage.in_bytes, 1 / static_cast<double>(copies), 0, 0, 0);
      }
      if (!within_period(label.loads[0])) continue;
      label.filled = filled;
      label.first_replicas = m;
      label.shares.clear();
      label.replicated = true;
      label.next = j;
      label.rest = rest;
      label.begin = after.devices + after.filled;
      label.replicas = m;
      label.stage_copies = copies;
      label.recompute = *recompute;
      if (filled == server_) {
        label.devices += copies * server_;
        label.copies = 1;
        label.filled = 0;
        label.loads = {};
      } else if (i == 0) {
        continue;  // the servers are not full
      }
      add(i, label);
    }
  }

  bool alike(const Label& a, const Label& b) const {
    return a.copies == b.copies && a.filled == b.filled && a.devices % largest_ == b.devices % largest_ &&
           a.replicated == b.replicated;
  }

  /// Whatever may stand before `b` may stand before `a` too.
  bool dominates(const Label& a, const Label& b, double cut_bytes) const {
    if (!alike(a, b) || a.devices > b.devices) return false;
    if (costs_.half_duplex()) {
      if (a.copies > 1 ? a.first_replicas < b.first_replicas : !inner_no_worse(a, b)) return false;
    }
    for (size_t l = 0; l < costs_.links().size(); ++l) {
      const GroupLink& link = costs_.links()[l];
      if (a.copies > 1) {
        if (a.loads[l] > b.loads[l]) return false;
        continue;
      }
      if (a.devices % link.group == 0) continue;
      // The parts of the first stages in the group decide how much of the cut stays inside.
      double differ = std::abs(part_in(a, link.group) - part_in(b, link.group));
      if (link.shared) differ += std::abs(part_in(a, link.member) - part_in(b, link.member));
      const double most = (link.shared || costs_.half_duplex() ? 2 : 1) * differ * cut_bytes /
                          link.bandwidth_bytes_per_second;
      if (a.loads[l] + most > b.loads[l]) return false;
    }
    return true;
  }
  bool inner_no_worse(const Label& a, const Label& b) const {
    const int64_t server = costs_.sizes().size() > 1 ? costs_.sizes()[1] : int64_t{1} << 40;
    return a.devices % server == 0 ||
           (a.first_replicas >= b.first_replicas && part_in(a, server) <= part_in(b, server));
  }

  void add(int i, Label label) {
    std::vector<Label>& held = labels_[i];
    const auto cut = static_cast<double>(states_.states[i].charged_bytes);
    for (const Label& other : held) {
      if (limited_ ? alike(other, label) && other.devices <= label.devices &&
                         (other.devices < label.devices || other.loads <= label.loads)
                   : dominates(other, label, cut))
        return;
    }
    std::erase_if(held, [&](const Label& other) {
      return limited_ ? alike(other, label) : dominates(label, other, cut);
    });
    least_[i] = std::min(least_[i], label.devices);
    held.push_back(std::move(label));
    if (limited_ && held.size() > kFewLabels) {
      held.erase(std::max_element(held.begin(), held.end(),
                                  [](const Label& a, const Label& b) { return a.devices < b.devices; }));
    }
  }

  Answer answer_of(const Label& first) const {
    Answer answer;
    answer.devices = first.devices;
    answer.exact = !limited_;
    std::vector<StageLoad> loads;
    std::vector<Stage> stages;
    const bool aligned =
        q_.inputs.speeds.empty() && q_.inputs.memories.empty() && first.devices % costs_.sizes().back() == 0;
    const bool turned = aligned || reversed_;
    int i = 0;
    for (const Label* label = &first; label->next >= 0;) {
      Stage stage;
      for (int64_t r = 0; r < label->replicas; ++r) {
        for (int64_t c = 0; c < label->stage_copies; ++c) {
          const int64_t position = label->begin + c * server_ + r;
          stage.ranks.push_back(turned ? first.devices - 1 - position : position);
        }
      }
      // Replica q runs minibatches q, q + m, ...: with copies, each server has its own part of them.
      if (label->stage_copies == 1) std::sort(stage.ranks.begin(), stage.ranks.end());
      StageLoad load = load_between(states_, i, label->next);
      load.recompute = label->recompute;
      stage.shares = label->shares;
      if (reversed_) std::reverse(stage.shares.begin(), stage.shares.end());
      if (std::all_of(stage.shares.begin(), stage.shares.end(), [](int64_t s) { return s == 1; }))
        stage.shares.clear();
      answer.stages.push_back({i, label->next, label->replicas * label->stage_copies, stage.ranks,
                               stage.shares, label->recompute});
      loads.push_back(load);
      stages.push_back(stage);
      i = label->next;
      label = &labels_[i][label->rest];
    }
    answer.period_seconds = price_placed(loads, stages, *q_.model, q_.inputs).total_seconds();
    return answer;
  }

  const Question& q_;
  const States& states_;
  LevelCosts costs_;
  bool reversed_;
  bool limited_ = false;
  double period_ = 0;
  double per_period_ = 0;
  int64_t largest_ = 1;
  int64_t server_ = 0;  ///< devices of a server, if pipelines inside servers are looked at
  int64_t most_copies_ = 1;
  double fastest_ = 1;
  double speed_sum_ = 1;
  std::vector<double> work_;
  std::vector<double> exchange_;  ///< by state: of the gradients before it, at least
  std::vector<double> cut_in_;    ///< by state: on the links of a stage's devices, at least
  std::vector<double> cut_out_;
  std::vector<std::vector<Label>> labels_;
  std::vector<int64_t> least_;
};

std::optional<Answer> least_period(const Question& q, bool reversed) {
  PlacedSearch table(q, reversed);
  std::optional<Answer> best;
  double low = table.least_period();
  double high = kNoLimit;
  const auto tried = [&](double period) {
    std::optional<Answer> found = table.within(period);
    if (!found) {
      low = period;
      return false;
    }
    PW_CHECK(found->period_seconds <= period * (1 + kTolerance), "a placement costs what the search says");
    high = std::min(high, found->period_seconds);
    best = std::move(found);
    return true;
  };
  // From below: many placements are within a long period, and few within a short one.
  double step = 0.03;
  while (low > 0 && !tried(low * (1 + step))) {
    step *= 2;
    if (step > 1e9) break;
  }
  if (!best && !tried(kNoLimit)) return std::nullopt;
  const double proof = table.limited() ? 1e-3 : kProof;
  while (high - low > proof * high) {
    tried(low + (high - low) / 2);
    if (high - low < 0.02 * high && high - low > proof * high) tried(high * (1 - proof));
  }
  std::optional<Answer> fewest = table.within(high * (1 + kTolerance));
  if (table.limited() && !fewest) return best;
  PW_CHECK(fewest.has_value(), "a period that was achieved stays possible");
  return fewest->period_seconds <= high * (1 + 2 * kTolerance) ? fewest : best;
}

std::optional<Answer> all_in_one_stage(const Question& q) {
  StageLoad load = load_of(q, 0, q.states->last());
  load.workspace_bytes = workspace_between(*q.states, 0, q.states->last());
  int64_t memory = q.memory_bytes;
  for (const int64_t own : q.inputs.memories) {
    if (own > 0 && (memory == 0 || own < memory)) memory = own;
  }
  const auto recompute = recompute_to_fit(q, load, q.devices, 0, memory);
  if (!recompute) return std::nullopt;
  load.recompute = *recompute;
  Stage stage;
  stage.ranks.resize(q.devices);
  std::iota(stage.ranks.begin(), stage.ranks.end(), 0);
  if (!q.inputs.speeds.empty()) {
    std::vector<double> seconds;
    for (const double speed : q.inputs.speeds) seconds.push_back(load.compute_seconds() / speed);
    const LevelCosts costs(*q.model, q.inputs);
    const PlacedPrice alone = price_placed({load}, {stage}, *q.model, q.inputs);
    stage.shares = best_shares(seconds, alone.exchange_seconds[0] + costs.step_seconds(load));
  }
  Answer answer;
  answer.stages = {{0, q.states->last(), q.devices, stage.ranks, stage.shares, *recompute}};
  answer.devices = q.devices;
  answer.period_seconds = price_placed({load}, {stage}, *q.model, q.inputs).total_seconds();
  return answer;
}

}  // namespace

std::optional<Answer> search_placed(const Question& q) {
  if (q.model->levels == LevelRule::kRecursion) {
    check_recursion(q.inputs);
    const bool free = !q.one_in_flight && !q.replicated && q.least_stages < 2 && q.memory_bytes == 0 &&
                      q.most_replicas >= q.devices && q.recompute != Recompute::kAlways;
    if (!free || (q.single_stage && q.memory_bytes > 0)) {
      throw InputError(
          "--objective: 'pipedream' on two levels is for --strategy best, without --memory and "
          "--recompute always",
          "Use --objective pipewright or pipedream-shared-nic, which take all of them.");
    }
    if (!q.single_stage) return search_recursion(q);
    Answer answer = *all_in_one_stage(q);
    const StageLoad load = load_of(q, 0, q.states->last());
    Stage stage;
    stage.ranks = answer.stages[0].ranks;
    answer.period_seconds = recursion_seconds({load}, {stage}, q.inputs);
    return answer;
  }
  if (q.single_stage) return all_in_one_stage(q);
  std::optional<Answer> best = least_period(q, false);
  // Devices that differ: the other order of them, which takes all.
  if (q.inputs.speeds.empty() && q.inputs.memories.empty()) return best;
  if (q.devices != static_cast<int64_t>(q.inputs.speeds.size())) return best;
  std::optional<Answer> other = least_period(q, true);
  if (!best || (other && other->period_seconds < best->period_seconds * (1 - kTolerance))) best = other;
  return best;
}

}  // namespace pipewright::search_detail
