// Drawings and pages as text: what they say, that they are well-formed, and what a chart leaves out.
#include <boost/property_tree/xml_parser.hpp>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <regex>
#include <sstream>

#include "graph/units.h"
#include "pages/bandwidths.h"
#include "pages/charts.h"
#include "pages/model_graph.h"
#include "pages/page.h"
#include "pages/stages.h"

namespace pipewright {
namespace {

using Tree = boost::property_tree::ptree;

Tree tree_of(const std::string& xml) {
  std::istringstream in(xml);
  Tree tree;
  REQUIRE_NOTHROW(boost::property_tree::read_xml(in, tree));
  return tree;
}

/// The y of all points of the only path of a look, in pixels; y goes down.
std::vector<double> heights(const Svg& svg, const std::string& look) {
  std::vector<double> all;
  const Tree tree = tree_of(svg.file());
  for (const auto& [name, node] : tree.get_child("svg")) {
    if (name != "path" || node.get<std::string>("<xmlattr>.class") != look) continue;
    const auto data = node.get<std::string>("<xmlattr>.d");
    // The legend's sign is a path of the look, too.
    if (data.find("h13") != std::string::npos) continue;
    const std::regex point("[ML]-?[0-9.]+ (-?[0-9.]+)");
    for (std::sregex_iterator at(data.begin(), data.end(), point), end; at != end; ++at)
      all.push_back(std::stod((*at)[1]));
  }
  return all;
}

Curve noise(size_t count, uint32_t seed) {
  Curve curve{"noise", {}};
  std::mt19937 random(seed);
  for (size_t i = 0; i < count; ++i)
    curve.points.emplace_back(static_cast<double>(i), 1 + static_cast<double>(random() % 1000) / 1000);
  return curve;
}

}  // namespace

TEST_CASE("a drawing escapes what it is given, as a file and in a page") {
  Svg svg(100, 50, "a <b> & \"c\"");
  svg.area(0, 0, 10, 10, "c0", "tip <1>");
  svg.text(0, 20, "1 < 2 & 3");
  svg.text_on("#ffffff", 5, 5, "dark");
  svg.text_on("#1f2c3a", 5, 5, "light");
  const Tree tree = tree_of(svg.file());
  CHECK(tree.get<std::string>("svg.title") == "a <b> & \"c\"");
  CHECK(tree.get_child("svg.text").data() == "1 < 2 & 3");
  const std::string text = svg.element();
  CHECK(text.find("<title>tip &lt;1&gt;</title>") != std::string::npos);
  CHECK(text.find("fill=\"#000000\" text-anchor=\"middle\" pointer-events=\"none\" x=\"5\" y=\"5\">dark") !=
        std::string::npos);
  CHECK(text.find("fill=\"#ffffff\" text-anchor=\"middle\" pointer-events=\"none\" x=\"5\" y=\"5\">light") !=
        std::string::npos);
  CHECK(text.find("<style>") == std::string::npos);  // the page has it, light and dark
  CHECK(svg.file().find("var(") == std::string::npos);
}

TEST_CASE("numbers of drawings are short, and steps of axes are 1, 2 or 5 times a power of ten") {
  CHECK(svg_number(12) == "12");
  CHECK(svg_number(12.34) == "12.3");
  CHECK(svg_number(-0.01) == "0");
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const double least = std::exp(static_cast<double>(random() % 4000) / 100 - 20);
    const double step = round_step(least);
    CHECK(step >= least * (1 - 1e-9));
    CHECK(step <= 2.5 * least * (1 + 1e-9));
    const double digit = step / std::pow(10, std::floor(std::log10(step) + 1e-9));
    CHECK((std::fabs(digit - 1) < 1e-6 || std::fabs(digit - 2) < 1e-6 || std::fabs(digit - 5) < 1e-6));
  }
}

