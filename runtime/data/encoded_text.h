// Samples as models of BERT's kind read them: one text or two, between marks, filled up to a fixed length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/word_pieces.h"

namespace pipewright {

inline constexpr size_t kEncodedTokens = 0, kEncodedMask = 1, kEncodedSegments = 2;
inline constexpr size_t kEncodedFields = 3;

/// "tokens", "mask" and "segments", int64 (tokens).
std::vector<DataField> encoded_fields(int64_t tokens);

/// A data set of such samples.
class EncodedDataset : public Dataset {
 public:
  virtual int64_t vocabulary() const = 0;  ///< `tokens` lie in [0, vocabulary)
};

/// [CLS] first [SEP], then second [SEP] if there is a second, then [PAD].
struct EncodedText {
  std::span<const int32_t> first;
  std::span<const int32_t> second = {};

  int64_t length() const;  ///< without padding
  /// Writes `tokens` numbers of the field: the tokens; 1 for them and 0 for padding; 1 from the second text
  /// on to its [SEP], else 0. length() <= tokens.
  void write(size_t field, const WordPieces& vocabulary, int64_t tokens, int64_t* into) const;
};

}  // namespace pipewright
