#include "graph/printable.h"

#include <algorithm>

namespace pipewright {
namespace {

constexpr size_t kLongestLine = 2000;
constexpr size_t kKeptEnd = 400;  // of a line that is cut: what is wrong stands last

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n') || byte == 0x7f;
}

// No UTF-8 sequence is cut in two: `at` moves back to the beginning of one.
size_t boundary(const std::string& text, size_t at) {
  for (int i = 0; i < 3 && at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; ++i) --at;
  return at;
}

// Appends text[begin, end), a line.
void append_line(const std::string& text, size_t begin, size_t end, std::string& result) {
  if (end - begin <= kLongestLine) {
    result.append(text, begin, end - begin);
    return;
  }
  const size_t head = boundary(text, begin + kLongestLine - kKeptEnd - 40);
  const size_t tail = boundary(text, end - kKeptEnd);
  result.append(text, begin, head - begin);
  result += "... (" + std::to_string(tail - head) + " bytes left out) ...";
  result.append(text, tail, end - tail);
}

}  // namespace

std::string printable(const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    append_line(text, begin, end, result);
    if (end < text.size()) result += '\n';
    begin = end + 1;
  }
  if (std::none_of(result.begin(), result.end(), is_control)) return result;
  static const char* const digits = "0123456789abcdef";
  std::string clean;
  for (const char c : result) {
    if (!is_control(c)) {
      clean += c;
      continue;
    }
    clean += "\\x";
    clean += digits[static_cast<unsigned char>(c) >> 4];
    clean += digits[static_cast<unsigned char>(c) & 15];
  }
  return clean;
}

}  // namespace pipewright
