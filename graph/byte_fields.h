// Objects of a document that hold nothing but sizes in bytes, all required: read and written from one list of
// their keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/limits.h"

namespace pipewright {

template <typename Sizes>
struct ByteField {
  const char* key;
  int64_t Sizes::*bytes;
};

template <typename Sizes>
Sizes read_byte_fields(JsonReader reader, const std::vector<ByteField<Sizes>>& fields) {
  std::vector<std::string> keys;
  for (const ByteField<Sizes>& field : fields) keys.emplace_back(field.key);
  reader.expect(keys);
  Sizes sizes;
  for (const ByteField<Sizes>& field : fields) sizes.*field.bytes = reader.integer(field.key, 0, kMostBytes);
  reader.finish();
  return sizes;
}

template <typename Sizes>
Json write_byte_fields(const Sizes& sizes, const std::vector<ByteField<Sizes>>& fields) {
  Json json;
  for (const ByteField<Sizes>& field : fields) json[field.key] = sizes.*field.bytes;
  return json;
}

}  // namespace pipewright
