// Profiles in parts: bytes are those of the whole, whatever the memory that they were measured in.
#include "profiler/parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "graph/document.h"
#include "graph/error.h"
#include "models/load.h"
#include "models/memory/memory_meter.h"
#include "models/run/autocast.h"
#include "profiler/crowd.h"
#include "profiler/measure.h"
#include "profiler/part_plan.h"
#include "profiler/pieces.h"
#include "profiler/synthetic_inputs.h"
#include "test_paths.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

struct Measured {
  Profile profile;
  int64_t peak_bytes = 0;  ///< LibTorch's count
  std::vector<MeasuredPart> parts;
};

Measured measured_within(const Model& model, std::optional<int64_t> memory, int64_t beside = 0) {
  Measured measured;
  MeasureOptions options;
  options.batch_size = 4;
  options.warmup = 0;
  options.repeats = 1;
  options.beside = beside;
  options.memory_bytes = memory;
  options.measured_part = [&](const MeasuredPart& part) { measured.parts.push_back(part); };
  MemoryMeter meter;
  const MemoryMeter::Attached attached(meter);
  const std::vector<at::Tensor> inputs = synthetic_inputs(model.graph, 1);
  measured.profile = measure(model, inputs, options);
  measured.peak_bytes = meter.peak_bytes();
  return measured;
}

/// All that is no time.
std::string bytes_of(Profile profile) {
  for (ProfiledNode& node : profile.nodes)
    node.forward_seconds = node.backward_input_seconds = node.backward_weight_seconds = node.spread = 0;
  profile.whole = {};
  profile.provenance.clear();
  return document_text(profile);
}

std::string parts_entry(const Profile& profile) {
  for (const auto& [key, value] : profile.provenance)
    if (key == kPartsEntry) return value;
  return "1";
}

void check_parts(const Measured& measured, const Graph& graph) {
  CHECK(parts_entry(measured.profile) == std::to_string(measured.parts.size()));
  CHECK(measured.parts.front().first_node == graph.nodes.front().name);
  CHECK(measured.parts.back().last_node == graph.nodes.back().name);
  double nodes = 0, whole = 0;
  for (size_t i = 0; i < measured.parts.size(); ++i) {
    CHECK(measured.parts[i].number == i + 1);
    CHECK(measured.parts[i].parts == measured.parts.size());
    nodes += measured.parts[i].nodes_seconds;
    whole += measured.parts[i].whole_seconds;
  }
  const Profile& profile = measured.profile;
  CHECK(profile.compute_seconds() == Approx(nodes));
  CHECK(profile.compute_seconds() > 0);
  CHECK(profile.whole.forward_seconds + profile.whole.backward_seconds == Approx(whole));
  CHECK(profile.whole.forward_seconds > 0);
  CHECK(profile.whole.backward_seconds > 0);
  CHECK(profile.whole.step_seconds > 0);
}

/// Within memories from more than enough to too little, until one node alone needs more: calls `check` with
/// what was measured. Returns the most parts.
template <typename Check>
size_t measured_in_parts(const Model& model, const Measured& whole, const std::vector<double>& shares,
                         const Check& check) {
  size_t most_parts = 1;
  for (const double share : shares) {
    const auto limit = static_cast<int64_t>(share * static_cast<double>(whole.peak_bytes));
    CAPTURE(share, limit);
    std::optional<Measured> measured;
    try {
      measured = measured_within(model, limit);
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), Catch::Contains("needs at least "));
      break;
    }
    CHECK(measured->peak_bytes <= limit);
    check_parts(*measured, model.graph);
    check(*measured);
    most_parts = std::max(most_parts, measured->parts.size());
  }
  return most_parts;
}

