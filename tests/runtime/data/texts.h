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

/// A small vocab.txt of BERT's form; the file's name.
inline std::string write_vocabulary(const std::filesystem::path& folder, const std::string& more = "") {
  std::string words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const char* word : {"good", "bad", "film", "the", "a",   "##ly", "##s", "who", "wrote", "it", "in",
                           "1",    "##9", "##8",  "by",  "ann", "bob",  "?",   ".",   ",",     "!"})
    words += std::string(word) + "\n";
  write_bytes(folder / "vocab.txt", words + more);
  return (folder / "vocab.txt").string();
}

/// train.tsv (20 sentences) and dev.tsv (7) as SST-2 has them; the options that name them.
inline std::string write_classified(const std::filesystem::path& folder) {
  for (const auto& [name, count] : {std::pair{"train.tsv", 20}, {"dev.tsv", 7}}) {
    std::string text = "sentence\tlabel\n";
    for (int i = 0; i < count; ++i) {
      text += std::string(i % 2 == 0 ? "a bad film" : "the goodly film");
      for (int k = 0; k < i % 3; ++k) text += ", the films";
      text += i % 2 == 0 ? "\t0\n" : " !\t1\n";
    }
    write_bytes(folder / name, text);
  }
  return "root=" + folder.string() + ",vocabulary=" + write_vocabulary(folder);
}

/// A file of SQuAD 1.1 with one paragraph; the file's name.
inline std::string write_questions(const std::filesystem::path& folder, const std::string& context,
                                   const std::string& questions, const std::string& name = "squad.json") {
  write_bytes(folder / name, R"({"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": ")" +
                                 context + R"(", "qas": [)" + questions + "]}]}]}");
  return (folder / name).string();
}

inline std::string question(const std::string& id, const std::string& text, const std::string& answer,
                            int start) {
  return R"({"id": ")" + id + R"(", "question": ")" + text + R"(", "answers": [{"text": ")" + answer +
         R"(", "answer_start": )" + std::to_string(start) + "}]}";
}

}  // namespace pipewright::testing
