#include "optimizer/search/placement.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/search/inference.h"
#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

/// Ranks [begin, end) of a stage of `all`, by groups of `size`: what crosses.
double crossing_between(int64_t begin, int64_t end, int64_t size, int64_t all) {
  const int64_t first = std::min(end, (begin / size + 1) * size) - begin;
  double sum = crossing_part(first, all);
  const int64_t rest = end - begin - first;
  sum += static_cast<double>(rest / size) * crossing_part(size, all);
  if (rest % size > 0) sum += crossing_part(rest % size, all);
  return sum;
}

}  // namespace

Placement::Placement(const Question& q, bool reversed)
    : q_(q), states_(*q.states), costs_(q.inputs), reversed_(reversed) {
  const auto& levels = q.inputs.levels;
  PW_CHECK_LE(costs_.links().size(), kMostLinks);
  largest_ = costs_.sizes().back();
  // A link of all devices is never full, devices that differ have no period.
  const bool all_alike = !q.inputs.devices_differ();
  if (levels.back().shared || !all_alike || q.all_devices) largest_ = q.devices;
  const bool separate = levels.size() == 2 && !levels[0].shared && !levels[1].shared;
  if (separate && all_alike && q.most_replicas > 1 && !q.inputs.forward_only) server_ = costs_.sizes()[1];
  pace_sum_ = static_cast<double>(q.devices);
  if (!q.inputs.paces.empty()) {
    fastest_ = *std::max_element(q.inputs.paces.begin(), q.inputs.paces.end());
    pace_sum_ = std::accumulate(q.inputs.paces.begin(), q.inputs.paces.end(), 0.0);
  }
  limited_memory_ = q.memory_bytes > 0 || !q.inputs.memories.empty();
  stretches_.resize(static_cast<size_t>(largest_));
  workspace_.resize(states_.size());
}

std::vector<double> Placement::seconds_on(const PlacedStage& stage, bool recompute, int64_t begin,
                                          int64_t end) const {
  StageLoad load = stage.load;
  load.recompute = recompute;
  std::vector<double> seconds;
  for (int64_t p = begin; p < end; ++p) seconds.push_back(compute_seconds_on(load, q_.inputs, device_at(p)));
  return seconds;
}

int64_t Placement::memory_of(int64_t begin, int64_t end) const {
  if (q_.inputs.memories.empty()) return q_.memory_bytes;
  std::vector<int64_t> ranks;
  for (int64_t p = begin; p < end; ++p) ranks.push_back(device_at(p));
  return memory_limit_bytes(q_.inputs, q_.memory_bytes, ranks);
}

std::optional<double> Placement::fitted(const PlacedStage& stage, int64_t replicas, int64_t later,
                                        int64_t memory, bool* recompute) const {
  *recompute = stage.load.recompute;
  if (q_.inputs.forward_only) {
    if (memory > 0 && inference_memory_bytes(stage.load) > memory) return std::nullopt;
  } else if (memory > 0) {
    const std::optional<bool> again = recompute_to_fit(q_, stage.load, replicas, later, memory);
    if (!again) return std::nullopt;
    *recompute = *again;
  }
  return *recompute ? stage.compute + stage.load.forward_seconds : stage.compute;
}

PlacedStage Placement::stage(int from, int to) const {
  PlacedStage stage;
  stage.from = from;
  stage.to = to;
  stage.load = load_between(states_, from, to);
  stage.compute = compute_seconds_on(stage.load, q_.inputs, 0);
  stage.load.recompute = q_.recompute == Recompute::kAlways;
  if (limited_memory_) {  // it takes a walk over the nodes
    std::vector<std::optional<StageWorkspace>>& known = workspace_[from];
    if (known.empty()) known.resize(states_.size());
    if (!known[to]) known[to] = workspace_between(states_, from, to);
    stage.load.workspace = *known[to];
  }
  stage.step = costs_.step_seconds(stage.load);
  stage.gradient_bytes = costs_.gradient_bytes(stage.load);
  stage.in_bytes = stage.load.first ? 0 : static_cast<double>(stage.load.in_bytes);
  stage.out_bytes = stage.load.last ? 0 : static_cast<double>(stage.load.out_bytes);
  return stage;
}

const Placement::Stretch& Placement::stretch(int64_t begin, int64_t replicas) const {
  auto& known = stretches_[static_cast<size_t>(begin % largest_)];
  const auto length = static_cast<size_t>(replicas);
  if (known.size() <= length) known.resize(length + 1);
  if (!known[length]) known[length] = std::make_unique<Stretch>(made(begin % largest_, replicas));
  return *known[length];
}

