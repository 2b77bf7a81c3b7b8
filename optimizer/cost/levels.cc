#include "optimizer/cost/levels.h"

#include <algorithm>

#include "optimizer/cost/stage_times.h"

namespace pipewright {
LevelCosts::LevelCosts(const CostInputs& inputs) : inputs_(inputs), sizes_{1} {
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

double LevelCosts::exchange_seconds_per_byte(int64_t replicas, double slowest_link) const {
  return std::max(slowest_link,
                  all_reduce_link_seconds(1, crossing_part(1, replicas), inputs_.bandwidth_bytes_per_second));
}

double LevelCosts::exchange_seconds_per_byte(const std::vector<int64_t>& ranks, double slower) const {
  const auto replicas = static_cast<int64_t>(ranks.size());
  double slowest = 0;
  for (const GroupLink& link : links_)
    for (const auto& [group, part] : crossing(link, ranks))
      slowest = std::max(slowest, slower * exchange_link_seconds_per_byte(link, part));
  return exchange_seconds_per_byte(replicas, slowest);
}

std::map<int64_t, double> LevelCosts::crossing(const GroupLink& link,
                                               const std::vector<int64_t>& ranks) const {
  std::map<int64_t, double> parts;
  const auto add = [&](int64_t members) {
    for (const auto& [member, count] : ranks_by_group(ranks, members))
      parts[member * members / link.group] += crossing_part(count, static_cast<int64_t>(ranks.size()));
  };
  add(link.group);
  if (link.shared) add(link.member);
  return parts;
}

std::map<int64_t, int64_t> ranks_by_group(const std::vector<int64_t>& ranks, int64_t size) {
  std::map<int64_t, int64_t> counts;
  for (const int64_t rank : ranks) ++counts[rank / size];
  return counts;
}

double LevelCosts::exchange_latency_seconds(int level) const {
  return all_reduce_latency_seconds(latency_seconds(level));
}

double LevelCosts::latency_seconds(int level) const {
  return inputs_.levels.empty() ? inputs_.latency_seconds : inputs_.levels[level].latency_seconds;
}

double LevelCosts::exchange_link_seconds_per_byte(const GroupLink& link, double crossing) const {
  return all_reduce_link_seconds(1, crossing, link.bandwidth_bytes_per_second);
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
  return link_seconds(bytes * std::max(0.0, part), link.bandwidth_bytes_per_second);
}

double LevelCosts::message_seconds(int64_t bytes, int level) const {
  double bandwidth = inputs_.bandwidth_bytes_per_second;
  for (int l = 1; l <= level; ++l)
    bandwidth = std::min(bandwidth, inputs_.levels[l].bandwidth_bytes_per_second);
  return pipewright::message_seconds(static_cast<double>(bytes), latency_seconds(level), bandwidth);
}

double LevelCosts::device_link_seconds(const StageLoad& load, int in_level, int out_level) const {
  // A link that all devices share is counted with the links in common.
  const bool shared = !inputs_.levels.empty() && inputs_.levels[0].shared;
  const auto message = [&](int64_t bytes, int level) {
    return pipewright::message_seconds(shared ? 0 : static_cast<double>(bytes), latency_seconds(level),
                                       inputs_.bandwidth_bytes_per_second);
  };
  const double in = load.first || load.in_stays ? 0 : message(load.in_bytes, in_level);
  const double out = load.last || load.out_stays ? 0 : message(load.out_bytes, out_level);
  // What comes in goes back as gradients.
  return inputs_.forward_only || load.frozen ? std::max(in, out) : in + out;
}

double LevelCosts::gradient_bytes(const StageLoad& load) const {
  if (inputs_.forward_only) return 0;
  return exchanged_bytes(load, inputs_);
}

double LevelCosts::step_seconds(const StageLoad& load) const {
  if (inputs_.forward_only) return 0;
  // Copies of tied parameters exchange before an update: at the innermost links at least.
  return pipewright::step_seconds(load, inputs_) +
         link_seconds(static_cast<double>(load.tied_sent_bytes), inputs_.bandwidth_bytes_per_second);
}

namespace {

/// Compute of a minibatch by replicas with these shares.
double shared_seconds(const std::vector<double>& seconds, const std::vector<int64_t>& shares) {
  double slowest = 0;
  int64_t round = 0;
  for (size_t q = 0; q < seconds.size(); ++q) {
    const int64_t share = shares.empty() ? 1 : shares[q];
    slowest = std::max(slowest, seconds[q] * static_cast<double>(share));
    round += share;
  }
  return slowest / static_cast<double>(round);
}

}  // namespace

std::vector<int64_t> best_shares(const std::vector<double>& seconds, int64_t most_minibatches) {
  std::vector<int64_t> shares(seconds.size(), 1);
  std::vector<int64_t> best = shares;
  double least = shared_seconds(seconds, best);
  auto most = static_cast<int64_t>(seconds.size()) * kMostShares;
  if (most_minibatches > 0) most = std::min(most, most_minibatches);
  // One more minibatch in the round, for the replica that would be done with it first.
  for (auto round = static_cast<int64_t>(seconds.size()) + 1; round <= most; ++round) {
    size_t next = 0;
    for (size_t q = 1; q < seconds.size(); ++q) {
      if (seconds[q] * static_cast<double>(shares[q] + 1) <
          seconds[next] * static_cast<double>(shares[next] + 1))
        next = q;
    }
    ++shares[next];
    const double period = shared_seconds(seconds, shares);
    if (period < least * (1 - 1e-12)) {
      least = period;
      best = shares;
    }
  }
  return best;
}

}  // namespace pipewright
