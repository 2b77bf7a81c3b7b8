// From a document's arguments to what an operator's schema wants.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// A place of the operator's stack that is filled with tensors at each call.
struct TensorPlace {
  enum class Kind {
    kTensor,           ///< `Tensor` or `Tensor?`: exactly one name
    kTensors,          ///< `Tensor[]`
    kOptionalTensors,  ///< `Tensor?[]`: an empty name stands for None
  } kind = Kind::kTensor;
  size_t position = 0;  ///< in the stack
  std::vector<std::string> names;
};

/// A node's arguments in the schema's order: literals and defaults are in `stack`; `places` say where tensors
/// go.
struct PreparedArguments {
  std::vector<c10::IValue> stack;
  std::vector<TensorPlace> places;
};

/// InputError, beginning with `where`, for an argument that the schema does not know (nearest match), one
/// given twice, one that is missing and has no default, one whose type does not fit, and integers that no
/// size or place can be and operators would overflow with.
PreparedArguments prepare_arguments(const Node& node, const c10::FunctionSchema& schema,
                                    const std::string& where);

}  // namespace pipewright