Placement::Stretch Placement::made(int64_t begin, int64_t replicas) const {
  int64_t whole = 1;
  for (const TopologyLevel& level : q_.inputs.levels) whole *= level.count;
  begin += whole;  // so that there is a device before it
  const int64_t end = begin + replicas;
  Stretch made;
  made.span = costs_.level_between(begin, end - 1);
  made.out_level = std::max(made.span, costs_.level_between(begin - 1, begin));
  made.in_level = std::max(made.span, costs_.level_between(end - 1, end));
  double slowest = 0;
  for (size_t l = 0; l < costs_.links().size(); ++l) {
    const GroupLink& link = costs_.links()[l];
    for (int64_t from = begin; from < end;) {
      const int64_t group_end = (from / link.group + 1) * link.group;
      const int64_t to = std::min(end, group_end);
      double crossing = crossing_part(to - from, replicas);
      if (link.shared) crossing += crossing_between(from, to, link.member, replicas);
      const double seconds = costs_.exchange_link_seconds_per_byte(link, crossing);
      const bool with_rest = from == begin && begin % link.group != 0;
      made.pieces.push_back({l, from - begin, to - begin, with_rest, to == group_end, seconds});
      slowest = std::max(slowest, seconds);
      if (from > begin && end - to >= link.group) {
        from = end - (end - to) % link.group;  // all that it fills are alike
      } else {
        from = to;
      }
    }
  }
  if (replicas > 1) {
    made.exchange_latency = costs_.exchange_latency_seconds(made.span);
    made.exchange_per_byte = costs_.exchange_seconds_per_byte(replicas, slowest);
  }
  return made;
}

double Placement::part_in(const Label& after, int64_t size) {
  const int64_t there = std::min(after.devices % size, after.first_replicas);
  if (there == 0) return 0;
  if (after.shares.empty()) return static_cast<double>(there) / static_cast<double>(after.first_replicas);
  return static_cast<double>(std::accumulate(after.shares.end() - there, after.shares.end(), int64_t{0})) /
         static_cast<double>(std::accumulate(after.shares.begin(), after.shares.end(), int64_t{0}));
}

bool Placement::possible_alone(const PlacedStage& stage, int64_t begin, int64_t replicas) const {
  bool recompute = false;
  const std::optional<double> compute =
      fitted(stage, replicas, begin, memory_of(begin, begin + replicas), &recompute);
  if (!compute) return false;
  const auto m = static_cast<double>(replicas);
  if (!q_.inputs.speeds.empty()) {
    double rate = 0;  // minibatches a second, with nothing else to do
    for (const double seconds : seconds_on(stage, recompute, begin, begin + replicas)) {
      if (seconds <= 0) return true;  // differences of sums round
      rate += 1 / seconds;
    }
    return 1 <= period_ * rate * (1 + kTolerance);
  }
  const Stretch& stretch = this->stretch(begin, replicas);
  const double update = costs_.minibatches_of_update(m);
  double once = stage.step;
  if (replicas > 1 && stage.gradient_bytes > 0)
    once += stretch.exchange_latency + stage.gradient_bytes * stretch.exchange_per_byte;
  if (*compute / m + once / update > period_) return false;
  const double link = costs_.device_link_seconds(stage.load, stretch.in_level, stretch.out_level);
  if (link > period_ * m) return false;
  for (const Stretch::Piece& piece : stretch.pieces) {
    double load = stage.gradient_bytes * piece.exchange_per_byte / update;
    const double part = static_cast<double>(piece.end - piece.begin) / m;
    const GroupLink& on = costs_.links()[piece.link];
    if (!piece.with_rest) load += costs_.cut_link_seconds(on, stage.out_bytes, part, 0, 0, 0);
    if (piece.complete) load += costs_.cut_link_seconds(on, stage.in_bytes, 0, part, 0, 0);
    if (load > period_ * (1 + kTolerance)) return false;
  }
  return true;
}

