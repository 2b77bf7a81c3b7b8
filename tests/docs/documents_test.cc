// Every JSON file of the tree is strict JSON, and those that are documents of ours are read by their readers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <sstream>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/graph.h"
#include "graph/live_status.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/run.h"
#include "graph/speed_trace.h"
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
    reader<Graph>(), reader<Profile>(), reader<Topology>(),   reader<Plan>(),
    reader<Run>(),   reader<Summary>(), reader<SpeedTrace>(), reader<LiveStatus>()};

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

TEST_CASE("a block of a document that has commands says so: what is in ```sh is run by a test") {
  const std::vector<std::string> starts = {
      "build/", "pipewright-", "scripts/",  "benchmarks/", "experiments/", "PIPEWRIGHT_", "ninja ", "cmake ",
      "ctest ", "mkdir ",      "torchrun ", "srun ",       "mpirun ",      "nsys ",       "python"};
  size_t commands = 0;
  for (const auto& file : tree()) {
    if (!has_suffix(file, {".md"})) continue;
    std::istringstream lines(text_of(file));
    bool inside = false;
    std::string language;
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.rfind("```", 0) == 0) {
        inside = !inside;
        language = line.substr(3);
        continue;
      }
      // An error's first line begins with the program's name, too.
      if (!inside || line.find(": error: ") != std::string::npos) continue;
      const bool command = std::any_of(starts.begin(), starts.end(),
                                       [&](const std::string& start) { return line.rfind(start, 0) == 0; });
      INFO(file.string() << ":" << number << ": " << line);
      if (command) CHECK(language == "sh");
      commands += language == "sh";
    }
  }
  CHECK(commands > 40);
}

TEST_CASE("every step of the Containerfile is a command that CONTRIBUTING.md shows") {
  std::istringstream lines(text_of("Containerfile"));
  const std::string& shown = text_of("CONTRIBUTING.md");
  size_t steps = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("RUN ", 0) != 0) continue;
    const std::string command = "\n" + line.substr(4);
    INFO(line);
    ++steps;
    CHECK((shown.find(command + "\n") != std::string::npos || shown.find(command + "  ") != std::string::npos));
  }
  CHECK(steps == 3);
}

TEST_CASE("the README names all that a plan by hand needs, and the example is refused without any of it") {
  const std::string& readme = text_of("README.md");
  const size_t begin = readme.find("## Plans by hand");
  REQUIRE(begin != std::string::npos);
  const std::string section = readme.substr(begin, readme.find("\n## ", begin + 1) - begin);
  const Json plan = parse_json(text_of("docs/examples/plan-minimal-by-hand.json"), "example");
  const auto needs = [&](const std::string& key, const Json& without) {
    INFO(key);
    CHECK(section.find("`" + key + "`") != std::string::npos);
    CHECK_THROWS_AS(parse_document<Plan>(without.dump(), "example"), InputError);
  };
  CHECK_NOTHROW(parse_document<Plan>(plan.dump(), "example"));
  for (const auto& item : plan.items()) {
    if (item.key() == "schema") continue;
    Json without = plan;
    without.erase(item.key());
    if (item.key() != "stages") needs(item.key(), without);
  }
  for (const auto& item : plan["stages"][0].items()) {
    Json without = plan;
    without["stages"][0].erase(item.key());
    needs(item.key(), without);
  }
}
