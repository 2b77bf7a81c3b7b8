#include "profiler/measure.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "graph/document.h"
#include "models/run/autocast.h"
#include "models/run/device_passes.h"
#include "models/zoo/registry.h"
#include "profiler/settling.h"
#include "profiler/synthetic_inputs.h"
#include "tests/models/hand_graph.h"

namespace pipewright::testing {
namespace {

Profile quick_profile(const Model& model, int64_t repeats = 3) {
  MeasureOptions options;
  options.batch_size = 8;
  options.warmup = 1;
  options.repeats = repeats;
  return measure(model, synthetic_inputs(model.graph, 1), options);
}

const ProfiledNode& find(const Profile& profile, const std::string& name) {
  for (const auto& node : profile.nodes)
    if (node.name == name) return node;
  throw std::out_of_range(name);
}

/// A graph by hand with the types of its values, which the profiler reads.
Model hand_model(Graph graph, const std::map<std::string, TensorType>& types) {
  for (const auto& [name, type] : types) graph.values[name] = type;
  Model model;
  model.parameter_initialisers.assign(graph.parameters.size(), {Initialiser::Kind::kUniform, -0.1, 0.1});
  model.buffer_initialisers.assign(graph.buffers.size(), {Initialiser::Kind::kConstant, 1, 0});
  model.graph = std::move(graph);
  return model;
}

Model two_linears() {
  return hand_model(
      graph_of({"x", "y"}, {{"a.weight", {32, 16}}, {"a.bias", {32}}, {"b.weight", {10, 32}}},
               {node("a", "aten::linear",
                     {{"input", tensor("x")}, {"weight", tensor("a.weight")}, {"bias", tensor("a.bias")}}),
                node("r", "aten::relu", {{"self", tensor("a")}}),
                node("b", "aten::linear", {{"input", tensor("r")}, {"weight", tensor("b.weight")}}),
                node("loss", "aten::cross_entropy_loss", {{"self", tensor("b")}, {"target", tensor("y")}})},
               {"loss", "b"}),
      {{"x", {"float32", {8, 16}}},
       {"y", {"int64", {8}}},
       {"a", {"float32", {8, 32}}},
       {"r", {"float32", {8, 32}}},
       {"b", {"float32", {8, 10}}},
       {"loss", {"float32", {}}}});
}

TEST_CASE("a profile of a small model is complete and in order") {
  const Model model = build_model("convnet:width=4", 8);
  const Profile profile = quick_profile(model);
  CHECK_NOTHROW(profile.validate("test"));
  CHECK(profile.model == "convnet:width=4");
  CHECK(profile.minibatch_samples == 8);
  CHECK(profile.device == "cpu");
  CHECK(profile.threads == 1);
  CHECK(profile.graph_digest == document_digest(model.graph));
  CHECK(parse_document<Profile>(document_text(profile), "round trip").nodes.size() ==
        model.graph.nodes.size());

  std::set<std::string> keys;
  for (const auto& [key, value] : profile.provenance) {
    keys.insert(key);
    CHECK_FALSE(value.empty());
  }
  for (const char* key : {"pipewright", "libtorch", "processor", "warmup", "repeats", "date"})
    CHECK(keys.count(key));

  REQUIRE(profile.nodes.size() == model.graph.nodes.size());
  int64_t parameter_bytes = 0;
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfiledNode& node = profile.nodes[i];
    CAPTURE(node.name);
    CHECK(node.name == model.graph.nodes[i].name);
    CHECK(node.layer == model.graph.nodes[i].layer);
    CHECK(node.forward_seconds > 0);
    CHECK(node.backward_input_seconds >= 0);
    CHECK(node.backward_weight_seconds >= 0);
    CHECK((node.parameters.empty() || node.trainable_parameter_bytes == node.parameter_bytes));
    if (node.parameters.empty()) CHECK(node.backward_weight_seconds == 0);
    parameter_bytes += node.parameter_bytes;
    for (const auto& value : node.outputs) CHECK(value.bytes == model.graph.values.at(value.name).bytes());
  }
  CHECK(parameter_bytes == 4 * parameter_count(model.graph));
  // The images want no gradient: the first convolution has a weight part only.
  CHECK(profile.nodes[0].inputs == std::vector<std::string>{"images"});
  CHECK(profile.nodes[0].backward_input_seconds == 0);
  CHECK(profile.nodes[0].backward_weight_seconds > 0);
  CHECK(profile.whole.forward_seconds > 0);
  CHECK(profile.whole.backward_seconds > 0);
  CHECK(profile.whole.step_seconds > 0);
  REQUIRE(profile.whole.update);
  CHECK(profile.whole.update->step_in_place_seconds > 0);
  CHECK(profile.whole.update->gradient_add_seconds > 0);
  CHECK(profile.whole.update->gradient_copy_seconds > 0);
  CHECK(profile.whole.update->gradient_divide_seconds > 0);
}

TEST_CASE("the nodes' times add up to about the whole") {
  // A loose bound, and several tries: the machine that runs the tests may be busy in one half of a
  // measurement and not in the other. The program warns at 15 %.
  double ratio = 0;
  for (int tries = 0; tries < 5 && !(ratio > 0.2 && ratio < 5); ++tries)
    ratio = nodes_over_whole(quick_profile(build_model("convnet", 16), 9));
  CHECK(ratio > 0.2);
  CHECK(ratio < 5);
}

TEST_CASE("weights cast once are saved by no node, and cast with the update") {
  Model model = two_linears();
  model.graph = with_precision(model, "bfloat16");
  const Profile without = quick_profile(model);
  model.graph = with_device_passes(model.graph, "weights-cast-once", "bfloat16", at::kCPU);
  const Profile with = quick_profile(model);
  CHECK(find(without, "b").saved_bytes - find(with, "b").saved_bytes == 10 * 32 * 2);
  CHECK(without.whole.update->copied_bytes == 0);
  CHECK(with.whole.update->copied_bytes == (32 * 16 + 32 + 10 * 32) * 2);
}

TEST_CASE("saved bytes are those counted by hand") {
  const Profile profile = quick_profile(two_linears());
  CHECK(find(profile, "a").saved_bytes == 0);  // its output is read by relu alone, which keeps its own
  CHECK(find(profile, "r").saved_bytes == 8 * 32 * 4);         // for its own backward and for that of b
  CHECK(find(profile, "b").saved_bytes == 0);                  // the loss keeps the log-softmax instead
  CHECK(find(profile, "loss").saved_bytes == 8 * 10 * 4 + 4);  // ... and the sum of its weights
}

TEST_CASE("a linear layer has both parts of backward, and parameters that do not train cost no weight part") {
  Model model = two_linears();
  const Profile both = quick_profile(model, 9);
  CHECK(find(both, "b").backward_input_seconds > 0);
  CHECK(find(both, "b").trainable_parameter_bytes == 10 * 32 * 4);
  CHECK(find(both, "a").parameter_bytes == (32 * 16 + 32) * 4);

  model.graph.parameters[2].trainable = false;
  const Profile frozen = quick_profile(model);
  CHECK(find(frozen, "b").backward_weight_seconds == 0);
  CHECK(find(frozen, "b").backward_input_seconds > 0);
  CHECK(find(frozen, "b").trainable_parameter_bytes == 0);
  CHECK(find(frozen, "b").parameter_bytes == 10 * 32 * 4);
  // A frozen prefix: nothing flows back into it.
  for (auto& parameter : model.graph.parameters) parameter.trainable = parameter.name == "b.weight";
  const Profile prefix = quick_profile(model);
  CHECK(find(prefix, "a").backward_seconds() == 0);
  CHECK(find(prefix, "r").backward_seconds() == 0);
  CHECK(find(prefix, "r").saved_bytes == 8 * 32 * 4);  // b's weight part still needs it
  CHECK(find(prefix, "b").backward_input_seconds == 0);
  CHECK(find(prefix, "b").backward_weight_seconds > 0);

  for (auto& parameter : model.graph.parameters) parameter.trainable = false;
  CHECK_THROWS_WITH(quick_profile(model), Catch::Contains("no trainable parameters"));
}

TEST_CASE("operators that work in place are profiled too") {
  Model model = two_linears();
  for (auto& node : model.graph.nodes)
    if (node.name == "r") node.op = "aten::relu_";
  const Profile profile = quick_profile(model);
  CHECK(find(profile, "a").saved_bytes == 8 * 32 * 4);  // made by a, kept for relu_ and b
  CHECK(find(profile, "r").saved_bytes == 0);
  CHECK(find(profile, "r").backward_input_seconds > 0);
}

TEST_CASE("tokens, embeddings, attention and dropout") {
  const Profile profile =
      quick_profile(build_model("gpt:layers=1,width=16,heads=2,tokens=8,vocabulary=32,dropout=0.1", 8));
  CHECK_NOTHROW(profile.validate("test"));
  CHECK(profile.compute_seconds() > 0);
}

TEST_CASE("measuring leaves the thread count as it was") {
  const int before = at::get_num_threads();
  MeasureOptions options;
  options.batch_size = 8;
  options.warmup = 0;
  options.repeats = 1;
  options.threads = before + 1;
  int64_t calls = 0;
  options.progress = [&](double done, double left) {
    ++calls;
    CHECK(at::get_num_threads() == before + 1);
    CHECK(done == Approx(calls / 3.0));
    CHECK(left >= 0);
  };
  const Model model = two_linears();
  CHECK(measure(model, synthetic_inputs(model.graph, 1), options).threads == before + 1);
  CHECK(calls == 3);
  CHECK(at::get_num_threads() == before);
}

TEST_CASE("an operator that fails is an error that names it") {
  Model model = two_linears();
  model.graph.values["x"].shape = {8, 15};
  CHECK_THROWS_WITH(quick_profile(model), Catch::Contains("node 'a'"));
}

TEST_CASE("passes are warm when the medians of two windows in a row agree, and not before") {
  const SettlingRule rule{.window = 3, .tolerance = 0.1, .most_passes = 12, .most_seconds = 5};
  const auto after = [&](const std::vector<double>& passes, double elapsed = 0) {
    return settling(passes, elapsed, rule);
  };
  CHECK(after({}) == Settling::kGoesOn);
  CHECK(after({1, 1, 1, 1, 1}) == Settling::kGoesOn);  // one is missing
  CHECK(after({1, 1, 1, 1, 1, 1}) == Settling::kSettled);
  CHECK(after({9, 9, 9, 1, 1, 1}) == Settling::kGoesOn);
  CHECK(after({4, 4, 4, 4.25, 4.25, 4.25}) == Settling::kSettled);
  CHECK(after({1, 1, 1, 1.2, 1.2, 1.2}) == Settling::kGoesOn);
  CHECK(after({1.2, 1.2, 1.2, 1, 1, 1}) == Settling::kGoesOn);
  CHECK(after({1, 1, 7, 7, 1, 1}) == Settling::kSettled);  // one odd pass in a window is none
  CHECK(after({0, 0, 0, 0, 0, 0}) == Settling::kSettled);  // a clock too coarse to say anything
  CHECK(after({9, 5, 4, 3, 2, 2, 2, 2, 2}) == Settling::kSettled);
  CHECK(after({1, 2, 4}, 5) == Settling::kGivesUp);
  CHECK(after({1, 1, 1, 1, 1, 1}, 5) == Settling::kSettled);
  std::vector<double> rising;
  for (int i = 0; i < 12; ++i) rising.push_back(i);
  CHECK(after({rising.begin(), rising.end() - 1}) == Settling::kGoesOn);
  CHECK(after(rising) == Settling::kGivesUp);
}

TEST_CASE("series that fall to a level and stay there settle soon after, noise does not") {
  std::mt19937_64 random(3);
  const auto uniform = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  const auto passes_until_over = [](const std::function<double(size_t)>& pass, Settling& how) {
    std::vector<double> passes;
    do passes.push_back(pass(passes.size()));
    while ((how = settling(passes, 0)) == Settling::kGoesOn);
    return passes.size();
  };
  const SettlingRule rule;
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    // Below the tolerance, as both medians may be off.
    const double level = uniform(1e-6, 10), jitter = uniform(0, 0.009);
    const auto falls = static_cast<size_t>(uniform(0, 30));
    const double per_pass = uniform(1.05, 1.5);
    Settling how;
    const size_t passes = passes_until_over(
        [&](size_t pass) {
          const double above = pass < falls ? std::pow(per_pass, static_cast<double>(falls - pass)) : 1;
          return level * above * (1 + uniform(-jitter, jitter));
        },
        how);
    CHECK(how == Settling::kSettled);
    CHECK(passes >= falls + rule.window / 2 + 1);  // not while it falls
    CHECK(passes <= std::max(2 * rule.window, falls + 2 * rule.window));
    CHECK(passes_until_over(
              [&](size_t pass) { return level * std::pow(per_pass, static_cast<double>(pass)); }, how) ==
          rule.most_passes);
    CHECK(how == Settling::kGivesUp);
  }
}

}  // namespace
}  // namespace pipewright::testing
