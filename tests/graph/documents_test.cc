// What holds for every document type: round trips, strictness, messages with paths.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "graph/document.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using testing::error_of;
using namespace testing;

// Text of the document after `edit` changed its JSON.
template <typename Document, typename Edit>
std::string error_after(const Document& document, const Edit& edit) {
  Json json = parse_json(document_text(document), "x.json");
  edit(json);
  const std::string text = json_text(json);
  return error_of<InputError>([&] { parse_document<Document>(text, "x.json"); });
}

template <typename Document, typename Make>
void check_round_trips(const Make& make) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const Document document = make(random);
    const std::string text = document_text(document);
    const Document again = parse_document<Document>(text, "x.json");
    REQUIRE(document_text(again) == text);
    REQUIRE(document_digest(again) == digest_of(text));
  }
}

TEST_CASE("random documents round-trip to the byte") {
  check_round_trips<Graph>(random_graph);
  check_round_trips<Profile>(random_profile);
  check_round_trips<Topology>(random_topology);
  check_round_trips<Plan>(random_plan);
  check_round_trips<Run>(random_run);
  check_round_trips<Summary>(random_summary);
}

// The same errors for each type, on its sample.
template <typename Document>
void check_strictness(const Document& sample, const std::string& name, const std::string& version = "1") {
  const std::string schema = name + "/" + version;
  const std::string other = name + "/99";
  CAPTURE(schema);
  const auto error = [&](const auto& edit) { return error_after(sample, edit); };
  const Json whole = parse_json(document_text(sample), "x.json");
  CHECK(whole.begin().key() == "schema");
  CHECK(whole["schema"] == schema);

  CHECK(error([](Json& j) { j.erase("schema"); }) == "x.json: schema: missing; expected '" + schema + "'");
  CHECK(error([](Json& j) { j["schema"] = "pipewright.zebra/1"; }) ==
        "x.json: schema: got \"pipewright.zebra/1\", expected '" + schema + "'");
  CHECK(error([&](Json& j) { j["schema"] = other; }) ==
        "x.json: schema: got \"" + other + "\", expected '" + schema + "': another version of the document");
  CHECK(error([](Json& j) { j["schema"] = 1; }) == "x.json: schema: got 1, expected a string");
  CHECK(error([](Json& j) {
          j["zebra_of_the_savanna"] = 1;
        }).rfind("x.json: zebra_of_the_savanna: unknown key", 0) == 0);
  CHECK(error([](Json& j) { j = Json::array(); }) == "x.json: got an array, expected an object");
  CHECK(error([](Json& j) { j = 3; }) == "x.json: got 3, expected an object");

  for (const auto& [key, value] : whole.items()) {
    if (key == "schema") continue;
    CAPTURE(key);
    const std::string renamed = key + "x";
    // Wrong types everywhere.
    const Json wrong = value.is_string() ? Json(1) : Json("1");
    CHECK(error([&key = key, &wrong](Json& j) { j[key] = wrong; }).rfind("x.json: " + key + ": got ", 0) ==
          0);
    // A misspelt key: either reported as missing with the right hint, or, if optional, as unknown with the
    // right hint.
    const std::string misspelt = error([&key = key, &value = value, &renamed](Json& j) {
      j.erase(key);
      j[renamed] = value;
    });
    const bool missing =
        misspelt == "x.json: " + key + ": missing; did you mean \"" + renamed + "\" which is there?";
    const bool unknown = misspelt == "x.json: " + renamed + ": unknown key; did you mean '" + key + "'?";
    CAPTURE(misspelt);
    CHECK((missing || unknown));
  }
}

TEST_CASE("every document is read strictly") {
  check_strictness(sample_graph(), "pipewright.graph");
  check_strictness(sample_profile(), "pipewright.profile");
  check_strictness(sample_topology(), "pipewright.topology");
  check_strictness(sample_plan(), "pipewright.plan");
  check_strictness(sample_run(), "pipewright.run");
  check_strictness(sample_summary(), "pipewright.summary", "2");
}

// Every number at any depth: a wrong type, a negative and an absurd value must be refused with the path to
// it.
void collect_numbers(const Json& json, const Json::json_pointer& at, std::vector<Json::json_pointer>& found) {
  if (json.is_number()) found.push_back(at);
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) collect_numbers(value, at / key, found);
  }
  if (json.is_array()) {
    for (size_t i = 0; i < json.size(); ++i) collect_numbers(json[i], at / i, found);
  }
}

