// Files that the text data sets read.
#pragma once

#include "tests/runtime/data/helpers.h"

namespace pipewright::testing {

/// 2000 bytes of text; the file's name.
inline std::string write_text(const std::filesystem::path& folder) {
  std::string text;
  while (text.size() < 2000) text += "line " + std::to_string(text.size() * 7919 % 1000) + " of a text\n";
  write_bytes(folder / "text.txt", text);
  return (folder / "text.txt").string();
}

/// 60 pairs of sentences; the file's name.
inline std::string write_sentences(const std::filesystem::path& folder) {
  std::string pairs;
  for (int i = 0; i < 60; ++i) {
    const std::string number = std::to_string(i % 7), other = std::to_string(i / 7);
    for (const std::string& part : {"send " + number, " to " + other, "\tsende " + number, " an " + other})
      pairs += part;
    pairs += '\n';
  }
  write_bytes(folder / "pairs.tsv", pairs);
  return (folder / "pairs.tsv").string();
}

}  // namespace pipewright::testing
