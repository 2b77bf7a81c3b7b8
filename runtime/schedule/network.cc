#include "runtime/schedule/network.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
  path.latency_seconds = along_path(from, to, [&](int32_t link) { path.links.push_back(link); });
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
  std::vector<int64_t> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  // Of sorted devices those that are one number after division: the first behind them.
  const auto end_of = [&](size_t begin, int64_t below) {
    size_t end = begin;
    while (end < sorted.size() && sorted[end] / below == sorted[begin] / below) ++end;
    return end;
  };
  for (const Level& level : levels_) {
    const auto add = [&](int64_t link, double weight) {
      if (weight <= 0) return;
      exchange.links.push_back(level.first_link + static_cast<int32_t>(link));
      exchange.weights.push_back(weight);
    };
    bool one_group = false;
    for (size_t begin = 0; begin < sorted.size();) {
      const size_t end = end_of(begin, level.below * level.count);
      one_group = begin == 0 && end == sorted.size();
      // What members pass to each other once, what leaves and what comes in.
      double carried = leaving(static_cast<int64_t>(end - begin));
      for (size_t at = begin; at < end;) {
        const size_t next = end_of(at, level.below);
        const int64_t member = sorted[at] / level.below;
        const double weight = leaving(static_cast<int64_t>(next - at));
        carried += weight;
        if (!level.shared) {
          add(2 * member, weight);
          add(2 * member + 1, weight);
        }
        at = next;
      }
      if (level.shared) add(sorted[begin] / level.below / level.count, carried);
      begin = end;
    }
    exchange.latency_seconds = level.latency_seconds;
    if (one_group) break;
  }
  return exchange;
}

FairNetwork::FairNetwork(std::vector<double> bandwidths) : links_(bandwidths.size()) {
  for (size_t link = 0; link < bandwidths.size(); ++link) links_[link].bandwidth = bandwidths[link];
}

inline void FairNetwork::touch(int32_t number) {
  if (binds(links_[number])) touched_.push_back(number);
}

void FairNetwork::add(int32_t flow, const std::vector<int32_t>& links, double bytes, double now,
                      const std::vector<double>& weights) {
  if (static_cast<size_t>(flow) >= flows_.size()) flows_.resize(static_cast<size_t>(flow) + 1);
  Flow& added = flows_[flow];
  added.links = links;
  added.weights = weights;
  added.all_bytes = added.bytes = bytes;
  added.rate = -1;  // so that any rate is a new one
  added.since = now;
  added.under_way = true;
  added.arrives = kNever;
  under_way_.push_back(flow);
  added.most = std::numeric_limits<double>::infinity();
  for (size_t at = 0; at < links.size(); ++at)
    added.most = std::min(added.most, links_[links[at]].bandwidth / added.weight(at));
  for (size_t at = 0; at < links.size(); ++at) {
    Link& link = links_[links[at]];
    link.flows.push_back(flow);
    link.most += added.most * added.weight(at);
    touch(links[at]);
  }
  added_.push_back(flow);
}

void FairNetwork::remove(int32_t flow) {
  Flow& removed = flows_[flow];
  removed.under_way = false;
  under_way_.erase(std::find(under_way_.begin(), under_way_.end(), flow));
  if (first_ == flow) find_first();
  for (size_t at = 0; at < removed.links.size(); ++at) {
    const int32_t number = removed.links[at];
    Link& link = links_[number];
    const auto found = std::find(link.flows.begin(), link.flows.end(), flow);
    PW_CHECK(found != link.flows.end(), "flow " << flow << " is not under way");
    *found = link.flows.back();
    link.flows.pop_back();
    touch(number);
    link.most = link.flows.empty() ? 0 : link.most - removed.most * removed.weight(at);
  }
}

double FairNetwork::part_left(int32_t number, double now) const {
  if (static_cast<size_t>(number) >= flows_.size() || !flows_[number].under_way) return -1;
  const Flow& flow = flows_[number];
  if (flow.rate <= 0 || flow.all_bytes <= 0) return 1;
  return std::max(0.0, flow.bytes - flow.rate * (now - flow.since)) / flow.all_bytes;
}

