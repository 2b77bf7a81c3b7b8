#include "optimizer/cost/placed.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "graph/sample_ranges.h"
#include "optimizer/cost/formulas.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/stage_times.h"

namespace pipewright {
namespace {

/// Of minibatches, or of each one.
double share_of(const Stage& stage, size_t q) {
  if (stage.splits()) return static_cast<double>(stage.split[q]);
  return stage.shares.empty() ? 1 : static_cast<double>(stage.shares[q]);
}

/// Part of the minibatches of a stage that each group of `size` ranks runs.
std::map<int64_t, double> parts_by_group(const Stage& stage, int64_t size) {
  std::map<int64_t, double> parts;
  double all = 0;
  for (size_t q = 0; q < stage.ranks.size(); ++q) {
    const double share = share_of(stage, q);
    parts[stage.ranks[q] / size] += share;
    all += share;
  }
  for (auto& [group, part] : parts) part /= all;
  return parts;
}

bool same_parts(const std::map<int64_t, double>& a, const std::map<int64_t, double>& b) {
  if (a.size() < 2 || a.size() != b.size()) return false;
  const double each = 1 / static_cast<double>(a.size());
  const auto even = [&](const auto& entry) { return std::abs(entry.second - each) < 1e-12; };
  return std::all_of(a.begin(), a.end(), even) && std::all_of(b.begin(), b.end(), even) &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) { return x.first == y.first; });
}

/// Smallest groups that both stages are spread over evenly: minibatches then stay in their group, and each is
/// a pipeline of its own. 0 if there are none.
int64_t paired_size(const Stage& a, const Stage& b, const std::vector<int64_t>& sizes) {
  for (size_t k = 1; k < sizes.size(); ++k) {
    if (same_parts(parts_by_group(a, sizes[k]), parts_by_group(b, sizes[k]))) return sizes[k];
  }
  return 0;
}

int span_level(const Stage& stage, const LevelCosts& costs) {
  int level = 0;
  for (const int64_t rank : stage.ranks) level = std::max(level, costs.level_between(stage.ranks[0], rank));
  return level;
}

int nearest_level(const Stage& a, const Stage& b, const LevelCosts& costs) {
  const auto& sizes = costs.sizes();
  for (size_t k = 1; k < sizes.size(); ++k) {
    const auto ours = ranks_by_group(a.ranks, sizes[k]);
    for (const auto& [group, count] : ranks_by_group(b.ranks, sizes[k])) {
      if (ours.count(group) != 0) return static_cast<int>(k) - 1;
    }
  }
  return static_cast<int>(sizes.size()) - 1;
}

/// Highest level that a message between some ranks of the two passes.
int farthest_level(const Stage& a, const Stage& b, const LevelCosts& costs) {
  return std::max({span_level(a, costs), span_level(b, costs), costs.level_between(a.ranks[0], b.ranks[0])});
}

}  // namespace

double PlacedPrice::total_seconds() const {
  double slowest = link_seconds;
  for (const StagePeriod& stage : stages) slowest = std::max(slowest, stage.total_seconds());
  return slowest;
}

double PlacedPrice::latency_seconds() const {
  return std::accumulate(replica_seconds.begin(), replica_seconds.end(), 0.0) +
         std::accumulate(receive_seconds.begin(), receive_seconds.end(), 0.0);
}

namespace {

/// The stages on their ranks, priced one after the other; what the links in common carry is added up
/// meanwhile.
class Placing {
 public:
  Placing(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages, const CostInputs& inputs)
      : loads_(loads), stages_(stages), inputs_(inputs), costs_(inputs), busy_(costs_.links().size()) {}

  PlacedPrice price() {
    for (size_t s = 0; s < stages_.size(); ++s) add_stage(s);
    for (size_t s = 0; s + 1 < stages_.size(); ++s) add_cut(s);
    find_busiest_link();
    return std::move(price_);
  }

 private:
  void add_stage(size_t s);
  double exchange_seconds(size_t s, int span, double minibatches_of_update);
  int level_between(size_t s, size_t other, int span) const;
  void add_cut(size_t s);
  void find_busiest_link();

