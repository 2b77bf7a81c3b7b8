#include "graph/digest.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/regular_file.h"

namespace pipewright {
namespace {

std::string text_of(XXH128_hash_t hash) {
  char text[40];
  std::snprintf(text, sizeof(text), "xxh128:%016" PRIx64 "%016" PRIx64, static_cast<uint64_t>(hash.high64),
                static_cast<uint64_t>(hash.low64));
  return text;
}

}  // namespace

std::string digest_of(const std::string& bytes) { return text_of(XXH3_128bits(bytes.data(), bytes.size())); }

struct Digest::State {
  XXH3_state_t xxh;
};

Digest::Digest() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Digest::~Digest() = default;
void Digest::add(const void* bytes, size_t count) { XXH3_128bits_update(&state_->xxh, bytes, count); }
std::string Digest::text() const { return text_of(XXH3_128bits_digest(&state_->xxh)); }
DigestBits Digest::bits() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

std::string digest_of_file(const std::filesystem::path& file) {
  const RegularFile opened(file);
  Digest digest;
  std::vector<char> buffer(size_t{1} << 20);
  for (int64_t at = 0; at < opened.bytes();) {
    const int64_t count = std::min<int64_t>(static_cast<int64_t>(buffer.size()), opened.bytes() - at);
    opened.read(at, buffer.data(), count);
    digest.add(buffer.data(), static_cast<size_t>(count));
    at += count;
  }
  return digest.text();
}

}  // namespace pipewright
