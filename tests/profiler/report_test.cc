#include "profiler/report.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/random.h"
#include "profiler/combined_profile.h"
#include "profiler/layers.h"
#include "profiler/profile_comparison.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

ProfiledNode node(const std::string& name, const std::string& layer, std::vector<std::string> inputs,
                  int64_t bytes, double milliseconds) {
  ProfiledNode node;
  node.name = name;
  node.layer = layer;
  node.inputs = std::move(inputs);
  node.outputs = {{name, bytes}};
  node.forward_seconds = milliseconds / 1000;
  return node;
}

/// embed -> block (two nodes, one of them also reads embed) -> head, tied with embed.
Profile sample() {
  Profile profile;
  profile.model = "tiny<&>";
  profile.device = "cpu";
  profile.provenance = {{"processor", "a \"fast\" one"}};
  profile.nodes = {node("e", "embed", {"tokens"}, 100, 1), node("b1", "block", {"e"}, 200, 2),
                   node("b2", "block", {"b1", "e"}, 300, 3), node("h", "", {"b2"}, 400, 2)};
  profile.nodes[0].parameters = profile.nodes[3].parameters = {"embed.weight"};
  profile.nodes[0].parameter_bytes = profile.nodes[3].parameter_bytes = 1000;
  profile.nodes[1].backward_input_seconds = 0.001;
  profile.nodes[1].backward_weight_seconds = 0.001;
  profile.nodes[1].saved_bytes = 7;
  profile.nodes[2].saved_bytes = 8;
  profile.whole = {0.008, 0.002, 0.001};
  return profile;
}

TEST_CASE("nodes of one layer are added up, what stays inside it is not its output") {
  const auto layers = layer_costs(sample());
  REQUIRE(layers.size() == 3);
  CHECK(layers[0].name == "embed");
  CHECK(layers[1].name == "block");
  CHECK(layers[2].name == "h");  // a node without a layer stands for itself
  CHECK(layers[1].nodes == 2);
  CHECK(layers[1].forward_seconds == Approx(0.005));
  CHECK(layers[1].backward_seconds() == Approx(0.002));
  CHECK(layers[1].saved_bytes == 15);
  CHECK(layers[0].output_bytes == 100);
  CHECK(layers[1].output_bytes == 300);  // b1 is read inside only
  CHECK(layers[2].output_bytes == 400);  // nobody reads it: the loss
  CHECK(layers[0].parameter_bytes == 1000);
  CHECK(layers[2].parameter_bytes == 0);  // tied: counted once
  CHECK(layers[1].share == Approx(0.7));
}

TEST_CASE("edges between layers carry the bytes of the values that cross") {
  const auto edges = layer_edges(sample());
  REQUIRE(edges.size() == 2);
  CHECK(
      (edges[0].from == 0 && edges[0].to == 1 && edges[0].bytes == 100));  // e is read twice and counted once
  CHECK((edges[1].from == 1 && edges[1].to == 2 && edges[1].bytes == 300));
}

TEST_CASE("reports of every kind show every layer and are well-formed") {
  for (const char* suffix : {".html", ".md", ".svg", ".dot"}) {
    CAPTURE(suffix);
    const std::string text = report_text(sample(), std::string("x") + suffix, "runs/p.json");
    for (const char* layer : {"embed", "block", "h"}) CHECK_THAT(text, Contains(layer));
    CHECK_THAT(text, Contains(suffix == std::string(".md") ? "5 ms" : "7 ms"));
    if (suffix == std::string(".html") || suffix == std::string(".svg")) {
      CHECK_THAT(text, Contains("tiny&lt;&amp;&gt;") && !Contains("tiny<"));
      CHECK_THAT(text, !Contains("nan") && !Contains("\"inf"));
      for (const char* tag : {"svg", "g", "title", "table", "thead", "tbody", "tr", "td", "div", "html"}) {
        CAPTURE(tag);
        size_t opened = 0, closed = 0;
        for (size_t at = 0; (at = text.find(std::string("<") + tag, at)) != std::string::npos; ++at) {
          const char next = text[at + std::string(tag).size() + 1];
          if (next == '>' || next == ' ') ++opened;
        }
        const std::string end = std::string("</") + tag + ">";
        for (size_t at = 0; (at = text.find(end, at)) != std::string::npos; ++at) ++closed;
        CHECK(opened == closed);
      }
    }
    if (suffix == std::string(".html")) CHECK_THAT(text, Contains("compare --profile runs/p.json --gpus 2"));
    if (suffix == std::string(".dot"))
      CHECK(std::count(text.begin(), text.end(), '{') == std::count(text.begin(), text.end(), '}'));
  }
}

