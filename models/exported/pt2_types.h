// Types of tensors as exported programs spell them (torch/_export/serde/schema.py, version 8.17).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/exported/pt2_symbols.h"

namespace pipewright {

struct Pt2TensorMeta {
  TensorType type;
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;
  bool requires_grad = false;
};

/// InputError for a dtype that Pipewright has not, a layout that is not strided, sizes that are negative or
/// depend on what `symbols` does not know.
Pt2TensorMeta pt2_tensor_meta(JsonReader reader, const Pt2Symbols& symbols);

/// "float32" of the number that programs have for it. InputError, beginning with `where`, for one that
/// Pipewright has not.
std::string pt2_dtype(int64_t number, const std::string& where);

}  // namespace pipewright
