#include "runtime/data/word_pieces.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

constexpr UChar32 kReplacement = 0xfffd;

// Unicode's general category, as a mask.
bool is_of(UChar32 c, uint32_t categories) { return (U_GET_GC_MASK(c) & categories) != 0; }

bool is_space_to_bert(UChar32 c) { return c == '\t' || c == '\n' || c == '\r' || is_of(c, U_GC_Z_MASK); }

bool is_nothing(UChar32 c) { return c == kReplacement || is_of(c, U_GC_C_MASK); }

// Of ASCII also what Unicode calls a symbol, such as $ and ^.
bool is_punctuation(UChar32 c) {
  return c < 128 ? c > ' ' && c < 127 && !is_of(c, U_GC_L_MASK | U_GC_N_MASK) : is_of(c, U_GC_P_MASK);
}

// The blocks of ideographs, which are words of their own.
bool is_ideograph(UChar32 c) {
  constexpr std::pair<UChar32, UChar32> kBlocks[] = {
      {0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
      {0x2b740, 0x2b81f}, {0x2b820, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [&](const auto& block) { return block.first <= c && c <= block.second; });
}

std::string bytes_of(UChar32 c) {
  char bytes[U8_MAX_LENGTH];
  int32_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, c);
  return {bytes, static_cast<size_t>(length)};
}

// Small, and without its accents: none, one or several.
std::vector<UChar32> plain(UChar32 c) {
  if (c < 128) return {u_tolower(c)};
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* const decomposer = unorm2_getNFDInstance(&error);
  PW_CHECK(U_SUCCESS(error), "Unicode's decompositions cannot be read: " << u_errorName(error));
  UChar parts[32];
  const int32_t length = unorm2_getDecomposition(decomposer, c, parts, std::size(parts), &error);
  if (length < 0) return is_of(c, U_GC_MN_MASK) ? std::vector<UChar32>{} : std::vector<UChar32>{u_tolower(c)};
  PW_CHECK(U_SUCCESS(error), u_errorName(error));
  std::vector<UChar32> result;
  for (int32_t i = 0; i < length;) {
    UChar32 part = 0;
    U16_NEXT_UNSAFE(parts, i, part);
    if (!is_of(part, U_GC_MN_MASK)) result.push_back(u_tolower(part));
  }
  return result;
}

}  // namespace

size_t utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    size_t next = at;
    UChar32 c = 0;
    U8_NEXT(text.data(), next, text.size(), c);
    if (c < 0) break;
    at = next;
  }
  return at;
}

WordPieces::WordPieces(const std::filesystem::path& file, bool lower) : lower_(lower) {
  const std::string text = read_file(file);
  const char* const remedy =
      "Expected BERT's vocab.txt: a token a line, [PAD], [UNK], [CLS] and [SEP] among them.";
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const auto fail = [&](const std::string& message) {
      throw InputError(file.string() + ":" + std::to_string(size() + 1) + ": " + message, remedy);
    };
    if (line.empty()) fail("is empty");
    if (utf8_prefix(line) != line.size()) fail("is not UTF-8");
    if (!numbers_.emplace(line, static_cast<int32_t>(numbers_.size())).second)
      fail("the token " + in_quotes(line) + " is there twice");
    longest_ = std::max(longest_, line.size());
  }
  const auto number_of = [&](const char* token) {
    const auto found = numbers_.find(token);
    if (found == numbers_.end()) throw InputError(file.string() + ": has no token " + token, remedy);
    return found->second;
  };
  padding_ = number_of("[PAD]");
  unknown_ = number_of("[UNK]");
  first_ = number_of("[CLS]");
  separator_ = number_of("[SEP]");
}

std::vector<std::vector<WordPieces::Letter>> WordPieces::words_of(std::string_view text) const {
  std::vector<std::vector<Letter>> words(1);
  const auto end_word = [&] {
    if (!words.back().empty()) words.emplace_back();
  };
  const auto add = [&](UChar32 c, int64_t begin, int64_t end, bool alone) {
    if (alone) end_word();
    words.back().push_back({bytes_of(c), begin, end});
    if (alone) end_word();
  };
  for (size_t next = 0; next < text.size();) {
    const auto begin = static_cast<int64_t>(next);
    UChar32 c = 0;
    U8_NEXT(text.data(), next, text.size(), c);
    PW_CHECK(c >= 0, "byte " << begin << " of a text is not UTF-8");
    const auto end = static_cast<int64_t>(next);
    if (is_space_to_bert(c)) {
      end_word();
    } else if (is_nothing(c)) {
      continue;
    } else if (is_ideograph(c) || !lower_) {
      add(c, begin, end, is_ideograph(c) || is_punctuation(c));
    } else {
      const std::vector<UChar32> letters = plain(c);
      // An accent belongs to the letter before it.
      if (letters.empty() && !words.back().empty()) words.back().back().end = end;
      for (const UChar32 letter : letters) add(letter, begin, end, is_punctuation(letter));
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

void WordPieces::cut(const std::vector<Letter>& word, std::vector<WordPiece>& pieces) const {
  const size_t before = pieces.size();
  bool known = static_cast<int64_t>(word.size()) <= kLongestWord;
  for (size_t begin = 0; known && begin < word.size();) {
    std::string longest = begin == 0 ? "" : "##";
    std::vector<size_t> lengths;  // bytes up to each letter
    size_t end = begin;
    for (; end < word.size() && longest.size() + word[end].bytes.size() <= longest_; ++end) {
      longest += word[end].bytes;
      lengths.push_back(longest.size());
    }
    auto found = numbers_.end();
    for (; end > begin; --end) {
      longest.resize(lengths[end - begin - 1]);
      found = numbers_.find(longest);
      if (found != numbers_.end()) break;
    }
    known = end > begin;
    if (!known) break;
    pieces.push_back({found->second, word[begin].begin, word[end - 1].end});
    begin = end;
  }
  if (known) return;
  pieces.resize(before);
  pieces.push_back({unknown_, word.front().begin, word.back().end});
}

std::vector<WordPiece> WordPieces::pieces_of(std::string_view text) const {
  std::vector<WordPiece> pieces;
  for (const auto& word : words_of(text)) cut(word, pieces);
  return pieces;
}

}  // namespace pipewright
