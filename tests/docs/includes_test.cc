// Which folder includes headers of which: as docs/architecture.md says, and never in a circle.
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/docs/tree.h"

using namespace pipewright::testing;
namespace fs = std::filesystem;

namespace {

using Arrows = std::map<std::string, std::set<std::string>>;

// `graph/` for graph/error.h.
std::string folder_of(const fs::path& file) { return file.parent_path().string() + "/"; }

Arrows arrows_of_sources() {
  static const std::regex kInclude("#include \"([^\"]+)\"");
  Arrows arrows;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc", ".h", ".cu", ".inc"}) ||
        !is_below(file, {"graph", "interference", "models", "optimizer", "pages", "profiler", "runtime"}))
      continue;
    const std::string from = folder_of(file);
    if (from.find("gloo_shim") != std::string::npos) continue;  // for LibTorch's header alone
    arrows[from];
    const std::string& text = text_of(file);
    for (std::sregex_iterator at(text.begin(), text.end(), kInclude), end; at != end; ++at) {
      const fs::path included = (*at)[1].str();
      if (fs::exists(root() / included) && folder_of(included) != from)
        arrows[from].insert(folder_of(included));
    }
  }
  return arrows;
}

// The rows below "Which folder includes which".
Arrows arrows_of_document() {
  std::istringstream lines(text_of("docs/architecture.md"));
  Arrows arrows;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("## ", 0) == 0) inside = line == "## Which folder includes which";
    if (!inside || line.rfind("| `", 0) != 0) continue;
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(cell);
    REQUIRE(cells.size() >= 4);
    static const std::regex kName("`([^`]+)`");
    std::smatch folder;
    REQUIRE(std::regex_search(cells[1], folder, kName));
    std::set<std::string>& to = arrows[folder[1]];
    for (std::sregex_iterator at(cells[3].begin(), cells[3].end(), kName), end; at != end; ++at)
      to.insert((*at)[1]);
  }
  return arrows;
}

}  // namespace

TEST_CASE("folders include headers of the folders that docs/architecture.md names, and no others") {
  const Arrows sources = arrows_of_sources(), document = arrows_of_document();
  CHECK(sources.size() >= 10);
  for (const auto& [from, to] : sources) {
    INFO(from);
    REQUIRE(document.count(from) == 1);
    for (const std::string& folder : to) {
      INFO("includes headers of " << folder);
      CHECK(document.at(from).count(folder) == 1);
    }
    for (const std::string& folder : document.at(from)) {
      INFO("includes none of " << folder);
      CHECK(to.count(folder) == 1);
    }
  }
  CHECK(document.size() == sources.size());
}

TEST_CASE("no folder includes headers of itself by way of others") {
  const Arrows arrows = arrows_of_sources();
  for (const auto& [start, ignored] : arrows) {
    std::set<std::string> reached;
    const std::function<void(const std::string&)> reach = [&](const std::string& from) {
      const auto to = arrows.find(from);
      if (to == arrows.end()) return;
      for (const std::string& folder : to->second)
        if (reached.insert(folder).second) reach(folder);
    };
    reach(start);
    INFO(start);
    CHECK(reached.count(start) == 0);
  }
}
