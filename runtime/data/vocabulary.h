// Words of sentences, and their numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

namespace pipewright {

/// Words and punctuation: a sentence is cut at white space (ASCII), and each ASCII character that is no
/// letter, no digit and no white space is a token of its own, but for an apostrophe or a hyphen between two
/// letters, and a point or comma between two digits. Bytes above 127 count as letters. Case is kept.
std::vector<std::string> tokenised(const std::string& sentence);

class Vocabulary {
 public:
  static constexpr int64_t kPadding = 0, kUnknown = 1, kBegin = 2, kEnd = 3, kFirstWord = 4;

  /// The `size` - 4 most frequent words of `counts`, of equally frequent ones the first in byte order.
  Vocabulary(const std::unordered_map<std::string, int64_t>& counts, int64_t size);
  /// What write() has written. InputError naming file and line.
  explicit Vocabulary(const std::filesystem::path& file, const std::string& made_of);
  /// A line that says what it is and `made_of`, then a word a line.
  void write(const std::filesystem::path& file, const std::string& made_of) const;

  int64_t size() const { return kFirstWord + static_cast<int64_t>(words_.size()); }
  int64_t number_of(const std::string& word) const;  ///< kUnknown where it is not there
  const std::vector<std::string>& words() const { return words_; }

  /// Does the file begin with write()'s line for `made_of`? false: no file, or of other data.
  static bool is_of(const std::filesystem::path& file, const std::string& made_of);

 private:
  void number_words();
  std::vector<std::string> words_;
  std::unordered_map<std::string, int64_t> numbers_;
};

}  // namespace pipewright
