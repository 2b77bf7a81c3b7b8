#include "graph/text_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <sstream>

namespace pipewright {
namespace {

constexpr auto kLeft = TableColumn::Side::kLeft;
constexpr auto kRight = TableColumn::Side::kRight;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int64_t widest(const std::vector<std::string>& lines) {
  int64_t most = 0;
  for (const std::string& line : lines) most = std::max(most, characters_of(line));
  return most;
}

TextTable example() {
  TextTable table(
      {{"stage"}, {"ranks", kLeft, 2}, {"update", kRight, 3}, {"memory"}, {"layers", kLeft, 0, 8}});
  table.add({"0", "0-1", "12.5 ms", "1 GiB", "features.0 .. features.12 (13)"});
  table.add({"10", "2", "3 us", "12.5 MiB", "head"});
  return table;
}

TEST_CASE("a table as wide as it likes: names to the left, numbers to the right") {
  CHECK(example().text() ==
        "stage  ranks   update    memory  layers\n"
        "    0  0-1    12.5 ms     1 GiB  features.0 .. features.12 (13)\n"
        "   10  2         3 us  12.5 MiB  head\n");
  CHECK(example().text(64) == example().text());
}

TEST_CASE("a table that is too wide: cells are cut first, then columns go in their order and are named") {
  CHECK(example().text(50) ==
        "stage  ranks   update    memory  layers\n"
        "    0  0-1    12.5 ms     1 GiB  features.0 .. ...\n"
        "   10  2         3 us  12.5 MiB  head\n");
  CHECK(example().text(40) ==
        "stage  ranks    memory  layers\n"
        "    0  0-1       1 GiB  features.0 .....\n"
        "   10  2      12.5 MiB  head\n"
        "(--wide shows also: update)\n");
  CHECK(example().text(20) ==
        "stage    memory  layers\n"
        "    0     1 GiB  featu...\n"
        "   10  12.5 MiB  head\n"
        "(--wide shows also:\n ranks, update)\n");
}

TEST_CASE("tables at random: no line is wider than asked, every cell is whole or cut, columns go in order") {
  std::mt19937 random(16);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<TableColumn> columns;
    const int64_t count = 1 + below(9);
    for (int64_t c = 0; c < count; ++c) {
      columns.push_back({"h" + std::to_string(c), below(2) == 0 ? kLeft : kRight,
                         static_cast<int>(below(2) * below(6)), below(3) == 0 ? 4 + below(12) : 0});
    }
    TextTable table(columns);
    for (int64_t r = below(5); r >= 0; --r) {
      std::vector<std::string> row;
      for (int64_t c = 0; c < count; ++c) {
        std::string cell = std::to_string(r) + "." + std::to_string(c);
        for (int64_t i = below(20); i > 0; --i) cell += below(4) == 0 ? "é" : "a";
        row.push_back(cell);
      }
      table.add(row);
    }
    const int64_t width = 1 + below(140);
    const std::string text = table.text(width);
    INFO("width " << width << "\n" << table.text() << "\n" << text);
    const std::vector<std::string> lines = lines_of(text);
    // What cannot go: the columns that stay, as narrow as they may be.
    int64_t stays = -2;
    const auto least = [&](size_t c) {
      int64_t full = characters_of(columns[c].head);
      for (const auto& row : table.rows()) full = std::max(full, characters_of(row[c]));
      return columns[c].least > 0 ? std::min(full, columns[c].least) : full;
    };
    for (size_t c = 0; c < columns.size(); ++c)
      if (columns[c].goes == 0) stays += 2 + least(c);
    const std::vector<std::string> body(lines.begin(),
                                        lines.begin() + 1 + static_cast<int64_t>(table.rows().size()));
    CHECK(widest(body) <= std::max(width, stays));
    // Which columns are there: those whose head is, or is cut.
    const std::string note = [&] {
      std::string joined;
      for (size_t i = body.size(); i < lines.size(); ++i) joined += lines[i];
      return joined;
    }();
    int first_gone = 1000;
    int last_shown = 0;
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string start = "h" + std::to_string(c);
      const bool gone = note.find(" " + columns[c].head) != std::string::npos;
      CHECK(gone == (body[0].find(start) == std::string::npos));
      if (gone) {
        first_gone = std::min(first_gone, columns[c].goes);
        CHECK(columns[c].goes > 0);
        continue;
      }
      last_shown = std::max(last_shown, columns[c].goes);
      for (size_t r = 0; r < table.rows().size(); ++r) {
        const std::string& cell = table.rows()[r][c];
        const bool whole = body[r + 1].find(cell) != std::string::npos;
        CHECK((whole || (columns[c].least > 0 && body[r + 1].find("...") != std::string::npos)));
      }
    }
    CHECK(last_shown <= first_gone);
    // More room never hides anything.
    CHECK(lines_of(table.text(width + 1 + below(40))).size() <= lines.size() + 1);
    CHECK(table.text(kAnyWidth) == table.text(100000));
  }
}

TEST_CASE("a table as Markdown is whole, bars in cells are kept apart") {
  TextTable table({{"name", kLeft}, {"n"}});
  table.add({"a|b", "1"});
  CHECK(table.markdown() == "| name | n |\n| --- | ---: |\n| a\\|b | 1 |\n");
}

TEST_CASE("sentences are broken at blanks, words stay whole, breaks of their own stay") {
  CHECK(wrapped("one two three", 7) == "one two\nthree");
  CHECK(wrapped("one two three", kAnyWidth) == "one two three");
  CHECK(wrapped("what      one two three\n", 14, 10) == "what      one\n          two\n          three\n");
  CHECK(wrapped("a\n\nb c\n", 1) == "a\n\nb\nc\n");
  CHECK(wrapped("longer than that", 3) == "longer\nthan\nthat");
  std::mt19937 random(3);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int round = 0; round < 500; ++round) {
    std::string text;
    int64_t longest = 0;
    for (int words = below(30); words > 0; --words) {
      const int length = 1 + below(9);
      longest = std::max<int64_t>(longest, length);
      text += (text.empty() ? "" : " ") + std::string(static_cast<size_t>(length), 'w');
    }
    const int64_t width = 1 + below(60);
    const int64_t indent = below(static_cast<int>(width));
    std::string broken = wrapped(text, width, indent);
    CHECK(widest(lines_of(broken)) <= std::max(width, indent + longest));
    std::string joined;
    for (const std::string& line : lines_of(broken))
      joined += (joined.empty() ? "" : " ") + line.substr(joined.empty() ? 0 : static_cast<size_t>(indent));
    CHECK(joined == text);
  }
}

}  // namespace
}  // namespace pipewright
