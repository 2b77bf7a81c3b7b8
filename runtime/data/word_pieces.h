// Texts as BERT reads them: words cut into pieces of a fixed vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pipewright {

/// Bytes of `text` that are UTF-8; all of them if it is.
size_t utf8_prefix(std::string_view text);

struct WordPiece {
  int32_t token;       ///< line in the vocabulary, from 0
  int64_t begin, end;  ///< bytes of the text that it stands for
  bool operator==(const WordPiece&) const = default;
};

/// WordPiece (Wu et al. 2016) with the rules of BERT (Devlin et al. 2018), character by character:
/// - control characters and U+FFFD are passed over; white space divides words;
/// - each ideograph (CJK) and each punctuation mark is a word: what Unicode calls punctuation, and all of
///   ASCII that is neither letter, digit nor white space;
/// - `lower`: letters become small, and accents (marks of the canonical decomposition) go;
/// - of a word the longest piece of the vocabulary is taken from the left, again and again; pieces inside a
///   word begin with "##" there. A word that cannot be cut so, or of more than 100 characters, is [UNK].
class WordPieces {
 public:
  static constexpr int64_t kLongestWord = 100;

  /// BERT's vocab.txt: a token a line, numbered from 0. InputError naming file and line: no such file, not
  /// UTF-8, an empty line, a token twice, none of [PAD] [UNK] [CLS] [SEP].
  WordPieces(const std::filesystem::path& file, bool lower);

  /// `text` is UTF-8 (utf8_prefix()). Ascending and without overlap.
  std::vector<WordPiece> pieces_of(std::string_view text) const;

  int64_t size() const { return static_cast<int64_t>(numbers_.size()); }
  int32_t padding() const { return padding_; }      ///< [PAD]
  int32_t first() const { return first_; }          ///< [CLS]
  int32_t separator() const { return separator_; }  ///< [SEP]

 private:
  struct Letter {
    std::string bytes;   // what the vocabulary is asked for
    int64_t begin, end;  // in the text
  };
  std::vector<std::vector<Letter>> words_of(std::string_view text) const;
  void cut(const std::vector<Letter>& word, std::vector<WordPiece>& pieces) const;

  bool lower_;
  std::unordered_map<std::string, int32_t> numbers_;
  size_t longest_ = 0;  // bytes of a token
  int32_t padding_ = 0, unknown_ = 0, first_ = 0, separator_ = 0;
};

}  // namespace pipewright
