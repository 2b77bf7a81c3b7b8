// A file as a row of tokens: each byte one, or numbers of two or four bytes.
#pragma once

#include <cstdint>
#include <string>

#include "graph/spec.h"

namespace pipewright {

/// One split of the file's tokens: the last `held` of them are for evaluation, the others for training.
/// Holds none of them in memory. read() is safe to call from several threads.
class TokenFile {
 public:
  /// Reads the options `file`, `format` (bytes, uint16, uint32; little-endian), `vocabulary` and `held`, and
  /// calls options.finish(): read the others before. `reserved` is how many tokens of the vocabulary the file
  /// may not hold (the last ones); they come on top of the 256 bytes. InputError: a file that is missing, is
  /// no plain file or does not consist of whole tokens.
  TokenFile(SpecOptions& options, const std::string& split, int64_t reserved);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  int64_t size() const { return size_; }              ///< tokens of the split
  int64_t vocabulary() const { return vocabulary_; }  ///< with the reserved ones
  /// Tokens first..first+count-1 of the split. RunError when the file cannot be read, or holds a token that
  /// is not in the vocabulary.
  void read(int64_t first, int64_t count, int64_t* into) const;
  /// InputError unless the split has `needed` tokens.
  void require(int64_t needed, const std::string& split, const SpecOptions& options) const;

 private:
  std::string path_;
  int file_ = -1;
  int64_t bytes_ = 1;  // of a token
  int64_t vocabulary_ = 0, reserved_ = 0, begin_ = 0, size_ = 0;
};

}  // namespace pipewright
