#include "graph/digest.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "graph/error.h"
#include "graph/json.h"

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

std::string digest_of_file(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw InputError(file.string() + ": cannot be read: " + std::strerror(errno));
  Digest digest;
  std::vector<char> buffer(size_t{1} << 20);
  ssize_t count = 0;
  while ((count = ::read(descriptor, buffer.data(), buffer.size())) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    digest.add(buffer.data(), static_cast<size_t>(count));
  }
  const int error = errno;
  ::close(descriptor);
  if (count < 0) throw InputError(file.string() + ": cannot be read: " + std::strerror(error));
  return digest.text();
}

}  // namespace pipewright
