// Digests of what is too large to hold in memory. See digest_of() in graph/json.h for what is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace pipewright {

/// A digest as a number, for where its text would be large.
struct DigestBits {
  uint64_t high = 0, low = 0;
  bool operator==(const DigestBits&) const = default;
};

/// digest_of() of bytes that come in pieces.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void add(const void* bytes, size_t count);
  /// Of what was added so far: "xxh128:" and 32 hex digits.
  std::string text() const;
  DigestBits bits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// digest_of() of a file's bytes. InputError when it cannot be read.
std::string digest_of_file(const std::filesystem::path& file);

}  // namespace pipewright