TEST_CASE("a page says everything that it is given, escaped, and loads nothing") {
  TextTable table({{"name", TableColumn::Side::kLeft}, {"value"}});
  table.add({"<a>", "1 & 2"});
  Page page("Title <of> it");
  page.lead("lead & more");
  page.heading("head <1>");
  page.table(table, "caption \"c\"");
  page.list({"one", "<two>"});
  page.command("a --b <c>");
  page.figure(Svg(10, 10, "drawing"), "figure");
  page.moving("<div id=\"x\" hidden></div>", "document.getElementById('x').hidden = false;");
  const std::string html = page.html();
  for (const char* part :
       {"<title>Title &lt;of&gt; it</title>", "lead &amp; more", "head &lt;1&gt;", "&lt;a&gt;", "1 &amp; 2",
        "caption &quot;c&quot;", "&lt;two&gt;", "a --b &lt;c&gt;", "prefers-color-scheme:dark", "lang=\"en\"",
        "<th scope=\"row\" class=\"left\">", "document.getElementById('x')"}) {
    INFO(part);
    CHECK(html.find(part) != std::string::npos);
  }
  for (const char* loads : {"http://", "https://", "src=", "url(", "@import"}) {
    INFO(loads);
    CHECK(html.find(loads) == std::string::npos);
  }
}

TEST_CASE("a long curve keeps its extremes, and its file stays small") {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    Curve curve = noise(100000, seed);
    curve.points[31337].second = 9;
    curve.points[77777].second = -3;
    const LineChart chart{"long", "x", "y", {curve}};
    const Svg svg = line_chart(chart);
    CHECK(svg.file().size() < 100000);
    const std::vector<double> ys = heights(svg, "l0");
    const Svg few = line_chart({"few", "x", "y", {{"few", {{0, -3}, {1, 9}}}}});
    const std::vector<double> ends = heights(few, "l0");
    REQUIRE(ends.size() == 2);
    CHECK(*std::min_element(ys.begin(), ys.end()) == Approx(std::min(ends[0], ends[1])));
    CHECK(*std::max_element(ys.begin(), ys.end()) == Approx(std::max(ends[0], ends[1])));
  }
}

TEST_CASE("what is not finite is a gap, and charts of nothing are drawn") {
  const Svg gaps = line_chart({"gaps", "x", "y", {{"g", {{0, 1}, {1, std::nan("")}, {2, 3}}}}});
  CHECK(gaps.file().find("nan") == std::string::npos);
  CHECK(heights(gaps, "l0").size() == 2);
  for (const Svg& svg : {line_chart({"none", "x", "y", {}}), line_chart({"one", "x", "y", {{"a", {{3, 4}}}}}),
                         bar_chart("none", {"a"}, {}, Quantity::kSeconds),
                         bar_chart("zero", {"a"}, {{"x", {{0, ""}}, ""}}, Quantity::kSeconds),
                         stacked_chart({"none", "x", {"a"}, {}, {{}}})}) {
    const std::string text = svg.file();
    CHECK(text.find("nan") == std::string::npos);
    CHECK(text.find("inf") == std::string::npos);
    tree_of(text);
  }
}

TEST_CASE("a logarithmic axis has its decades, and equal factors are equally far apart") {
  LineChart chart{"log", "x", "y", {{"a", {{1, 1}, {10, 10}, {100, 100}}}}};
  chart.x_logarithmic = chart.y_logarithmic = true;
  const std::vector<double> ys = heights(line_chart(chart), "l0");
  REQUIRE(ys.size() == 3);
  CHECK(ys[0] - ys[1] == Approx(ys[1] - ys[2]).margin(0.2));
}

TEST_CASE("bars show each part with its tip, stacks the most there was") {
  const Svg bars =
      bar_chart("bars", {"a", "b"}, {{"one", {{1, "tip a"}, {2, "tip b"}}, "note"}}, Quantity::kSeconds);
  for (const char* part : {"tip a", "tip b", "note", "one"})
    CHECK(bars.file().find(part) != std::string::npos);
  StackedChart chart{"stack", "time", {"a", "b"}, {}, {{}, {}}};
  for (int i = 0; i < 5000; ++i) {
    chart.at.push_back(i);
    chart.values[0].push_back(i == 2500 ? 1000 : 10);
    chart.values[1].push_back(5);
  }
  chart.limits = {{1200, "limit"}};
  chart.y = {[](double value) { return std::to_string(std::llround(value)); }};
  const Svg stack = stacked_chart(chart);
  CHECK(stack.file().find("a: at most 1000") != std::string::npos);
  CHECK(stack.file().find("limit") != std::string::npos);
  CHECK(stack.file().size() < 60000);
}

TEST_CASE("bytes have steps of whole binary units") {
  StackedChart chart{"bytes", "time", {"a"}, {0, 1}, {{0, 6.0 * (1 << 20)}}};
  chart.y = Quantity::kBytes;
  const std::string svg = stacked_chart(chart).file();
  for (const char* tick : {">2 MiB<", ">4 MiB<", ">6 MiB<"}) CHECK(svg.find(tick) != std::string::npos);
}

