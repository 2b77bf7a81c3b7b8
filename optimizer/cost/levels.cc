#include "optimizer/cost/levels.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr int64_t kMostRound = 8;  // minibatches for each replica, in best_shares

/// Part of the minibatches of a stage that each group of `size` ranks runs.
std::map<int64_t, double> parts_by_group(const Stage& stage, int64_t size) {
  std::map<int64_t, double> parts;
  double all = 0;
  for (size_t q = 0; q < stage.ranks.size(); ++q) {
    const double share = stage.shares.empty() ? 1 : static_cast<double>(stage.shares[q]);
    parts[stage.ranks[q] / size] += share;
    all += share;
  }
  for (auto& [group, part] : parts) part /= all;
  return parts;
}

std::map<int64_t, int64_t> ranks_by_group(const Stage& stage, int64_t size) {
  std::map<int64_t, int64_t> ranks;
  for (const int64_t rank : stage.ranks) ++ranks[rank / size];
  return ranks;
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
    const auto ours = ranks_by_group(a, sizes[k]);
    for (const auto& [group, count] : ranks_by_group(b, sizes[k])) {
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

LevelCosts::LevelCosts(const CostModel& model, const CostInputs& inputs)
    : inputs_(inputs), sizes_{1}, half_duplex_(model.levels == LevelRule::kSharedNic) {
  if (half_duplex_ && inputs.levels.size() > 2) {
    throw InputError("--objective: 'pipedream-shared-nic' is for two levels of links; the topology has " +
                     std::to_string(inputs.levels.size()));
  }
  using Carries = GroupLink::Carries;
  int64_t members = 1;
  for (size_t l = 0; l < inputs.levels.size(); ++l) {
    const TopologyLevel& level = inputs.levels[l];
    const int64_t group = members * level.count;
    const double bandwidth = level.bandwidth_bytes_per_second;
    if (level.shared) {
      links_.push_back({group, members, bandwidth, true, Carries::kAlike});
    } else if (l > 0 && inputs.forward_only) {
      links_.push_back({members, 1, bandwidth, false, Carries::kOut});
      links_.push_back({members, 1, bandwidth, false, Carries::kIn});
    } else if (l > 0) {
      links_.push_back({members, 1, bandwidth, false, Carries::kAlike});
    }
    if (l > 0) sizes_.push_back(members);
    members = group;
  }
}

int LevelCosts::level_between(int64_t a, int64_t b) const {
  for (size_t k = sizes_.size(); k-- > 1;) {
    if (a / sizes_[k] != b / sizes_[k]) return static_cast<int>(k);
  }
  return 0;
}

double LevelCosts::exchange_seconds_per_byte(int64_t replicas, int64_t most_inside, int64_t servers,
                                             double slowest_link) const {
  const double inside = inputs_.bandwidth_bytes_per_second;
  if (half_duplex_) {
    const auto g = static_cast<double>(most_inside);
    const auto q = static_cast<double>(servers);
    const double outside = inputs_.levels.size() > 1 ? inputs_.levels[1].bandwidth_bytes_per_second : inside;
    return 4 * (g - 1) / g / inside + 4 * (q - 1) / q / outside;
  }
  return std::max(slowest_link, 2 * crossing(1, replicas) / inside);
}

double LevelCosts::exchange_latency_seconds(int level) const {
  if (half_duplex_) return 0;
  return 2 * (inputs_.levels.empty() ? inputs_.latency_seconds : inputs_.levels[level].latency_seconds);
}

double LevelCosts::exchange_link_seconds_per_byte(const GroupLink& link, double crossing,
                                                  int64_t servers) const {
  if (half_duplex_) {
    const auto q = static_cast<double>(servers);
    return 4 * (q - 1) / q / link.bandwidth_bytes_per_second;
  }
  return 2 * crossing / link.bandwidth_bytes_per_second;
}

double LevelCosts::cut_link_seconds(const GroupLink& link, double bytes, double before, double after,
                                    double product, double member_product) const {
  double part = 0;
  if (link.shared) {
    // It sees what its members pass to each other once, and what leaves the group; and gradients come back.
    part = (inputs_.forward_only ? 1 : 2) * (before + after - product - member_product);
  } else if (link.carries == GroupLink::Carries::kOut) {
    part = before - product;
  } else if (link.carries == GroupLink::Carries::kIn) {
    part = after - product;
  } else {
    part = before + after - 2 * product;
  }
  return (half_duplex_ ? 2 : 1) * bytes * std::max(0.0, part) / link.bandwidth_bytes_per_second;
}

double LevelCosts::inner_cut_seconds(double bytes, int64_t ours_inside, int64_t ours, int64_t theirs_inside,
                                     int64_t theirs) const {
  if (!half_duplex_) return 0;
  const auto pairs = static_cast<double>(ours) * static_cast<double>(theirs);
  return 2 * bytes * static_cast<double>(std::max(ours_inside, theirs_inside)) / pairs /
         inputs_.bandwidth_bytes_per_second;
}

double LevelCosts::message_seconds(int64_t bytes, int level) const {
  double bandwidth = inputs_.bandwidth_bytes_per_second;
  for (int l = 1; l <= level; ++l)
    bandwidth = std::min(bandwidth, inputs_.levels[l].bandwidth_bytes_per_second);
  const double latency =
      inputs_.levels.empty() ? inputs_.latency_seconds : inputs_.levels[level].latency_seconds;
  return latency + static_cast<double>(bytes) / bandwidth;
}

double LevelCosts::device_link_seconds(const StageLoad& load, int in_level, int out_level) const {
  if (half_duplex_) return 0;
  const auto message = [&](int64_t bytes, int level) {
    const double latency =
        inputs_.levels.empty() ? inputs_.latency_seconds : inputs_.levels[level].latency_seconds;
    const bool shared = !inputs_.levels.empty() && inputs_.levels[0].shared;
    return latency + (shared ? 0 : static_cast<double>(bytes) / inputs_.bandwidth_bytes_per_second);
  };
  const double in = load.first ? 0 : message(load.charged_in_bytes, in_level);
  const double out = load.last ? 0 : message(load.charged_out_bytes, out_level);
  // What comes in goes back as gradients.
  return inputs_.forward_only ? std::max(in, out) : in + out;
}

double LevelCosts::gradient_bytes(const StageLoad& load) const {
  if (inputs_.forward_only) return 0;
  return static_cast<double>(half_duplex_ ? load.parameter_bytes : load.trainable_bytes);
}

double LevelCosts::step_seconds(const StageLoad& load) const {
  if (half_duplex_ || inputs_.forward_only) return 0;
  // Copies of tied parameters exchange before an update: at the innermost links at least.
  return static_cast<double>(load.trainable_bytes) * inputs_.step_seconds_per_byte +
         static_cast<double>(load.tied_sent_bytes) / inputs_.bandwidth_bytes_per_second;
}

std::vector<int64_t> LevelCosts::shares(const std::vector<double>& seconds, double overhead_seconds) const {
  return best_shares(seconds, inputs_.minibatches_per_update > 0 ? 0 : overhead_seconds);
}

namespace {

/// Period of replicas with these shares.
double shared_period(const std::vector<double>& seconds, const std::vector<int64_t>& shares,
                     double overhead) {
  double slowest = 0;
  int64_t round = 0;
  for (size_t q = 0; q < seconds.size(); ++q) {
    const int64_t share = shares.empty() ? 1 : shares[q];
    slowest = std::max(slowest, seconds[q] * static_cast<double>(share));
    round += share;
  }
  return (slowest + overhead) / static_cast<double>(round);
}

}  // namespace

std::vector<int64_t> best_shares(const std::vector<double>& seconds, double overhead_seconds) {
  std::vector<int64_t> shares(seconds.size(), 1);
  std::vector<int64_t> best = shares;
  double least = shared_period(seconds, best, overhead_seconds);
  const auto most = static_cast<int64_t>(seconds.size()) * kMostRound;
  // One more minibatch in the round, for the replica that would be done with it first.
  for (auto round = static_cast<int64_t>(seconds.size()) + 1; round <= most; ++round) {
    size_t next = 0;
    for (size_t q = 1; q < seconds.size(); ++q) {
      if (seconds[q] * static_cast<double>(shares[q] + 1) <
          seconds[next] * static_cast<double>(shares[next] + 1))
        next = q;
    }
    ++shares[next];
    const double period = shared_period(seconds, shares, overhead_seconds);
    if (period < least * (1 - 1e-12)) {
      least = period;
      best = shares;
    }
  }
  return best;
}

double PlacedPrice::total_seconds() const {
  double slowest = link_seconds;
  for (const StagePeriod& stage : stages) slowest = std::max(slowest, stage.total_seconds());
  return slowest;
}

double PlacedPrice::latency_seconds() const {
  return std::accumulate(replica_seconds.begin(), replica_seconds.end(), 0.0) +
         std::accumulate(receive_seconds.begin(), receive_seconds.end(), 0.0);
}

PlacedPrice price_placed(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                         const CostModel& model, const CostInputs& inputs) {
  const LevelCosts costs(model, inputs);
  const auto& links = costs.links();
  PlacedPrice price;
  std::vector<std::map<int64_t, double>> busy(links.size());

  for (size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    const auto replicas = static_cast<int64_t>(stage.ranks.size());
    const double bytes = costs.gradient_bytes(loads[s]);
    const int64_t shares = std::accumulate(stage.shares.begin(), stage.shares.end(), int64_t{0});
    const auto round = static_cast<double>(stage.shares.empty() ? replicas : shares);
    const double update = costs.minibatches_of_update(round);
    const auto servers =
        ranks_by_group(stage, costs.sizes().size() > 1 ? costs.sizes()[1] : int64_t{1} << 40);
    int64_t most_inside = 0;
    for (const auto& [server, count] : servers) most_inside = std::max(most_inside, count);
    const auto server_count = static_cast<int64_t>(servers.size());

    double slowest = 0;
    for (size_t l = 0; l < links.size(); ++l) {
      std::map<int64_t, double> crossing;
      for (const auto& [group, count] : ranks_by_group(stage, links[l].group)) {
        crossing[group] += LevelCosts::crossing(count, replicas);
      }
      if (links[l].shared) {
        for (const auto& [member, count] : ranks_by_group(stage, links[l].member)) {
          crossing[member * links[l].member / links[l].group] += LevelCosts::crossing(count, replicas);
        }
      }
      for (const auto& [group, part] : crossing) {
        const double seconds = costs.exchange_link_seconds_per_byte(links[l], part, server_count);
        busy[l][group] += seconds * bytes / update;
        slowest = std::max(slowest, seconds);
      }
    }
    const int span = span_level(stage, costs);
    double exchange = 0;
    if (replicas > 1 && bytes > 0) {
      exchange = costs.exchange_latency_seconds(span) +
                 bytes * costs.exchange_seconds_per_byte(replicas, most_inside, server_count, slowest);
    }
    price.exchange_seconds.push_back(exchange);

    double compute = 0;  // of a round, on the replica that takes longest
    double slowest_replica = 0;
    double most_share = 1;
    for (size_t q = 0; q < stage.ranks.size(); ++q) {
      const double share = stage.shares.empty() ? 1 : static_cast<double>(stage.shares[q]);
      const double seconds = compute_seconds_on(loads[s], inputs, stage.ranks[q]);
      compute = std::max(compute, share * seconds);
      slowest_replica = std::max(slowest_replica, seconds);
      most_share = std::max(most_share, share);
    }
    const auto level_to = [&](size_t other) {
      const int64_t paired = paired_size(stage, stages[other], costs.sizes());
      if (paired == 0) return std::max(span, nearest_level(stage, stages[other], costs));
      return static_cast<int>(std::find(costs.sizes().begin(), costs.sizes().end(), paired) -
                              costs.sizes().begin()) -
             1;
    };
    price.in_levels.push_back(s > 0 ? level_to(s - 1) : 0);
    price.out_levels.push_back(s + 1 < stages.size() ? level_to(s + 1) : 0);
    price.replica_seconds.push_back(slowest_replica);
    price.receive_seconds.push_back(0);
    if (s > 0) {
      const int level = std::max(price.out_levels[s - 1], price.in_levels[s]);
      price.receive_seconds.back() = costs.message_seconds(loads[s].in_bytes, level);
    }
    StagePeriod period;
    period.compute_seconds = compute / round;
    period.gradient_sync_seconds = exchange / update;
    period.step_seconds = costs.step_seconds(loads[s]) / update;
    period.link_seconds =
        costs.device_link_seconds(loads[s], price.in_levels[s], price.out_levels[s]) * most_share / round;
    price.stages.push_back(period);
  }

  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    const auto bytes = static_cast<double>(loads[s].charged_out_bytes);
    const int64_t paired = paired_size(stages[s], stages[s + 1], costs.sizes());
    const auto groups_paired = [&] { return static_cast<double>(ranks_by_group(stages[s], paired).size()); };
    const double copies = paired == 0 ? 1 : groups_paired();
    // Part of the traffic that stays in a group of `size`.
    const auto product = [&](int64_t size, double ours, double theirs) {
      return paired > 0 && paired <= size ? (ours + theirs) / 2 : ours * theirs * copies;
    };
    for (size_t l = 0; l < links.size(); ++l) {
      auto ours = parts_by_group(stages[s], links[l].group);
      auto theirs = parts_by_group(stages[s + 1], links[l].group);
      std::map<int64_t, double> member_product;
      if (links[l].shared) {
        auto our_members = parts_by_group(stages[s], links[l].member);
        auto their_members = parts_by_group(stages[s + 1], links[l].member);
        for (const auto& [member, part] : their_members) our_members[member] += 0;
        for (const auto& [member, part] : our_members) {
          member_product[member * links[l].member / links[l].group] +=
              product(links[l].member, part, their_members[member]);
        }
      }
      for (const auto& [group, part] : theirs) ours[group] += 0;
      for (const auto& [group, part] : ours) {
        busy[l][group] +=
            costs.cut_link_seconds(links[l], bytes, part, theirs[group],
                                   product(links[l].group, part, theirs[group]), member_product[group]);
      }
    }
    // Inside servers.
    const int64_t server = costs.sizes().size() > 1 ? costs.sizes()[1] : int64_t{1} << 40;
    const auto ours = ranks_by_group(stages[s], server);
    const auto theirs = ranks_by_group(stages[s + 1], server);
    for (const auto& [group, count] : ours) {
      if (theirs.count(group) == 0) continue;
      const double seconds =
          costs.inner_cut_seconds(bytes * copies, count, static_cast<int64_t>(stages[s].ranks.size()),
                                  theirs.at(group), static_cast<int64_t>(stages[s + 1].ranks.size()));
      for (const size_t side : {s, s + 1}) {
        price.stages[side].link_seconds = std::max(price.stages[side].link_seconds, seconds);
      }
    }
  }

  for (size_t l = 0; l < links.size(); ++l) {
    for (const auto& [group, seconds] : busy[l]) {
      if (seconds <= price.link_seconds) continue;
      price.link_seconds = seconds;
      const std::string what = links[l].shared ? "shared link of devices " : "link of devices ";
      price.busiest_link = what + std::to_string(group * links[l].group) + "-" +
                           std::to_string((group + 1) * links[l].group - 1);
    }
  }
  return price;
}

std::vector<StageTimes> placed_times(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                                     const CostInputs& inputs) {
  const PlacedPrice price = price_placed(loads, stages, cost_model_named("pipewright"), inputs);
  const LevelCosts costs(cost_model_named("pipewright"), inputs);
  std::vector<StageTimes> times;
  for (size_t s = 0; s < stages.size(); ++s) {
    StageTimes mine = stage_times(loads[s], static_cast<int64_t>(stages[s].ranks.size()), inputs);
    // As if all replicas were as slow as the one that a round waits for.
    const double slower = loads[s].compute_seconds() > 0
                              ? price.stages[s].compute_seconds *
                                    static_cast<double>(stages[s].ranks.size()) / loads[s].compute_seconds()
                              : 1;
    mine.forward_seconds *= slower;
    mine.recompute_seconds *= slower;
    mine.backward_seconds *= slower;
    mine.backward_weight_seconds *= slower;
    mine.reduce_seconds = price.exchange_seconds[s];
    if (loads[s].tied_sent_bytes > 0) {
      int level = 0;
      for (const int64_t other : loads[s].tied_with)
        level = std::max(level, farthest_level(stages[s], stages[static_cast<size_t>(other)], costs));
      mine.tied_seconds = costs.message_seconds(loads[s].tied_sent_bytes, level);
    }
    if (!loads[s].last)
      mine.send_activation_seconds = costs.message_seconds(loads[s].out_bytes, price.out_levels[s]);
    if (!loads[s].first)
      mine.send_gradient_seconds = costs.message_seconds(loads[s].in_bytes, price.in_levels[s]);
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
