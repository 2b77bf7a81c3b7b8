#include "runtime/data/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace pipewright {
namespace {

constexpr int64_t kNothing = -1;  // no token has this number

std::map<std::vector<int64_t>, int64_t> n_grams(const std::vector<int64_t>& tokens, size_t n) {
  std::map<std::vector<int64_t>, int64_t> counts;
  for (auto at = tokens.begin(); static_cast<size_t>(tokens.end() - at) >= n; ++at)
    ++counts[{at, at + static_cast<int64_t>(n)}];
  return counts;
}

}  // namespace

void CorpusBleu::add(const std::vector<int64_t>& translation, std::vector<int64_t> reference) {
  std::replace(reference.begin(), reference.end(), unknown_, kNothing);
  translated_tokens_ += static_cast<int64_t>(translation.size());
  reference_tokens_ += static_cast<int64_t>(reference.size());
  for (size_t n = 1; n <= kLongest; ++n) {
    const auto wanted = n_grams(reference, n);
    for (const auto& [tokens, count] : n_grams(translation, n)) {
      made_[n - 1] += count;
      if (const auto found = wanted.find(tokens); found != wanted.end())
        matched_[n - 1] += std::min(count, found->second);
    }
  }
}

double CorpusBleu::value() const {
  double logarithms = 0;
  for (size_t n = 0; n < kLongest; ++n) {
    if (matched_[n] == 0) return 0;
    logarithms += std::log(static_cast<double>(matched_[n]) / static_cast<double>(made_[n]));
  }
  const double ratio = static_cast<double>(reference_tokens_) / static_cast<double>(translated_tokens_);
  return std::min(1.0, std::exp(1 - ratio)) * std::exp(logarithms / kLongest);
}

}  // namespace pipewright
