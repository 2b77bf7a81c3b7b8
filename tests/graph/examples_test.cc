// The examples of docs/formats.md are files that are read here: the document cannot drift from the code.
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>

#include "graph/document.h"
#include "graph/live_status.h"
#include "graph/pipedream.h"
#include "graph/plan_changes.h"
#include "graph/speed_trace.h"
#include "test_paths.h"
#include "tests/graph/samples.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

const fs::path kExamples = fs::path(PIPEWRIGHT_SOURCE_DIR) / "docs" / "examples";

// Reads the file as a Document and gives its canonical text.
template <typename Document>
std::string canonical(const fs::path& file) {
  return document_text(read_document<Document>(file));
}

TEST_CASE("every example in docs/examples is read by its schema and written as it stands") {
  const std::map<std::string, std::function<std::string(const fs::path&)>> readers = {
      {Graph::kSchema, canonical<Graph>},
      {Profile::kSchema, canonical<Profile>},
      {Topology::kSchema, canonical<Topology>},
      {Plan::kSchema, canonical<Plan>},
      {Run::kSchema, canonical<Run>},
      {Summary::kSchema, canonical<Summary>},
      {SpeedTrace::kSchema, canonical<SpeedTrace>},
      {LiveStatus::kSchema, canonical<LiveStatus>},
  };
  std::set<std::string> seen;
  for (const fs::directory_entry& entry : fs::directory_iterator(kExamples)) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().filename().string());
    if (entry.path().filename() == "changes.json") {
      CHECK(plan_changes_text(parse_plan_changes(read_file(entry.path()), "changes.json")) ==
            read_file(entry.path()));
      for (const PlanChange& change : read_plan_changes(entry.path()))
        CHECK_NOTHROW(read_document<Plan>(change.plan));
      continue;
    }
    const std::string schema = read_json_file(entry.path()).at("schema").get<std::string>();
    REQUIRE(readers.count(schema) == 1);
    const std::string text = readers.at(schema)(entry.path());
    if (entry.path().stem().string().find("minimal") == std::string::npos)
      CHECK(text == read_file(entry.path()));
    seen.insert(schema);
  }
  CHECK(seen.size() == readers.size());
}

TEST_CASE("the examples belong together") {
  const auto graph = read_document<Graph>(kExamples / "graph.json");
  const auto profile = read_document<Profile>(kExamples / "profile.json");
  const auto topology = read_document<Topology>(kExamples / "topology.json");
  const auto plan = read_document<Plan>(kExamples / "plan.json");
  CHECK_NOTHROW(check_plan_for_graph(plan, graph));
  CHECK(profile.graph_digest == document_digest(graph));
  CHECK(plan.profile_digest == document_digest(profile));
  CHECK(plan.topology_digest == document_digest(topology));
  CHECK(document_text(graph) == document_text(testing::sample_graph()));
}

TEST_CASE("the example graph.txt is read") {
  const Profile profile =
      parse_pipedream_profile(read_file(kExamples / "graph.txt"), "docs/examples/graph.txt");
  CHECK(profile.nodes.size() == 4);
  CHECK(profile.input_seconds == 0.0189);
}

}  // namespace
}  // namespace pipewright
