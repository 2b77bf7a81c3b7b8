#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cinttypes>
#include <cstdio>

#include "graph/json.h"

namespace pipewright {

std::string digest_of(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[40];
  std::snprintf(text, sizeof(text), "xxh128:%016" PRIx64 "%016" PRIx64, static_cast<uint64_t>(hash.high64),
                static_cast<uint64_t>(hash.low64));
  return text;
}

}  // namespace pipewright
