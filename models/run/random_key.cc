#include "models/run/random_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace pipewright {

uint64_t name_hash(const std::string& name) { return XXH3_64bits(name.data(), name.size()); }

uint64_t stream_key(uint64_t seed, int64_t index, uint64_t name_hash) {
  const uint64_t words[] = {static_cast<uint64_t>(index), name_hash};
  return XXH3_64bits_withSeed(words, sizeof words, seed);
}

}  // namespace pipewright
