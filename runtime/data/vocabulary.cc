#include "runtime/data/vocabulary.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "graph/error.h"
#include "graph/file_watch.h"
#include "graph/json.h"

namespace pipewright {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) > 127;
}

/// Does the character at i belong to the word around it?
bool joins(const std::string& text, size_t i) {
  if (i == 0 || i + 1 >= text.size()) return false;
  const char before = text[i - 1], after = text[i + 1];
  if (text[i] == '\'' || text[i] == '-') return is_letter(before) && is_letter(after);
  if (text[i] == '.' || text[i] == ',') return is_digit(before) && is_digit(after);
  return false;
}

std::string header(const std::string& made_of) { return "pipewright vocabulary 1 of " + made_of; }

}  // namespace

std::vector<std::string> tokenised(const std::string& sentence) {
  std::vector<std::string> tokens;
  bool open = false;  // the last token may grow
  for (size_t i = 0; i < sentence.size(); ++i) {
    const char c = sentence[i];
    if (is_space(c)) {
      open = false;
      continue;
    }
    const bool inside = is_letter(c) || is_digit(c) || joins(sentence, i);
    if (!open || !inside) tokens.emplace_back();
    tokens.back() += c;
    open = inside;
  }
  return tokens;
}

Vocabulary::Vocabulary(const std::unordered_map<std::string, int64_t>& counts, int64_t size) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [word, count] : counts) order.emplace_back(-count, word);
  std::sort(order.begin(), order.end());
  const auto kept = std::min(order.size(), static_cast<size_t>(std::max<int64_t>(0, size - kFirstWord)));
  for (size_t i = 0; i < kept; ++i) words_.push_back(std::move(order[i].second));
  number_words();
}

Vocabulary::Vocabulary(const std::filesystem::path& file, const std::string& made_of) {
  std::istringstream lines(read_file(file));
  std::string line;
  std::getline(lines, line);
  if (line != header(made_of)) throw InputError(file.string() + ":1: is no vocabulary of " + made_of);
  while (std::getline(lines, line)) {
    words_.push_back(line);
    if (tokenised(line) != std::vector<std::string>{line}) {
      throw InputError(
          file.string() + ":" + std::to_string(words_.size() + 1) + ": '" + line + "' is no word",
          "Delete the file: it is made again.");
    }
  }
  number_words();
  if (numbers_.size() != words_.size())
    throw InputError(file.string() + ": has a word twice", "Delete the file: it is made again.");
}

void Vocabulary::write(const std::filesystem::path& file, const std::string& made_of) const {
  std::string text = header(made_of) + "\n";
  for (const std::string& word : words_) text += word + "\n";
  write_file(file, text);
}

int64_t Vocabulary::number_of(const std::string& word) const {
  const auto found = numbers_.find(word);
  return found == numbers_.end() ? kUnknown : found->second;
}

bool Vocabulary::is_of(const std::filesystem::path& file, const std::string& made_of) {
  const FileWatch watch(file);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return false;
  std::ifstream in(file);
  std::string line;
  return std::getline(in, line) && line == header(made_of);
}

void Vocabulary::number_words() {
  for (size_t i = 0; i < words_.size(); ++i)
    numbers_.emplace(words_[i], kFirstWord + static_cast<int64_t>(i));
}

}  // namespace pipewright
