// What no run of a chain of stages is faster than, from the stages' sums alone: for searches, which leave
// most chains aside without simulating them.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "runtime/schedule/network.h"
#include "runtime/schedule/network_floor.h"

namespace pipewright {

/// A stage's replicas, and on which devices they are, where that matters (CostInputs::placed()).
struct FloorStage {
  int64_t replicas = 1;
  std::vector<int64_t> ranks = {};
  std::vector<int64_t> shares = {};  ///< empty: all 1
  int64_t round() const {
    return shares.empty() ? replicas : std::accumulate(shares.begin(), shares.end(), int64_t{0});
  }
  double share(size_t replica) const { return shares.empty() ? 1 : static_cast<double>(shares[replica]); }
};

/// For schedules with a stage on each rank and minibatches that overlap. Of effects that
/// price() has, it has computing, updates, sums over replicas and messages as the formula has them, and on a
/// network the links that ranks have in common; it leaves out what only makes them longer, and so is never
/// above price_seconds() of these stages, at any depths (tests/optimizer/floor_test.cc). Borrows the inputs.
class Floor {
 public:
  /// `inputs` with how plans run (weights, minibatches of an update, backward in two parts).
  explicit Floor(const CostInputs& inputs);

  NetworkPace pace(const std::vector<StageLoad>& loads, const std::vector<FloorStage>& stages) const;
  bool on_network() const { return tree_ != nullptr; }

  /// Of what a stage computes, the part that earlier stages wait for where backwards are in two parts.
  double waited_part(const StageLoad& load) const;
  /// Of one minibatch, on the fastest of the stage's replicas.
  double least_compute_seconds(const StageLoad& load, const FloorStage& stage) const;

 private:
  double busiest_compute_seconds(const StageLoad& load, const FloorStage& stage) const;
  NetworkPace own_links_pace(const std::vector<StageLoad>& loads,
                             const std::vector<FloorStage>& stages) const;
  NetworkPace shared_links_pace(const std::vector<StageLoad>& loads,
                                const std::vector<FloorStage>& stages) const;
  /// For a minibatch, of the stage whose messages slow links hold up most.
  double slow_message_seconds(const std::vector<StageLoad>& loads,
                              const std::vector<FloorStage>& stages) const;
  /// Of one update, where each rank has its own link.
  double exchange_seconds(const StageLoad& load, int64_t replicas) const;
  double drained_seconds(const std::vector<StageLoad>& loads, const std::vector<FloorStage>& stages) const;

  const CostInputs& inputs_;
  const bool drains_;
  std::unique_ptr<const LinkTree> tree_;
};

}  // namespace pipewright