  const std::vector<StageLoad>& loads_;
  const std::vector<Stage>& stages_;
  const CostInputs& inputs_;
  const LevelCosts costs_;
  std::vector<std::map<int64_t, double>> busy_;  // by link: seconds by group
  PlacedPrice price_;
};

/// One all-reduce of the stage's gradients. Its traffic goes on the links in common.
double Placing::exchange_seconds(size_t s, int span, double minibatches_of_update) {
  const Stage& stage = stages_[s];
  const auto replicas = static_cast<int64_t>(stage.ranks.size());
  const double bytes = costs_.gradient_bytes(loads_[s]);
  double slowest = 0;
  for (size_t l = 0; l < costs_.links().size(); ++l) {
    const GroupLink& link = costs_.links()[l];
    for (const auto& [group, part] : costs_.crossing(link, stage.ranks)) {
      const double seconds = costs_.exchange_link_seconds_per_byte(link, part);
      busy_[l][group] += seconds * bytes / minibatches_of_update;
      slowest = std::max(slowest, seconds);
    }
  }
  if (replicas == 1 || bytes == 0) return 0;
  return costs_.exchange_latency_seconds(span) + bytes * costs_.exchange_seconds_per_byte(replicas, slowest);
}

/// Highest level that values between two neighbouring stages cross; `span`: that of stage `s` alone.
int Placing::level_between(size_t s, size_t other, int span) const {
  const auto& sizes = costs_.sizes();
  const int64_t paired = paired_size(stages_[s], stages_[other], sizes);
  if (paired == 0) return std::max(span, nearest_level(stages_[s], stages_[other], costs_));
  return static_cast<int>(std::find(sizes.begin(), sizes.end(), paired) - sizes.begin()) - 1;
}

void Placing::add_stage(size_t s) {
  const Stage& stage = stages_[s];
  const int64_t shares = std::accumulate(stage.shares.begin(), stage.shares.end(), int64_t{0});
  const int64_t turn = stage.splits() ? 1 : stage.shares.empty() ? std::ssize(stage.ranks) : shares;
  const auto round = static_cast<double>(turn);
  // Where each minibatch is split the load is that of the largest part.
  const double whole =
      stage.splits() ? static_cast<double>(*std::max_element(stage.split.begin(), stage.split.end())) : 1;
  const auto update = static_cast<double>(minibatches_of_update(turn, loads_[s].later_devices, inputs_));
  const int span = span_level(stage, costs_);
  price_.exchange_seconds.push_back(exchange_seconds(s, span, update));

  double compute = 0;  // of a round, on the replica that takes longest
  double slowest_replica = 0;
  double most_share = 1;
  for (size_t q = 0; q < stage.ranks.size(); ++q) {
    const double share = share_of(stage, q) / whole;
    const double seconds = compute_seconds_on(loads_[s], inputs_, stage.ranks[q]);
    compute = std::max(compute, share * seconds);
    slowest_replica = std::max(slowest_replica, seconds);
    most_share = std::max(most_share, share);
  }
  price_.in_levels.push_back(s > 0 ? level_between(s, s - 1, span) : 0);
  price_.out_levels.push_back(s + 1 < stages_.size() ? level_between(s, s + 1, span) : 0);
  price_.replica_seconds.push_back(slowest_replica);
  price_.receive_seconds.push_back(0);
  if (s > 0) {
    const int level = std::max(price_.out_levels[s - 1], price_.in_levels[s]);
    price_.receive_seconds.back() = costs_.message_seconds(loads_[s].in_bytes, level);
  }
  StagePeriod period;
  period.compute_seconds = compute / round;
  period.gradient_sync_seconds = price_.exchange_seconds[s] / update;
  period.step_seconds = costs_.step_seconds(loads_[s]) / update;
  period.link_seconds =
      costs_.device_link_seconds(loads_[s], price_.in_levels[s], price_.out_levels[s]) * most_share / round;
  price_.stages.push_back(period);
}

/// What the cut behind stage `s` puts on the links in common.
void Placing::add_cut(size_t s) {
  const double bytes = static_cast<double>(loads_[s].out_bytes) / largest_part(stages_[s]);
  const int64_t paired = paired_size(stages_[s], stages_[s + 1], costs_.sizes());
  const double copies =
      paired == 0 ? 1 : static_cast<double>(ranks_by_group(stages_[s].ranks, paired).size());
  // Part of the traffic that stays in a group of `size`.
  const auto product = [&](int64_t size, double ours, double theirs) {
    return paired > 0 && paired <= size ? (ours + theirs) / 2 : ours * theirs * copies;
  };
  for (size_t l = 0; l < costs_.links().size(); ++l) {
    const GroupLink& link = costs_.links()[l];
    auto ours = parts_by_group(stages_[s], link.group);
    auto theirs = parts_by_group(stages_[s + 1], link.group);
    std::map<int64_t, double> member_product;
    if (link.shared) {
      auto our_members = parts_by_group(stages_[s], link.member);
      auto their_members = parts_by_group(stages_[s + 1], link.member);
      for (const auto& [member, part] : their_members) our_members[member] += 0;
      for (const auto& [member, part] : our_members) {
        member_product[member * link.member / link.group] +=
            product(link.member, part, their_members[member]);
      }
    }
    for (const auto& [group, part] : theirs) ours[group] += 0;
    for (const auto& [group, part] : ours) {
      busy_[l][group] += costs_.cut_link_seconds(
          link, bytes, part, theirs[group], product(link.group, part, theirs[group]), member_product[group]);
    }
  }
}

void Placing::find_busiest_link() {
  for (size_t l = 0; l < costs_.links().size(); ++l) {
    const GroupLink& link = costs_.links()[l];
    for (const auto& [group, seconds] : busy_[l]) {
      if (seconds <= price_.link_seconds) continue;
      price_.link_seconds = seconds;
      price_.busiest_link = (link.shared ? "shared link of devices " : "link of devices ") +
                            std::to_string(group * link.group) + "-" +
                            std::to_string((group + 1) * link.group - 1);
    }
  }
}

}  // namespace

