// Rank 0: which links have become slow, from both ends of their messages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/monitor/link_monitor.h"
#include "runtime/monitor/message_log.h"

namespace pipewright {

/// A link in one direction has become slow, or as fast as it was.
struct LinkChange {
  int64_t sender = 0, receiver = 0;
  SpeedChange change;
};

/// Puts the two ends of each message together and watches a link for each ordered pair of ranks that exchange
/// activations or gradients; where several stages' messages pass it, the first that come stand for all.
///
/// Ranks of one host read the same clock. Between hosts the difference of their clocks is taken from the
/// first messages, as half of that between the quickest in either direction; from then on the hosts' clocks
/// must not part by more than a few milliseconds (NTP keeps them so).
class LinkJudge {
 public:
  /// What is less than about this, on top of what a message takes, is no change of its link.
  static constexpr double kGrainSeconds = 1e-3;
  static constexpr double kGrainBetweenHostsSeconds = 5e-3;

  /// `slowdown`: how many times as long a rank computes as when the run was quiet, as far as is known now.
  /// Where moving a message is a rank's own work (copies to shared memory), a rank that has become slow moves
  /// it more slowly: no change that a slow rank at one of its ends explains is the link's.
  explicit LinkJudge(std::function<double(int64_t rank)> slowdown, DetectorSettings settings = {})
      : slowdown_(std::move(slowdown)), settings_(settings) {}

  /// What `rank` has noted; each rank's logs in order.
  std::vector<LinkChange> take(int64_t rank, const MessageLog& log);

 private:
  using Ranks = std::pair<int64_t, int64_t>;  // sender, receiver
  struct End {
    int64_t rank = 0;
    std::string clock;
    double began_seconds = 0, ended_seconds = 0;
  };
  struct Link {
    std::optional<LinkMonitor> monitor;
    std::tuple<bool, int64_t> stream;  // of gradients, the sender's stage: whose messages are watched
    int64_t generation = 0;
    bool explained = false;  // it is slow, and so is one of its ranks
  };
  /// Of messages in one direction between hosts, until the difference of the clocks is known.
  struct Quickest {
    int64_t messages = 0;
    double seconds = 0;
  };

  std::optional<LinkChange> take(int64_t generation, const MessageEnd& message, const End& sender,
                                 const End& receiver);
  std::optional<double> clock_ahead(const End& sender, const End& receiver);
  bool is_explained(Ranks ranks, const SpeedChange& change) const;

  std::function<double(int64_t)> slowdown_;
  DetectorSettings settings_;
  /// Messages of which one end is known: by generation, minibatch, gradient, stage.
  std::map<std::tuple<int64_t, int64_t, bool, int64_t>, std::pair<bool, End>> waiting_;
  std::map<Ranks, Link> links_;
  std::map<Ranks, Quickest> quickest_;
};

}  // namespace pipewright