namespace {

ProfiledNode node_of(const std::string& name, const std::vector<std::string>& inputs, int64_t bytes,
                     const std::string& layer = "") {
  ProfiledNode node;
  node.name = name;
  node.layer = layer;
  node.inputs = inputs;
  node.outputs = {{name, bytes}};
  node.forward_seconds = 1e-3;
  return node;
}

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

}  // namespace

TEST_CASE("a model's graph has its nodes in the colours of their stages, and what crosses each cut") {
  Plan plan;
  plan.model = "m";
  plan.stages.resize(3);
  plan.stages[0].nodes = {"a", "b"};
  plan.stages[1].nodes = {"c"};
  plan.stages[2].nodes = {"d", "not in the profile"};
  Profile profile;
  profile.nodes = {node_of("a", {"input"}, 1024), node_of("b", {"a"}, 2048), node_of("c", {"b", "b"}, 512),
                   node_of("d", {"c", "a"}, 4)};
  const std::string svg = model_graph(plan, profile).file();
  tree_of(svg);
  CHECK(svg.find(">3 KiB<") != std::string::npos);    // behind stage 0: b to stage 1, a to stage 2
  CHECK(svg.find(">1.5 KiB<") != std::string::npos);  // behind stage 1: c, and a again
  CHECK(times(svg, "class=\"arrow\"") == 3);
  CHECK(times(svg, "class=\"l0\"") == 1);
  for (const char* tip : {"a to d: 1 KiB", "b to c: 2 KiB", "c: forward 1 ms, backward 0 s", ">stage 2<"}) {
    INFO(tip);
    CHECK(svg.find(tip) != std::string::npos);
  }
  for (const char* box : {"\"c0\"", "\"c1\"", "\"c2\""})
    CHECK(times(svg, std::string("<rect class=") + box) == (box[2] == '0' ? 2u : 1u));
  CHECK(stages_drawing(plan, {"rank 0", "rank 1", "rank 2"}).file().find("rank 2") != std::string::npos);
  model_graph(Plan(), Profile());  // of nothing, nothing
}

TEST_CASE("in the graph of a large model nodes without a branch, or of a layer, are one") {
  // Blocks of four nodes in a row beside a connection that skips them.
  const auto drawn = [](int blocks) {
    Plan plan;
    plan.stages.resize(2);
    Profile profile;
    std::string last = "input";
    for (int i = 0; i < blocks; ++i) {
      const std::string block = "block" + std::to_string(i), before = last;
      for (const char* name : {".a", ".b", ".c", ".d"}) {
        profile.nodes.push_back(node_of(block + name, {last}, 8, block));
        last = block + name;
      }
      profile.nodes.push_back(node_of(block + ".sum", {last, before}, 8, block));
      last = block + ".sum";
      for (size_t n = profile.nodes.size() - 5; n < profile.nodes.size(); ++n)
        plan.stages[i < blocks / 2 ? 0 : 1].nodes.push_back(profile.nodes[n].name);
    }
    return model_graph(plan, profile).file();
  };
  CHECK(times(drawn(20), "<rect class=\"c") == 100);
  const std::string chains = drawn(100);  // what the first block skips is the input
  CHECK(times(chains, "<rect class=\"c") == 199);
  CHECK(chains.find("block7.a .. block7.d (4 nodes): forward 4 ms") != std::string::npos);
  CHECK(chains.find("block6.sum to block7.sum: 8 B") != std::string::npos);
  const std::string layers = drawn(200);
  CHECK(times(layers, "<rect class=\"c") == 200);
  CHECK(layers.find("block7.a .. block7.sum (5 nodes)") != std::string::npos);
  CHECK(times(layers, "class=\"arrow\"") == 1);
}

TEST_CASE("values that are many decades apart go on a logarithmic axis with a readable number of decades") {
  const auto spans = [](const std::vector<double>& values) {
    Curve curve;
    for (const double y : values) curve.points.emplace_back(static_cast<double>(curve.points.size()), y);
    return spans_decades({{"other", {{0, 2}}}, curve});
  };
  CHECK(spans({2.3, 1e27, 0.4, std::nan(""), std::numeric_limits<double>::infinity()}));
  CHECK_FALSE(spans({2.3, 1e3, 0.4}));
  CHECK_FALSE(spans({2.3, 1e27, 0}));
  CHECK_FALSE(spans({-2.3, 1e27}));
  CHECK_FALSE(spans_decades({}));
  LineChart chart{"losses", "x", "y", {{"a", {{1, 1}, {2, 1e27}}}}};
  chart.y_logarithmic = true;
  const std::string svg = line_chart(chart).file();
  CHECK(times(svg, ">1e+") + times(svg, ">1<") + times(svg, ">1000<") <= 13);
  CHECK_THAT(svg, Catch::Contains(">1e+12<") && Catch::Contains(">1e+27<"));
}

