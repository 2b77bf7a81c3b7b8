// The forest that predicts slowdowns: what it learns, how well it says it does, and what it refuses to say.
#include "interference/predictor.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "graph/document.h"
#include "interference/work.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// A slowdown that is what was waited for, whatever hog it was; "noise" says nothing, "absent" is not there.
InterferenceData waiting_data(int rows = 240, unsigned seed = 1, double most = 3) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  InterferenceData data;
  data.features = {"waiting", "noise", "absent"};
  const std::vector<std::string> kinds = {"matrix", "copy", "loopback", kQuietGroup};
  for (int i = 0; i < rows; ++i) {
    const std::string kind = kinds[static_cast<size_t>(i) % kinds.size()];
    const double waiting = kind == kQuietGroup ? 0.02 * uniform(random) : most * uniform(random);
    data.rows.push_back(
        {kind, 1, "w", {waiting, uniform(random), kMissing}, 1 + waiting + 0.02 * (uniform(random) - 0.5)});
  }
  return data;
}

Predictor trained(const InterferenceData& data = waiting_data()) { return Predictor::train(data, {}); }

}  // namespace

TEST_CASE("a forest learns what slows work down, and what does not matter") {
  const Predictor predictor = trained();
  for (const double waiting : {0.01, 0.5, 1.0, 2.0, 2.8})
    CHECK(predictor.predict({waiting, 0.5, kMissing}) == Approx(1 + waiting).margin(0.1));
  REQUIRE(predictor.features().size() == 3);
  CHECK(predictor.features()[0].importance > 0.9);
  CHECK(predictor.features()[1].importance < 0.1);
  CHECK_FALSE(predictor.features()[2].values.has_value());
  CHECK(predictor.most_slowdown() == Approx(4).margin(0.2));
}

TEST_CASE(
    "invariant L: a predictor is the same after saving and loading, many rows are predicted as one by one") {
  Predictor predictor = trained();
  predictor.set_report(cross_validate(waiting_data(), {}));
  const std::string text = document_text(predictor);
  const Predictor read = parse_document<Predictor>(text, "predictor.json");
  CHECK(document_text(read) == text);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 4);
  std::vector<std::vector<double>> rows;
  for (int i = 0; i < 500; ++i) rows.push_back({uniform(random), uniform(random), kMissing});
  const std::vector<double> all = predictor.predict(rows), all_read = read.predict(rows);
  REQUIRE(all.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(predictor.predict(rows[i]) == all[i]);
    CHECK(all_read[i] == all[i]);
    CHECK(read.outside(rows[i]) == predictor.outside(rows[i]));
  }
  CHECK(predictor.predict(std::vector<std::vector<double>>{}).empty());
}

TEST_CASE("the same data and seed make the same forest, another seed another") {
  CHECK(document_text(trained()) == document_text(trained()));
  ForestSettings other;
  other.seed = 2;
  CHECK(document_text(trained()) != document_text(Predictor::train(waiting_data(), other)));
}

TEST_CASE("a kind of hogs that was held out is predicted from the others, and the mean is the baseline") {
  const auto report = cross_validate(waiting_data(), {});
  REQUIRE(report);
  REQUIRE(report->groups.size() == 3);  // quiet rows are never held out
  for (const GroupError& group : report->groups) {
    CHECK(group.rows == 60);
    CHECK(group.error < 0.1);
    CHECK(group.mean_error > 0.4);
  }
  CHECK(report->r2 > 0.95);
  CHECK(report->error < report->mean_error / 5);
}

TEST_CASE("where a kind of hogs slows work down in a way that no other does, the report says so") {
  InterferenceData data = waiting_data();
  for (InterferenceRow& row : data.rows)
    if (row.group == "loopback") row.slowdown = 8;
  const auto report = cross_validate(data, {});
  REQUIRE(report);
  CHECK(report->r2 < 0.3);
  const auto loopback = std::find_if(report->groups.begin(), report->groups.end(),
                                     [](const GroupError& group) { return group.group == "loopback"; });
  CHECK(loopback->error > 3);
}

