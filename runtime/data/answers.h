// How good answers to questions are, as SQuAD judges them (Rajpurkar et al. 2016).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/encoded_text.h"

namespace pipewright {

/// The words of an answer that count: small letters, without ASCII punctuation, without the words a, an and
/// the, with one space between them. `text` is UTF-8.
std::string normalised_answer(const std::string& text);

struct AnswerScores {
  double exact = 0;  ///< 1 if the normalised answer is one of the expected ones, else 0
  double f1 = 0;     ///< 2 p r / (p + r) of the words it has in common with the expected one that is nearest
};

/// p = common words / words of the answer, r = common words / words expected, each word as often as both have
/// it.
AnswerScores judged(const std::string& answer, const std::vector<std::string>& expected);

/// What a model answers to one sample, a window of the text that a question is about.
struct WindowAnswer {
  int64_t question = 0;  ///< several windows may be of one; the answer of the best score is the question's
  double score = 0;
  AnswerScores scores;
};

/// A data set of questions, answered by a span of tokens.
class QuestionDataset : public EncodedDataset {
 public:
  /// The answer in sample `index` with the largest sum of scores; `begins`, `ends`: how well one begins and
  /// ends at each token, as many as the field `tokens` has.
  virtual WindowAnswer answer_of(int64_t index, const float* begins, const float* ends) const = 0;
};

}  // namespace pipewright