TEST_CASE("bandwidths: the fastest plan at each, and what cannot be run is left out") {
  Page page("links");
  add_bandwidths(&page, {}, 1e9);
  CHECK(page.html().find("bandwidth") == std::string::npos);
  add_bandwidths(&page, {{"one", {{1e9, 2e-3}, {2e9, 2e-3}}}, {"other", {{1e9, 3e-3}, {2e9, std::nan("")}}}},
                 1e9);
  const std::string html = page.html();
  for (const char* part : {"1 GB/s: one 2 ms, other 3 ms", "2 GB/s: one 2 ms&quot;", "max=\"1\" value=\"0\"",
                           "<td class=\"left\">one</td>", "<td>-</td>", "as asked"}) {
    INFO(part);
    CHECK(html.find(part) != std::string::npos);
  }
  // Of plans that are equal but for rounding the first is the fastest.
  Page equal("compare");
  add_bandwidths(&equal, {{"one", {{1e9, 2e-3 * (1 + 1e-15)}}}, {"other", {{1e9, 2e-3}}}}, 1e9);
  CHECK(equal.html().find("<td class=\"left\">one</td>") != std::string::npos);
}

TEST_CASE("a page in a folder or beside it links to the folder's files, any other page does not") {
  CHECK(relative_address("runs/a.html", "runs/a", "trace.json") == "a/trace.json");
  CHECK(relative_address("a.html", "a", "trace.json") == "a/trace.json");
  CHECK(relative_address("runs/a/a.html", "runs/a/", "trace.json") == "trace.json");
  CHECK(relative_address("./runs/../runs/a.html", "runs/a 1:\u00e4", "x") == "a%201%3A%C3%A4/x");
  CHECK(relative_address("elsewhere/a.html", "runs/a", "x").empty());
  CHECK(relative_address("runs/a/b/a.html", "runs/a", "x").empty());
  Page page("links");
  page.links({{"the <trace>", "a/x?&y"}, {"not here", ""}});
  CHECK(page.html().find("<li><a href=\"a/x?&amp;y\">the &lt;trace&gt;</a></li>\n<li>not here</li>") !=
        std::string::npos);
}

TEST_CASE("a page's name ends in .html") {
  CHECK_NOTHROW(check_page_name("--report", "a.html"));
  CHECK_THROWS_WITH(check_page_name("--report", "a.htm"),
                    "--report: got \"a.htm\"; expected a name that ends in .html");
}

TEST_CASE("a chart of one point shows it, in the middle and with its value") {
  LineChart chart{"Loss", "minibatch", "loss", {{"training", {{7, 2.5}}}}};
  for (const bool logarithmic : {false, true}) {
    chart.y_logarithmic = logarithmic;
    const Tree tree = tree_of(line_chart(chart).file());
    double x = 0, y = 0, width = 0;
    std::vector<std::string> words;
    for (const auto& [name, node] : tree.get_child("svg")) {
      if (name == "text") words.push_back(node.data());
      if (name != "rect" || node.get<std::string>("<xmlattr>.class", "") != area_look(0)) continue;
      x = node.get<double>("<xmlattr>.x");
      y = node.get<double>("<xmlattr>.y");
      width = node.get<double>("<xmlattr>.width");
    }
    CHECK(width >= 10);
    CHECK(x > 300);
    CHECK(x < 600);
    CHECK(y > 100);
    CHECK(std::count(words.begin(), words.end(), "2.5") == 2);  // on the axis and at the dot
    CHECK(std::count(words.begin(), words.end(), "7") == 1);
  }
  const std::string bar =
      stacked_chart({"Memory", "time", {"weights", "other"}, {0.25}, {{40}, {60}}}).file();
  std::smatch drawn;
  REQUIRE(std::regex_search(bar, drawn, std::regex("d=\"M([0-9.]+) [0-9.]+H([0-9.]+)V")));
  CHECK(std::stod(drawn[2]) - std::stod(drawn[1]) > 20);
}

}  // namespace pipewright
