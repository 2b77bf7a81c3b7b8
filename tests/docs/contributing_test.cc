// CONTRIBUTING.md says what to write for a new row of a table: what it names is there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <regex>
#include <sstream>

#include "tests/docs/tree.h"

using namespace pipewright::testing;
namespace fs = std::filesystem;

namespace {

using Row = std::vector<std::string>;

// Cells of the table below the line that begins with `head`, without its ruler.
std::vector<Row> table_below(const std::string& head) {
  std::istringstream lines(text_of("CONTRIBUTING.md"));
  std::string line;
  while (std::getline(lines, line) && line.rfind(head, 0) != 0) {
  }
  std::getline(lines, line);
  std::vector<Row> rows;
  while (std::getline(lines, line) && line.rfind("| ", 0) == 0) {
    Row row;
    std::istringstream cells(line.substr(2));
    for (std::string cell; std::getline(cells, cell, '|');) row.push_back(cell);
    rows.push_back(row);
  }
  return rows;
}

std::vector<std::string> spans_of_code(const std::string& text) {
  static const std::regex span("`([^`]+)`");
  std::vector<std::string> spans;
  for (std::sregex_iterator it(text.begin(), text.end(), span), end; it != end; ++it)
    spans.push_back((*it)[1]);
  return spans;
}

bool is_name(const std::string& span) { return std::regex_match(span, std::regex("[a-z_]+|[A-Z][A-Za-z]+")); }
bool is_path(const std::string& span) { return span.find('/') != std::string::npos; }

// The files that a path of the table stands for: "models/zoo/NAME.cc" is every .cc file of that folder.
std::vector<fs::path> files_of(const std::string& path) {
  std::string pattern = std::regex_replace(path, std::regex("\\."), "\\.");
  pattern = std::regex_replace(pattern, std::regex("NAME"), "[a-z0-9_]+");
  if (path.back() == '/') pattern += "[a-z0-9_./]+";
  std::vector<fs::path> files;
  for (const fs::path& file : tree())
    if (std::regex_match(file.string(), std::regex(pattern))) files.push_back(file);
  return files;
}

bool is_word_of(const fs::path& file, const std::string& name) {
  return std::regex_search(text_of(file), std::regex("\\b" + name + "\\b"));
}

}  // namespace

TEST_CASE("what to add: every file that a row names is there, so is every function in a file of its row") {
  const std::vector<Row> rows = table_below("| to add | write");
  REQUIRE(rows.size() >= 15);
  size_t functions = 0;
  for (const Row& row : rows) {
    INFO(row[0]);
    REQUIRE(row.size() == 4);
    std::vector<fs::path> named;
    for (const std::string& cell : row) {
      for (const std::string& span : spans_of_code(cell)) {
        if (!is_path(span)) continue;
        INFO(span);
        const std::vector<fs::path> files = files_of(span);
        CHECK_FALSE(files.empty());
        named.insert(named.end(), files.begin(), files.end());
      }
    }
    const auto in_a_test = [](const fs::path& file) { return is_below(file, {"tests"}); };
    CHECK(std::any_of(named.begin(), named.end(), in_a_test));
    for (const std::string& cell : {row[1], row[2]}) {
      for (const std::string& span : spans_of_code(cell)) {
        if (!is_name(span)) continue;
        INFO(span);
        ++functions;
        CHECK(std::any_of(named.begin(), named.end(),
                          [&](const fs::path& file) { return is_word_of(file, span); }));
      }
    }
  }
  CHECK(functions >= 10);
}

TEST_CASE("what a row costs: the files that are counted are there, and as many as the number says") {
  const std::vector<Row> rows = table_below("| to add | files before");
  REQUIRE(rows.size() >= 5);
  for (const Row& row : rows) {
    INFO(row[0]);
    REQUIRE(row.size() == 3);
    const std::string& now = row[2];
    const size_t colon = now.find(':');
    REQUIRE(colon != std::string::npos);
    size_t files = 0;
    for (const std::string& span : spans_of_code(now)) {
      ++files;
      if (span[0] == '.') continue;  // "`a.h` and `.cc`"
      INFO(span);
      CHECK(std::any_of(tree().begin(), tree().end(),
                        [&](const fs::path& file) { return file.filename() == span; }));
    }
    if (now.find("its own two") != std::string::npos) {
      files += 2;
    } else if (now.find("its own") != std::string::npos || now.find("the example") != std::string::npos) {
      files += 1;
    }
    CHECK(files == std::stoul(now.substr(0, colon)));
  }
}
