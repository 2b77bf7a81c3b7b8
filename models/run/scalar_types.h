// Types of numbers: what documents call them, and what LibTorch does.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace pipewright {

/// at::ScalarType of a document's dtype name and back.
at::ScalarType scalar_type_of(const std::string& dtype);
std::string dtype_name_of(at::ScalarType type);

}  // namespace pipewright
