// Messages that share links: rates by max-min fairness, worked out anew whenever a message comes or goes.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/topology.h"

namespace pipewright {

/// A tree of links as SimulationOptions::network describes it.
class LinkTree {
 public:
  /// CheckError unless there is a level, counts are positive and bandwidths finite and positive.
  explicit LinkTree(const std::vector<TopologyLevel>& levels);

  int64_t devices() const { return devices_; }
  /// By link, bytes a second.
  const std::vector<double>& bandwidths() const { return bandwidths_; }
  struct Path {
    std::vector<int32_t> links;
    double latency_seconds = 0;
  };
  /// From one device to another.
  Path path(int64_t from, int64_t to) const;
  /// The same without a list: calls visit(link) for each of its links, and returns its latency.
  template <typename Visit>
  double along_path(int64_t from, int64_t to, const Visit& visit) const {
    for (const Level& level : levels_) {
      const int64_t sender = from / level.below, receiver = to / level.below;
      const int64_t sender_group = sender / level.count, receiver_group = receiver / level.count;
      if (level.shared) {
        visit(level.first_link + static_cast<int32_t>(sender_group));
        if (receiver_group != sender_group) visit(level.first_link + static_cast<int32_t>(receiver_group));
      } else {
        visit(level.first_link + static_cast<int32_t>(2 * sender));
        visit(level.first_link + static_cast<int32_t>(2 * receiver + 1));
      }
      if (sender_group == receiver_group) return level.latency_seconds;
    }
    return levels_.back().latency_seconds;
  }

  /// The direct exchange of gradients between two devices or more, all at once: each sends a part to every
  /// other one (docs/cost-model.md). Seen as one flow of what a single device sends; a link carries `weights`
  /// times as much.
  struct Exchange {
    std::vector<int32_t> links;
    std::vector<double> weights;
    double latency_seconds = 0;  ///< of the highest level that it passes
  };
  Exchange exchange(const std::vector<int64_t>& devices) const;

 private:
  struct Level {
    int64_t count = 1;  // members of a group
    int64_t below = 1;  // devices of a member
    int32_t first_link = 0;
    bool shared = false;
    double latency_seconds = 0;
  };
  std::vector<Level> levels_;
  std::vector<double> bandwidths_;
  int64_t devices_ = 1;
};

/// Messages under way. Times must not fall from call to call.
class FairNetwork {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit FairNetwork(std::vector<double> bandwidths);

  /// A message begins; flows are numbered by the caller, small and reused.
  /// `weights`: by link, how many messages it is on that link; empty: one on each. Shares are then max-min
  /// fair for the bytes of one message.
  void add(int32_t flow, const std::vector<int32_t>& links, double bytes, double now,
           const std::vector<double>& weights = {});
  /// A message has arrived.
  void remove(int32_t flow);
  /// Of a message that is under way the part that is left; -1 of another.
  double part_left(int32_t flow, double now) const;
  /// Whether messages have come or gone since settle().
  bool unsettled() const { return !touched_.empty() || !added_.empty(); }

  /// Shares the links at `now`.
  void settle(double now);
  /// When a message that is under way arrives, as shared last.
  double arrival(int32_t flow) const { return flows_[flow].arrives; }
  /// When the next one does; infinity if none is under way.
  double next_arrival() const { return first_ < 0 ? kNever : flows_[first_].arrives; }
  /// Which that is: the one that was under way first, of several.
  int32_t next_flow() const { return first_; }

 private:
  static constexpr double kRounding = 1e-12;

  struct Flow {
    std::vector<int32_t> links;
    std::vector<double> weights;  // by link; empty: 1
    double weight(size_t at) const { return weights.empty() ? 1 : weights[at]; }
    double all_bytes = 0;
    double most = 0;                        // the rate that it has alone
    double bytes = 0, rate = 0, since = 0;  // left at `since`
    double arrives = kNever;
    int64_t visited = 0;
    bool fixed = false, under_way = false;
  };
  struct Link {
    double bandwidth = 0;
    double most = 0;              // that its flows together could take, each alone
    double left = 0, weight = 0;  // of the flows that are not fixed
    std::vector<int32_t> flows;
    int64_t unfixed = 0, visited = 0;
  };

  struct Open {
    Link* link = nullptr;
    double fair = 0;  // what it leaves each of its messages
  };

  /// Whether a link can be what holds a message back, beside those that hold it back alone. Others are not
  /// looked at.
  static bool binds(const Link& link) { return link.most > link.bandwidth * (1 + kRounding); }
  void touch(int32_t number);
  void fix(int32_t number, double rate);
  void gather();
  void share();
  void find_first();

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<int32_t> touched_;                        // links that bind, or did
  std::vector<int32_t> added_;                          // flows
  std::vector<int32_t> reached_links_, reached_flows_;  // that touched links can influence
  std::vector<int32_t> by_most_;                        // reached flows
  std::vector<Open> open_;                              // of these, with messages that are not fixed
  std::vector<double> rates_;                           // of reached flows, new
  std::vector<int32_t> under_way_;                      // flows, as they came
  int32_t first_ = -1;                                  // of them, to arrive; -1: none
  int64_t visit_ = 0;
};

}  // namespace pipewright
