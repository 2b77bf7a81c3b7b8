// What docs/troubleshooting.md quotes is what the programs say.
#include <algorithm>
#include <catch2/catch.hpp>
#include <regex>
#include <sstream>

#include "tests/docs/tree.h"

using namespace pipewright::testing;

namespace {

// The first cells of the tables whose head is "message".
std::vector<std::string> quoted_messages() {
  std::vector<std::string> messages;
  std::istringstream lines(text_of("docs/troubleshooting.md"));
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| message |", 0) == 0) {
      inside = true;
    } else if (line.rfind("| ", 0) != 0) {
      inside = false;
    } else if (inside && line.rfind("| ---", 0) != 0) {
      messages.push_back(line.substr(2, line.find(" | ") - 2));
    }
  }
  return messages;
}

// All string literals of the programs, those that stand side by side joined; a zero byte behind each.
std::string literals() {
  std::string all;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc", ".h"}) ||
        !is_below(file, {"graph", "interference", "models", "optimizer", "profiler", "runtime"}))
      continue;
    const std::string& text = text_of(file);
    bool inside = false, between = false;  // between: nothing but blanks since the last literal
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (inside && c == '\\' && i + 1 < text.size()) {
        all += text[++i] == 'n' ? ' ' : text[i];
      } else if (c == '"' && (inside || i == 0 || text[i - 1] != '\'')) {
        if (!inside && !between) all += '\0';
        inside = !inside;
        between = !inside;
      } else if (inside) {
        all += c;
      } else if (c == '/' && i + 1 < text.size() && text[i + 1] == '/') {
        i = std::min(text.find('\n', i), text.size());
      } else {
        between = between && std::isspace(static_cast<unsigned char>(c)) != 0;
      }
    }
    all += '\0';
  }
  return all;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string joined(const std::vector<std::string>& words, size_t begin, size_t end) {
  std::string text;
  for (size_t i = begin; i < end; ++i) text += (i == begin ? "" : " ") + words[i];
  return text;
}

}  // namespace

TEST_CASE(
    "messages that docs/troubleshooting.md quotes are the programs': word for word but for what varies") {
  // What the system says for itself.
  const std::vector<std::string> of_others = {"No space left on device", "Permission denied",
                                              "cannot open shared object file", "Killed"};
  // Numbers with their units, quotations, places, remarks of the document about when the message comes.
  const std::regex varies(
      R"(\.\.\.|\b[0-9][0-9.]*( (s|ms|min)\b)?|'[^']*'|"[^"]*"|\b[HPN]:P\b|\b[PN]\b|\bnode[0-9]\b|\brun[.]\w+|\S+/\S+|\S+[.]so\b|[():;,`]|exit code|at the start|one process)");
  const std::string said = literals();
  REQUIRE(said.find("has not been heard of for ") != std::string::npos);
  const auto is_said = [&](const std::string& text) { return said.find(text) != std::string::npos; };
  const auto messages = quoted_messages();
  CHECK(messages.size() > 30);
  for (const std::string& message : messages) {
    INFO(message);
    size_t checked = 0;
    for (auto piece = std::sregex_token_iterator(message.begin(), message.end(), varies, -1);
         piece != std::sregex_token_iterator(); ++piece) {
      const auto words = words_of(*piece);
      if (words.empty()) continue;
      const std::string text = joined(words, 0, words.size());
      INFO(text);
      // A choice of words may lie within: "ha(s|ve) not reached".
      bool found = is_said(text) || std::find(of_others.begin(), of_others.end(), text) != of_others.end();
      for (size_t cut = 1; cut < words.size() && !found; ++cut)
        found = is_said(joined(words, 0, cut)) && is_said(joined(words, cut, words.size()));
      CHECK(found);
      checked += words.size();
    }
    CHECK(checked >= 2);
  }
}