std::optional<Label> Placement::place(const PlacedStage& stage, const Label& after, int64_t replicas) const {
  const int64_t begin = after.devices;
  const int64_t end = begin + replicas;
  const auto m = static_cast<double>(replicas);
  const Stretch& stretch = this->stretch(begin, replicas);
  const double exchange = replicas > 1 && stage.gradient_bytes > 0
                              ? stretch.exchange_latency + stage.gradient_bytes * stretch.exchange_per_byte
                              : 0;
  bool recompute = false;
  const std::optional<double> fitted_seconds =
      fitted(stage, replicas, begin, memory_of(begin, end), &recompute);
  if (!fitted_seconds) return std::nullopt;
  std::vector<int64_t> shares;
  double round = m;
  double largest_share = 1;
  double compute = *fitted_seconds;  // of the replica that takes longest, a round
  double slowest = *fitted_seconds;  // of a minibatch
  if (!q_.inputs.speeds.empty()) {
    const std::vector<double> seconds = seconds_on(stage, recompute, begin, end);
    slowest = *std::max_element(seconds.begin(), seconds.end());
    shares = best_shares(seconds, q_.inputs.most_minibatches_of_round);
    round = static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0}));
    compute = 0;
    for (size_t q = 0; q < seconds.size(); ++q)
      compute = std::max(compute, seconds[q] * static_cast<double>(shares[q]));
    largest_share = static_cast<double>(*std::max_element(shares.begin(), shares.end()));
  }
  const double update = costs_.minibatches_of_update(round);
  if (compute / round + (exchange + stage.step) / update > period_) return std::nullopt;
  const double device_link = costs_.device_link_seconds(stage.load, stretch.in_level, stretch.out_level);
  if (device_link * largest_share / round > period_) return std::nullopt;
  const auto part = [&](int64_t from, int64_t to) {
    if (shares.empty()) return static_cast<double>(to - from) / m;
    return static_cast<double>(std::accumulate(shares.begin() + from, shares.begin() + to, int64_t{0})) /
           round;
  };

  std::optional<Label> placed(std::in_place);
  Label& label = *placed;
  for (const Stretch::Piece& piece : stretch.pieces) {
    const GroupLink& link = costs_.links()[piece.link];
    const double ours = part(piece.begin, piece.end);
    const double theirs = piece.with_rest ? part_in(after, link.group) : 0;
    double member_product = 0;
    if (link.shared && piece.begin == 0 && begin % link.member != 0) {
      const int64_t member_end = std::min(end, (begin / link.member + 1) * link.member);
      member_product = part(0, member_end - begin) * part_in(after, link.member);
    }
    double load = stage.gradient_bytes * piece.exchange_per_byte / update +
                  (piece.with_rest ? after.loads[piece.link] : 0);
    load += costs_.cut_link_seconds(link, stage.out_bytes, ours, theirs, ours * theirs, member_product);
    // If complete, what comes next stands elsewhere.
    if (piece.complete) load += costs_.cut_link_seconds(link, stage.in_bytes, 0, ours, 0, 0);
    if (load > period_) return std::nullopt;
    if (!piece.complete) label.loads[piece.link] = load;
  }

  if (q_.inputs.forward_only) {
    label.first_span = stretch.span;
    label.latency_seconds = after.latency_seconds + slowest;
    if (!stage.load.last) {
      const int level = std::max(stretch.out_level, after.first_span);
      label.latency_seconds += costs_.message_seconds(stage.load.out_bytes, level);
    }
  }
  label.devices = end;
  label.first_replicas = replicas;
  label.replicated = after.replicated || replicas > 1;
  label.next = stage.to;
  label.begin = begin;
  label.replicas = replicas;
  label.shares = std::move(shares);
  label.recompute = recompute;
  return placed;
}

Label Placement::begin_block(const Label& after, int64_t copies, double out_bytes) const {
  Label start = after;
  start.copies = copies;
  start.filled = 0;
  start.loads = {};
  start.loads[0] =
      costs_.cut_link_seconds(costs_.links()[0], out_bytes, 1 / static_cast<double>(copies), 0, 0, 0);
  return start;
}

bool Placement::possible_in_block(const PlacedStage& stage, int64_t copies, int64_t filled,
                                  int64_t replicas) const {
  return possible_in_block(stage, stage.compute, copies, filled, replicas);
}

bool Placement::possible_in_block(const PlacedStage& stage, double compute, int64_t copies, int64_t filled,
                                  int64_t replicas) const {
  const int64_t all = replicas * copies;
  const auto m = static_cast<double>(all);
  const double on_link =
      costs_.exchange_link_seconds_per_byte(costs_.links()[0], crossing_part(replicas, all)) *
      stage.gradient_bytes;
  double once = stage.step;
  if (stage.gradient_bytes > 0) {
    const double slowest = on_link / stage.gradient_bytes;
    once += costs_.exchange_latency_seconds(1) +
            stage.gradient_bytes * costs_.exchange_seconds_per_byte(all, slowest);
  }
  const double update = costs_.minibatches_of_update(m);
  if (compute / m + once / update > period_) return false;
  const int out_level = filled == 0 ? 1 : 0;
  const int in_level = filled + replicas == server_ ? 1 : 0;
  if (costs_.device_link_seconds(stage.load, in_level, out_level) / m > period_) return false;
  return on_link / update <= period_;
}

std::optional<Label> Placement::place_in_block(const PlacedStage& stage, const Label& after,
                                               int64_t replicas) const {
  const int64_t copies = after.copies;
  const int64_t all = replicas * copies;
  bool recompute = false;
  const std::optional<double> compute =
      fitted(stage, all, after.devices + after.filled * copies, q_.memory_bytes, &recompute);
  if (!compute || !possible_in_block(stage, *compute, copies, after.filled, replicas)) return std::nullopt;
  const int64_t filled = after.filled + replicas;
  const GroupLink& nic = costs_.links()[0];
  const double update = costs_.minibatches_of_update(static_cast<double>(all));
  Label label = after;
  label.loads[0] += costs_.exchange_link_seconds_per_byte(nic, crossing_part(replicas, all)) *
                    stage.gradient_bytes / update;
  if (filled == server_)
    label.loads[0] += costs_.cut_link_seconds(nic, stage.in_bytes, 0, 1 / static_cast<double>(copies), 0, 0);
  if (label.loads[0] > period_) return std::nullopt;
  label.filled = filled;
  label.first_replicas = replicas;
  label.shares.clear();
  label.replicated = true;
  label.next = stage.to;
  label.begin = after.devices + after.filled;
  label.replicas = replicas;
  label.stage_copies = copies;
  label.recompute = recompute;
  if (filled == server_) {
    label.devices += copies * server_;
    label.copies = 1;
    label.filled = 0;
    label.loads = {};
  }
  return label;
}

}  // namespace pipewright::search_detail
