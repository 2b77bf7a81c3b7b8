// Tied parameters: read by several nodes. Where all stages update together (weights `flush`, `2bw`), each
// stage that reads one may hold a copy; its ranks then send the gradients of theirs to the other stages'
// before an update (docs/semantics.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/dataflow.h"

namespace pipewright {

/// What copies add to a stage.
struct TiedShare {
  /// Beside what running sums say, which count a group at its first reader.
  int64_t parameter_bytes = 0;
  int64_t trainable_bytes = 0;
  int64_t sent_bytes = 0;  ///< of gradients, before an update, to one other copy of each group
  int64_t held_bytes = 0;  ///< what came from it, and the sum
};
/// Of the stage of the nodes that are in `to` and not in `from`.
TiedShare tied_share(const std::vector<TiedGroup>& groups, const NodeSet& from, const NodeSet& to);

/// A group that several stages hold.
struct SplitGroup {
  const TiedGroup* group = nullptr;
  std::vector<int64_t> stages;  ///< ascending
};
/// `stages`: the nodes of each.
std::vector<SplitGroup> split_groups(const std::vector<TiedGroup>& groups,
                                     const std::vector<NodeSet>& stages);

/// Names them in a plan.
std::vector<TiedParameter> tied_parameters(const std::vector<SplitGroup>& split);
/// Fills in what the ranks of each stage send and hold. Replica q of a stage hears from replica q modulo r of
/// another with r; copies on one rank need no message.
void set_tied(const std::vector<SplitGroup>& split, const std::vector<Stage>& stages,
              std::vector<StageLoad>* loads);

/// Where stages update at different times: which cuts tied parameters forbid, and what allows them, in a
/// sentence. "" for a profile that has none.
std::string forbidden_cuts_text(const Profile& profile);

}  // namespace pipewright
