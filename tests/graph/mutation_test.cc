// Valid documents, damaged at random: whatever comes out is refused with a reason or is a document that
// round-trips.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <random>

#include "graph/document.h"
#include "graph/pipedream.h"
#include "graph/pipedream_configuration.h"
#include "graph/plan_changes.h"
#include "tests/graph/samples.h"

namespace pipewright {
namespace {

using namespace testing;

/// Damaged inputs of all readers together; PIPEWRIGHT_MUTATIONS sets another number.
int64_t mutations_of_each() {
  constexpr int64_t kReaders = 9;
  const char* const asked = std::getenv("PIPEWRIGHT_MUTATIONS");
  return asked == nullptr ? 600 : std::max<int64_t>(std::atoll(asked) / kReaders, 100);
}
const int64_t kMutations = mutations_of_each();

size_t below(std::mt19937_64& random, size_t end) { return random() % end; }

void collect(Json& json, std::vector<Json*>& found) {
  found.push_back(&json);
  if (!json.is_structured()) return;
  for (Json& child : json) collect(child, found);
}

Json strange_value(std::mt19937_64& random) {
  switch (below(random, 12)) {
    case 0:
      return nullptr;
    case 1:
      return -1;
    case 2:
      return 1e300;
    case 3:
      return "";
    case 4:
      return Json::array();
    case 5:
      return Json::object();
    case 6:
      return std::numeric_limits<int64_t>::max();
    case 7:
      return std::numeric_limits<uint64_t>::max();
    case 8:
      return true;
    case 9:
      return 0.5;
    case 10:
      return std::numeric_limits<int64_t>::min();
    default:
      return Json::parse(R"(["x", 1, {"tensor": []}])");
  }
}

// Damage to the tree: drop, replace, insert, swap, repeat.
std::string mutated_tree(const std::string& text, std::mt19937_64& random) {
  Json json = Json::parse(text);
  for (size_t i = 1 + below(random, 2); i > 0; --i) {
    std::vector<Json*> places;
    collect(json, places);
    Json& place = *places[below(random, places.size())];
    switch (below(random, 5)) {
      case 0:
        if (place.is_object() && !place.empty()) {
          place.erase(
              std::next(place.begin(), static_cast<std::ptrdiff_t>(below(random, place.size()))).key());
        } else if (place.is_array() && !place.empty()) {
          place.erase(below(random, place.size()));
        }
        break;
      case 1:
        place = strange_value(random);
        break;
      case 2:
        if (place.is_object()) place["strange"] = strange_value(random);
        if (place.is_array()) place.push_back(strange_value(random));
        break;
      case 3: {  // `place` may hold the other: copy first
        const Json other = *places[below(random, places.size())];
        place = other;
        break;
      }
      default:
        if (place.is_array() && place.size() > 1) std::swap(place.front(), place.back());
        break;
    }
  }
  return json.dump();
}

// Damage to the text: flip, drop, double, cut.
std::string mutated_text(std::string text, std::mt19937_64& random) {
  for (size_t i = 1 + below(random, 3); i > 0 && !text.empty(); --i) {
    const size_t at = below(random, text.size());
    switch (below(random, 5)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] = "0123456789.-+eE\"{}[]:, \n\t"[below(random, 25)];
        break;
      case 2:
        text.erase(at, 1 + below(random, 20));
        break;
      case 3:
        text.insert(at, text.substr(below(random, text.size()), below(random, 40)));
        break;
      default:
        if (below(random, 10) == 0) text.resize(at);
        break;
    }
  }
  return text;
}

struct Tally {
  int64_t refused = 0;
  int64_t accepted = 0;
};

template <typename Read>
void check_one(const std::string& text, Tally& tally, const Read& read) {
  try {
    read(text);
    ++tally.accepted;
  } catch (const InputError& error) {
    const std::string what = error.what();
    ++tally.refused;
    const bool in_words =
        what.rfind("x.json:", 0) == 0 && what.find('\n') == std::string::npos && what.size() < 1000;
    if (!in_words) FAIL("message: " << what << "\ninput: " << text);
  } catch (const std::exception& error) {
    FAIL("another exception: " << error.what() << "\ninput: " << text);
  }
}

template <typename Document>
void read_and_round_trip(const std::string& text) {
  const Document document = parse_document<Document>(text, "x.json");
  const std::string again = document_text(document);
  REQUIRE(document_text(parse_document<Document>(again, "x.json")) == again);
}

template <typename Document>
void check_mutations(const Document& sample, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::string text = document_text(sample);
  Tally tally;
  for (int64_t i = 0; i < kMutations; ++i) {
    const std::string damaged = i % 2 == 0 ? mutated_tree(text, random) : mutated_text(text, random);
    check_one(damaged, tally, read_and_round_trip<Document>);
  }
  CHECK(tally.refused > kMutations / 4);  // the damage is real
  CHECK(tally.accepted > 0);              // and not always fatal
}

TEST_CASE("damaged documents are refused or round-trip") {
  check_mutations(sample_graph(), 1);
  check_mutations(sample_profile(), 2);
  check_mutations(sample_topology(), 3);
  check_mutations(sample_plan(), 4);
  check_mutations(sample_run(), 5);
  check_mutations(sample_summary(), 6);
  Summary changed = sample_summary();
  changed.generations = {{0, 0, "generation-0.plan.json", "start", 2, 0, 0, 0, 0, 0},
                         {1, 400, "generation-1.plan.json", "manual", 3, 2, 0.25, 0.5, 0.125, 4096}};
  check_mutations(changed, 11);
}

TEST_CASE("damaged lists of changes are refused or round-trip") {
  std::mt19937_64 random(12);
  const std::string text = plan_changes_text({{400, "b.json"}, {800, "plans/c.json", 3}, {900, "", 4, 2, 0.5}});
  Tally tally;
  for (int64_t i = 0; i < kMutations; ++i) {
    const std::string damaged = i % 2 == 0 ? mutated_tree(text, random) : mutated_text(text, random);
    check_one(damaged, tally, [](const std::string& read) {
      const std::string again = plan_changes_text(parse_plan_changes(read, "x.json"));
      REQUIRE(plan_changes_text(parse_plan_changes(again, "x.json")) == again);
    });
  }
  CHECK(tally.refused > kMutations / 4);
  CHECK(tally.accepted > 0);
}

TEST_CASE("damaged plans fit their graph or are refused with exit code 3") {
  std::mt19937_64 random(8);
  const std::string text = document_text(sample_plan());
  const Graph graph = sample_graph();
  Tally tally;
  for (int64_t i = 0; i < kMutations; ++i) {
    check_one(mutated_tree(text, random), tally, [&](const std::string& damaged) {
      const Plan plan = parse_document<Plan>(damaged, "x.json");
      try {
        check_plan_for_graph(plan, graph);
      } catch (const PlanError&) {
      }
    });
  }
}

TEST_CASE("damaged graph.txt is refused or round-trips") {
  std::mt19937_64 random(9);
  const std::string text = pipedream_profile_text(sample_profile());
  Tally tally;
  for (int64_t i = 0; i < kMutations; ++i) {
    check_one(mutated_text(text, random), tally, [](const std::string& damaged) {
      const Profile profile = parse_pipedream_profile(damaged, "x.json");
      parse_pipedream_stages(damaged, "x.json");
      Profile again;
      try {
        again = parse_pipedream_profile(pipedream_profile_text(profile), "x.json");
      } catch (const InputError& error) {
        // Names may hold control characters by now; the writer then says so.
        REQUIRE(std::string(error.what()).find("cannot hold the name") != std::string::npos);
        throw InputError(std::string("x.json: ") + "name");
      }
      REQUIRE(document_text(again) == document_text(profile));
    });
  }
  CHECK(tally.refused > kMutations / 4);
  CHECK(tally.accepted > 0);
}

TEST_CASE("damaged configurations of PipeDream are refused or round-trip") {
  std::mt19937_64 random(10);
  const std::string text =
      R"({"module_to_stage_map": [0, 1, 1, 2], "stage_to_rank_map": {"0": [0, 1, 2], "1": [3], "2": [4, 5]},
          "stage_to_depth_map": {"0": 2, "1": 1, "2": 0}})";
  Tally tally;
  for (int64_t i = 0; i < kMutations; ++i) {
    const std::string damaged = i % 2 == 0 ? mutated_tree(text, random) : mutated_text(text, random);
    check_one(damaged, tally, [](const std::string& bytes) {
      const std::string again = pipedream_configuration_text(parse_pipedream_configuration(bytes, "x.json"));
      REQUIRE(pipedream_configuration_text(parse_pipedream_configuration(again, "x.json")) == again);
    });
  }
  CHECK(tally.refused > kMutations / 4);
  CHECK(tally.accepted > 0);
}

}  // namespace
}  // namespace pipewright