template <typename Document>
void check_numbers(const Document& sample) {
  const Json whole = parse_json(document_text(sample), "x.json");
  std::vector<Json::json_pointer> numbers;
  collect_numbers(whole, Json::json_pointer(), numbers);
  CHECK(!numbers.empty());
  for (const Json::json_pointer& at : numbers) {
    const std::string place = at.to_string();
    CAPTURE(place);
    const std::string last_key = at.back();
    CHECK(error_after(sample, [&](Json& j) { j[at] = "3"; }).rfind("x.json: ", 0) == 0);
    const bool nullable = last_key == "train_loss" || last_key == "loss" || last_key == "top1";
    if (!nullable) CHECK(error_after(sample, [&](Json& j) { j[at] = nullptr; }).rfind("x.json: ", 0) == 0);
    CHECK(error_after(sample, [&](Json& j) { j[at] = -1e305; }).find("x.json: ") == 0);
    CHECK(error_after(sample, [&](Json& j) { j[at] = 1e305; }).find("x.json: ") == 0);
    if (whole[at].is_number_integer()) {
      CHECK(error_after(sample, [&](Json& j) { j[at] = 1.5; }).find("got 1.5, expected an integer") !=
            std::string::npos);
      if (last_key != "seed") {
        CHECK(error_after(sample, [&](Json& j) {
                j[at] = std::numeric_limits<int64_t>::max();
              }).find("x.json: ") == 0);
      }
    }
  }
}

TEST_CASE("every number has a type and a range") {
  check_numbers(sample_graph());
  check_numbers(sample_profile());
  check_numbers(sample_topology());
  check_numbers(sample_plan());
  check_numbers(sample_run());
  check_numbers(sample_summary());
}

TEST_CASE("messages lead to the place") {
  CHECK(error_after(sample_plan(), [](Json& j) { j["stages"][1]["in_flight"] = 0; }) ==
        "x.json: stages[1].in_flight: 0 is not in 1..1024");
  CHECK(error_after(sample_plan(), [](Json& j) {
          j["predicted"]["stages"][0]["memory"].erase("gradients_bytes");
        }) == "x.json: predicted.stages[0].memory.gradients_bytes: missing");
  CHECK(error_after(sample_profile(), [](Json& j) { j["nodes"][2]["outputs"][0]["bytes"] = -1; }) ==
        "x.json: nodes[2].outputs[0].bytes: -1 is not in 0..9007199254740992");
  CHECK(error_after(sample_profile(), [](Json& j) { j["provenance"]["repeats"] = 3; }) ==
        "x.json: provenance.repeats: got 3, expected a string");
  CHECK(error_after(sample_profile(), [](Json& j) { j["whole"].erase("forward_seconds"); }) ==
        "x.json: whole.forward_seconds: missing");
  CHECK(error_after(sample_profile(), [](Json& j) { j["nodes"][1]["forward_launch_seconds"] = 1e-6; }) ==
        "x.json: nodes[1].backward_launch_seconds: missing");
  CHECK(error_after(sample_profile(), [](Json& j) { j["whole"]["backward_launch_seconds"] = 1e-6; }) ==
        "x.json: whole.forward_launch_seconds: missing");
  CHECK(error_after(sample_profile(), [](Json& j) { j["whole"]["allocated_bytes"] = -1; }) ==
        "x.json: whole.allocated_bytes: -1 is not in 0..9007199254740992");
  CHECK(error_after(sample_profile(), [](Json& j) { j["whole"]["alocated_bytes"] = 1; }) ==
        "x.json: whole.alocated_bytes: unknown key; did you mean 'allocated_bytes'?");
  CHECK(error_after(sample_topology(), [](Json& j) { j["levels"][0]["shared"] = 1; }) ==
        "x.json: levels[0].shared: got 1, expected true or false");
  CHECK(error_after(sample_summary(), [](Json& j) { j["status"] = "dnoe"; }) ==
        "x.json: status: \"dnoe\" is not one of done, interrupted, failed; did you mean 'done'?");
}

TEST_CASE("a node's workspace is written where there is one") {
  Profile profile = sample_profile();
  CHECK(document_text(profile).find("workspace") == std::string::npos);
  profile.nodes[0].workspace_bytes = 192;
  const Profile again = parse_document<Profile>(document_text(profile), "x.json");
  CHECK(again.nodes[0].workspace_bytes == 192);
  CHECK(again.nodes[1].workspace_bytes == 0);
}