TEST_CASE("a profile without any time is drawn, not divided by zero") {
  Profile profile = sample();
  for (auto& one : profile.nodes)
    one.forward_seconds = one.backward_input_seconds = one.backward_weight_seconds = 0;
  profile.whole = {};
  for (const char* file : {"x.html", "x.svg", "x.dot", "x.md"}) {
    const std::string text = report_text(profile, file, "p.json");
    CHECK_THAT(text, !Contains("nan") && !Contains("\"inf"));
  }
}

TEST_CASE("an unknown suffix is an error that names the known ones") {
  CHECK_THROWS_WITH(report_text(sample(), "x.pdf", "p.json"),
                    Contains("'x.pdf'; known: .html, .md, .svg, .dot"));
  CHECK_THROWS_AS(check_report_suffix("report"), InputError);
  CHECK_NOTHROW(check_report_suffix("a.b.md"));
}

TEST_CASE("of a device the table says which layers the host's launches bound") {
  Profile profile = sample();
  CHECK(layer_table(profile).columns().back().head == "spread");
  for (ProfiledNode& one : profile.nodes) one.forward_launch_seconds = one.backward_launch_seconds = 0.0015;
  profile.whole.allocated_bytes = 5 << 20;
  const auto layers = layer_costs(profile);
  CHECK(layers[1].launch_seconds == Approx(0.006));
  CHECK(layers[0].is_launch_bound());        // 3 ms to launch 1 ms
  CHECK_FALSE(layers[1].is_launch_bound());  // 6 ms for 7 ms
  CHECK(layers[2].is_launch_bound());
  const TextTable table = layer_table(profile);
  CHECK(table.columns()[9].head == "launch");
  CHECK(table.rows()[0][9] == "3 ms");
  CHECK(table.rows()[0][10] == "launch");
  CHECK(table.rows()[1][10] == "device");
  CHECK(table.rows()[3][9] == "12 ms");
  const auto lines = headlines(profile);
  REQUIRE(lines.size() == 5);
  CHECK(lines[3] == "launch-bound: 2 of 3 layers, 30.0 % of the nodes' time");
  CHECK(
      lines[4] ==
      "the device's allocator gave out at most 5 MiB in forward and backward, beside weights and minibatch");
  CHECK_THAT(report_text(profile, "x.md", "p.json"), Contains("| bound by |"));
  CHECK_THAT(report_text(profile, "x.html", "p.json"), Contains("launch-bound: 2 of 3 layers"));
}

TEST_CASE("the table fits the lines it is read on, and names what it leaves out") {
  CHECK(layer_table(sample()).rows().back()[0] == "total");
  for (const int64_t width : {45, 60, 80, 100}) {
    std::istringstream lines(layer_text(sample(), width));
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(width, line);
      CHECK(characters_of(line) <= width);
    }
  }
  CHECK_THAT(layer_text(sample(), 45),
             Contains("forward") && Contains("share") && Contains("(--wide shows also: "));
  CHECK_THAT(layer_text(sample()), Contains("spread") && !Contains("--wide"));
  CHECK(headlines(sample()).size() == 3);
}

