// Norms of layers' gradients: whatever pipeline they are counted in, they are those of one device.
#include "runtime/train/layer_norms.h"

#include <cmath>

#include "graph/model_layers.h"
#include "models/definition/frozen.h"
#include "models/zoo/registry.h"
#include "tests/runtime/random_pipelines.h"

namespace pipewright::testing {
namespace {

// By layer, as rank 0 puts together what the ranks tell: the mean of a stage's replicas, then over stages the
// root of the squares' sum.
std::vector<double> norms_of_run(const RandomJob& job, const Plan& plan, const Span& span,
                                 const std::vector<MinibatchFields>& minibatches) {
  std::map<const Worker*, std::unique_ptr<LayerNorms>> counting;
  std::map<int64_t, std::vector<std::vector<double>>> told;  // by first stage
  std::mutex mutex;
  RankExtras extras;
  extras.prepare = [&](Worker& worker, WorkerHooks& hooks) {
    const std::lock_guard lock(mutex);
    LayerNorms& mine = *(counting[&worker] = std::make_unique<LayerNorms>(job.model.graph));
    hooks.averaged = [&mine](StageReplica& stage) { mine.add(stage); };
  };
  extras.finish = [&](Worker& worker) {
    const std::lock_guard lock(mutex);
    told[worker.stage().stage()].push_back(counting.at(&worker)->take());
  };
  run_pipeline(
      job.model, plan, job.rules, {span}, minibatches,
      plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>() : make_world("local", plan.world_size),
      {}, extras);
  std::vector<double> norms(model_layers(job.model.graph).size());
  for (const auto& [stage, replicas] : told) {
    for (size_t l = 0; l < norms.size(); ++l) {
      double sum = 0;
      for (const auto& of_rank : replicas) sum += of_rank.at(l);
      norms[l] = std::hypot(norms[l], sum / static_cast<double>(replicas.size()));
    }
  }
  return norms;
}

// Of one round of gradients, each parameter with the first layer that reads it.
std::vector<double> norms_of_round(const Graph& graph, StageReplica& stage) {
  const auto layers = model_layers(graph);
  std::vector<double> squares(layers.size());
  for (size_t i = 0; i < stage.program().trainable().size(); ++i) {
    const std::string& name = stage.program().parameters()[stage.program().trainable()[i]];
    size_t reader = 0;
    for (;; ++reader) {
      const auto reads = graph.nodes[reader].reads();
      if (std::find(reads.begin(), reads.end(), name) != reads.end()) break;
    }
    for (size_t l = 0; l < layers.size(); ++l) {
      if (reader >= layers[l].end) continue;
      squares[l] += stage.round_gradients()[i].to(at::kDouble).square().sum().item<double>();
      break;
    }
  }
  for (double& square : squares) square = std::sqrt(square);
  return squares;
}

bool splits(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return stage.splits(); });
}

bool draws(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node& node) { return node.op == "aten::dropout"; });
}

// Of the job's first update.
void check_as_of_one_device(RandomJob job) {
  CAPTURE(job.plan.shape_text(), job.plan.schedule, job.plan.microbatches);
  const Span update{0, job.plan.microbatches};
  job.rules.total_minibatches = update.end();
  const Plan alone = with_schedule(plan_of(job.model, {1}, {update.count}), "gpipe", "flush", update.count);
  const auto minibatches = random_minibatches(job.model.graph, update.end(), 5);
  const auto expected = norms_of_run(job, alone, update, minibatches);
  const auto got = norms_of_run(job, job.plan, update, minibatches);
  REQUIRE(got.size() == expected.size());
  for (size_t l = 0; l < got.size(); ++l) {
    CAPTURE(l);
    CHECK(got[l] == Approx(expected[l]).epsilon(1e-4).margin(1e-7));
  }
}

}  // namespace

