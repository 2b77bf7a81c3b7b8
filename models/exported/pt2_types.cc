#include "models/exported/pt2_types.h"

#include "graph/error.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

struct DtypeRow {
  int64_t number;
  const char* torch;  ///< its name there
  const char* ours;   ///< null if Pipewright has it not
};
constexpr DtypeRow kDtypes[] = {
    {1, "uint8", "uint8"},
    {2, "int8", "int8"},
    {3, "int16", "int16"},
    {4, "int32", "int32"},
    {5, "int64", "int64"},
    {6, "float16", "float16"},
    {7, "float32", "float32"},
    {8, "float64", "float64"},
    {9, "complex32", nullptr},
    {10, "complex64", "complex64"},
    {11, "complex128", nullptr},
    {12, "bool", "bool"},
    {13, "bfloat16", "bfloat16"},
    {28, "uint16", nullptr},
    {29, "float8_e4m3fn", nullptr},
    {30, "float8_e5m2", nullptr},
    {31, "float8_e4m3fnuz", nullptr},
    {32, "float8_e5m2fnuz", nullptr},
};

constexpr int64_t kStrided = 7;
constexpr size_t kMostDimensions = 64;  // as LibTorch

/// A list of SymInts.
std::vector<int64_t> extents(JsonReader& reader, const std::string& key, const Pt2Symbols& symbols,
                             int64_t most) {
  std::vector<int64_t> values;
  for (const JsonReader& entry : reader.objects(key)) {
    values.push_back(symbols.evaluate(entry));
    if (values.back() < 0 || values.back() > most) {
      reader.fail(key, std::to_string(values.back()) + " is not in 0.." + std::to_string(most));
    }
  }
  if (values.size() > kMostDimensions) {
    reader.fail(key, std::to_string(values.size()) + " dimensions; expected at most " +
                         std::to_string(kMostDimensions));
  }
  return values;
}

}  // namespace

std::string pt2_dtype(int64_t number, const std::string& where) {
  for (const DtypeRow& row : kDtypes) {
    if (row.number != number) continue;
    if (row.ours != nullptr) return row.ours;
    throw InputError(where + ": tensors of dtype " + row.torch + " are not supported");
  }
  throw InputError(where + ": " + std::to_string(number) + " is the number of no known dtype");
}

Pt2TensorMeta pt2_tensor_meta(JsonReader reader, const Pt2Symbols& symbols) {
  Pt2TensorMeta meta;
  meta.type.dtype =
      pt2_dtype(reader.integer("dtype", 0, 1000), reader.where() + ": " + reader.place("dtype"));
  meta.type.shape = extents(reader, "sizes", symbols, kMostCount);
  int64_t bytes = dtype_bytes(meta.type.dtype);
  for (const int64_t extent : meta.type.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMostBytes)
      reader.fail("sizes", "more than 2^53 bytes");
  }
  meta.strides = extents(reader, "strides", symbols, kMostCount);
  if (meta.strides.size() != meta.type.shape.size()) {
    reader.fail("strides", std::to_string(meta.strides.size()) + " strides for " +
                               std::to_string(meta.type.shape.size()) + " dimensions");
  }
  meta.storage_offset = symbols.evaluate(reader.object("storage_offset"));
  if (meta.storage_offset < 0 || meta.storage_offset > kMostCount)
    reader.fail("storage_offset", std::to_string(meta.storage_offset) + " is out of range");
  meta.requires_grad = reader.boolean("requires_grad");
  if (reader.integer("layout", 0, 1000) != kStrided)
    reader.fail("layout", "expected a strided (dense) tensor");
  return meta;
}

}  // namespace pipewright
