#include "test_paths.h"
#include "tests/docs/tree.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

namespace pipewright::testing {

namespace fs = std::filesystem;

fs::path root() { return PIPEWRIGHT_SOURCE_DIR; }

const std::vector<fs::path>& tree() {
  static const std::vector<fs::path> files = [] {
    std::vector<fs::path> found;
    for (auto entry = fs::recursive_directory_iterator(root()); entry != fs::recursive_directory_iterator();
         ++entry) {
      const std::string name = entry->path().filename();
      if (entry->is_directory()) {
        const bool outermost = entry.depth() == 0;
        const bool not_ours = name.front() == '.' || (outermost && (name == "build" || name == "runs"));
        if (not_ours) entry.disable_recursion_pending();
      } else if (entry->is_regular_file() && !entry->is_symlink() && name != "compile_commands.json") {
        found.push_back(fs::relative(entry->path(), root()));
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }();
  return files;
}

const std::string& text_of(const fs::path& file) {
  static std::map<fs::path, std::string> texts;
  const auto [known, added] = texts.try_emplace(file);
  if (added) {
    std::ifstream in(root() / file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    known->second = text.str();
  }
  return known->second;
}

bool has_suffix(const fs::path& file, const std::vector<std::string>& suffixes) {
  return std::find(suffixes.begin(), suffixes.end(), file.extension()) != suffixes.end();
}

bool is_below(const fs::path& file, const std::vector<std::string>& folders) {
  return file.has_parent_path() && std::find(folders.begin(), folders.end(), *file.begin()) != folders.end();
}

}  // namespace pipewright::testing
