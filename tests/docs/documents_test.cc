// Every JSON file of the tree is strict JSON, and those that are documents of ours are read by their readers.
#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "graph/document.h"
#include "graph/graph.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/run.h"
#include "graph/summary.h"
#include "graph/topology.h"
#include "tests/docs/tree.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

template <typename Document>
std::pair<std::string, std::function<void(const std::string&, const std::string&)>> reader() {
  return {Document::kSchema,
          [](const std::string& text, const std::string& where) { parse_document<Document>(text, where); }};
}

const std::map<std::string, std::function<void(const std::string&, const std::string&)>> kReaders = {
    reader<Graph>(), reader<Profile>(), reader<Topology>(), reader<Plan>(), reader<Run>(), reader<Summary>()};

}  // namespace

TEST_CASE("every JSON file of the tree is strict JSON, documents are read by their readers") {
  size_t documents = 0;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".json"})) continue;
    INFO(file.string());
    Json json;
    CHECK_NOTHROW(json = parse_json(text_of(file), file.string()));
    if (!json.is_object() || !json.contains("schema") || !json["schema"].is_string()) continue;
    const std::string schema = json["schema"];
    if (schema.rfind("pipewright.", 0) != 0) continue;
    INFO(schema);
    ++documents;
    const auto known = kReaders.find(schema);
    CHECK(known != kReaders.end());
    if (known != kReaders.end()) CHECK_NOTHROW(known->second(text_of(file), file.string()));
  }
  CHECK(documents >= kReaders.size());
}

TEST_CASE("every line of a JSON Lines file of the tree is strict JSON") {
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".jsonl"})) continue;
    const std::string& text = text_of(file);
    for (size_t begin = 0, line = 1; begin < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string where = file.string() + ":" + std::to_string(line);
      INFO(where);
      CHECK_NOTHROW(parse_json(text.substr(begin, end - begin), where));
      begin = end + 1;
    }
  }
}