TEST_CASE("a profile in parts has the bytes of one of the whole, and the memory given was enough") {
  const std::string spec = GENERATE(
      as<std::string>{}, "convnet", "mlp:layers=6,width=64,image=8,channels=1", "resnet18:classes=5,image=32",
      "densenet121:classes=5,image=32", "vgg11:small=yes,classes=5,image=32",
      "gpt:layers=3,width=32,heads=2,tokens=16,vocabulary=64,dropout=0.1", "vit:layers=2,width=16,heads=2",
      "bert:layers=2,width=16,heads=2,tokens=8,positions=8,vocabulary=40");  // the last one is tied
  CAPTURE(spec);
  const Model model = load_model(spec, 4);
  const Measured whole = measured_within(model, std::nullopt);
  REQUIRE(whole.parts.size() == 1);
  check_parts(whole, model.graph);
  const std::string expected = bytes_of(whole.profile);
  const size_t parts = measured_in_parts(model, whole, {2, 0.85, 0.6, 0.45}, [&](const Measured& measured) {
    CHECK(bytes_of(measured.profile) == expected);
  });
  CHECK(parts >= 3);
}

TEST_CASE("exported models in parts: in place, views, masks, shared weights, several inputs") {
  const std::string name = GENERATE(as<std::string>{}, "attention", "autocast", "batch_norm", "dropout",
                                    "in_place_chain", "read_often", "rotary", "several_inputs", "shared_mask",
                                    "stochastic_depth", "tied_embedding", "view_across_cut");
  CAPTURE(name);
  const Model model = load_model(PIPEWRIGHT_SOURCE_DIR "/tests/models/pt2/" + name + ".pt2", 4);
  const Measured whole = measured_within(model, std::nullopt);
  const std::string expected = bytes_of(whole.profile);
  // Of models of a few nodes one takes most of the memory.
  const std::vector<double> shares = {2, 1.6, 1.3, 1.1, 1, 0.9, 0.8, 0.7, 0.6};
  const size_t parts = measured_in_parts(
      model, whole, shares, [&](const Measured& measured) { CHECK(bytes_of(measured.profile) == expected); });
  CHECK(parts > 1);
}

TEST_CASE("gradients that come from a later part lie as their values: operators may need less or more") {
  // In one piece some gradients come out of the LSTM's backward transposed, and the next one copies them.
  const Model model = load_model("gnmt:layers=4,width=8,source=4,target=4,vocabulary=24", 4);
  const Measured whole = measured_within(model, std::nullopt);
  const auto without_workspace = [](Profile profile) {
    for (ProfiledNode& node : profile.nodes) node.workspace_bytes = 0;
    return bytes_of(std::move(profile));
  };
  const size_t parts = measured_in_parts(model, whole, {0.9, 0.6, 0.45}, [&](const Measured& measured) {
    CHECK(without_workspace(measured.profile) == without_workspace(whole.profile));
    for (size_t i = 0; i < whole.profile.nodes.size(); ++i) {
      const ProfiledNode& node = whole.profile.nodes[i];
      CAPTURE(node.name);
      int64_t made = 0;
      for (const ProfiledValue& value : node.outputs) made += value.bytes;
      CHECK(std::abs(measured.profile.nodes[i].workspace_bytes - node.workspace_bytes) <= made);
    }
  });
  CHECK(parts > 1);
}

TEST_CASE("what the loss does not depend on has no backward in parts either") {
  const auto linear = [](const std::string& name, const std::string& input) {
    return node(name, "aten::linear", {{"input", tensor(input)}, {"weight", tensor(name + ".weight")}});
  };
  Graph graph = graph_of(
      {"x", "y"},
      {{"a.weight", {24, 16}}, {"b.weight", {24, 24}}, {"c.weight", {24, 24}}, {"d.weight", {10, 24}}},
      {linear("a", "x"), node("r", "aten::relu", {{"self", tensor("a")}}), linear("b", "r"), linear("c", "r"),
       node("cut", "aten::detach", {{"self", tensor("c")}}),
       node("sum", "aten::add", {{"self", tensor("b")}, {"other", tensor("cut")}}, "Tensor"),
       linear("d", "sum"),
       node("loss", "aten::cross_entropy_loss", {{"self", tensor("d")}, {"target", tensor("y")}}),
       node("scores", "aten::softmax", {{"self", tensor("d")}, {"dim", int64_t{1}}}, "int")},
      {"loss", "scores"});
  Model model;
  model.parameter_initialisers.assign(4, {Initialiser::Kind::kUniform, -0.1, 0.1});
  graph.values = {{"x", {"float32", {4, 16}}},
                  {"y", {"int64", {4}}},
                  {"loss", {"float32", {}}},
                  {"d", {"float32", {4, 10}}},
                  {"scores", {"float32", {4, 10}}}};
  for (const char* name : {"a", "r", "b", "c", "cut", "sum"}) graph.values[name] = {"float32", {4, 24}};
  model.graph = graph;
  const Measured whole = measured_within(model, std::nullopt);
  const auto check = [&](const Measured& measured) {
    CHECK(bytes_of(measured.profile) == bytes_of(whole.profile));
    for (const ProfiledNode& node : measured.profile.nodes) {
      CAPTURE(node.name);
      const bool is_cut_off = node.name == "c" || node.name == "cut" || node.name == "scores";
      CHECK((node.backward_seconds() > 0) == !is_cut_off);
    }
  };
  check(whole);
  CHECK(measured_in_parts(model, whole, {2, 1.2, 1, 0.9, 0.8, 0.7, 0.6, 0.5}, check) > 2);
}

