// What no run of a chain of stages is faster than, from the stages' sums alone: for searches, which leave
// most chains aside without simulating them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "runtime/schedule/network.h"
#include "runtime/schedule/network_floor.h"

namespace pipewright {

/// For equal devices, schedules with a stage on each rank and minibatches that overlap. Of effects that
/// price() has, it has computing, updates, sums over replicas and messages as the formula has them, and on a
/// network the links that ranks have in common; it leaves out what only makes them longer, and so is never
/// above price_seconds() of these stages, at any depths (tests/optimizer/floor_test.cc). Borrows the inputs.
class Floor {
 public:
  /// `inputs` with how plans run (weights, minibatches of an update, backward in two parts).
  explicit Floor(const CostInputs& inputs);

  /// `ranks`: by stage, where devices are on a network; otherwise not read.
  NetworkPace pace(const std::vector<StageLoad>& loads, const std::vector<int64_t>& replicas,
                   const std::vector<std::vector<int64_t>>& ranks) const;
  bool on_network() const { return tree_ != nullptr; }

 private:
  NetworkPace own_links_pace(const std::vector<StageLoad>& loads, const std::vector<int64_t>& replicas) const;
  NetworkPace shared_links_pace(const std::vector<StageLoad>& loads,
                                const std::vector<std::vector<int64_t>>& ranks) const;
  /// Of one update, where each rank has its own link.
  double exchange_seconds(const StageLoad& load, int64_t replicas) const;
  double drained_seconds(const std::vector<StageLoad>& loads, const std::vector<int64_t>& replicas) const;

  const CostInputs& inputs_;
  const bool drains_;
  std::unique_ptr<const LinkTree> tree_;
};

}  // namespace pipewright
