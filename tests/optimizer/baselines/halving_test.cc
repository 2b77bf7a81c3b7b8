// PipeTransformer's rule, against what its own partitioner gives for the models it was published with.
#include "optimizer/baselines/halving.h"

#include <catch2/catch.hpp>

#include "optimizer/cost/frozen_profile.h"

namespace pipewright {
namespace {

using Numbers = std::vector<int64_t>;

/// Of a transformer encoder: embedding, attention and MLP of each block, and what comes behind.
SubLayerSizes encoder(int64_t blocks, double hidden, double inner, double embedding,
                      const std::vector<double>& behind) {
  const double attention = 4 * (hidden * hidden + hidden) + 2 * hidden;
  const double mlp = 2 * hidden * inner + inner + hidden + 2 * hidden;
  SubLayerSizes sizes = {embedding / 1e6};
  for (int64_t block = 0; block < blocks; ++block) {
    sizes.push_back(attention / 1e6);
    sizes.push_back(mlp / 1e6);
  }
  for (const double parameters : behind) sizes.push_back(parameters / 1e6);
  return sizes;
}

/// 224 pixels, 100 classes.
SubLayerSizes vit_b16() {
  return encoder(12, 768, 3072, 16 * 16 * 3 * 768 + 768 + 768 + 197 * 768, {1536, 768 * 100 + 100});
}
SubLayerSizes bert(int64_t blocks, double hidden, double inner, double classes) {
  return encoder(blocks, hidden, inner, (30522 + 512 + 2 + 2) * hidden,
                 {hidden * hidden + hidden, hidden * classes + classes});
}

/// Stages after each number of frozen blocks, from 8: the embedding is frozen with the first.
Numbers stages_by_frozen_blocks(const SubLayerSizes& sizes, int64_t blocks) {
  Numbers stages;
  for (int64_t frozen = 0, now = 8; frozen <= blocks; ++frozen) {
    now = halved_stages(sizes, frozen == 0 ? 0 : 1 + 2 * frozen, now, 8);
    stages.push_back(now);
  }
  return stages;
}

Numbers runs(const std::vector<std::pair<int64_t, int64_t>>& lengths) {
  Numbers all;
  for (const auto& [count, stages] : lengths) all.insert(all.end(), static_cast<size_t>(count), stages);
  return all;
}

TEST_CASE("PipeTransformer's split of ViT-B/16 over eight devices") {
  const SubLayerSizes sizes = vit_b16();
  const Numbers counts = greedy_partition(sizes, 8);
  CHECK(counts == Numbers{4, 2, 3, 3, 3, 3, 4, 5});
  const double expected[] = {10.19, 7.09, 11.81, 9.45, 11.81, 9.45, 14.18, 11.89};
  size_t next = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    double sum = 0;
    for (int64_t i = 0; i < counts[s]; ++i) sum += sizes[next++];
    CHECK(sum == Approx(expected[s]).margin(0.006));
  }
  CHECK(largest_part(sizes, counts) == Approx(14.18).margin(0.006));
}

TEST_CASE("PipeTransformer's splits of BERT: stages that stay empty") {
  CHECK(greedy_partition(bert(12, 768, 3072, 2), 8) == Numbers{0, 0, 0, 1, 6, 6, 6, 8});
  const SubLayerSizes large = bert(24, 1024, 4096, 2);
  CHECK(largest_part(large, greedy_partition(large, 8)) == Approx(50.38).margin(0.006));
}

TEST_CASE("PipeTransformer's halvings: stages after so many frozen blocks") {
  CHECK(stages_by_frozen_blocks(vit_b16(), 12) == runs({{5, 8}, {4, 4}, {2, 2}, {2, 1}}));
  CHECK(stages_by_frozen_blocks(bert(12, 768, 3072, 2), 12) == runs({{1, 8}, {5, 4}, {3, 2}, {4, 1}}));
  CHECK(stages_by_frozen_blocks(bert(24, 1024, 4096, 2), 24) == runs({{9, 8}, {8, 4}, {4, 2}, {4, 1}}));
  CHECK(halving_microbatches(8) == 16);
  CHECK(halving_microbatches(4) == 16);
  CHECK(halving_microbatches(2) == 16);
  CHECK(halving_microbatches(1) == 4);
}

/// Blocks of two sub-layers, each with a connection around it.
Profile blocks(int64_t count) {
  Profile profile;
  profile.model = "blocks";
  profile.device = "none";
  profile.minibatch_samples = 8;
  profile.whole.step_seconds = 1e-3;
  std::string last = "images";
  const auto node = [&](const std::string& layer, const std::string& name, std::vector<std::string> inputs,
                        int64_t parameter_bytes, double seconds) {
    ProfiledNode made;
    made.layer = layer;
    made.name = layer + "." + name;
    made.inputs = std::move(inputs);
    made.outputs = {{made.name + ".out", 4096}};
    made.parameter_bytes = made.trainable_parameter_bytes = parameter_bytes;
    if (parameter_bytes > 0) made.parameters = {made.name + ".weight"};
    made.forward_seconds = seconds;
    made.backward_input_seconds = made.backward_weight_seconds = seconds;
    made.saved_bytes = 4096;
    profile.nodes.push_back(made);
    return made.outputs[0].name;
  };
  last = node("stem", "conv", {last}, 400000, 1e-3);
  for (int64_t block = 0; block < count; ++block) {
    const std::string layer = "blocks." + std::to_string(block);
    for (const char* part : {"attention", "mlp"}) {
      const std::string within = layer + "." + part;
      const std::string inside = node(within, "inner", {last}, 4000000, 4e-3);
      last = node(within, "add", {last, inside}, 0, 1e-4);
    }
  }
  node("head", "linear", {last}, 400000, 1e-3);
  return profile;
}

TEST_CASE("sub-layers of a profile never cut a connection") {
  const ProfiledSubLayers all = sub_layers(blocks(4));
  CHECK(all.sizes == SubLayerSizes{0.1, 1, 1, 1, 1, 1, 1, 1, 1, 0.1});
  CHECK(all.ends == std::vector<size_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 18});
  CHECK(all.frozen == 0);
  CHECK(sub_layers(frozen_profile(blocks(4), 2, false)).frozen == 5);
}

TEST_CASE(
    "a halving plan: fewer stages and more pipelines as layers freeze, never faster than the planner's own") {
  const Profile measured = blocks(8);
  const Topology topology = flat_topology(8, 1e9, 20e-6, 0);
  int64_t last = 8;
  for (const int64_t layers : {0, 2, 4, 6, 7}) {
    for (const bool cached : {false, true}) {
      if (cached && layers == 0) continue;
      CAPTURE(layers, cached);
      const Profile frozen = frozen_profile(measured, layers, cached);
      PlanRequest request;
      const Plan halved = halving_plan(frozen, topology, request);
      CHECK_NOTHROW(halved.validate("halved"));
      CHECK(static_cast<int64_t>(halved.stages.size()) <= last);
      last = static_cast<int64_t>(halved.stages.size());
      CHECK(halved.frozen_layers == layers);
      request.schedule = "gpipe";
      request.microbatches = halved.microbatches;
      const Plan own = make_plan(frozen, topology, request);
      CHECK(own.predicted->minibatch_seconds <= halved.predicted->minibatch_seconds * (1 + 1e-9));
    }
  }
  CHECK(last == 1);
}

}  // namespace
}  // namespace pipewright