TEST_CASE("a profile of a device has the host's times too, one of the CPU has not") {
  Profile profile = sample_profile();
  CHECK(document_text(profile).find("launch") == std::string::npos);
  CHECK(document_text(profile).find("allocated") == std::string::npos);
  CHECK_FALSE(profile.nodes[0].launch_seconds());
  profile.nodes[0].forward_launch_seconds = 0.25;
  profile.nodes[0].backward_launch_seconds = 0.5;
  profile.whole.forward_launch_seconds = 1;
  profile.whole.backward_launch_seconds = 2;
  profile.whole.allocated_bytes = 12;
  profile.whole.known_within = 0.0125;
  const Profile again = parse_document<Profile>(document_text(profile), "x.json");
  CHECK(again.nodes[0].launch_seconds() == 0.75);
  CHECK_FALSE(again.nodes[1].launch_seconds());
  CHECK(again.whole.backward_launch_seconds == 2);
  CHECK(again.whole.allocated_bytes == 12);
  CHECK(again.whole.known_within == 0.0125);

  CHECK_FALSE(is_launch_bound(1, std::nullopt));
  CHECK_FALSE(is_launch_bound(0, 0.0));  // nothing is done: nobody waits
  CHECK_FALSE(is_launch_bound(1, 0.89));
  CHECK(is_launch_bound(1, 0.91));
  CHECK(is_launch_bound(1, 5));
}

TEST_CASE("a document of the wrong kind says what to look at") {
  const std::string text = document_text(sample_profile());
  try {
    parse_document<Plan>(text, "profile.json");
    FAIL("no exception");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()) ==
          "profile.json: schema: got \"pipewright.profile/1\", expected 'pipewright.plan/1'");
    CHECK(error.remedy() == "This file is another kind of document; was it given to the wrong option?");
    CHECK(error.code() == ExitCode::kBadInput);
  }
}

TEST_CASE("digests of documents are stable") {
  // Written into plans and profiles: a change of these is a change of the format and needs a new schema
  // version.
  CHECK(document_digest(sample_graph()) == "xxh128:8d330871841481cb03ee06ff28d84125");
  CHECK(document_digest(sample_topology()) == "xxh128:bfbd99424bce05ebca91b2d82678e1c7");
}

TEST_CASE("documents go through files") {
  const TemporaryFolder folder;
  write_document(folder / "plan.json", sample_plan());
  CHECK(document_text(read_document<Plan>(folder / "plan.json")) == document_text(sample_plan()));
  CHECK(error_of<InputError>([&] { read_document<Plan>(folder / "plam.json"); }).find("did you mean") !=
        std::string::npos);
  CHECK(error_of<InputError>([&] { read_document<Plan>(folder.path()); }) ==
        folder.path().string() + ": is a folder, expected a file");
  write_file(folder / "empty.json", "");
  CHECK(error_of<InputError>([&] { read_document<Plan>(folder / "empty.json"); }) ==
        (folder / "empty.json").string() + ": empty; expected a JSON document");
}