TEST_CASE("under autocast too") {
  Model model = load_model("gpt:layers=2,width=32,heads=2,tokens=16,vocabulary=64,dropout=0.1", 4);
  model.graph = with_precision(model, "bfloat16", at::kCPU);
  const Measured whole = measured_within(model, std::nullopt);
  const Measured parts = measured_within(model, whole.peak_bytes / 2);
  CHECK(parts.parts.size() > 1);
  CHECK(parts.peak_bytes <= whole.peak_bytes / 2);
  CHECK(bytes_of(parts.profile) == bytes_of(whole.profile));
}

TEST_CASE("where one node alone does not fit, it is named, with the bytes that it needs") {
  const Model model = load_model("mlp:layers=3,width=64,image=8,channels=1", 4);
  try {
    measured_within(model, 40000);  // 64 x 64 weights, five times
    FAIL("measured in 40000 bytes");
  } catch (const InputError& error) {
    const std::string what = error.what();
    CAPTURE(what);
    CHECK_THAT(what,
               Catch::Contains("node 'layers.0.linear' (layers.0, aten::linear) alone needs at least ") &&
                   Catch::Contains("; 39.1 KiB are allowed (--memory)"));
    const int64_t needs = std::stoll(what.substr(what.find("at least ") + 9));
    CHECK(needs > 5 * 64 * 64 * 4);
    CHECK(needs < 7 * 64 * 64 * 4 + 8192);
    CHECK_THAT(error.remedy(), Catch::Contains("--batch-size"));
  }
}

TEST_CASE("a model that surely fits what is free is not tried first, one that does not is cut") {
  const Model model = load_model("mlp:layers=4,width=64,image=8,channels=1", 4);
  const std::vector<at::Tensor> inputs = synthetic_inputs(model.graph, 1);
  const auto parts = [&](int64_t bytes, bool is_asked_for) {
    return plan_parts(model, inputs, 1, at::kCPU, {{bytes, "are there"}, is_asked_for});
  };
  const int64_t roomy = int64_t{1} << 40;
  REQUIRE(parts(roomy, false).size() == 1);
  CHECK(parts(roomy, false)[0].need_bytes == 0);  // nobody has looked
  REQUIRE(parts(roomy, true).size() == 1);
  const int64_t need = parts(roomy, true)[0].need_bytes;
  CHECK(need >= measured_within(model, roomy).peak_bytes);
  CHECK(parts(need, true).size() == 1);
  CHECK(parts(need - 1, false).size() > 1);
}

TEST_CASE("others train beside each part where the memory has room for them, or beside none") {
  const Model model = load_model("mlp:layers=4,width=64,image=8,channels=1", 4);
  const Measured alone = measured_within(model, std::nullopt);
  const Measured tight = measured_within(model, alone.peak_bytes / 2, 1);
  CHECK(tight.parts.size() > 1);
  CHECK_FALSE(tight.profile.whole.crowd);
  const Measured roomy = measured_within(model, 20 * alone.peak_bytes, 1);
  REQUIRE(roomy.profile.whole.crowd);
  CHECK(roomy.profile.whole.crowd->ranks == 2);
}

