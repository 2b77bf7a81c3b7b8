// Drawings: what people read must be what was simulated.
#include "runtime/schedule/draw.h"

#include <boost/property_tree/xml_parser.hpp>
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/schedule/trace_events.h"
#include "test_paths.h"

namespace pipewright {
namespace {

StageTimes unit(double scale = 1) { return {scale, scale, 0, 0, 0, 0}; }

TEST_CASE("drawn: 1f1b, straight, three stages") {
  CHECK(draw_text(simulate("1f1b", {{1, 1, 1}, {3, 2, 1}}, {unit(), unit(), unit()}, 4), 1) ==
        "rank 0  stage 0 replica 0 | F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3\n"
        "rank 1  stage 1 replica 0 | .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..\n"
        "rank 2  stage 2 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..\n");
}

TEST_CASE("drawn: 1f1b, 2-1") {
  CHECK(draw_text(simulate("1f1b", {{2, 1}, {2, 1}}, {unit(2), unit()}, 6), 1) ==
        "rank 0  stage 0 replica 0 | F0 F0 F2 F2 B0 B0 .. .. F4 F4 B2 B2 B4 B4 .. ..\n"
        "rank 1  stage 0 replica 1 | F1 F1 F3 F3 .. .. B1 B1 F5 F5 B3 B3 .. .. B5 B5\n"
        "rank 2  stage 1 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .. ..\n");
}

TEST_CASE("drawn: 1f1b, 1-2") {
  CHECK(draw_text(simulate("1f1b", {{1, 2}, {4, 1}}, {unit(), unit(2)}, 6), 1) ==
        "rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. B0 F4 B1 F5 .. B2 B3 .. .. B4 B5\n"
        "rank 1  stage 1 replica 0 | .. F0 F0 B0 B0 .. F2 F2 B2 B2 F4 F4 B4 B4 .. ..\n"
        "rank 2  stage 1 replica 1 | .. .. F1 F1 B1 B1 F3 F3 B3 B3 F5 F5 B5 B5 .. ..\n");
}

TEST_CASE("drawn: model-parallel and forward") {
  CHECK(draw_text(simulate("model-parallel", {{1, 1}, {1, 1}}, {unit(), unit()}, 2), 1) ==
        "rank 0  stage 0 replica 0 | F0 .. .. B0 F1 .. .. B1\n"
        "rank 1  stage 1 replica 0 | .. F0 B0 .. .. F1 B1 ..\n");
  CHECK(draw_text(simulate("forward", {{1, 2}, {1, 1}}, {unit(), unit(2)}, 4), 1) ==
        "rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. ..\n"
        "rank 1  stage 1 replica 0 | .. F0 F0 F2 F2 ..\n"
        "rank 2  stage 1 replica 1 | .. .. F1 F1 F3 F3\n");
}

// Three stages or, with two on each rank, four; unit times, the backward in two
// units where it has two parts.
Simulation flushed(const std::string& schedule, const std::vector<int64_t>& depths, int64_t minibatches = 4,
                   int64_t microbatches = 4) {
  PipelineShape shape{std::vector<int64_t>(depths.size(), 1), depths};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = microbatches;
  if (schedule == "interleaved") shape.stages_per_rank = 2;
  StageTimes times = unit();
  if (schedule == "zb-h1") times.backward_seconds = 2, times.backward_weight_seconds = 1;
  return simulate(schedule, shape, std::vector<StageTimes>(depths.size(), times), minibatches);
}

TEST_CASE("drawn: gpipe, 1f1b-flush") {
  CHECK(draw_text(flushed("gpipe", {4, 4, 4}), 1) ==
        "rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3\n"
        "rank 1  stage 1 replica 0 | .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 ..\n"
        "rank 2  stage 2 replica 0 | .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. ..\n");
  // Two updates, the second after three minibatches. A rank goes on as soon as it has updated.
  CHECK(draw_text(flushed("1f1b-flush", {3, 2, 1}, 7), 1) ==
        "rank 0  stage 0 replica 0 | F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3 F4 F5 F6 .. .. B4 .. B5 .. B6\n"
        "rank 1  stage 1 replica 0 | .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 .. .. F4 F5 .. B4 F6 B5 .. B6 ..\n"
        "rank 2  stage 2 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. .. .. .. F4 B4 F5 B5 F6 B6 .. ..\n");
}

TEST_CASE("drawn: zb-h1, and with more depth the same without idle time: ZB-H2") {
  CHECK(draw_text(flushed("zb-h1", {3, 3, 3}), 1) ==
        "rank 0  stage 0 replica 0 | F0  F1  F2  ..  ..  BI0 BW0 F3  BI1 BW1 BI2 BW2 BI3 BW3\n"
        "rank 1  stage 1 replica 0 | ..  F0  F1  ..  BI0 F2  BI1 BW0 F3  BI2 BW1 BI3 BW2 BW3\n"
        "rank 2  stage 2 replica 0 | ..  ..  F0  BI0 F1  BI1 F2  BI2 BW0 F3  BI3 BW1 BW2 BW3\n");
  CHECK(draw_text(flushed("zb-h1", {5, 5, 5}, 8, 8), 1) ==
        "rank 0  stage 0 replica 0 | F0  F1  F2  F3  F4  BI0 BW0 F5  BI1 BW1 F6  BI2 BW2 F7  BI3 BW3 BI4 BW4 "
        "BI5 BW5 BI6 BW6 BI7 BW7 ..  ..\n"
        "rank 1  stage 1 replica 0 | ..  F0  F1  F2  BI0 F3  BI1 F4  BI2 BW0 F5  BI3 BW1 F6  BI4 BW2 F7  BI5 "
        "BW3 BI6 BW4 BI7 BW5 BW6 BW7 ..\n"
        "rank 2  stage 2 replica 0 | ..  ..  F0  BI0 F1  BI1 F2  BI2 F3  BI3 F4  BI4 BW0 F5  BI5 BW1 F6  BI6 "
        "BW2 F7  BI7 BW3 BW4 BW5 BW6 BW7\n");
}

TEST_CASE("drawn: interleaved") {
  CHECK(draw_text(flushed("interleaved", {4, 3, 2, 1}), 1) ==
        "rank 0  stages 0,2 replica 0 | 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ..  2B2 ..  2B3 0B2 "
        "0B3\n"
        "rank 1  stages 1,3 replica 0 | ..  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 "
        "..\n");
}

TEST_CASE("drawn: updates and reduces that take time, wide cells align") {
  CHECK(draw_text(simulate("1f1b", {{2}, {1}}, {{1, 2, 1, 1, 0, 0}}, {9, 2}), 1) ==
        "rank 0  stage 0 replica 0 | ..  ..  ..  AR4 U4  F10 B10 B10 AR5 U5\n"
        "rank 1  stage 0 replica 1 | F9  B9  B9  AR4 U4  ..  ..  ..  AR5 U5\n");
  CHECK(draw_text(simulate("1f1b", {{1}, {1}}, {unit(0.1)}, 12), 0.1).find("F11 B11\n") != std::string::npos);
  CHECK(draw_text(simulate("1f1b", {{1}, {1}}, {unit()}, 0), 1) == "rank 0  stage 0 replica 0 |\n");
  CHECK_THROWS_AS(draw_text(simulate("1f1b", {{1}, {1}}, {unit()}, 1), 0), CheckError);
  CHECK_THROWS_AS(draw_text(simulate("1f1b", {{1}, {1}}, {unit()}, 1), 1e-9), CheckError);
}

std::string read(const std::string& path) {
  std::ifstream in(std::string(PIPEWRIGHT_SOURCE_DIR) + "/" + path);
  REQUIRE(in.good());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The lines of a drawing, each after `prefix`.
std::string prefixed(const std::string& drawing, const std::string& prefix) {
  std::istringstream lines(drawing);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += prefix + line + "\n";
  return out;
}

TEST_CASE("the drawings in the sources' comments are the tool's own") {
  const auto in_comment = [](const std::string& path, const Simulation& simulation) {
    CAPTURE(path);
    CHECK(read(path).find(prefixed(draw_text(simulation, 1), "//   ")) != std::string::npos);
  };
  in_comment("runtime/schedule/one_f_one_b.cc",
             simulate("1f1b", {{1, 1, 1}, {3, 2, 1}}, {unit(), unit(), unit()}, 4));
  in_comment("runtime/schedule/model_parallel.cc",
             simulate("model-parallel", {{1, 1}, {1, 1}}, {unit(), unit()}, 2));
  in_comment("runtime/schedule/gpipe.cc", flushed("gpipe", {4, 4, 4}));
  in_comment("runtime/schedule/one_f_one_b_flush.cc", flushed("1f1b-flush", {3, 2, 1}));
  in_comment("runtime/schedule/zb_h1.cc", flushed("zb-h1", {3, 3, 3}));
  in_comment("runtime/schedule/interleaved.cc", flushed("interleaved", {4, 3, 2, 1}));
  in_comment("runtime/schedule/forward.cc", simulate("forward", {{1, 2}, {1, 1}}, {unit(), unit(2)}, 4));
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> out;
  std::istringstream in(text);
  for (std::string number; std::getline(in, number, '-');) out.push_back(std::stoll(number));
  return out;
}

TEST_CASE("the drawings in docs/schedules.md are the tool's own") {
  // <!-- draw SCHEDULE REPLICAS DEPTHS FORWARDS BACKWARDS MINIBATCHES [KEY=VALUE ...] -->, an empty line, the
  // drawing in a fence. Keys: microbatches, stages-per-rank, accumulation, backward-weights (seconds by
  // stage), shares (of the first stage), frozen (stages).
  const std::string document = read("docs/schedules.md");
  const std::string begin = "<!-- draw ", end = " -->\n", fence = "\n```text\n";
  int drawings = 0;
  for (size_t at = document.find(begin); at != std::string::npos; at = document.find(begin, at + 1)) {
    const size_t close = document.find(end, at);
    REQUIRE(close != std::string::npos);
    const std::string marker = document.substr(at + begin.size(), close - at - begin.size());
    CAPTURE(marker);
    std::istringstream words(marker);
    std::string schedule, replicas, depths, forwards, backwards;
    int64_t minibatches = 0;
    REQUIRE(words >> schedule >> replicas >> depths >> forwards >> backwards >> minibatches);
    std::vector<StageTimes> times;
    for (const int64_t forward : numbers(forwards))
      times.push_back({static_cast<double>(forward), 0, 0, 0, 0, 0});
    const std::vector<int64_t> backward = numbers(backwards);
    REQUIRE(backward.size() == times.size());
    for (size_t stage = 0; stage < times.size(); ++stage)
      times[stage].backward_seconds = static_cast<double>(backward[stage]);
    PipelineShape shape{numbers(replicas), numbers(depths)};
    shape.v_shaped = schedule_facts(schedule).v_shaped;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      REQUIRE(equals != std::string::npos);
      const std::string key = word.substr(0, equals);
      const std::vector<int64_t> values = numbers(word.substr(equals + 1));
      if (key == "microbatches") shape.microbatches = values.at(0), shape.weights = WeightRule::kFlush;
      if (key == "stages-per-rank") shape.stages_per_rank = values.at(0);
      if (key == "frozen") shape.frozen_stages = values.at(0);
      if (key == "accumulation") shape.accumulation = values.at(0);
      if (key == "shares") {
        shape.shares.resize(times.size());
        shape.shares[0] = values;
      }
      if (key == "backward-weights")
        for (size_t stage = 0; stage < times.size(); ++stage)
          times[stage].backward_weight_seconds = static_cast<double>(values.at(stage));
    }
    const std::string drawing = draw_text(simulate(schedule, shape, times, minibatches), 1);
    const size_t text = close + end.size() + fence.size();
    REQUIRE(document.substr(close + end.size(), fence.size()) == fence);
    CHECK(document.substr(text, document.find("```", text) - text) == drawing);
    ++drawings;
  }
  CHECK(drawings >= 6);
}

Simulation with_links() {
  return simulate("1f1b", {{2, 1}, {3, 1}}, {{2, 4, 1, 0.5, 0.5, 0}, {1, 2, 0, 0.25, 0, 0.5}}, 20);
}

TEST_CASE("SVG: well-formed, one bar an action that takes time, self-contained") {
  const std::string svg = draw_svg(with_links(), "2-1 <\"a\" & b>\x01").file();
  boost::property_tree::ptree tree;
  std::istringstream in(svg);
  REQUIRE_NOTHROW(boost::property_tree::read_xml(in, tree));
  CHECK(tree.get<std::string>("svg.title") == "2-1 <\"a\" & b> ");
  size_t bars = 0, labels = 0;
  for (const auto& [name, node] : tree.get_child("svg")) {
    bars += name == "rect" && node.count("title") == 1;
    labels += name == "text" && node.data().rfind("rank ", 0) == 0;
  }
  size_t expected = 0;
  for (const SimulatedAction& a : with_links().actions)
    expected += a.end_seconds > a.begin_seconds && a.action.kind != ActionKind::kReceiveActivation &&
                a.action.kind != ActionKind::kReceiveGradient;
  CHECK(bars == expected);
  CHECK(labels == 3);
  CHECK(svg.find("rank 2  stage 1 replica 0") != std::string::npos);
  CHECK(svg.find("href") == std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  const std::string empty = draw_svg(simulate("1f1b", {{1}, {1}}, {unit(0)}, 0), "nothing").file();
  std::istringstream empty_in(empty);
  CHECK_NOTHROW(boost::property_tree::read_xml(empty_in, tree));
  CHECK(empty.find("nan") == std::string::npos);
}

TEST_CASE("a trace is read as the timeline that it was written of, whatever the schedule") {
  const std::vector<Simulation> all = {with_links(), flushed("zb-h1", {3, 3, 3}),
                                       flushed("interleaved", {4, 4, 4, 4}), flushed("gpipe", {4, 4})};
  PipelineShape links{{2, 1}, {3, 1}}, three{{1, 1, 1}, {3, 3, 3}}, two{{1, 1}, {4, 4}},
      chunks{{1, 1, 1, 1}, {4, 4, 4, 4}};
  chunks.stages_per_rank = 2;
  const std::vector<PipelineShape> shapes = {links, three, chunks, two};
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<SimulatedAction> expected;
    for (const SimulatedAction& a : all[i].actions)
      if (a.end_seconds > a.begin_seconds) expected.push_back(a);
    const Simulation read = timeline_of_trace(parse_json(trace_json(all[i]), "trace"), shapes[i]);
    REQUIRE(read.ranks.size() == all[i].ranks.size());
    REQUIRE(read.actions.size() == expected.size());
    std::multiset<std::tuple<int64_t, std::string, int64_t, int64_t>> was, is;
    const auto nanoseconds = [](double seconds) { return std::llround(seconds * 1e9); };
    for (const auto& a : expected)
      was.insert({a.rank, to_text(a.action), nanoseconds(a.begin_seconds), nanoseconds(a.end_seconds)});
    for (const auto& a : read.actions)
      is.insert({a.rank, to_text(a.action), nanoseconds(a.begin_seconds), nanoseconds(a.end_seconds)});
    CHECK(was == is);
  }
  // Of a plan that trained minibatches 4 to 7 of it, between others with more ranks.
  std::string changed = trace_json(with_links());
  changed.insert(changed.find('[') + 1, R"({"ph": "X", "name": "F0", "pid": 7, "ts": 0, "dur": 1},)");
  const Simulation part = timeline_of_trace(parse_json(changed, "trace"), links, Span{4, 4});
  CHECK(!part.actions.empty());
  for (const SimulatedAction& a : part.actions) {
    INFO(to_text(a.action));
    if (!is_of_round(a.action.kind)) CHECK((a.action.index >= 4 && a.action.index < 8));
  }
  for (const char* bad : {"[]", "{}", R"({"traceEvents": [{"ph": "X", "name": "F0", "pid": 0, "ts": 1}]})",
                          R"({"traceEvents": [{"ph": "X", "name": "F0", "pid": 7, "ts": 1, "dur": 1}]})",
                          R"({"traceEvents": [{"ph": "X", "name": "F0", "pid": 0.5, "ts": 1, "dur": 1}]})",
                          R"({"traceEvents": [{"ph": "X", "name": "F0", "pid": 0, "ts": 1, "dur": -1}]})",
                          R"({"traceEvents": [{"ph": "X", "name": 3, "pid": 0, "ts": 1, "dur": 1}]})",
                          R"({"traceEvents": [{"ph": 1}]})", R"({"traceEvents": [1]})"})
    CHECK_THROWS_AS(timeline_of_trace(parse_json(bad, "trace"), links), InputError);
}

TEST_CASE(
    "a window begins with a forward, ends with the last of its minibatches, and cuts what reaches over") {
  const Simulation whole = with_links();
  const Simulation window = window_of(whole, {8, 4});
  double begin = whole.total_seconds, end = 0;
  for (const SimulatedAction& a : whole.actions) {
    const bool computes = a.action.kind == ActionKind::kForward || a.action.kind == ActionKind::kBackward;
    if (computes && a.action.index == 8) begin = std::min(begin, a.begin_seconds);
    if (computes && a.action.index >= 8 && a.action.index < 12) end = std::max(end, a.end_seconds);
  }
  CHECK(window.total_seconds == Approx(end - begin));
  double busy = 0, expected = 0;
  for (const SimulatedAction& a : window.actions) {
    CHECK(a.begin_seconds >= 0);
    CHECK(a.end_seconds <= window.total_seconds + 1e-12);
    busy += a.end_seconds - a.begin_seconds;
  }
  for (const SimulatedAction& a : whole.actions)
    expected += std::max(0.0, std::min(a.end_seconds, end) - std::max(a.begin_seconds, begin));
  CHECK(busy == Approx(expected));

  const std::string svg = draw_svg({{"predicted", window}, {"measured", whole}}, "both").file();
  boost::property_tree::ptree tree;
  std::istringstream in(svg);
  REQUIRE_NOTHROW(boost::property_tree::read_xml(in, tree));
  size_t lanes = 0, names = 0;
  std::set<std::string> tops;
  for (const auto& [name, node] : tree.get_child("svg")) {
    if (name != "text") continue;
    names += node.data() == "predicted" || node.data() == "measured";
    if (node.data().rfind("rank ", 0) == 0) ++lanes, tops.insert(node.get<std::string>("<xmlattr>.y"));
  }
  CHECK(names == 2);
  CHECK(lanes == 6);
  CHECK(tops.size() == 6);
}

TEST_CASE("trace: every action that takes time is an event of its rank") {
  const Simulation simulation = with_links();
  const nlohmann::json trace = nlohmann::json::parse(trace_json(simulation));
  std::map<std::string, int> phases;
  double end_microseconds = 0;
  for (const auto& event : trace.at("traceEvents")) {
    ++phases[event.at("ph")];
    if (event.at("ph") != "X") continue;
    const double end = event.at("ts").get<double>() + event.at("dur").get<double>();
    end_microseconds = std::max(end_microseconds, end);
  }
  int expected = 0;
  for (const SimulatedAction& a : simulation.actions) expected += a.end_seconds > a.begin_seconds;
  CHECK(phases["X"] == expected);
  CHECK(phases["M"] == 3 * 2 * (1 + 3));
  CHECK(end_microseconds == Approx(simulation.total_seconds * 1e6));
}

TEST_CASE("trace writer: names, arguments, escapes, joining the documents of several ranks") {
  TraceWriter one, two;
  one.name_process(0, "rank 0 \"a\"\n\xff");
  one.add({0, 1, "F3", "forward", 0.001, 0.0000005, {{"minibatch", 3}}});
  two.add({1, 0, "B3", "backward", 2, 0, {}});
  one.append(two.json());
  const nlohmann::json trace = nlohmann::json::parse(one.json());
  REQUIRE(trace.at("traceEvents").size() == 4);
  const nlohmann::json& forward = trace["traceEvents"][2];
  CHECK(forward.at("name") == "F3");
  CHECK(forward.at("cat") == "forward");
  CHECK(forward.at("ts") == 1000);
  CHECK(forward.at("dur") == 0.5);
  CHECK(forward.at("tid") == 1);
  CHECK(forward.at("args").at("minibatch") == 3);
  CHECK(trace["traceEvents"][3].at("pid") == 1);
  CHECK(nlohmann::json::parse(TraceWriter().json()).at("traceEvents").empty());
  for (const std::string bad : {"", "{", "[]", "{}", R"({"traceEvents":3})"})
    CHECK_THROWS_AS(one.append(bad), InputError);
  CHECK_THROWS_AS(one.add({0, 0, "x", "y", 0, -1, {}}), CheckError);
}

}  // namespace
}  // namespace pipewright