TEST_CASE("layer norms: of an update, ranks tell together what one device does, however layers are cut") {
  at::set_num_threads(1);
  int64_t compared = 0, interleaved = 0, tied = 0, split = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const RandomJob job = RandomJobs(seed).next(6);
    // Where replicas share a minibatch each draws numbers of its own.
    if (job.plan.weights != "flush" || (splits(job.plan) && draws(job.model.graph))) continue;
    CAPTURE(seed);
    check_as_of_one_device(job);
    ++compared;
    interleaved += job.plan.schedule == "interleaved";
    tied += !job.plan.tied_parameters.empty();
    split += splits(job.plan);
  }
  CHECK(compared > 40);
  CHECK(interleaved > 5);
  CHECK(tied > 5);
  CHECK(split > 0);
}

TEST_CASE("layer norms: of a layer that several stages of a rank share, too") {
  at::set_num_threads(1);
  RandomJob job;
  ModelBuilder builder("deep", 3);
  std::string x = builder.input("images", "float32", {6});
  for (int block = 0; block < 2; ++block) {
    for (int i = 0; i < 6; ++i) {
      const auto layer = builder.layer("block." + std::to_string(block) + ".linear" + std::to_string(i));
      x = builder.linear(x, {.features = 6});
    }
  }
  {
    const auto head = builder.layer("head");
    x = builder.linear(x, {.features = 5});
  }
  job.model = builder.finish_classification(x);
  REQUIRE(model_layers(job.model.graph).size() == 2);
  job.plan = interleaved_plan(job.model, /*stages=*/6, /*groups=*/2, /*replicas=*/1, /*microbatches=*/3);
  job.rules = momentum_rules();
  check_as_of_one_device(job);
}

TEST_CASE("layer norms: they are summed over the updates since the last time, 0 of what is frozen") {
  at::set_num_threads(1);
  std::vector<Model> models;
  for (const char* spec : {"mlp:layers=3,width=8,image=4,classes=5", "convnet:width=2,classes=5",
                           "gpt:layers=3,width=8,heads=2,tokens=4,vocabulary=5",
                           "bert:layers=2,width=8,heads=2,tokens=4,positions=4,vocabulary=5"})
    models.push_back(build_model(spec, 2));
  for (uint64_t seed = 0; seed < 20; ++seed)  // some of whose layers share a weight
    models.push_back(RandomJobs(seed).next(6).model);
  for (size_t m = 0; m < models.size(); ++m) {
    const Model& whole = models[m];
    const auto layers = static_cast<int64_t>(model_layers(whole.graph).size());
    for (int64_t frozen = 0; frozen < std::min<int64_t>(layers, 3); ++frozen) {
      CAPTURE(m, frozen);
      const Model model = frozen_model(whole, frozen);
      LayerNorms norms(whole.graph);
      std::vector<double> expected(static_cast<size_t>(layers));
      RankExtras extras;
      extras.prepare = [&](Worker&, WorkerHooks& hooks) {
        hooks.averaged = [&](StageReplica& stage) {
          norms.add(stage);
          const auto round = norms_of_round(whole.graph, stage);
          for (size_t l = 0; l < round.size(); ++l) expected[l] += round[l];
        };
      };
      const auto check_taken = [&] {
        const auto got = norms.take();
        REQUIRE(got.size() == expected.size());
        for (size_t l = 0; l < got.size(); ++l) {
          CHECK(got[l] == Approx(expected[l]).epsilon(1e-5));
          if (l < static_cast<size_t>(frozen)) CHECK(got[l] == 0);
        }
        std::fill(expected.begin(), expected.end(), 0);
      };
      extras.before_span = [&](Worker&, size_t span) {
        if (span > 0) check_taken();
      };
      TrainingRules rules = momentum_rules();
      rules.total_minibatches = 9;
      rules.gradient_accumulation = 2;
      run_pipeline(model, plan_of(model, {1}, {1}), rules, {{0, 1}, {1, 6}, {7, 2}},
                   random_minibatches(model.graph, 9, 5), {}, {}, extras);
      check_taken();
      for (const double rest : norms.take()) CHECK(rest == 0);
    }
  }
}

}  // namespace pipewright::testing