void FairNetwork::gather() {
  ++visit_;
  reached_links_.clear();
  reached_flows_.clear();
  const auto reach_flow = [&](int32_t number) {
    Flow& flow = flows_[number];
    if (flow.visited == visit_ || !flow.under_way) return;
    flow.visited = visit_;
    flow.fixed = false;
    reached_flows_.push_back(number);
  };
  const auto reach_link = [&](int32_t number) {
    Link& link = links_[number];
    if (link.visited == visit_) return;
    link.visited = visit_;
    for (const int32_t flow : link.flows) reach_flow(flow);
    if (!binds(link)) return;  // but it did
    link.left = link.bandwidth;
    link.unfixed = static_cast<int64_t>(link.flows.size());
    link.weight = 0;
    reached_links_.push_back(number);
  };
  for (const int32_t link : touched_) reach_link(link);
  for (const int32_t flow : added_) reach_flow(flow);
  touched_.clear();
  added_.clear();
  for (size_t next = 0; next < reached_flows_.size(); ++next)
    for (const int32_t link : flows_[reached_flows_[next]].links)
      if (binds(links_[link])) reach_link(link);
}

inline void FairNetwork::fix(int32_t number, double rate) {
  Flow& flow = flows_[number];
  flow.fixed = true;
  rates_[number] = rate;
  for (size_t at = 0; at < flow.links.size(); ++at) {
    Link& link = links_[flow.links[at]];
    if (link.visited != visit_) continue;
    link.left -= rate * flow.weight(at);
    link.weight -= flow.weight(at);
    --link.unfixed;
  }
}

// Water filling: the link that leaves its messages least fixes them at that, and so on with what is left; a
// message that would get more than it could have alone has that.
void FairNetwork::share() {
  rates_.resize(flows_.size());
  if (reached_links_.empty()) {  // nothing to share
    for (const int32_t number : reached_flows_) rates_[number] = flows_[number].most;
    return;
  }
  open_.clear();
  for (const int32_t number : reached_links_) open_.push_back({&links_[number], 0});
  for (const int32_t number : reached_flows_) {
    const Flow& flow = flows_[number];
    for (size_t at = 0; at < flow.links.size(); ++at) links_[flow.links[at]].weight += flow.weight(at);
  }
  by_most_ = reached_flows_;
  std::sort(by_most_.begin(), by_most_.end(), [&](int32_t a, int32_t b) {
    return flows_[a].most != flows_[b].most ? flows_[a].most < flows_[b].most : a < b;
  });
  size_t next = 0;
  for (;;) {
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
    while (next < by_most_.size() && flows_[by_most_[next]].fixed) ++next;
    if (next == by_most_.size()) return;
    // Links that are as narrow but for rounding are fixed at once. What is fixed leaves no link less.
    const double narrow = least * (1 + kRounding);
    if (flows_[by_most_[next]].most <= narrow) {
      for (; next < by_most_.size() && flows_[by_most_[next]].most <= narrow; ++next)
        if (!flows_[by_most_[next]].fixed) fix(by_most_[next], flows_[by_most_[next]].most);
      continue;
    }
    for (const Open& each : open_) {
      if (each.fair > narrow || each.link->unfixed == 0) continue;
      for (const int32_t flow : each.link->flows)
        if (!flows_[flow].fixed) fix(flow, least);
    }
  }
}

void FairNetwork::settle(double now) {
  gather();
  share();
  for (const int32_t number : reached_flows_) {
    Flow& flow = flows_[number];
    if (rates_[number] == flow.rate) continue;
    if (flow.rate > 0) flow.bytes = std::max(0.0, flow.bytes - flow.rate * (now - flow.since));
    flow.since = now;
    flow.rate = rates_[number];
    flow.arrives = now + flow.bytes / flow.rate;
  }
  find_first();
}

void FairNetwork::find_first() {
  first_ = -1;
  double least = kNever;
  for (const int32_t number : under_way_) {
    if (flows_[number].arrives >= least) continue;
    least = flows_[number].arrives;
    first_ = number;
  }
}

}  // namespace pipewright