PlacedPrice price_placed(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                         const CostInputs& inputs) {
  return Placing(loads, stages, inputs).price();
}

namespace {

double slowest_speed(const Stage& stage, const CostInputs& inputs) {
  double slowest = 1;
  if (inputs.speeds.empty()) return slowest;
  for (const int64_t rank : stage.ranks)
    slowest = std::min(slowest, inputs.speeds[static_cast<size_t>(rank)]);
  return slowest;
}

}  // namespace

double minibatches_of_stage(const Stage& stage, size_t replica) {
  double all = 0;  // shares; of a stage that splits, what the replica with most has
  for (size_t q = 0; q < stage.ranks.size(); ++q)
    all = stage.splits() ? std::max(all, share_of(stage, q)) : all + share_of(stage, q);
  return all / share_of(stage, replica);
}

bool rings_take_less(const CostInputs& inputs) {
  return inputs.sums_in_rings && inputs.levels.size() > 1 &&
         std::none_of(inputs.levels.begin(), inputs.levels.end(),
                      [](const TopologyLevel& level) { return level.shared; });  // passed by each member
}

double ring_part(const std::vector<int64_t>& ranks, const CostInputs& inputs) {
  const auto replicas = static_cast<int64_t>(ranks.size());
  if (replicas == 1 || !rings_take_less(inputs)) return 1;
  const LevelCosts costs(inputs);
  double direct = crossing_part(1, replicas) / inputs.bandwidth_bytes_per_second, ring = direct;
  for (const GroupLink& link : costs.links()) {
    for (const auto& [group, count] : ranks_by_group(ranks, link.group)) {
      if (count == replicas) continue;
      direct = std::max(direct, crossing_part(count, replicas) / link.bandwidth_bytes_per_second);
      ring = std::max(ring, crossing_part(1, replicas) / link.bandwidth_bytes_per_second);
    }
  }
  return ring / direct;
}

