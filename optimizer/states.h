// Where a model can be cut: down-sets of its DAG, with running sums, so that any stage's load is a
// difference.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cost_model.h"
#include "optimizer/dataflow.h"

namespace pipewright {

/// The cut after the nodes of `done`. Sums are over `done`.
struct State {
  NodeSet done;
  double forward_seconds = 0;
  double backward_seconds = 0;
  int64_t parameter_bytes = 0;
  int64_t trainable_bytes = 0;
  int64_t buffer_bytes = 0;
  int64_t saved_bytes = 0;
  int64_t cut_bytes = 0;      ///< what crosses
  int64_t charged_bytes = 0;  ///< what the cost model takes that for
  int64_t held_bytes = 0;     ///< of what crosses, what its makers do not save
};

/// Cuts in an order in which every set comes after its subsets: [0] is empty, back() holds all nodes. A stage
/// is a pair of states (i, j), i a proper subset of j: the nodes of j that are not in i. Every way of running
/// the model as a chain of stages is a path from [0] to back().
struct States {
  std::vector<State> states;
  /// By state: the larger states that contain it, ascending.
  std::vector<std::vector<int>> supersets;
  std::vector<int64_t> transient_bytes;  ///< by node
  std::vector<int64_t> saved_bytes;      ///< by node
  /// False: there are too many cuts and these are the ones of a single order of the nodes.
  bool exact = true;

  int size() const { return static_cast<int>(states.size()); }
  int last() const { return size() - 1; }
};

/// All cuts that do not separate tied parameters, if they are at most `most`; otherwise those along one
/// order, made depth first with small cuts. Cuts that the model's late and early nodes make pointless are
/// left out. Deterministic.
States enumerate_states(const Dataflow& flow, const CostModel& model, bool memory_limited,
                        int64_t most = 4096);

/// The stage of the nodes that are in state j and not in its subset i; without its workspace, which takes a
/// walk over the nodes.
StageLoad load_between(const States& states, int i, int j);
int64_t workspace_between(const States& states, int i, int j);
/// Its compute_seconds() alone.
double compute_between(const States& states, int i, int j);

}  // namespace pipewright
