// Data whose labels are sequences of tokens.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/data/dataset.h"

namespace pipewright {

/// The label that asks nothing: neither loss nor metrics count its position. LibTorch's cross entropy has it
/// as its default.
inline constexpr int64_t kNoLabel = -100;

/// How a sequence that the data asks for is made by a model, token after token: the field `input` holds what
/// has been made so far, from `begin` on, and the scores at its last token say the next, until `end`. 0 fills
/// what is behind.
struct Generation {
  std::string input;
  int64_t begin = 0, end = 0;
  int64_t unknown = 0;  ///< stands for words that have no number
};

/// A data set that asks for sequences: its labels are what the model is to generate.
class GeneratedDataset : public Dataset {
 public:
  virtual Generation generation() const = 0;
};

}  // namespace pipewright
