#include "graph/pipedream.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "graph/document.h"
#include "tests/graph/samples.h"
#include "tests/support/error_of.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::error_of;

std::string line(const std::string& name, const std::string& description,
                 const std::string& activation = "8.000", const std::string& rest = "") {
  return name + " -- " + description +
         " -- forward_compute_time=1.250, backward_compute_time=2.500, activation_size=" + activation +
         ", parameter_size=16.000" + rest + "\n";
}

std::string error(const std::string& text) {
  return error_of<InputError>([&] { parse_pipedream_profile(text, "graph.txt"); });
}

//      n1 (input) -> n2 -> n3 -> n4,  n2 -> n4; in an order in which nothing can run
const std::string kDiamond = line("n4", "Add") + line("n3", "ReLU(inplace)") + line("n1", "Input0", "100.0") +
                             line("n2", "Conv2d(3, 8, kernel_size=(3, 3))", "[8.0; 4.0; 2.0]") +
                             "\tn3 -- n4\n\tn2 -- n4\n\tn1 -- n2\n\tn2 -- n3\n";

void check_round_trip(const Profile& profile, const std::string& where) {
  const std::string text = pipedream_profile_text(profile);
  const Profile again = parse_pipedream_profile(text, where);
  CHECK(document_text(again) == document_text(profile));
  CHECK(pipedream_profile_text(again) == text);
}

TEST_CASE("a graph.txt becomes a profile") {
  const Profile profile = parse_pipedream_profile(kDiamond, "profiles/vgg16/graph.txt");
  CHECK(profile.model == "vgg16");
  CHECK(profile.minibatch_samples == 0);
  CHECK(profile.graph_digest.empty());
  CHECK(profile.input_seconds == 0.00125);
  REQUIRE(profile.nodes.size() == 3);
  const ProfiledNode& conv = profile.nodes[0];
  CHECK(conv.name == "n2");
  CHECK(conv.layer == "Conv2d(3, 8, kernel_size=(3, 3))");
  CHECK(conv.inputs == std::vector<std::string>{"n1"});
  REQUIRE(conv.outputs.size() == 1);
  CHECK(conv.outputs[0].name == "n2");
  CHECK(conv.outputs[0].bytes == 14);  // the tuple's sum
  CHECK(conv.forward_seconds == 0.00125);
  CHECK(conv.backward_input_seconds == 0.0025);
  CHECK(conv.backward_weight_seconds == 0);
  CHECK(conv.saved_bytes == 14);
  CHECK(conv.parameter_bytes == 16);
  CHECK(conv.trainable_parameter_bytes == 16);
  CHECK(profile.nodes[1].name == "n3");
  CHECK(profile.nodes[2].inputs == std::vector<std::string>{"n3", "n2"});  // as the edges stand
  CHECK(profile.whole.forward_seconds == 3 * 0.00125);
  check_round_trip(profile, "profiles/vgg16/graph.txt");
}

TEST_CASE("of the nodes that can run, the first in the file runs first") {
  const Profile profile = parse_pipedream_profile(
      line("d", "x") + line("c", "x") + line("b", "x") + line("a", "x") + "\ta -- d\n", "t.txt");
  std::string order;
  for (const ProfiledNode& node : profile.nodes) order += node.name;
  CHECK(order == "cbad");
}

TEST_CASE("only sources are inputs") {
  const Profile profile =
      parse_pipedream_profile(line("a", "Input") + line("b", "InputProjection") + "\ta -- b\n", "t.txt");
  REQUIRE(profile.nodes.size() == 1);
  CHECK(profile.nodes[0].name == "b");
  check_round_trip(profile, "t.txt");
}

TEST_CASE("line ends, blank lines and repeated edges do not matter") {
  const Profile plain = parse_pipedream_profile(kDiamond, "t.txt");
  std::string dos;
  for (const char c : kDiamond) dos += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(document_text(parse_pipedream_profile(dos, "t.txt")) == document_text(plain));
  CHECK(document_text(parse_pipedream_profile("\n" + kDiamond + "\n\n\tn2 -- n3\n", "t.txt")) ==
        document_text(plain));
  std::string cut = kDiamond;
  cut.pop_back();
  CHECK(document_text(parse_pipedream_profile(cut, "t.txt")) == document_text(plain));
}

TEST_CASE("stages of a partitioned graph.txt") {
  const std::string text =
      line("a", "Input", "8.0", " -- stage_id=0") + line("b", "x", "8.0", " -- stage_id=2") + line("c", "x");
  const auto stages = parse_pipedream_stages(text, "t.txt");
  CHECK(stages == std::map<std::string, int64_t>{{"a", 0}, {"b", 2}});
  CHECK(parse_pipedream_stages(kDiamond, "t.txt").empty());
  const Profile profile = parse_pipedream_profile(kDiamond, "t.txt");
  const auto written = parse_pipedream_stages(pipedream_profile_text(profile, {0, 0, 1}), "t.txt");
  CHECK(written == std::map<std::string, int64_t>{{"n1", 0}, {"n2", 0}, {"n3", 0}, {"n4", 1}});
}