TEST_CASE("two profiles are compared by their sums and by the layers that weigh") {
  Profile first = sample();
  first.nodes.push_back(node("tiny", "tiny", {"h"}, 4, 0.01));  // below a hundredth
  Profile second = first;
  second.nodes[0].forward_seconds *= 1.2;   // embed: 1 of 10.01 ms
  second.nodes[3].forward_seconds *= 0.96;  // h: 2 ms
  second.nodes[4].forward_seconds *= 9;
  const ProfileComparison comparison = compare_profiles(first, second);
  CHECK(comparison.first_seconds == Approx(0.01001));
  CHECK(comparison.part() == Approx((0.2 - 0.08 + 0.08) / 10.01));
  REQUIRE(comparison.layers.size() == 3);
  CHECK(comparison.layers[0].name == "embed");
  CHECK(comparison.layers[0].part() == Approx(0.2));
  CHECK(comparison.layers[0].share == Approx(1 / 10.01));
  CHECK(comparison.layers[1].name == "h");
  CHECK(comparison.layers[2].part() == Approx(0).margin(1e-12));
  CHECK(comparison.other_bytes.empty());
  const std::string text = comparison_text(comparison);
  CHECK_THAT(text,
             Contains("sum of all nodes: 10 ms and 10.2 ms, +2.0 %") &&
                 Contains("of 3 layers of 1 % of the time or more 1 differ by more than 5 %, the most embed "
                          "by +20.0 %") &&
                 Contains("+20.0 %") && !Contains("tiny") && Contains("all else is equal"));

  second.nodes[1].saved_bytes += 1;
  CHECK(compare_profiles(first, second).other_bytes == std::vector<std::string>{"b1"});
  CHECK_THAT(comparison_text(compare_profiles(first, second)),
             Contains("differs in 1 nodes, first in \"b1\""));
  second.nodes.pop_back();
  CHECK_THROWS_WITH(compare_profiles(first, second),
                    Contains("at 4 the first has node \"tiny\"") && Contains("the second no node"));
  for (ProfiledNode& one : first.nodes)
    one.forward_seconds = one.backward_input_seconds = one.backward_weight_seconds = 0;
  CHECK_THROWS_WITH(compare_profiles(first, first), Contains("no times"));
}

/// `count` profiles of it, as a machine gives that is up to twice as slow at times, and at other nodes.
std::vector<MeasuredProfile> measured_at_times(size_t count, KeyedRandom& random) {
  std::vector<MeasuredProfile> measured;
  for (size_t i = 0; i < count; ++i) {
    Profile profile = sample();
    profile.provenance.emplace_back("repeats", std::to_string(20 + i));
    profile.whole.update = {0.001, 0.002, 0.003, 0.004};
    profile.whole.crowd = {2,
                           1 + random.uniform(),
                           1 + random.uniform(),
                           1 + random.uniform(),
                           1 + random.uniform(),
                           1 + random.uniform()};
    profile.whole.allocated_bytes = static_cast<int64_t>(random.below(1000));
    for (ProfiledNode& one : profile.nodes) {
      one.forward_seconds *= 1 + random.uniform();
      one.backward_weight_seconds *= 1 + random.uniform();
      one.workspace_bytes = static_cast<int64_t>(random.below(1000));
    }
    measured.push_back({std::to_string(i) + ".json", profile});
  }
  return measured;
}

