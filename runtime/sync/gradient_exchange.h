// Sums that ranks make together, in an order that a serial program can repeat (docs/semantics.md).
#pragma once

#include <functional>
#include <vector>

#include "graph/plan.h"
#include "runtime/stage/stage_replica.h"
#include "runtime/stage/streams.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Replaces the tensors by their sums over `ranks`, in the order of `ranks`; tensors of one dtype travel as
/// one. All of `ranks` call it. Returns the bytes this rank sent.
int64_t sum_over_replicas(Transport& transport, const std::vector<int64_t>& ranks, int64_t tag,
                          std::vector<at::Tensor>& tensors);

/// The square sum of the whole model's gradients (runtime/update/gradient_norm.h), for rules under which all
/// stages update together: each of `ranks`, those of the pipeline, calls it, `by_stage` holding what it knows
/// (one replica of each stage gives its stage's sum, all other entries are 0), as float64. Adds the stages up
/// in their order, so that all ranks get the same bits. Uses tags `tag` and `tag` + 1 between all ranks.
/// Changes `by_stage`.
at::Tensor square_sum_of_model(Transport& transport, const std::vector<int64_t>& ranks, int64_t tag,
                               const at::Tensor& by_stage);

/// Tied parameters of one rank: their averaged gradients are summed over the stages that hold a copy.
class TiedExchange {
 public:
  /// `stages`: those of this rank, which outlive the exchange.
  TiedExchange(const Plan& plan, const std::vector<StageReplica*>& stages, StreamTags tags);
  bool empty() const { return copies_.empty(); }

  /// After every stage of this rank has averaged its round, and every stage of the plan has or will, without
  /// waiting for this rank first. Replica q of a stage hears from replica q mod r of another with r replicas.
  /// Returns the bytes this rank sent. `transport` may be null in a world of one rank.
  int64_t sum_over_stages(Transport* transport);

 private:
  struct Copy {
    StageReplica* stage = nullptr;
    size_t position = 0;              ///< in the stage's trainable parameters
    std::vector<int64_t> all_stages;  ///< that hold one, ascending
    int64_t number = 0;               ///< of the tied parameter in the plan
  };
  int64_t rank_of(int64_t stage, int64_t replica) const;

  Plan plan_;
  StreamTags tags_;
  std::vector<Copy> copies_;
};

}  // namespace pipewright
