#include "models/run/scalar_types.h"

#include <utility>
#include <vector>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

const std::vector<std::pair<const char*, at::ScalarType>>& dtype_table() {
  static const std::vector<std::pair<const char*, at::ScalarType>> table = {{"float32", at::kFloat},
                                                                            {"float64", at::kDouble},
                                                                            {"bfloat16", at::kBFloat16},
                                                                            {"float16", at::kHalf},
                                                                            {"complex64", at::kComplexFloat},
                                                                            {"int64", at::kLong},
                                                                            {"int32", at::kInt},
                                                                            {"int16", at::kShort},
                                                                            {"int8", at::kChar},
                                                                            {"uint8", at::kByte},
                                                                            {"bool", at::kBool}};
  return table;
}

}  // namespace

at::ScalarType scalar_type_of(const std::string& dtype) {
  std::vector<std::string> names;
  for (const auto& [name, type] : dtype_table()) {
    if (dtype == name) return type;
    names.push_back(name);
  }
  throw InputError("unknown dtype '" + dtype + "'" + suggestion(dtype, names));
}

std::string dtype_name_of(at::ScalarType type) {
  for (const auto& [name, known] : dtype_table())
    if (type == known) return name;
  throw InputError(std::string("tensors of dtype ") + c10::toString(type) + " are not supported");
}

}  // namespace pipewright