TEST_CASE("a combined profile has of each time and factor the one in the middle, of bytes the most") {
  KeyedRandom random({1});
  for (int trial = 0; trial < 200; ++trial) {
    const size_t count = 2 + random.below(5);
    const std::vector<MeasuredProfile> measured = measured_at_times(count, random);
    const Profile combined = combined_profile(measured);
    const auto middle = [&](auto number) {
      std::vector<double> numbers;
      for (const MeasuredProfile& one : measured) numbers.push_back(number(one.profile));
      std::sort(numbers.begin(), numbers.end());
      return (numbers[(count - 1) / 2] + numbers[count / 2]) / 2;
    };
    const auto most = [&](auto number) {
      int64_t found = 0;
      for (const MeasuredProfile& one : measured) found = std::max(found, number(one.profile));
      return found;
    };
    for (size_t i = 0; i < combined.nodes.size(); ++i) {
      CHECK(combined.nodes[i].forward_seconds ==
            Approx(middle([&](const Profile& p) { return p.nodes[i].forward_seconds; })));
      CHECK(combined.nodes[i].backward_weight_seconds ==
            Approx(middle([&](const Profile& p) { return p.nodes[i].backward_weight_seconds; })));
      CHECK(combined.nodes[i].workspace_bytes ==
            most([&](const Profile& p) { return p.nodes[i].workspace_bytes; }));
      CHECK(combined.nodes[i].inputs == sample().nodes[i].inputs);
    }
    REQUIRE(combined.whole.crowd);
    CHECK(combined.whole.crowd->replicas_update_factor ==
          Approx(middle([](const Profile& p) { return p.whole.crowd->replicas_update_factor; })));
    CHECK(combined.whole.crowd->by_turns_compute_factor ==
          Approx(middle([](const Profile& p) { return p.whole.crowd->by_turns_compute_factor; })));
    CHECK(*combined.whole.allocated_bytes == most([](const Profile& p) { return *p.whole.allocated_bytes; }));
    double least = 1e9, largest = 0;
    for (const MeasuredProfile& one : measured) {
      least = std::min(least, one.profile.compute_seconds());
      largest = std::max(largest, one.profile.compute_seconds());
    }
    CHECK(*combined.whole.known_within == Approx((largest - least) / 2 / combined.compute_seconds()));
    REQUIRE(combined.combines.size() == count);
    CHECK(combined.combines.back() == document_digest(measured.back().profile));
    if (count == 2) CHECK(combined.provenance[1].second == "20, 21");
    CHECK_NOTHROW(combined.validate("combined"));
  }
}

TEST_CASE("of equal profiles the combined one is each of them") {
  Profile one = sample();
  one.whole.known_within = 0.5;
  const Profile combined = combined_profile({{"a", one}, {"b", one}, {"c", one}});
  one.combines = {document_digest(one), document_digest(one), document_digest(one)};
  one.whole.known_within = 0;
  CHECK(document_text(combined) == document_text(one));
  CHECK(combined_profile({{"a", sample()}, {"abc", combined}}).combines.size() == 2 + 3);
  CHECK_THAT(sums_text({{"a", one}, {"b", one}}, combined),
             Contains("a ") && Contains("10 ms") && Contains("combined") && Contains("+0.0 %"));
}

TEST_CASE("what only some profiles have is in no combined one, and what differs is refused with its place") {
  Profile one = sample(), other = sample();
  one.whole.crowd = {2, 1.5, 1.5, 1.5, 1.5};
  one.nodes[0].forward_launch_seconds = one.nodes[0].backward_launch_seconds = 0.1;
  const Profile combined = combined_profile({{"a", one}, {"b", other}});
  CHECK(!combined.whole.crowd);
  CHECK(!combined.nodes[0].launch_seconds());
  CHECK_THROWS_WITH(combined_profile({{"a", one}}), Contains("got 1 profiles, expected two or more"));

  const auto refused = [&](auto change, const std::string& words) {
    Profile changed = sample();
    change(changed);
    CHECK_THROWS_WITH(combined_profile({{"a.json", sample()}, {"b.json", changed}}),
                      Contains("b.json: ") && Contains(words));
    if (changed.nodes.size() != sample().nodes.size())
      CHECK_THROWS_AS(combined_profile({{"b.json", changed}, {"a.json", sample()}}), InputError);
  };
  refused([](Profile& p) { p.minibatch_samples = 7; },
          "minibatch_samples: got \"7\", expected \"0\", as in a.json");
  refused([](Profile& p) { p.threads = 2; }, "threads: got \"2\"");
  refused([](Profile& p) { p.whole.host_cores = 3; }, "whole.host_cores: got \"3\", expected \"\"");
  refused([](Profile& p) { p.provenance[0].second = "a slow one"; },
          "provenance.processor: got \"a slow one\"");
  refused([](Profile& p) { p.nodes.pop_back(); }, "nodes[3].name: got \"\", expected \"h\"");
  refused([](Profile& p) { p.nodes.push_back(node("x", "x", {"h"}, 1, 1)); },
          "nodes[4].name: got \"x\", expected \"\"");
  refused([](Profile& p) { p.nodes[1].parameter_bytes = 5; },
          "nodes[1]: node \"b1\" is not the one of a.json");
}

}  // namespace
}  // namespace pipewright::testing