TEST_CASE("nobody waits for a bench that cannot be made, trained as it likes or in step") {
  const Model model = load_model("mlp:layers=4,width=64,image=8,channels=1", 4);
  const std::vector<at::Tensor> inputs = synthetic_inputs(model.graph, 1);
  const auto make = [&] { return std::make_unique<Bench>(model, inputs, 1, at::Device(at::kCPU)); };
  for (const int fails_at :
       {1, 2, 4, 5, 6, 14, 15, 0}) {  // of the calls: two others twice and one, three turns
    const std::unique_ptr<Bench> bench = make();
    bench->train();
    std::atomic<int> calls = 0;
    const auto another = [&] {
      if (++calls == fails_at) throw std::bad_alloc();
      return make();
    };
    CAPTURE(fails_at);
    const auto found = crowd_seconds(*bench, another, 2, 1, 6, 0);
    CHECK(found.has_value() == (fails_at == 0));
    if (!found) continue;
    const ProfiledCrowd factors = found->factors(3);
    CHECK(factors.ranks == 3);
    CHECK(factors.replicas_compute_factor >= 1);
    CHECK(factors.replicas_update_factor >= 1);
    CHECK(factors.by_turns_compute_factor >= 1);
  }
}

TEST_CASE("in a pipeline one more minibatch is in flight between passes, and gone with who holds it") {
  const Model model = load_model("mlp:layers=4,width=64,image=8,channels=1", 4);
  Bench bench(model, synthetic_inputs(model.graph, 1), 1, at::Device(at::kCPU));
  for (int i = 0; i < 2; ++i) bench.train();  // its update has what it keeps
  MemoryMeter meter(at::kCPU);
  const MemoryMeter::Attached attached(meter);
  {
    Bench::InFlight in_flight;
    CHECK(bench.time_in_pipeline(in_flight).device_seconds > 0);
    const int64_t held = meter.live_bytes();
    CHECK(held > 0);
    meter.reset_peak();
    CHECK(bench.time_in_pipeline(in_flight).device_seconds > 0);
    CHECK(meter.live_bytes() == held);
    CHECK(meter.peak_bytes() >= 2 * held);
  }
  CHECK(meter.live_bytes() == 0);
}

TEST_CASE("what others do before a pass is no part of its time") {
  const Model model = load_model("mlp:layers=4,width=64,image=8,channels=1", 4);
  Bench bench(model, synthetic_inputs(model.graph, 1), 1, at::Device(at::kCPU));
  bench.train();
  int turns = 0;
  const auto start = std::chrono::steady_clock::now();
  const double seconds = bench
                             .time_by_turns([&] {
                               ++turns;
                               std::this_thread::sleep_for(std::chrono::milliseconds(200));
                             })
                             .device_seconds;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(turns == 2);
  CHECK(seconds > 0);
  CHECK(seconds <= took.count() - 0.4);
}

