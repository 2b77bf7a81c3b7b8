// The dtypes that documents know. Their bytes and kinds: dtype_bytes() and others in graph/graph.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

std::vector<std::string> dtype_names();
/// Whether it is one of them.
bool is_dtype(const std::string& name);
/// Bytes of the type, or -1 if they do not fit.
int64_t bounded_bytes(const TensorType& type);

}  // namespace pipewright