TEST_CASE("topologies") {
  const auto error = [](const auto& edit) { return error_after(sample_topology(), edit); };
  CHECK(sample_topology().device_count() == 4);
  CHECK(error([](Json& j) { j["levels"] = Json::array(); }) ==
        "x.json: levels: empty; expected at least one level");
  CHECK(error([](Json& j) { j["devices"].erase(0); }) ==
        "x.json: devices: got 3, but the levels make 4 devices");
  CHECK(error([](Json& j) { j["levels"][0]["bandwidth_bytes_per_second"] = 0; }) ==
        "x.json: levels[0].bandwidth_bytes_per_second: 0, but 2 members have to exchange data");
  CHECK(error([](Json& j) {
          j.erase("devices");
          j["levels"][0]["count"] = 1 << 15;
          j["levels"][1]["count"] = 1 << 15;
        }) == "x.json: levels[1].count: together more than 1048576 devices");
  // By hand with units.
  Json by_hand = parse_json(document_text(sample_topology()), "x.json");
  by_hand["levels"][1]["bandwidth_bytes_per_second"] = "25Gbit/s";
  by_hand["levels"][1]["latency_seconds"] = "5us";
  by_hand["memory_bytes"] = "80GB";
  const auto read = parse_document<Topology>(json_text(by_hand), "x.json");
  CHECK(read.levels[1].bandwidth_bytes_per_second == 3.125e9);
  CHECK(read.levels[1].latency_seconds == 5e-6);
  CHECK(read.memory_bytes == 80'000'000'000);
  CHECK(
      error([](Json& j) {
        j["levels"][1]["bandwidth_bytes_per_second"] = "25";
      }).rfind("x.json: levels[1].bandwidth_bytes_per_second: got \"25\": has no unit; expected a rate", 0) ==
      0);
  const Topology flat = flat_topology(4, 1.25e9, 1e-6, 1 << 30);
  CHECK_NOTHROW(flat.validate("x"));
  CHECK(flat.device_count() == 4);
  CHECK_NOTHROW(flat_topology(1, 0, 0, 0).validate("x"));
  CHECK_THROWS_AS(flat_topology(0, 1, 0, 0).validate("x"), InputError);
}

TEST_CASE("profiles") {
  const auto error = [](const auto& edit) { return error_after(sample_profile(), edit); };
  CHECK(sample_profile().compute_seconds() == Approx(6.55e-5));
  CHECK(error([](Json& j) { j["nodes"] = Json::array(); }) ==
        "x.json: nodes: empty; expected at least one node");
  CHECK(error([](Json& j) { j["nodes"][1]["name"] = "linear"; }) ==
        "x.json: nodes[1].name: there is another node \"linear\"");
  CHECK(error([](Json& j) { j["nodes"][1]["outputs"][0]["name"] = "hidden"; }) ==
        "x.json: nodes[1].outputs: \"hidden\" is made already by node \"linear\"");
  CHECK(error([](Json& j) { std::swap(j["nodes"][1], j["nodes"][2]); }) ==
        "x.json: nodes[1].inputs: node \"linear_1\" reads \"active\" before node \"relu\" makes it");
  CHECK(error([](Json& j) { j["nodes"][0]["trainable_parameter_bytes"] = 577; }) ==
        "x.json: nodes[0].trainable_parameter_bytes: 577 is more than parameter_bytes, 576");
  CHECK(error([](Json& j) { j["threads"] = 0; }) == "x.json: threads: 0 is not in 1..1048576");
}

TEST_CASE("a summary of version 1 is read and written as one of version 2") {
  std::mt19937_64 random(1);
  Summary summary = random_summary(random);
  summary.ranks.front().times.emplace().cpu_seconds = 2.5;
  const auto as_version_1 = [&](const auto& edit) {
    Json json = parse_json(document_text(summary), "x.json");
    json["schema"] = "pipewright.summary/1";
    for (Json& rank : json["ranks"]) {
      if (!rank.contains("times")) continue;
      rank["times"]["processor_seconds"] = rank["times"]["cpu_seconds"];
      rank["times"].erase("cpu_seconds");
    }
    edit(json);
    return json_text(json);
  };
  const std::string old = as_version_1([](Json&) {});
  CHECK(document_text(parse_document<Summary>(old, "x.json")) == document_text(summary));

  // What else is wrong with it is said as of any other document; nothing of it can make the renaming fail.
  const auto error = [&](const auto& edit) {
    try {
      parse_document<Summary>(as_version_1(edit), "x.json");
    } catch (const InputError& refused) {
      return std::string(refused.what());
    }
    return std::string("no error");
  };
  CHECK(error([](Json& j) { j["ranks"][0]["times"]["cpu_seconds"] = 1; }) ==
        "x.json: ranks[0].times.processor_seconds: unknown key; known: minibatches, trained_seconds, "
        "busy_seconds, "
        "load_wait_seconds, cpu_seconds, injected_seconds");
  CHECK(error([](Json& j) { j["ranks"][0]["times"] = 3; }) ==
        "x.json: ranks[0].times: got 3, expected an object");
  CHECK(error([](Json& j) { j["ranks"] = 3; }) == "x.json: ranks: got 3, expected an array of objects");
  CHECK(error([](Json& j) { j["ranks"][0] = 3; }) == "x.json: ranks[0]: got 3, expected an object");
  CHECK(error([](Json& j) { j.erase("ranks"); }) == "x.json: ranks: missing");
}

TEST_CASE("summaries") {
  const auto error = [](const auto& edit) { return error_after(sample_summary(), edit); };
  CHECK(error([](Json& j) { j["ranks"][2]["rank"] = 3; }) == "x.json: ranks[2].rank: 3 is not in 0..2");
  CHECK(error([](Json& j) { j["ranks"][2]["rank"] = 1; }) ==
        "x.json: ranks[2].rank: got 1 after 1, expected ranks in ascending order");
  Summary summary = sample_summary();
  summary.evaluation->top1 = std::nan("");
  const std::string text = document_text(summary);
  CHECK(text.find("\"top1\": null") != std::string::npos);
  CHECK(std::isnan(parse_document<Summary>(text, "x").evaluation->top1));
  summary.evaluation.reset();
  CHECK(document_text(summary).find("\"evaluation\": null") != std::string::npos);
  CHECK(!parse_document<Summary>(document_text(summary), "x").evaluation);
  summary.train_loss =
      std::numeric_limits<double>::infinity();  // diverged: the summary is written all the same
  CHECK(std::isnan(parse_document<Summary>(document_text(summary), "x").train_loss));
}

}  // namespace
}  // namespace pipewright
