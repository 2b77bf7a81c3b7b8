// What a stage costs where its replicas are: devices under several levels of links, shared or not, and
// devices of different speed. docs/cost-model.md, "Levels", has the formulas. Rows of devices
// (optimizer/plan/row_seeds.h) and prices of plans, rank by rank (placed.h), ask here.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "graph/plan.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/formulas.h"

namespace pipewright {

/// Groups of `group` devices, each with a link of its own to the others of its parent, or (`shared`) groups
/// of `group` devices whose members, of `member` devices each, have one link together. Training uses both
/// directions alike: what goes out as values comes back as gradients. Forward only, each direction is a link.
struct GroupLink {
  enum class Carries { kAlike, kOut, kIn };
  int64_t group = 1;
  int64_t member = 1;
  double bandwidth_bytes_per_second = 0;
  bool shared = false;
  Carries carries = Carries::kAlike;
};

class LevelCosts {
 public:
  explicit LevelCosts(const CostInputs& inputs);

  /// Links that stages can have in common. A level's link of a single device is none: only its stage uses it.
  const std::vector<GroupLink>& links() const { return links_; }
  /// Sizes of the groups of each level's members: 1, then devices of a server, ...
  const std::vector<int64_t>& sizes() const { return sizes_; }

  /// Highest level whose links a message between the devices `a` and `b` takes.
  int level_between(int64_t a, int64_t b) const;

  /// One exchange of gradients, of two replicas or more: seconds for a byte, beside its latency.
  /// `slowest_link`: of the links in common (exchange_link_seconds_per_byte).
  double exchange_seconds_per_byte(int64_t replicas, double slowest_link) const;
  /// The same for replicas on these devices, as if nothing else were on the links in common, which are taken
  /// to be so many times as slow.
  double exchange_seconds_per_byte(const std::vector<int64_t>& ranks, double slower = 1) const;
  double exchange_latency_seconds(int level) const;  ///< `level`: highest that the stage spans
  /// By group, the part of what replicas on these devices exchange that crosses its link: crossing_part() of
  /// the group and, where the link is shared, of its members too.
  std::map<int64_t, double> crossing(const GroupLink& link, const std::vector<int64_t>& ranks) const;
  /// What one exchange takes on one of the links, for a byte of which `crossing` crosses it.
  double exchange_link_seconds_per_byte(const GroupLink& link, double crossing) const;
  /// Per minibatch, what a cut of `bytes` takes on a link. `before`, `after`: parts of the replicas of the
  /// stages on its two sides in the group; `product`: of both; `member_product`: sum over the members of the
  /// product of both (shared links only). Traffic is spread evenly over the pairs of replicas.
  double cut_link_seconds(const GroupLink& link, double bytes, double before, double after, double product,
                          double member_product) const;
  /// One message between devices that `level` joins, with nothing else on its way.
  double message_seconds(int64_t bytes, int level) const;
  /// Per round and device: transfers beside compute.
  double device_link_seconds(const StageLoad& load, int in_level, int out_level) const;

  double gradient_bytes(const StageLoad& load) const;
  double step_seconds(const StageLoad& load) const;

 private:
  double latency_seconds(int level) const;

  const CostInputs& inputs_;
  std::vector<GroupLink> links_;
  std::vector<int64_t> sizes_;
};

/// How many of the ranks are in each group of `size` devices.
std::map<int64_t, int64_t> ranks_by_group(const std::vector<int64_t>& ranks, int64_t size);

/// Shares of the minibatches of a round for replicas that take `seconds` each for one: those that compute a
/// minibatch in the least time, of the shortest round; at most kMostShares for each on average. What comes
/// once in a round (exchange, update) does not count: a longer round that only makes it rarer is another
/// training, with more samples an update. So equal replicas get 1 each. `most_minibatches`: of a round, at
/// least as many as there are replicas; 0: any.
std::vector<int64_t> best_shares(const std::vector<double>& seconds, int64_t most_minibatches = 0);
inline constexpr int64_t kMostShares = 8;

}  // namespace pipewright
