// Calls that write their results into tensors that they are given: aten::div.out, which F.normalize(out=)
// calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

struct PlainForm {
  Node call;  ///< makes new tensors; outputs as those of the call that it stands for
  std::vector<std::string> destinations;  ///< by output: the tensor that it was to be written into
};

/// The operator that computes the same and writes nothing: the overload with the same arguments but for the
/// destinations, which have to be tensors, one for each result. Nothing if `call` writes no results into
/// arguments of its own for them, or there is no such overload. It is not yet said that a graph may call it
/// (find_operator). PyTorch's autocast leaves calls with destinations alone: `autocast` is "off".
std::optional<PlainForm> plain_form(const Node& call);

}  // namespace pipewright
