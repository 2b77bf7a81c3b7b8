// Keys of the job's store stand in few files: who wants to say something to other processes has a channel for
// it.
#include <catch2/catch.hpp>
#include <regex>
#include <set>

#include "tests/docs/tree.h"

using namespace pipewright::testing;
namespace fs = std::filesystem;

namespace {

// Transports connect by keys of their own, below the name that they are given.
const std::set<std::string> kOwners = {
    "runtime/control/board.cc",        // what has a newest value
    "runtime/control/exchange.cc",     // what is said once
    "runtime/control/rank_channel.cc"  // messages to rank 0, and orders
};
bool is_of_transport(const fs::path& file) { return file.parent_path() == "runtime/transport"; }

// The sources that a name of `file` may come from: its own header too.
std::string declarations(const fs::path& file) {
  fs::path header = file;
  header.replace_extension(".h");
  return text_of(file) + (fs::exists(root() / header) ? text_of(header) : "");
}

// Every name by which a source may have a Store.
std::set<std::string> names_of_stores(const fs::path& file) {
  static const std::regex kDeclared("\\bStore(?:>|&|\\*|\\s|const)+(\\w+)");
  std::set<std::string> names = {"store", "store_"};
  const std::string text = declarations(file);
  for (std::sregex_iterator at(text.begin(), text.end(), kDeclared), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

// Calls like `store->set(`, `(*store_).get(`, `session.store()->has(`.
std::vector<std::string> raw_calls(const fs::path& file) {
  static const std::regex kCall(
      "(\\w+)(?:\\(\\)|\\))?(?:\\.|->)(?:set|get|try_get|has|add|erase|implementation)\\(");
  const std::set<std::string> names = names_of_stores(file);
  const std::string& text = text_of(file);
  std::vector<std::string> calls;
  for (std::sregex_iterator at(text.begin(), text.end(), kCall), end; at != end; ++at)
    if (names.count((*at)[1])) calls.push_back(at->str());
  return calls;
}

}  // namespace

TEST_CASE("the job's store is asked by the board, the exchange, the channel and the transports alone") {
  std::set<std::string> found;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".cc", ".h"}) || !is_below(file, {"runtime", "profiler", "optimizer"})) continue;
    if (is_of_transport(file)) continue;
    const auto calls = raw_calls(file);
    if (calls.empty()) continue;
    found.insert(file.string());
    INFO(file.string() << ": " << calls.front());
    CHECK(kOwners.count(file.string()) == 1);
  }
  CHECK(found == kOwners);
}