TEST_CASE("lines that do not parse are refused by number") {
  CHECK(error("") ==
        "graph.txt: no node; expected a graph.txt of PipeDream: lines \"ID -- DESCRIPTION -- TIMES\"");
  CHECK(error(line("a", "x") + "nonsense\n") ==
        "graph.txt:2: got 1 parts between \" -- \", expected ID, description, times and sizes");
  CHECK(error(line("a", "x") + "a -- a\n").find("an edge starts with a tab") != std::string::npos);
  CHECK(error(line("a", "x") + line("a", "y")) == "graph.txt:2: there is another node \"a\", in line 1");
  CHECK(error(line("a", "x -- y -- z")).rfind("graph.txt:1: got 5 parts", 0) == 0);
  CHECK(error(" -- x -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
              "parameter_size=1\n") == "graph.txt:1: the ID is empty");
  CHECK(error("a -- x -- forward_compute_time=1\n") ==
        "graph.txt:1: got 1 fields, expected forward_compute_time, backward_compute_time, activation_size, "
        "parameter_size");
  CHECK(error("a -- x -- forward=1, backward_compute_time=1, activation_size=1, parameter_size=1\n") ==
        "graph.txt:1: got \"forward=1\", expected forward_compute_time=...");
  for (const char* bad : {"", "x", "1x", "nan", "inf", "-1", "1e400", "1e", "1e+", "e3", "0x10", "[1.0; 2.0",
                          "[]", "[1.0;2.0]", "[1.0; -2.0]", "1e16", "[1.0; x]", "--1", " 1"}) {
    CAPTURE(bad);
    CHECK(error(line("a", "x", bad)).rfind("graph.txt:1: activation_size: ", 0) == 0);
  }
  for (const char* bad :
       {"stage_id=", "stage_id=-1", "stage_id=x", "stage_id=1.5", "stage=1", "stage_id=99999999999"}) {
    CAPTURE(bad);
    CHECK(error(line("a", "x", "1", std::string(" -- ") + bad)).rfind("graph.txt:1: ", 0) == 0);
  }
}

TEST_CASE("many nodes without an edge are no network") {
  std::string nodes;
  for (int i = 0; i < 20000; ++i) nodes += line("node" + std::to_string(i), "x");
  CHECK(error(nodes) == "graph.txt: 20000 nodes and no edge; expected lines with a tab, then \"ID -- ID\"");
}

TEST_CASE("edges have to end at nodes") {
  const std::string nodes = line("node1", "x") + line("node2", "x");
  CHECK(error(nodes + "\tnode1 -- nod2\n") ==
        "graph.txt:3: edge to the unknown node \"nod2\"; did you mean 'node2'?");
  CHECK(error(nodes + "\tzebra -- node2\n") == "graph.txt:3: edge to the unknown node \"zebra\"");
  CHECK(error(nodes + "\tnode1\n") ==
        "graph.txt:3: got \"node1\", expected an edge: a tab, then \"ID -- ID\"");
  CHECK(error(nodes + "\tnode1 -- node2 -- node1\n").rfind("graph.txt:3: got ", 0) == 0);
}

TEST_CASE("what is not text is refused") {
  CHECK(error(line("a", "x\x01y")) == "graph.txt:1: a control character in it: not a graph.txt");
  CHECK(error(line("a", "x\xff")) == "graph.txt: not UTF-8 text; expected a graph.txt of PipeDream");
}

TEST_CASE("cycles are refused and named") {
  const std::string nodes =
      line("s", "x") + line("a", "x") + line("b", "x") + line("c", "x") + line("t", "x");
  CHECK(error(nodes + "\ts -- a\n\ta -- b\n\tb -- c\n\tc -- a\n\tc -- t\n") ==
        "graph.txt:2: the edges make a cycle: a <- c <- b <- a");
  CHECK(error(nodes + "\tt -- t\n") == "graph.txt:5: the edges make a cycle: t <- t");
}

TEST_CASE("times keep the file's decimals") {
  const Profile profile = parse_pipedream_profile(
      "a -- x -- forward_compute_time=2.211, backward_compute_time=1e-05, activation_size=1.5e3, "
      "parameter_size=0.000\n",
      "t.txt");
  CHECK(profile.nodes[0].forward_seconds == 0.002211);
  CHECK(profile.nodes[0].backward_input_seconds == 1e-8);
  CHECK(profile.nodes[0].outputs[0].bytes == 1500);
  const std::string text = pipedream_profile_text(profile);
  CHECK(text ==
        "a -- x -- forward_compute_time=2.211, backward_compute_time=0.00001, activation_size=1500.000, "
        "parameter_size=0.000\n");
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    Profile any = profile;
    any.nodes[0].forward_seconds = std::pow(10.0, std::uniform_real_distribution<double>(-300, 8)(random));
    const Profile again = parse_pipedream_profile(pipedream_profile_text(any), "t.txt");
    CHECK(again.nodes[0].forward_seconds == any.nodes[0].forward_seconds);
  }
}

