#include "runtime/schedule/network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/error.h"

namespace pipewright {

LinkTree::LinkTree(const std::vector<TopologyLevel>& levels) {
  PW_CHECK(!levels.empty(), "a network without levels");
  for (const TopologyLevel& level : levels) {
    PW_CHECK(level.count > 0, level.count << " members of a level");
    PW_CHECK(std::isfinite(level.bandwidth_bytes_per_second) && level.bandwidth_bytes_per_second > 0,
             level.bandwidth_bytes_per_second << " bytes per second");
    devices_ *= level.count;
  }
  int64_t below = 1;
  for (const TopologyLevel& level : levels) {
    const int64_t members = devices_ / below;
    // One each: an outgoing and an incoming link for each member. Shared: one for each group.
    const int64_t links = level.shared ? members / level.count : 2 * members;
    levels_.push_back(
        {level.count, below, static_cast<int32_t>(bandwidths_.size()), level.shared, level.latency_seconds});
    bandwidths_.insert(bandwidths_.end(), static_cast<size_t>(links), level.bandwidth_bytes_per_second);
    below *= level.count;
  }
}

LinkTree::Path LinkTree::path(int64_t from, int64_t to) const {
  PW_CHECK(from != to && std::max(from, to) < devices_, "from device " << from << " to device " << to);
  Path path;
  for (const Level& level : levels_) {
    const int64_t sender = from / level.below, receiver = to / level.below;
    const int64_t sender_group = sender / level.count, receiver_group = receiver / level.count;
    const auto add = [&](int64_t link) {
      path.links.push_back(level.first_link + static_cast<int32_t>(link));
    };
    if (level.shared) {
      add(sender_group);
      if (receiver_group != sender_group) add(receiver_group);
    } else {
      add(2 * sender);
      add(2 * receiver + 1);
    }
    path.latency_seconds = level.latency_seconds;
    if (sender_group == receiver_group) break;
  }
  return path;
}

LinkTree::Exchange LinkTree::exchange(const std::vector<int64_t>& devices) const {
  const auto all = static_cast<double>(devices.size());
  PW_CHECK(devices.size() > 1, "an exchange of one device");
  Exchange exchange;
  // Of a group with so many of the devices: what leaves it, in parts of what one device sends.
  const auto leaving = [all](int64_t inside) {
    const auto a = static_cast<double>(inside);
    return a * (all - a) / (all - 1);
  };
  for (const Level& level : levels_) {
    std::map<int64_t, int64_t> members, groups;
    for (const int64_t device : devices) {
      ++members[device / level.below];
      ++groups[device / level.below / level.count];
    }
    const auto add = [&](int64_t link, double weight) {
      if (weight <= 0) return;
      exchange.links.push_back(level.first_link + static_cast<int32_t>(link));
      exchange.weights.push_back(weight);
    };
    if (level.shared) {
      // What members pass to each other once, what leaves and what comes in.
      std::map<int64_t, double> carried;
      for (const auto& [group, inside] : groups) carried[group] += leaving(inside);
      for (const auto& [member, inside] : members) carried[member / level.count] += leaving(inside);
      for (const auto& [group, weight] : carried) add(group, weight);
    } else {
      for (const auto& [member, inside] : members) {
        add(2 * member, leaving(inside));
        add(2 * member + 1, leaving(inside));
      }
    }
    exchange.latency_seconds = level.latency_seconds;
    if (groups.size() == 1) break;
  }
  return exchange;
}

FairNetwork::FairNetwork(std::vector<double> bandwidths) : links_(bandwidths.size()) {
  for (size_t link = 0; link < bandwidths.size(); ++link) links_[link].bandwidth = bandwidths[link];
}

void FairNetwork::add(int32_t flow, const std::vector<int32_t>& links, double bytes, double now,
                      const std::vector<double>& weights) {
  if (static_cast<size_t>(flow) >= flows_.size()) flows_.resize(static_cast<size_t>(flow) + 1);
  Flow& added = flows_[flow];
  added.links = links;
  added.weights = weights;
  added.bytes = bytes;
  added.rate = -1;  // so that any rate is a new one
  added.since = now;
  for (const int32_t link : links) {
    links_[link].flows.push_back(flow);
    touched_.push_back(link);
  }
}

void FairNetwork::remove(int32_t flow) {
  ++flows_[flow].edition;
  for (const int32_t link : flows_[flow].links) {
    std::vector<int32_t>& on_link = links_[link].flows;
    const auto at = std::find(on_link.begin(), on_link.end(), flow);
    PW_CHECK(at != on_link.end(), "flow " << flow << " is not under way");
    *at = on_link.back();
    on_link.pop_back();
    touched_.push_back(link);
  }
}

void FairNetwork::gather() {
  ++visit_;
  reached_links_.clear();
  reached_flows_.clear();
  const auto reach = [&](int32_t link) {
    if (links_[link].visited == visit_) return;
    links_[link].visited = visit_;
    reached_links_.push_back(link);
  };
  for (const int32_t link : touched_) reach(link);
  touched_.clear();
  for (size_t next = 0; next < reached_links_.size(); ++next)
    for (const int32_t flow : links_[reached_links_[next]].flows) {
      if (flows_[flow].visited == visit_) continue;
      flows_[flow].visited = visit_;
      flows_[flow].fixed = false;
      reached_flows_.push_back(flow);
      for (const int32_t link : flows_[flow].links) reach(link);
    }
}

// Water filling: the link that leaves its messages least fixes them at that, and so on with what is left.
void FairNetwork::share() {
  rates_.resize(flows_.size());
  if (reached_flows_.size() == 1) {  // nothing to share
    const Flow& flow = flows_[reached_flows_[0]];
    double least = std::numeric_limits<double>::infinity();
    for (size_t at = 0; at < flow.links.size(); ++at)
      least = std::min(least, links_[flow.links[at]].bandwidth / flow.weight(at));
    rates_[reached_flows_[0]] = least;
    return;
  }
  open_.clear();
  for (const int32_t number : reached_links_) {
    Link& link = links_[number];
    link.left = link.bandwidth;
    link.unfixed = static_cast<int64_t>(link.flows.size());
    link.weight = 0;
    if (link.unfixed > 0) open_.push_back({&link, 0});
  }
  for (const int32_t number : reached_flows_) {
    const Flow& flow = flows_[number];
    for (size_t at = 0; at < flow.links.size(); ++at) links_[flow.links[at]].weight += flow.weight(at);
  }
  while (!open_.empty()) {
    double least = std::numeric_limits<double>::infinity();
    size_t still = 0;
    for (const Open& each : open_) {
      const Link& link = *each.link;
      if (link.unfixed == 0) continue;
      const double fair = std::max(0.0, link.left) / link.weight;
      least = std::min(least, fair);
      open_[still++] = {each.link, fair};
    }
    open_.resize(still);
    // Links that are as narrow but for rounding are fixed at once. What is fixed leaves no link less.
    const double narrow = least * (1 + 1e-12);
    for (const Open& each : open_) {
      if (each.fair > narrow || each.link->unfixed == 0) continue;
      for (const int32_t flow : each.link->flows) {
        if (flows_[flow].fixed) continue;
        flows_[flow].fixed = true;
        rates_[flow] = least;
        for (size_t at = 0; at < flows_[flow].links.size(); ++at) {
          Link& link = links_[flows_[flow].links[at]];
          link.left -= least * flows_[flow].weight(at);
          link.weight -= flows_[flow].weight(at);
          --link.unfixed;
        }
      }
    }
  }
}

void FairNetwork::settle(double now, std::vector<Arrival>* arrivals) {
  gather();
  share();
  for (const int32_t number : reached_flows_) {
    Flow& flow = flows_[number];
    if (rates_[number] == flow.rate) continue;
    if (flow.rate > 0) flow.bytes = std::max(0.0, flow.bytes - flow.rate * (now - flow.since));
    flow.since = now;
    flow.rate = rates_[number];
    arrivals->push_back({number, now + flow.bytes / flow.rate, ++flow.edition});
  }
}

}  // namespace pipewright
