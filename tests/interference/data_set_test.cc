// Data sets of slowdowns: our own lines and DynPipe's.
#include "interference/data_set.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "graph/error.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

std::string refusal(const std::string& text) {
  return error_of<InputError>([&] { parse_interference_data(text, "data.jsonl"); });
}

// A line of DynPipe's: counters are texts, what the network is like are numbers.
std::string dynpipe_line(const std::string& active, double time, const std::string& name = "SM Active") {
  return R"({"profile": {")" + name + R"( [Throughput %]": ")" + active +
         R"(", "DRAM Read Bandwidth [Throughput %]": "3.5"}, "output": {"mac": 1.1e10, "params": 6.0e7, )"
         R"("count_relu": 17.0, "count_linear": 1.0, "count_Conv2d": 53.0, "count_MaxPool2d": 1.0, "time": )" +
         std::to_string(time) + "}}\n";
}

}  // namespace

TEST_CASE("a data set is read as it was written") {
  InterferenceData data;
  data.features = {"waiting", "siblings"};
  data.provenance = {{"processor", "x"}, {"date", "2026-11-25"}};
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  data.rows = {{"quiet", 0, "vgg a .. b", {0.01, unknown}, 1.01}, {"copy", 3, "vgg c", {2.5, 0.25}, 3.4}};
  const InterferenceData read = parse_interference_data(data.text(), "data.jsonl");
  CHECK(read.text() == data.text());
  CHECK(read.features == data.features);
  REQUIRE(read.rows.size() == 2);
  CHECK(std::isnan(read.rows[0].features[1]));
  CHECK(read.rows[1].group == "copy");
  CHECK(read.rows[1].processes == 3);
  CHECK(read.rows[1].slowdown == 3.4);
}

TEST_CASE("what is wrong with a data set is said with its line") {
  const std::string head =
      R"({"schema": "pipewright.interference-data/1", "features": ["a", "b"], "provenance": {}})"
      "\n";
  const std::string row =
      R"({"hogs": "matrix", "processes": 1, "work": "w", "features": [1, null], "slowdown": 2})"
      "\n";
  CHECK(parse_interference_data(head + "\n" + row, "x").rows.size() == 1);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = row;
    return refusal(head + row + text.replace(text.find(from), from.size(), to));
  };
  CHECK_THAT(refusal(""), Contains("data.jsonl: there are no rows"));
  CHECK_THAT(refusal(head), Contains("there are no rows"));
  CHECK_THAT(refusal(row), Contains("data.jsonl:1: "));
  CHECK_THAT(changed("[1, null]", "[1]"), Contains("data.jsonl:3: features") && Contains("2 numbers"));
  CHECK_THAT(changed("[1, null]", "[1, \"x\"]"), Contains("data.jsonl:3: features"));
  CHECK_THAT(changed("slowdown\": 2", "slowdown\": 0"), Contains("data.jsonl:3: slowdown"));
  CHECK_THAT(changed("\"hogs\"", "\"hog\""), Contains("did you mean"));
  CHECK_THAT(changed("\"slowdown\": 2", "\"slowdown\": 2, \"more\": 1"), Contains("more"));
  CHECK_THAT(refusal(head + "{"), Contains("data.jsonl:2"));
  CHECK_THAT(refusal(R"({"schema": "pipewright.plan/1"})"), Contains("pipewright.interference-data/1"));
  CHECK_THAT(
      refusal(R"({"schema": "pipewright.interference-data/1", "features": ["a", "a"], "provenance": {}})"),
      Contains("twice"));
}

TEST_CASE(
    "DynPipe's data set is read: counters as texts, the times of exactly 1 left out, stretches as groups") {
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += dynpipe_line("50.5", 1);
    text += dynpipe_line(std::to_string(i), 1.1 + 0.01 * i);
  }
  const InterferenceData data = parse_interference_data(text, "out.json");
  CHECK(data.features ==
        std::vector<std::string>{"SM Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]", "mac",
                                 "params", "count_relu", "count_linear", "count_Conv2d", "count_MaxPool2d"});
  REQUIRE(data.rows.size() == 50);
  CHECK(data.rows[7].features[0] == 7);
  CHECK(data.rows[7].features[2] == 1.1e10);
  CHECK(data.rows[7].slowdown == Approx(1.17));
  std::set<std::string> groups;
  for (const InterferenceRow& row : data.rows) groups.insert(row.group);
  CHECK(groups.size() == 5);
}

TEST_CASE("what is wrong with DynPipe's data set is said with its line") {
  const std::string good = dynpipe_line("50", 1.5);
  CHECK_THAT(refusal(good + dynpipe_line("fast", 1.5)),
             Contains("data.jsonl:2: profile") && Contains("SM Active"));
  CHECK_THAT(refusal(good + dynpipe_line("50", 1.5, "SM Issue")),
             Contains("data.jsonl:2: feature 1: got \"SM Issue") && Contains("expected \"SM Active"));
  CHECK_THAT(refusal(good + R"({"profile": {}, "output": {"time": 1.5}})"), Contains("no further one"));
  CHECK_THAT(refusal(good + R"({"profile": {}, "output": {}})"), Contains("time"));
  CHECK_THAT(refusal(dynpipe_line("50", 1)), Contains("there are no rows"));
}

TEST_CASE("a data set with damaged bytes is read or refused, and nothing else") {
  InterferenceData data;
  data.features = {"waiting", "siblings"};
  for (int i = 0; i < 5; ++i) data.rows.push_back({"copy", i, "w", {0.5 * i, 1e-3}, 1.5});
  std::string theirs;
  for (int i = 0; i < 5; ++i) theirs += dynpipe_line("50.5", 1.5);
  std::mt19937 random(3);
  int read = 0, refused = 0;
  for (const std::string& whole : {data.text(), theirs}) {
    for (int i = 0; i < 3000; ++i) {
      std::string text = whole;
      for (int k = 0; k < 1 + i % 3; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
      if (i % 5 == 0) text.resize(random() % text.size());
      try {
        const InterferenceData damaged = parse_interference_data(text, "x");
        for (const InterferenceRow& row : damaged.rows) {
          CHECK(row.features.size() == damaged.features.size());
          CHECK(row.slowdown > 0);
        }
        ++read;
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  CHECK(read > 10);
  CHECK(refused > 1000);
}

}  // namespace pipewright::testing
