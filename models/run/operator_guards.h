// What LibTorch does not check of the arguments of a few operators, and reaches beyond tensors if it is
// wrong: sizes of recurrent nets' weights, and numbers that are places in a table.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace pipewright {

/// Looks at the arguments of a call, just before it, in the schema's order. std::invalid_argument, one line,
/// for what the operator would not survive.
using OperatorGuard = void (*)(const std::vector<c10::IValue>& arguments);

/// Null for the operators that check their arguments themselves: nearly all.
OperatorGuard guard_of(const c10::FunctionSchema& schema);

}  // namespace pipewright
