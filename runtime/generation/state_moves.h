// Who sends which weights, buffers and optimizer slots to whom when one plan takes over from another.
// docs/changing-plans.md
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/run.h"
#include "models/definition/model.h"
#include "runtime/stage/stage_state.h"
#include "runtime/transport/transport.h"

namespace pipewright {

class Worker;

/// What a rank holds of the model by the names of a checkpoint's tensors (runtime/checkpoint/checkpoint.h).
using NamedState = std::map<std::string, at::Tensor>;

/// A tensor of a stage's state: of a parameter its value, its number of updates and its slots, of a buffer
/// its value.
struct StatePart {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

/// One message.
struct StateMove {
  int64_t from = 0;
  int64_t to = 0;
  std::vector<StatePart> parts;  ///< in this order

  int64_t bytes() const;
};

/// plan_moves() of parameters and buffers with all that goes along. Buffers that are no floating-point
/// numbers differ between replicas: those of replica 0 count, as in a checkpoint.
std::vector<StateMove> state_moves(const Graph& graph, const OptimizerSettings& optimizer, const Plan& last,
                                   const Plan& next);

/// The state before minibatch n of all stages of a worker whose pipeline is empty. Borrows their tensors.
NamedState state_of(Worker& worker, int64_t n);

/// Carries out what of `moves` is this rank's and returns what it has then: of `own` all, and what has come.
/// Every rank that has a part in it calls it. `own` stays as it is: it can be let go when this returns,
/// because all that was sent has arrived and its receivers have answered with its digest. `between`, if
/// given, is called between the steps. PeerError; RunError if a message has not come as it was sent.
NamedState move_state(Transport* transport, const std::vector<StateMove>& moves, const NamedState& own,
                      const std::function<void()>& between = {});

/// The row of runtime/generation/state_source.h for the peers of the plan before: takes what move_state() returned.
std::unique_ptr<StateSource> state_from_peers(NamedState state, OptimizerSettings optimizer);

}  // namespace pipewright
