// What the Markdown files point to exists: links, headings, files in backticks, options of our programs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <regex>
#include <set>

#include "tests/docs/tree.h"

using namespace pipewright::testing;
namespace fs = std::filesystem;

namespace {

// A Markdown file, its fenced code apart from its prose.
struct Page {
  fs::path file;
  std::vector<std::string> prose;  // by line; fenced lines are empty
  std::vector<std::string> code;   // fenced lines
};

Page page_of(const fs::path& file) {
  Page page{file, {}, {}};
  bool fenced = false;
  std::istringstream lines(text_of(file));
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    const bool fence = begin != std::string::npos && line.compare(begin, 3, "```") == 0;
    if (fence) fenced = !fenced;
    const bool code = fenced && !fence;
    page.prose.push_back(fenced || fence ? "" : line);
    if (code) page.code.push_back(line);
  }
  return page;
}

const std::vector<Page>& pages() {
  static const std::vector<Page> all = [] {
    std::vector<Page> found;
    for (const auto& file : tree()) {
      if (has_suffix(file, {".md"})) found.push_back(page_of(file));
    }
    return found;
  }();
  return all;
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), regex); match != std::sregex_iterator();
       ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

std::vector<std::string> code_spans(const std::string& line) { return matches(line, "`([^`]+)`"); }

// Without code spans: what looks like a link in them is none.
std::string without_code(const std::string& line) {
  return std::regex_replace(line, std::regex("`[^`]*`"), "`code`");
}

// The anchor that a heading gets on the usual web pages.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '-' || c == '_') anchor += static_cast<char>(std::tolower(byte));
    if (c == ' ') anchor += '-';
    if (byte >= 0x80) anchor += c;
  }
  return anchor;
}

std::set<std::string> anchors_of(const fs::path& file) {
  std::set<std::string> anchors;
  for (const std::string& line : page_of(file).prose) {
    const size_t marks = line.find_first_not_of('#');
    if (marks == 0 || marks == std::string::npos || line[marks] != ' ') continue;
    anchors.insert(anchor_of(line.substr(marks + 1)));
  }
  return anchors;
}

// "models/NAME.cc", "runs/gpus=N.json", "flight/rank-K.json" stand for many files.
bool is_placeholder(const std::string& path) {
  return std::regex_search(path, std::regex("[*<>{}=$]|\\.\\.\\.|NAME|(^|[-/])[A-Z]([-./]|$)"));
}

}  // namespace

TEST_CASE("the pages that others link to are there") {
  std::set<std::string> files;
  for (const Page& page : pages()) files.insert(page.file.string());
  for (const char* file : {"README.md", "EXPERIMENTS.md", "CONTRIBUTING.md", "docs/architecture.md",
                           "docs/semantics.md", "docs/gotchas.md", "docs/formats.md", "docs/schedules.md",
                           "docs/cost-model.md", "docs/profiling.md", "docs/models.md", "docs/data.md"}) {
    INFO(file);
    CHECK(files.count(file) == 1);
  }
}

TEST_CASE("every relative link leads to a file, and to a heading in it") {
  for (const Page& page : pages()) {
    for (size_t i = 0; i < page.prose.size(); ++i) {
      for (const std::string& target :
           matches(without_code(page.prose[i]), "\\]\\(([^)\\s]+)(?:\\s+\"[^\"]*\")?\\)")) {
        if (std::regex_search(target, std::regex("^[a-z]+:"))) continue;  // https:, mailto:
        INFO(page.file.string() << ":" << i + 1 << ": " << target);
        const size_t hash = target.find('#');
        const std::string path = target.substr(0, hash);
        const fs::path file = path.empty() ? page.file : (page.file.parent_path() / path).lexically_normal();
        CHECK(fs::exists(root() / file));
        if (hash == std::string::npos || !fs::is_regular_file(root() / file)) continue;
        CHECK(anchors_of(file).count(target.substr(hash + 1)) == 1);
      }
    }
  }
}

TEST_CASE("every file named in backticks exists") {
  std::set<std::string> folders;
  for (const auto& file : tree()) {
    if (file.has_parent_path()) folders.insert(file.begin()->string());
  }
  for (const Page& page : pages()) {
    for (size_t i = 0; i < page.prose.size(); ++i) {
      for (const std::string& span : code_spans(page.prose[i])) {
        const size_t slash = span.find('/');
        if (slash == std::string::npos || folders.count(span.substr(0, slash)) == 0) continue;
        if (span.find(' ') != std::string::npos || is_placeholder(span)) continue;
        INFO(page.file.string() << ":" << i + 1 << ": " << span);
        CHECK(fs::exists(root() / span));
      }
    }
  }
}

TEST_CASE("every docs/*.md named in a source exists") {
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".h", ".cc", ".cmake"}) && file.filename() != "CMakeLists.txt") continue;
    for (const std::string& page : matches(text_of(file), "\\b(docs/[A-Za-z0-9_-]+\\.md)\\b")) {
      INFO(file.string() << ": " << page);
      CHECK(fs::exists(root() / page));
    }
  }
}

TEST_CASE("every option in an example of our programs is one that a program has") {
  std::string sources;
  for (const auto& file : tree()) {
    if (has_suffix(file, {".cc"}) &&
        is_below(file, {"graph", "interference", "optimizer", "pages", "profiler", "runtime"}))
      sources += text_of(file);
  }
  for (const Page& page : pages()) {
    std::vector<std::string> examples;
    bool continued = false;  // a line that ends in a backslash goes on
    for (const std::string& line : page.code) {
      if (continued) {
        examples.back() += line;
      } else if (line.find("pipewright-") != std::string::npos) {
        examples.push_back(line);
      } else {
        continue;
      }
      continued = !line.empty() && line.back() == '\\';
    }
    for (const std::string& line : page.prose) {
      for (const std::string& span : code_spans(line)) {
        if (span.rfind("pipewright-", 0) == 0) examples.push_back(span);
      }
    }
    for (const std::string& example : examples) {
      const size_t program = example.find("pipewright-");
      for (const std::string& option : matches(example.substr(program), "\\s--([a-z][a-z0-9-]*)")) {
        if (option == "help" || option == "version") continue;
        INFO(page.file.string() << ": " << example << ": --" << option);
        CHECK(sources.find("\"" + option + "\"") != std::string::npos);
      }
    }
  }
}