TEST_CASE("a profile of our own keeps what graph.txt can hold") {
  const Profile ours = testing::sample_profile();
  const Profile read = parse_pipedream_profile(pipedream_profile_text(ours), "t.txt");
  REQUIRE(read.nodes.size() == ours.nodes.size());
  CHECK(read.input_seconds == ours.input_seconds);
  for (size_t i = 0; i < ours.nodes.size(); ++i) {
    CHECK(read.nodes[i].name == ours.nodes[i].name);
    CHECK(read.nodes[i].layer == ours.nodes[i].layer);
    CHECK(read.nodes[i].forward_seconds == ours.nodes[i].forward_seconds);
    CHECK(read.nodes[i].backward_seconds() == ours.nodes[i].backward_seconds());
    CHECK(read.nodes[i].parameter_bytes == ours.nodes[i].parameter_bytes);
  }
  CHECK(read.nodes[3].inputs == std::vector<std::string>{"linear_1", "labels"});
  check_round_trip(read, "t.txt");
  // Random ones too, unless a name cannot be written.
  std::mt19937_64 random(5);
  int written = 0;
  for (int i = 0; i < 300; ++i) {
    const Profile profile = testing::random_profile(random);
    try {
      const std::string text = pipedream_profile_text(profile);
      check_round_trip(parse_pipedream_profile(text, "t.txt"), "t.txt");
      ++written;
    } catch (const InputError& e) {
      CHECK(std::string(e.what()).rfind("graph.txt cannot hold the name ", 0) == 0);
    }
  }
  CHECK(written > 50);
}

TEST_CASE("graph.txt is told from JSON") {
  CHECK(looks_like_pipedream_profile(kDiamond));
  CHECK(looks_like_pipedream_profile("\n\n" + kDiamond));
  CHECK(!looks_like_pipedream_profile(""));
  CHECK(!looks_like_pipedream_profile("{\"a\": \" -- \"}"));
  CHECK(!looks_like_pipedream_profile("hello"));
}

TEST_CASE("PipeDream's published profiles are read") {
  const std::filesystem::path folder = testing::shared_data() / "pipedream_profiles";
  if (testing::shared_data().empty() || !std::filesystem::exists(folder)) {
    testing::skip("no shared data: PipeDream's profiles");
    return;
  }
  struct Row {
    const char* name;
    size_t nodes;  // of the file, inputs included
    size_t edges;
    double forward_ms;  // inputs included
    double backward_ms;
    double parameter_megabytes;
    double activation_gigabytes;
  };
  const Row rows[] = {
      {"alexnet", 23, 23, 680.7, 40.5, 244.4, 1.12},
      {"vgg16", 41, 41, 251.9, 438.6, 553.4, 14.68},
      {"squeezenet1_0", 68, 76, 587.9, 172.1, 5.0, 12.32},
      {"resnet50", 177, 193, 201.5, 260.9, 102.2, 19.23},
      {"resnext50", 177, 193, 239.0, 369.0, 100.1, 24.28},
      {"resnet101", 347, 380, 207.7, 213.8, 178.2, 14.42},
      {"inception_v3", 326, 362, 311.0, 399.8, 108.7, 16.55},
      {"gnmt", 48, 58, 33.5, 55.9, 775.1, 0.41},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const std::filesystem::path file = folder / (std::string(row.name) + ".txt");
    const std::string text = read_file(file);
    CHECK(looks_like_pipedream_profile(text));
    const Profile profile = parse_pipedream_profile(text, file.string());
    CHECK(profile.model == row.name);
    std::map<std::string, int> graph_inputs;
    size_t edges = 0;
    double activations = 0;
    double parameters = 0;
    std::map<std::string, bool> made;
    for (const ProfiledNode& node : profile.nodes) {
      edges += node.inputs.size();
      activations += static_cast<double>(node.outputs[0].bytes);
      parameters += static_cast<double>(node.parameter_bytes);
      for (const std::string& input : node.inputs) {
        if (!made.count(input)) ++graph_inputs[input];
      }
      made[node.name] = true;
    }
    CHECK(profile.nodes.size() + graph_inputs.size() == row.nodes);
    CHECK(edges == row.edges);
    CHECK((profile.whole.forward_seconds + profile.input_seconds) * 1e3 ==
          Approx(row.forward_ms).margin(0.051));
    CHECK(profile.whole.backward_seconds * 1e3 == Approx(row.backward_ms).margin(0.051));
    CHECK(parameters / 1e6 == Approx(row.parameter_megabytes).margin(0.06));
    CHECK(activations / 1e9 == Approx(row.activation_gigabytes).margin(0.1));  // less the inputs' own size
    check_round_trip(profile, file.string());
    const std::string json = document_text(profile);
    CHECK(document_text(parse_document<Profile>(json, "p")) == json);
  }
}

}  // namespace
}  // namespace pipewright
