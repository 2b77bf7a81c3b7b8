// Devices and the links between them. Holds no layers.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/json.h"

namespace pipewright {

/// One message between two members, one way.
struct MessageTime {
  int64_t bytes = 0;
  double seconds = 0;
  double spread = 0;  ///< median absolute deviation over median
  auto operator<=>(const MessageTime&) const = default;
};

struct TopologyLevel {
  int64_t count = 1;  ///< members of this level: devices at level 0, groups of the level below from then on
  double bandwidth_bytes_per_second = 0;  ///< per direction
  double latency_seconds = 0;
  bool shared = false;  ///< one link for all below it, or one each
  /// What a sum over replicas makes of the links: all ranks send and receive at once, and add. 0: as the
  /// bandwidth.
  double exchange_bytes_per_second = 0;
  /// Of messages that were sent and not yet received, from one rank to another: what the link itself holds
  /// (shared memory's ring), so that the sender is free of them.
  int64_t buffered_bytes = 0;
  /// What one end of a message takes of a rank's core while the rank computes: to send it or to receive it.
  double core_seconds_per_message = 0;
  double core_seconds_per_byte = 0;
  /// Per direction while both directions are busy. 0: not measured.
  double both_ways_bytes_per_second = 0;
  /// Measured, by ascending size; empty: latency and bandwidth say it.
  std::vector<MessageTime> messages = {};
  /// Sums over replicas, measured, by ascending bytes that a rank sends in them; empty:
  /// exchange_bytes_per_second says it.
  std::vector<MessageTime> exchanges = {};
};

struct TopologyDevice {
  std::string host;
  double relative_speed = 1;  ///< of what the profile, or that of its class, was measured on
  int64_t memory_bytes = 0;
  std::string device_class = {};  ///< "class": has a profile of its own; "" = none
};

/// How much longer computing (forward, backward, update) takes in real runs than profiles say, by how a rank
/// works; with all that such runs wait for beside it. Fitted by `pipewright-optimizer calibrate`. At least 1,
/// so that no plan becomes faster than the bounds that searches have.
struct HostFactors {
  static constexpr double kMost = 10;
  double alone = 1;     ///< one rank on its host
  double together = 1;  ///< several at a time, beyond ProfiledCrowd
  double draining = 1;  ///< whose pipeline drains at each update
  double by_turns = 1;  ///< with one minibatch under way at a time
  double replicas = 1;  ///< with a sum over replicas
  int64_t runs = 0;     ///< they were fitted to; 0: not calibrated

  double least() const;
  auto operator<=>(const HostFactors&) const = default;
};
struct HostFactorRow {
  double HostFactors::*factor;
  const char* key;   ///< in documents
  const char* name;  ///< of ranks that work so, for people
};
const std::vector<HostFactorRow>& host_factor_rows();

/// Cores that consecutive devices have in common: ranks of one machine that are more than its cores.
struct SharedCores {
  int64_t devices = 0;  ///< of each machine; 0: every rank has a core of its own
  int64_t cores = 0;

  auto operator<=>(const SharedCores&) const = default;
  /// Whether so many ranks, all on devices of their own, may ever want more cores than there are.
  bool too_few_for(int64_t ranks) const { return devices > 0 && std::min(ranks, devices) > cores; }
};

struct Topology {
  static constexpr const char* kSchema = "pipewright.topology/1";

  std::vector<TopologyLevel> levels;    ///< from the inside out
  int64_t memory_bytes = 0;             ///< per device; 0 = no limit
  std::vector<TopologyDevice> devices;  ///< empty, or one per device
  HostFactors factors = {};             ///< optional key "calibration"
  SharedCores cores = {};               ///< optional key "shared_cores"

  int64_t device_count() const;  ///< product of the counts
  /// All devices are of one host, so that a sum over replicas is work for its cores, not for a network.
  bool is_one_host() const;
  /// How many times as long a byte takes in a sum over replicas of all levels as by itself, at least 1: where
  /// a sum is slowest against where a message is.
  double exchange_factor() const;

  static Topology from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;
};

/// The same of sums in which a rank sends so many bytes, by what was measured on these levels; more where
/// caches are too small for such a sum. Between measured sums times grow in a straight line, before and
/// behind them in proportion.
double exchange_factor(const std::vector<TopologyLevel>& levels, double sent_bytes);

/// N devices behind one kind of link: what `--gpus N --bandwidths B --latency T --memory M` means.
Topology flat_topology(int64_t devices, double bandwidth_bytes_per_second, double latency_seconds,
                       int64_t memory_bytes);

}  // namespace pipewright
