// Messages that share links: rates by max-min fairness, worked out anew whenever a message comes or goes.
#pragma once

#include <cstdint>
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
  explicit FairNetwork(std::vector<double> bandwidths);

  /// A message begins; flows are numbered by the caller, small and reused. What settle() says of it counts.
  /// `weights`: by link, how many messages it is on that link; empty: one on each. Shares are then max-min
  /// fair for the bytes of one message.
  void add(int32_t flow, const std::vector<int32_t>& links, double bytes, double now,
           const std::vector<double>& weights = {});
  /// A message has arrived.
  void remove(int32_t flow);
  /// Whether messages have come or gone since settle().
  bool unsettled() const { return !touched_.empty(); }

  struct Arrival {
    int32_t flow = 0;
    double seconds = 0;
    int32_t edition = 0;  ///< what was said of the flow before counts no more
  };
  /// Shares the links at `now`; appends when messages will arrive, of those whose rate has changed.
  void settle(double now, std::vector<Arrival>* arrivals);
  /// Whether an arrival still counts.
  bool current(const Arrival& arrival) const { return flows_[arrival.flow].edition == arrival.edition; }

 private:
  struct Flow {
    std::vector<int32_t> links;
    std::vector<double> weights;  // by link; empty: 1
    double weight(size_t at) const { return weights.empty() ? 1 : weights[at]; }
    double bytes = 0, rate = 0, since = 0;  // left at `since`
    int32_t edition = 0;
    int64_t visited = 0;
    bool fixed = false;
  };
  struct Link {
    double bandwidth = 0, left = 0, weight = 0;  // of the flows that are not fixed
    std::vector<int32_t> flows;
    int64_t unfixed = 0, visited = 0;
  };

  struct Open {
    Link* link = nullptr;
    double fair = 0;  // what it leaves each of its messages
  };

  void gather();
  void share();

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<int32_t> touched_;                        // links
  std::vector<int32_t> reached_links_, reached_flows_;  // that touched links can influence
  std::vector<Open> open_;                              // of these, with messages that are not fixed
  std::vector<double> rates_;                           // of reached flows, new
  int64_t visit_ = 0;
};

}  // namespace pipewright
