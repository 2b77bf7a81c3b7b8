// Nodes' operators, as LibTorch's dispatcher knows them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "graph/graph.h"

namespace pipewright {

/// For messages: "node 'conv1' (features.0, aten::conv2d)".
std::string label_of(const Node& node);

/// InputError, naming the node, for an operator or an overload that this LibTorch has not (with the nearest),
/// and for one that graphs may not call (models/run/allowed_operators.h).
c10::OperatorHandle find_operator(const Node& node);

/// Does the operator draw random numbers with these arguments? A dropout that is switched off does not, and
/// all ones are no numbers drawn.
bool draws_numbers(const Node& node, const c10::OperatorHandle& op);

/// Does the operator write this argument of its schema? Norms write their running statistics, which their
/// schemas do not say, unless the node says that they do not train.
bool writes_argument(const Node& node, const c10::Argument& argument);

}  // namespace pipewright
