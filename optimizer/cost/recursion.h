// PipeDream's price of pipelines on two levels, as its published optimizer computes it, oddities included.
#pragma once

#include <vector>

#include "graph/plan.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/formulas.h"

namespace pipewright {

/// Formulas of the recursion. Seconds per minibatch; `above` is the level of servers.
class RecursionPrices {
 public:
  explicit RecursionPrices(const CostInputs& inputs)
      : inside_(inputs.levels[0].bandwidth_bytes_per_second),
        above_(inputs.levels[1].bandwidth_bytes_per_second) {}

  /// A stage on m devices of a server.
  double inside(double compute, double bytes, int64_t replicas) const {
    return replicated(compute, bytes, replicas, inside_);
  }
  /// A server's pipeline of this period on m servers.
  double above(double period, double bytes, int64_t replicas) const {
    return replicated(period, bytes, replicas, above_);
  }
  /// The same where it is the first: the exchange is divided by the devices of a server.
  double first_above(double period, double bytes, int64_t replicas, int64_t devices) const {
    return replicated(period, bytes, replicas, above_ * static_cast<double>(devices));
  }
  /// With the cuts, for all but the first of a level.
  double later(double period, double in_bytes, double out_bytes, int level, int64_t replicas) const {
    const double bandwidth = level == 0 ? inside_ : above_;
    return std::max(period, link_seconds(std::max(in_bytes, out_bytes),
                                         bandwidth * static_cast<double>(replicas), Duplex::kHalf));
  }

 private:
  static double replicated(double seconds, double bytes, int64_t replicas, double bandwidth) {
    const double exchange =
        all_reduce_link_seconds(bytes, crossing_part(1, replicas), bandwidth, Duplex::kHalf);
    return (seconds + exchange) / static_cast<double>(replicas);
  }
  double inside_;
  double above_;
};

/// Of a plan. PlanError unless it has the form that the recursion makes: runs of stages on the same servers,
/// each stage with as many ranks in every one of them.
double recursion_seconds(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                         const CostInputs& inputs);

/// InputError unless the recursion describes the devices: two levels of separate links, all devices alike.
void check_recursion(const CostInputs& inputs);

}  // namespace pipewright