TEST_CASE("one kind of hogs cannot be held out, and few rows are no data set") {
  InterferenceData data = waiting_data();
  for (InterferenceRow& row : data.rows) row.group = "matrix";
  CHECK_FALSE(cross_validate(data, {}));
  CHECK_THAT(error_of<InputError>([] { trained(waiting_data(9)); }), Contains("9 rows"));
  CHECK(trained(waiting_data(10)).most_slowdown() > 1);
}

TEST_CASE("outside the range it was trained in the predictor says so, feature by feature that matters") {
  const Predictor predictor = trained();
  CHECK(predictor.outside({1.5, 0.5, kMissing}).empty());
  CHECK(predictor.outside({3.1, 0.5, kMissing}).empty());  // within a tenth
  CHECK_THAT(predictor.outside({7.25, 0.5, kMissing}), Contains("waiting 7.25 (trained on 0.0"));
  CHECK_THAT(predictor.outside({kMissing, 0.5, kMissing}), Contains("waiting not measured"));
  CHECK(predictor.outside({1.5, 100, kMissing}).empty());  // says nothing of the slowdown
  CHECK(predictor.outside({1.5, 0.5, 3}).empty());         // is not read
  // A forest cannot go beyond what it has seen.
  CHECK(predictor.predict({100, 0.5, kMissing}) <= predictor.most_slowdown());
}

TEST_CASE("a damaged predictor is refused before OpenCV sees it") {
  const std::string text = document_text(trained());
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string damaged = text;
    const size_t at = damaged.find(from);
    REQUIRE(at != std::string::npos);
    damaged.replace(at, from.size(), to);
    return error_of<InputError>([&] { parse_document<Predictor>(damaged, "predictor.json"); });
  };
  CHECK_THAT(refusal("ntrees: 100", "ntrees: 900"),
             Contains("predictor.json: forest: ") && Contains("damaged"));
  CHECK_THAT(refusal("\"name\": \"noise\",", "\"name\": \"noise\", \"x\": 1,"), Contains("x"));
  CHECK_THAT(refusal("pipewright.predictor/1", "pipewright.predictor/2"), Contains("pipewright.predictor/1"));
  CHECK_THAT(refusal("\"importance\"", "\"importanse\""), Contains("importance"));
}

TEST_CASE("a predictor with damaged bytes is the same, or refused") {
  const std::string text = document_text(trained(waiting_data(40)));
  const size_t head = text.find("\"forest\"");
  REQUIRE(head != std::string::npos);
  std::mt19937 random(5);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = text;
    // What is before the forest, and now and then the forest.
    damaged[random() % (i % 10 == 0 ? text.size() : head)] = static_cast<char>(random() % 256);
    try {
      const Predictor read = parse_document<Predictor>(damaged, "x");
      CHECK(read.features().size() == 3);
      CHECK(std::isfinite(read.predict({1, 0.5, kMissing})));
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE("a model's nodes as stretches that take as long as each other, and what their work is like") {
  Profile profile;
  for (int v = 0; v < 8; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.forward_seconds = v < 4 ? 0.001 : 0.002;
    node.parameter_bytes = 1000;
    node.saved_bytes = 500;
    node.outputs = {{node.name + ".out", 100}};
    profile.nodes.push_back(node);
  }
  const auto stretches = stretches_of_work(profile, 3);
  REQUIRE(stretches.size() == 3);
  CHECK(stretches[0].size() == 4);
  CHECK(stretches[1].size() == 2);
  CHECK(stretches[2].size() == 2);
  CHECK(work_bytes_per_second(profile, stretches[0]) == Approx(1600 / 0.001));
  CHECK(work_bytes_per_second(profile, stretches[1]) == Approx(1600 / 0.002));
  CHECK(work_bytes_per_second(profile, {}) == 0);
  CHECK(stretches_of_work(profile, 100).size() == 8);
  CHECK(stretches_of_work(Profile(), 3).empty());
}

}  // namespace pipewright::testing
