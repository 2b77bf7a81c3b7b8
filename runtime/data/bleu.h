// How near translations are to what they should be.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright {

/// BLEU of a corpus (Papineni et al. 2002): up to four tokens in a row, one reference for each sentence.
///   BLEU = min(1, exp(1 - r / c)) * exp(mean over n = 1..4 of log p_n)
/// p_n = n-grams that the reference has too, each as often as it has them at most / n-grams, both summed over
/// the corpus; c, r = tokens of the translations and of the references.
class CorpusBleu {
 public:
  static constexpr size_t kLongest = 4;
  /// `unknown` in a reference stands for a word that cannot be named: nothing matches it.
  explicit CorpusBleu(int64_t unknown) : unknown_(unknown) {}
  void add(const std::vector<int64_t>& translation, std::vector<int64_t> reference);
  /// 0..1; 0 where some p_n is 0.
  double value() const;

 private:
  int64_t unknown_;
  std::array<int64_t, kLongest> matched_{}, made_{};
  int64_t translated_tokens_ = 0, reference_tokens_ = 0;
};

}  // namespace pipewright
