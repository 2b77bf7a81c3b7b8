// Digests of what is too large to hold in memory. See digest_of() in graph/json.h for what is not.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace pipewright {

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

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// digest_of() of a file's bytes. InputError when it cannot be read.
std::string digest_of_file(const std::filesystem::path& file);

}  // namespace pipewright