TEST_CASE("parts are as long as the memory allows, and what they need is what their definition says") {
  std::mt19937_64 random(11);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    MeasuringSizes sizes;
    const auto pieces = static_cast<size_t>(1 + below(12));
    sizes.input_bytes = below(10);
    for (int64_t i = 1 + below(6); i > 0; --i) sizes.parameter_bytes.push_back(below(100));
    for (size_t i = 0; i < pieces; ++i) {
      MeasuringSizes::Piece piece{below(50), below(80), below(5), {}};
      std::set<size_t> parameters;
      for (int64_t k = below(3); k > 0; --k)
        parameters.insert(static_cast<size_t>(below(static_cast<int64_t>(sizes.parameter_bytes.size()))));
      piece.parameters.assign(parameters.begin(), parameters.end());
      sizes.pieces.push_back(piece);
    }
    for (size_t made = 0; made + 1 < pieces; ++made) {
      for (int64_t k = below(3); k > 0; --k) {
        std::set<size_t> readers;
        for (int64_t r = 1 + below(2); r > 0; --r)
          readers.insert(made + 1 + static_cast<size_t>(below(static_cast<int64_t>(pieces - made - 1))));
        sizes.memories.push_back({made, {readers.begin(), readers.end()}, below(40)});
      }
    }
    // Term by term, for each piece as it runs.
    const auto need = [&](size_t begin, size_t end) {
      int64_t fixed = sizes.input_bytes, most = 0;
      std::set<size_t> parameters;
      for (size_t i = begin; i < end; ++i) {
        fixed += sizes.pieces[i].saved_bytes + sizes.pieces[i].buffer_bytes;
        parameters.insert(sizes.pieces[i].parameters.begin(), sizes.pieces[i].parameters.end());
      }
      for (const size_t parameter : parameters) fixed += sizes.parameter_bytes[parameter];
      const auto inside = [&](size_t i) { return i >= begin && i < end; };
      for (const auto& memory : sizes.memories) {
        const auto& readers = memory.readers;
        if (memory.made < begin && readers.back() >= begin) fixed += memory.bytes;
        if (memory.made < begin && std::any_of(readers.begin(), readers.end(), inside))
          fixed += 2 * memory.bytes;
        if (inside(memory.made) && readers.back() >= end) fixed += 3 * memory.bytes;
      }
      for (size_t i = begin; i < end; ++i) {
        int64_t here = sizes.pieces[i].peak_bytes;
        for (const auto& memory : sizes.memories) {
          if (memory.made < begin || memory.made >= i || memory.readers.back() < i) continue;
          here += (memory.readers.back() >= end ? 1 : 2) * memory.bytes;
        }
        most = std::max(most, here);
      }
      return fixed + most;
    };
    for (size_t begin = 0; begin < pieces; ++begin)
      for (size_t end = begin + 1; end <= pieces; ++end)
        CHECK(measuring_bytes(sizes, begin, end) == need(begin, end));

    const int64_t most = 1 + below(2 * need(0, pieces));
    size_t end = 0;
    for (const PieceRange& part : parts_within(sizes, most)) {
      CHECK(part.begin == end);
      CHECK(part.end > part.begin);
      CHECK(part.need_bytes == need(part.begin, part.end));
      CHECK((part.need_bytes <= most || part.end == part.begin + 1));
      for (size_t longer = part.end + 1; longer <= pieces; ++longer) CHECK(need(part.begin, longer) > most);
      end = part.end;
    }
    CHECK(end == pieces);
  }
}

TEST_CASE("a part begins neither within memory that is written nor among nodes that depend on nothing") {
  const auto begins = [](const std::vector<Node>& nodes) {
    return piece_begins(graph_of({"x"}, {{"w", {4}}}, nodes, {nodes.back().outputs[0]}));
  };
  const auto mul = [](const std::string& name, const std::string& a, const std::string& b) {
    return node(name, "aten::mul", {{"self", tensor(a)}, {"other", tensor(b)}}, "Tensor");
  };
  using Begins = std::vector<size_t>;
  CHECK(begins({mul("a", "x", "w"), mul("b", "a", "w"), mul("c", "a", "b")}) == Begins{0, 1, 2});
  // a is written by c: b reads what is there before.
  CHECK(begins({mul("z", "x", "w"), mul("a", "z", "w"), mul("b", "a", "w"),
                node("c", "aten::relu_", {{"self", tensor("a")}}), mul("d", "b", "c")}) == Begins{0, 1, 4});
  // A view of it is the same memory.
  CHECK(begins({mul("a", "x", "w"), node("v", "aten::t", {{"self", tensor("a")}}), mul("b", "v", "w"),
                node("c", "aten::relu_", {{"self", tensor("v")}}), mul("d", "a", "b")}) == Begins{0, 4});
  const Node ones = node("o", "aten::ones", {{"size", std::vector<int64_t>{4}}});
  CHECK(begins({ones, mul("a", "x", "w"), mul("b", "a", "o")}) == Begins{0, 1, 2});
  CHECK(begins({ones, mul("a", "x", "w"), mul("p", "o", "o"), mul("b", "a", "p")}) == Begins{0, 3});
}

}  // namespace
}  // namespace pipewright::testing
