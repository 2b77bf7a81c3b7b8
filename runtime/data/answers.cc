#include "runtime/data/answers.h"

#include <unicode/uchar.h>
#include <unicode/ustring.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "graph/error.h"

namespace pipewright {
namespace {

std::u16string small_letters(const std::string& text) {
  UErrorCode error = U_ZERO_ERROR;
  std::u16string wide(text.size(), u'\0');  // no character has more units than bytes
  int32_t length = 0;
  u_strFromUTF8(wide.data(), static_cast<int32_t>(wide.size()), &length, text.data(),
                static_cast<int32_t>(text.size()), &error);
  PW_CHECK(error <= U_ZERO_ERROR, "an answer: " << u_errorName(error));
  // A small letter has at most three times the units.
  std::u16string small(3 * static_cast<size_t>(length) + 1, u'\0');
  length = u_strToLower(small.data(), static_cast<int32_t>(small.size()), wide.data(), length, "", &error);
  PW_CHECK(error <= U_ZERO_ERROR, "an answer: " << u_errorName(error));
  small.resize(static_cast<size_t>(length));
  return small;
}

bool is_white(UChar32 c) { return u_isUWhiteSpace(c) || (0x1c <= c && c <= 0x1f); }
bool is_mark(UChar32 c) { return c > ' ' && c < 127 && !u_isalnum(c); }
bool is_of_word(UChar32 c) { return (U_GET_GC_MASK(c) & (U_GC_L_MASK | U_GC_N_MASK)) != 0; }

std::vector<std::string> words_of(const std::string& normalised) {
  std::istringstream stream(normalised);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, ' ');) words.push_back(word);
  return words;
}

double f1(const std::vector<std::string>& answer, const std::vector<std::string>& expected) {
  std::map<std::string, int64_t> left;
  for (const std::string& word : expected) ++left[word];
  double common = 0;
  for (const std::string& word : answer)
    if (left[word]-- > 0) ++common;
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(answer.size());
  const double recall = common / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::string normalised_answer(const std::string& text) {
  const std::u16string letters = small_letters(text);
  std::string result, run;  // run: letters and digits, an article or not
  bool space = false;
  const auto put = [&](const std::string& bytes) {
    if (space && !result.empty()) result += ' ';
    space = false;
    result += bytes;
  };
  const auto end_run = [&] {
    if (run == "a" || run == "an" || run == "the") {
      space = true;
    } else if (!run.empty()) {
      put(run);
    }
    run.clear();
  };
  for (size_t i = 0; i < letters.size();) {
    UChar32 c = 0;
    U16_NEXT(letters.data(), i, letters.size(), c);
    if (is_mark(c)) continue;  // as if it were not there: "it's" is one word
    char bytes[U8_MAX_LENGTH];
    int32_t length = 0;
    U8_APPEND_UNSAFE(bytes, length, c);
    const std::string letter(bytes, static_cast<size_t>(length));
    if (is_of_word(c)) {
      run += letter;
      continue;
    }
    end_run();
    if (is_white(c)) {
      space = true;
    } else {
      put(letter);
    }
  }
  end_run();
  return result;
}

AnswerScores judged(const std::string& answer, const std::vector<std::string>& expected) {
  const std::string normalised = normalised_answer(answer);
  AnswerScores best;
  for (const std::string& each : expected) {
    const std::string wanted = normalised_answer(each);
    if (wanted == normalised) best.exact = 1;
    best.f1 = std::max(best.f1, f1(words_of(normalised), words_of(wanted)));
  }
  return best;
}

}  // namespace pipewright
