// Plans as torchtitan and DeepSpeed cut models.
#include "graph/stage_modules.h"

#include <catch2/catch.hpp>

#include "graph/error.h"

namespace pipewright {
namespace {

struct Nodes {
  Profile profile;
  Plan plan;

  Nodes() {
    profile.model = plan.model = "some";
    plan.strategy = "manual";
    plan.schedule = "1f1b-flush";
    plan.weights = "flush";
    plan.microbatches = 4;
  }
  /// A node of each layer, in a stage of its own rank. "!": its parameters.
  void add_stage(const std::vector<std::string>& layers) {
    Stage stage;
    for (std::string layer : layers) {
      ProfiledNode node;
      node.name = "node" + std::to_string(profile.nodes.size());
      if (layer.ends_with("!")) {
        layer.pop_back();
        node.parameters = {node.name + ".weight"};
      }
      node.layer = layer;
      profile.nodes.push_back(node);
      stage.nodes.push_back(node.name);
    }
    stage.ranks = {plan.world_size++};
    plan.stages.push_back(stage);
  }
};

template <typename Call>
std::string remedy_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.remedy();
  }
  return "<no error>";
}

using Modules = std::vector<std::vector<std::string>>;

TEST_CASE(
    "modules of stages: entries of lists and what stands beside them, not what is between, nor the loss") {
  Nodes model;
  model.add_stage({"tok_embeddings!", "", "layers.0.attention.wq!", "layers.0.attention", "layers.0"});
  model.add_stage({"layers.1.attention.wq!", "layers", "layers.10.mlp!"});
  model.add_stage({"norm!", "output!", "", "loss"});
  CHECK(modules_of_stages(model.plan, model.profile) ==
        Modules{{"tok_embeddings", "layers.0"}, {"layers.1", "layers.10"}, {"norm", "output"}});
  CHECK(torchtitan_modules_text(model.plan, model.profile) ==
        json_text(Json::parse(
            R"([["tok_embeddings", "layers.0"], ["layers.1", "layers.10"], ["norm", "output"]])")));
  CHECK(deepspeed_partition_text(model.plan, model.profile) ==
        json_text(Json::parse(
            R"({"layers": ["tok_embeddings", "layers.0", "layers.1", "layers.10", "norm", "output"],
                "parts": [0, 2, 4, 6]})")));
}

TEST_CASE(
    "modules of stages: beside a list that lies deeper stand its neighbours, which torchtitan does not "
    "find") {
  Nodes model;
  model.add_stage({"transformer.wte!", "transformer", "transformer.h.0.attn!"});
  model.add_stage({"transformer.h.1.attn!", "transformer.ln_f!", "lm_head!"});
  CHECK(modules_of_stages(model.plan, model.profile) ==
        Modules{{"transformer.wte", "transformer.h.0"}, {"transformer.h.1", "transformer.ln_f", "lm_head"}});
  CHECK_NOTHROW(deepspeed_partition_text(model.plan, model.profile));
  CHECK_THROWS_WITH(torchtitan_modules_text(model.plan, model.profile),
                    Catch::Contains("cannot hold module 'transformer.wte'"));
}

TEST_CASE("modules of stages: numbers alone are the entries of a sequence") {
  Nodes model;
  model.add_stage({"0!", "1"});
  model.add_stage({"2!"});
  CHECK(modules_of_stages(model.plan, model.profile) == Modules{{"0", "1"}, {"2"}});
}

TEST_CASE("modules of stages: what cuts a module, has none, or is no stage's, is refused") {
  Nodes cut;
  cut.add_stage({"layers.0.a!"});
  cut.add_stage({"layers.0.b!", "layers.1!"});
  CHECK_THROWS_WITH(modules_of_stages(cut.plan, cut.profile),
                    "plan: cuts module 'layers.0': stage 0 and stage 1 have nodes of it");
  Nodes empty;
  empty.add_stage({"a!"});
  empty.add_stage({"", "loss"});
  CHECK_THROWS_WITH(modules_of_stages(empty.plan, empty.profile), Catch::Contains("stage 1 has no module"));
  CHECK(remedy_of([&] { modules_of_stages(empty.plan, empty.profile); }) ==
        "Give it a module by hand, or plan again with --max-stages 1.");
  // With several stages on a rank the optimizer refuses --max-stages and --pin.
  for (Nodes* nodes : {&empty, &cut}) nodes->plan.schedule = "interleaved";
  CHECK(remedy_of([&] { modules_of_stages(empty.plan, empty.profile); }) ==
        "Give it a module by hand, or plan again with --schedule 1f1b-flush --max-stages 1.");
  CHECK(remedy_of([&] { modules_of_stages(cut.plan, cut.profile); }) ==
        "Keep it in one stage: plan again with --schedule 1f1b-flush --pin layers.0=0, or move its nodes.");
  Nodes missing;
  missing.add_stage({"a!"});
  missing.add_stage({"b!"});
  missing.plan.stages[1].nodes = {"other"};
  CHECK_THROWS_WITH(modules_of_stages(missing.plan, missing.profile),
                    Catch::Contains("no stage holds node 'node1'"));
  Nodes turned;
  turned.add_stage({"a!"});
  turned.add_stage({"b!"});
  std::swap(turned.profile.nodes[0], turned.profile.nodes[1]);
  CHECK_NOTHROW(torchtitan_modules_text(turned.plan, turned.profile));
  CHECK_THROWS_WITH(deepspeed_partition_text(turned.plan, turned.profile),
                    Catch::Contains("module 'a' of stage 0 runs after one of stage 1"));
}

TEST_CASE("torchtitan and DeepSpeed: plans that they cannot run are refused") {
  Nodes model;
  model.add_stage({"a!"});
  model.add_stage({"b!"});
  using Text = std::string (*)(const Plan&, const Profile&);
  for (const auto& [text, program] : {std::pair<Text, const char*>(torchtitan_modules_text, "torchtitan"),
                                      {deepspeed_partition_text, "DeepSpeed"}}) {
    Plan plan = model.plan;
    plan.schedule = "1f1b";
    plan.weights = "stash";
    CHECK_THROWS_WITH(text(plan, model.profile),
                      Catch::Contains(std::string(program) + " cannot hold weights 'stash'"));
    plan = model.plan;
    plan.stages[1].ranks = {1, 2};
    CHECK_THROWS_WITH(text(plan, model.profile), Catch::Contains("2 replicas (stage 1) beside 1 of stage 0"));
  }
  Plan tied = model.plan;
  tied.tied_parameters = {{"w", {0, 1}}};
  CHECK_THROWS_WITH(torchtitan_modules_text(tied, model.profile), Catch::Contains("parameter 'w'"));
  CHECK_NOTHROW(deepspeed_partition_text(tied, model.profile));
  Plan other = model.plan;
  other.schedule = "gpipe";
  CHECK_NOTHROW(torchtitan_modules_text(other, model.profile));
  CHECK_THROWS_WITH(deepspeed_partition_text(other, model.profile),
                    Catch::Contains("cannot hold schedule 'gpipe'"));
}

}  // namespace
}  // namespace pipewright