namespace {

/// The times with computing as on the stage's devices: each replica's, and for the stage what the busiest
/// sets. Updates, with what gathers gradients, are no faster than the profile's.
void compute_on_devices(const Stage& stage, const StageLoad& load, const CostInputs& inputs,
                        StageTimes* times) {
  if (inputs.speeds.empty()) return;
  const double gather = gather_seconds(load, static_cast<int64_t>(stage.ranks.size()), inputs);
  const double prediction = prediction_seconds(load, inputs);
  const double weight_part =
      load.backward_seconds > 0 ? load.backward_weight_seconds / load.backward_seconds : 0;
  double most = -1, step = 0;
  size_t busiest = 0;
  for (size_t q = 0; q < stage.ranks.size(); ++q) {
    const auto device = static_cast<size_t>(stage.ranks[q]);
    const PassSeconds pass = load.pass_seconds(inputs.classes.empty() ? 0 : inputs.classes[device]);
    const double speed = inputs.speeds[device];
    const double update_speed = std::min(1.0, speed);
    ReplicaTimes own;
    own.forward_seconds = pass.forward_seconds / speed + prediction / update_speed;
    own.recompute_seconds = load.recomputed_fraction() * pass.forward_seconds / speed;
    own.backward_seconds = pass.backward_seconds / speed + gather / update_speed;
    own.backward_weight_seconds = weight_part * pass.backward_seconds / speed + gather / update_speed;
    own.step_seconds = times->step_seconds / update_speed;
    step = std::max(step, own.step_seconds);
    const double busy = own.minibatch_seconds() / minibatches_of_stage(stage, q);
    if (busy > most) busiest = q;
    most = std::max(most, busy);
    times->replicas.push_back(own);
  }
  const ReplicaTimes own = times->replicas[busiest];
  const bool alike = std::all_of(times->replicas.begin(), times->replicas.end(),
                                 [&](const ReplicaTimes& each) { return each == own; });
  const double pace = alike ? 1
                            : (stage.splits() ? 1 : static_cast<double>(stage.ranks.size())) /
                                  minibatches_of_stage(stage, busiest);
  times->forward_seconds = pace * own.forward_seconds;
  times->recompute_seconds = pace * own.recompute_seconds;
  times->backward_seconds = pace * own.backward_seconds;
  times->backward_weight_seconds = pace * own.backward_weight_seconds;
  times->step_seconds = step;
  if (alike) times->replicas.clear();
}

}  // namespace

std::vector<StageTimes> placed_times(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                                     const CostInputs& inputs) {
  const PlacedPrice price = price_placed(loads, stages, inputs);
  const LevelCosts costs(inputs);
  std::vector<StageTimes> times;
  for (size_t s = 0; s < stages.size(); ++s) {
    StageTimes mine = stage_times(loads[s], static_cast<int64_t>(stages[s].ranks.size()), inputs);
    compute_on_devices(stages[s], loads[s], inputs, &mine);
    // What a sum takes beyond its messages is the ranks' own work.
    const double slowest = slowest_speed(stages[s], inputs);
    const double on_links =
        ring_part(stages[s].ranks, inputs) * price.exchange_seconds[s] / inputs.exchange_factor;
    const double factor =
        priced_exchange_factor(loads[s], static_cast<int64_t>(stages[s].ranks.size()), inputs);
    mine.reduce_seconds = on_links * (1 + (factor - 1) / slowest);
    if (loads[s].tied_sent_bytes > 0) {
      int level = 0;
      for (const int64_t other : loads[s].tied_with)
        level = std::max(level, farthest_level(stages[s], stages[static_cast<size_t>(other)], costs));
      mine.tied_seconds = costs.message_seconds(loads[s].tied_sent_bytes, level);
    }
    if (!loads[s].last && !loads[s].out_stays)
      mine.send_activation_seconds = costs.message_seconds(loads[s].out_bytes, price.out_levels[s]);
    if (!loads[s].first && !loads[s].after_frozen && !loads[s].in_stays)
      mine.send_gradient_seconds = costs.message_seconds(loads[s].in_bytes, price.in_levels[s]);
    add_message_ends(loads[s], price.in_levels[s], price.out_levels[s], inputs, &mine);
    times.push_back(mine);
  }
  return times;
}

double shared_out_seconds(double least_seconds, const std::vector<Stage>& stages, const CostInputs& inputs) {
  double speed = 0;
  for (const Stage& stage : stages) {
    for (const int64_t rank : stage.ranks) speed += inputs.paces.empty() ? 1 : inputs.paces[rank];
  }
  return least_seconds / speed;
}

}  // namespace pipewright
