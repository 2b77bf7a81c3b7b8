#include "runtime/data/encoded_text.h"

#include <algorithm>

#include "graph/error.h"

namespace pipewright {

std::vector<DataField> encoded_fields(int64_t tokens) {
  const TensorType type{"int64", {tokens}};
  return {{"tokens", type}, {"mask", type}, {"segments", type}};
}

int64_t EncodedText::length() const {
  const size_t marks = second.empty() ? 2 : 3;
  return static_cast<int64_t>(first.size() + second.size() + marks);
}

void EncodedText::write(size_t field, const WordPieces& vocabulary, int64_t tokens, int64_t* into) const {
  PW_CHECK(length() <= tokens, "a text of " << length() << " tokens");
  int64_t* const end = into + tokens;
  const auto first_size = static_cast<int64_t>(first.size()) + 2;
  if (field == kEncodedMask) {
    into = std::fill_n(into, length(), int64_t{1});
    std::fill(into, end, int64_t{0});
  } else if (field == kEncodedSegments) {
    into = std::fill_n(into, first_size, int64_t{0});
    into = std::fill_n(into, length() - first_size, int64_t{1});
    std::fill(into, end, int64_t{0});
  } else {
    *into++ = vocabulary.first();
    into = std::copy(first.begin(), first.end(), into);
    *into++ = vocabulary.separator();
    if (!second.empty()) {
      into = std::copy(second.begin(), second.end(), into);
      *into++ = vocabulary.separator();
    }
    std::fill(into, end, int64_t{vocabulary.padding()});
  }
}

}  // namespace pipewright
