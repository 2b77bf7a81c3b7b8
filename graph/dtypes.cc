#include "graph/dtypes.h"

#include <algorithm>
#include <iterator>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/limits.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

enum class NumberKind : uint8_t { kFloating, kComplex, kWhole };

struct DtypeRow {
  const char* name;
  int64_t bytes;
  NumberKind kind;
};
constexpr DtypeRow kDtypes[] = {
    {"float32", 4, NumberKind::kFloating},  {"float64", 8, NumberKind::kFloating},
    {"bfloat16", 2, NumberKind::kFloating}, {"float16", 2, NumberKind::kFloating},
    {"complex64", 8, NumberKind::kComplex}, {"int64", 8, NumberKind::kWhole},
    {"int32", 4, NumberKind::kWhole},       {"int16", 2, NumberKind::kWhole},
    {"int8", 1, NumberKind::kWhole},        {"uint8", 1, NumberKind::kWhole},
    {"bool", 1, NumberKind::kWhole},
};

const DtypeRow* find_dtype(const std::string& name) {
  const auto* row =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeRow& r) { return r.name == name; });
  return row == std::end(kDtypes) ? nullptr : row;
}

const DtypeRow& dtype_row(const std::string& name) {
  const DtypeRow* row = find_dtype(name);
  if (row == nullptr) throw InputError("unknown dtype " + in_quotes(name) + suggestion(name, dtype_names()));
  return *row;
}

}  // namespace

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeRow& row : kDtypes) names.emplace_back(row.name);
  return names;
}

bool is_dtype(const std::string& name) { return find_dtype(name) != nullptr; }

int64_t dtype_bytes(const std::string& dtype) { return dtype_row(dtype).bytes; }
bool dtype_is_floating(const std::string& dtype) { return dtype_row(dtype).kind == NumberKind::kFloating; }
bool dtype_has_gradients(const std::string& dtype) { return dtype_row(dtype).kind != NumberKind::kWhole; }

int64_t bounded_bytes(const TensorType& type) {
  if (std::find(type.shape.begin(), type.shape.end(), 0) != type.shape.end()) return 0;
  int64_t bytes = dtype_bytes(type.dtype);
  for (const int64_t extent : type.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMostBytes) return -1;
  }
  return bytes;
}

}  // namespace pipewright
