// Sources that nobody builds, headers that nobody includes, texts with what does not belong into them.
#include <catch2/catch.hpp>
#include <regex>
#include <set>

#include "tests/docs/tree.h"

using namespace pipewright::testing;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kSourceFolders = {"graph", "interference", "optimizer", "models",
                                                 "pages", "profiler",     "runtime",   "tests"};

// Does a CMakeLists.txt name the file, in its folder or one above it?
bool is_built(const fs::path& source) {
  for (fs::path folder = source.parent_path();; folder = folder.parent_path()) {
    const fs::path lists = folder / "CMakeLists.txt";
    if (fs::exists(root() / lists)) {
      const std::string& text = text_of(lists);
      const std::string name = fs::path(source).lexically_relative(folder.empty() ? "." : folder);
      for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
        const auto separates = [](char c) { return c == ' ' || c == '\n' || c == ')' || c == '('; };
        const size_t end = at + name.size();
        if ((at == 0 || separates(text[at - 1])) && (end == text.size() || separates(text[end]))) return true;
      }
    }
    if (folder.empty()) return false;
  }
}

// Position of the first byte that is no text, or npos: control characters, marks that are not seen, no UTF-8.
size_t first_bad_byte(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) -> uint32_t {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0;
    };
    const uint32_t first = byte(0);
    const size_t length = first < 0x80       ? 1
                          : first >> 5 == 6  ? 2
                          : first >> 4 == 14 ? 3
                          : first >> 3 == 30 ? 4
                                             : 0;
    if (length == 0) return i;
    uint32_t point = length == 1 ? first : first & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if (byte(k) >> 6 != 2) return i;
      point = point << 6 | (byte(k) & 0x3F);
    }
    const bool control = (point < 0x20 && point != '\n' && point != '\t') || (point >= 0x7F && point < 0xA0);
    const bool unseen = point == 0xAD || (point >= 0x200B && point <= 0x200F) ||
                        (point >= 0x2028 && point <= 0x202E) || (point >= 0x2060 && point <= 0x206F) ||
                        point == 0xFEFF;
    if (control || unseen) return i;
    i += length;
  }
  return std::string::npos;
}

// The serial reference has to reach the runtime's numbers by another way: it asks no row.
bool is_of_reference(const fs::path& file) { return file.parent_path() == "runtime/serial"; }

}  // namespace

// CMake would take it apart; the test program would take it for an option.
TEST_CASE("no name of a test has a semicolon, or begins with a dash") {
  const std::regex named("TEST_CASE\\(\\s*((\"[^\"]*\"\\s*)+)");
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc"}) || !is_below(file, {"tests"})) continue;
    const std::string& text = text_of(file);
    for (std::sregex_iterator at(text.begin(), text.end(), named), end; at != end; ++at) {
      INFO(file.string() << ": " << (*at)[1].str());
      CHECK((*at)[1].str().find(';') == std::string::npos);
      CHECK(!(*at)[1].str().starts_with("\"-"));
    }
  }
}

// tests/CMakeLists.txt goes by the names of sources: cases in another would never run.
TEST_CASE("every source with a case is named test_*.cc or *_test.cc") {
  static const std::regex kCase("(^|\n)(TEST_CASE|TEMPLATE_TEST_CASE)");
  size_t sources = 0;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc", ".h"}) || !is_below(file, {"tests"})) continue;
    if (!std::regex_search(text_of(file), kCase)) continue;
    INFO(file.string());
    const std::string name = file.stem().string();
    CHECK(file.extension() == ".cc");
    CHECK((name.starts_with("test_") || name.ends_with("_test")));
    ++sources;
  }
  CHECK(sources > 100);
}

TEST_CASE("every source is in the build") {
  size_t sources = 0;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc"}) || !is_below(file, kSourceFolders)) continue;
    INFO(file.string() << " is named in no CMakeLists.txt");
    CHECK(is_built(file));
    ++sources;
  }
  CHECK(sources > 100);
}

TEST_CASE("every header has #pragma once and is included by someone") {
  std::set<std::string> included;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".h", ".cc"})) continue;
    static const std::regex kInclude("#include \"([^\"]+)\"");
    const std::string& text = text_of(file);
    for (auto match = std::sregex_iterator(text.begin(), text.end(), kInclude);
         match != std::sregex_iterator(); ++match) {
      included.insert((*match)[1]);
    }
  }
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".h"})) continue;
    INFO(file.string());
    CHECK(text_of(file).find("#pragma once\n") != std::string::npos);
    // The stand-ins for Gloo's headers are included by LibTorch's.
    if (is_below(file, kSourceFolders) && file.string().find("gloo_shim") == std::string::npos)
      CHECK(included.count(file.string()) == 1);
  }
}

TEST_CASE("texts are UTF-8 without control characters, and name no folder of one person's machine") {
  const std::vector<std::string> texts = {".h",     ".cc",  ".md", ".cmake", ".txt", ".json",
                                          ".jsonl", ".svg", ".py", ".sh",    ".csv", ""};
  static const std::regex kHome("(^|[^A-Za-z0-9_.~}/-])/(home|root|Users)/[A-Za-z0-9_]");
  for (const auto& file : tree()) {
    if (!has_suffix(file, texts)) continue;
    const std::string& text = text_of(file);
    INFO(file.string());
    const size_t bad = first_bad_byte(text);
    CHECK(bad == std::string::npos);
    if (text.find("/home/") == std::string::npos && text.find("/root/") == std::string::npos &&
        text.find("/Users/") == std::string::npos)
      continue;
    std::istringstream lines(text);
    size_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      INFO("line " << number << ": " << line.substr(0, 200));
      CHECK_FALSE(std::regex_search(line, kHome));
    }
  }
}

TEST_CASE(
    "what is known of a schedule, a transport, a strategy ... stands in its row: nobody compares their "
    "names") {
  const std::regex comparison(
      "(schedule|weights|sync|transport|strategy|objective|optimizer.name|policy.name)[A-Za-z_.()>-]* *[!=]= "
      "*"
      "\"[a-z0-9-]+\"");
  size_t looked_at = 0, of_reference = 0;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc", ".h"}) ||
        !is_below(file, {"graph", "interference", "models", "optimizer", "profiler", "runtime"}))
      continue;
    const std::string& text = text_of(file);
    if (is_of_reference(file)) {
      of_reference += std::regex_search(text, comparison);
      continue;
    }
    ++looked_at;
    std::smatch found;
    INFO(file.string());
    const bool compared = std::regex_search(text, found, comparison);
    INFO((compared ? found.str() : ""));
    CHECK_FALSE(compared);
  }
  CHECK(looked_at > 100);
  CHECK(of_reference > 0);
}
