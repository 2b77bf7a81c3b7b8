// Replicas that split each minibatch: against the serial reference, bit for bit, and against the same plan
// without, up to rounding. Random plans of this kind are in delays_test.cc and generations_test.cc.
#include "models/zoo/registry.h"
#include "runtime/data/sequences.h"
#include "runtime/worker/loss_weights.h"
#include "tests/runtime/pipelines.h"
#include "tests/support/error_of.h"

namespace pipewright::testing {
namespace {

// Values that skip stages; with or without what draws.
Model skipping_model(int64_t batch, bool draws) {
  ModelBuilder builder("skipping", batch);
  std::string x = builder.input("images", "float32", {12});
  std::string early;
  for (int i = 0; i < 5; ++i) {
    const auto layer = builder.layer("block" + std::to_string(i));
    std::string y = builder.relu(builder.linear(x, {.features = 12}));
    if (draws) y = builder.dropout(y, 0.25);
    x = i % 2 == 0 ? y : builder.add(x, y);
    if (i == 0) early = x;
  }
  {
    const auto layer = builder.layer("late");
    x = builder.add(builder.gelu(builder.linear(x, {.features = 12})), early);
  }
  const auto head = builder.layer("head");
  Model model = builder.finish_classification(builder.linear(x, {.features = 5}));
  model.graph_for = [=](int64_t samples) { return skipping_model(samples, draws).graph; };
  return model;
}

using Splits = std::vector<std::vector<int64_t>>;

// As many replicas as weights; an empty list of them: one replica, whole minibatches; "turns": without
// weights.
Plan split_plan(const Model& model, const Splits& splits, const std::vector<int64_t>& depths,
                const std::vector<size_t>& turns = {}) {
  std::vector<int64_t> replicas;
  for (const auto& weights : splits)
    replicas.push_back(std::max<int64_t>(1, static_cast<int64_t>(weights.size())));
  Plan plan = plan_of(model, replicas, depths);
  for (size_t s = 0; s < splits.size(); ++s)
    if (std::find(turns.begin(), turns.end(), s) == turns.end()) plan.stages[s].split = splits[s];
  return plan;
}

void compare_on(const std::string& transport, const Model& model, const Plan& plan,
                const TrainingRules& rules, std::vector<Span> spans, int64_t classes = 5) {
  check_split_model(model, plan);
  compare(model, plan, rules, spans, make_world(transport, plan.world_size), classes);
}

TEST_CASE("split: every weight, loss and buffer is the serial reference's, next to any other stage") {
  at::set_num_threads(1);
  const Model model = skipping_model(8, true);
  const std::vector<Plan> plans = {
      split_plan(model, {{1, 1}}, {2}),
      split_plan(model, {{3, 1}, {}}, {2, 1}),
      split_plan(model, {{}, {1, 2}}, {3, 1}),
      split_plan(model, {{1, 2, 3}, {2, 1}, {1, 1}}, {3, 2, 1}),
      split_plan(model, {{1, 2}, {1, 1}, {1, 3}}, {4, 2, 1}, {1}),  // takes turns between two that split
      split_plan(model, {{1, 1}, {1, 2}, {1, 1}}, {4, 3, 1}, {0, 2}),
  };
  for (const Plan& plan : plans) {
    for (const char* transport : {"local", "shm", "gloo"}) {
      compare_on(transport, model, plan, momentum_rules(), {{0, 7}, {7, 2}});
      if (plan.stages.size() == 1) break;
    }
    TrainingRules rules = momentum_rules();
    rules.gradient_clipping_norm = 0.05;
    rules.gradient_accumulation = 2;
    compare_on("local", model, plan, rules, {{1, 9}});
  }
}

TEST_CASE("split: under every schedule and weight rule") {
  at::set_num_threads(1);
  const Model model = skipping_model(7, true);
  for (const auto& [schedule, weights] :
       std::vector<std::pair<std::string, std::string>>{{"1f1b", "vertical"},
                                                        {"1f1b", "2bw"},
                                                        {"model-parallel", "stash"},
                                                        {"gpipe", "flush"},
                                                        {"1f1b-flush", "flush"},
                                                        {"zb-h1", "flush"}}) {
    Plan plan = split_plan(model, {{2, 1}, {}, {1, 1, 2}}, {3, 2, 1});
    plan = with_schedule(plan, schedule, weights, weights == "flush" || weights == "2bw" ? 4 : 1);
    if (schedule == "zb-h1") plan.stages[1].in_flight = plan.stages[2].in_flight = 3;
    for (Stage& stage : plan.stages) {
      stage.recompute = true;
      stage.recompute_ratio = 0.5;
    }
    CAPTURE(schedule, weights);
    compare_on("local", model, plan, momentum_rules(), {{0, 11}});
  }
}

TEST_CASE("split: models of the zoo, cut anywhere") {
  at::set_num_threads(1);
  const Model gpt = build_model("gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=32,dropout=0.1", 4);
  compare_on("local", gpt, split_plan(gpt, {{1, 1}, {1, 3}}, {2, 1}), momentum_rules(), {{0, 3}}, 32);
  const Model mlp = build_model("mlp:layers=3,width=16,image=8,channels=1", 5);
  compare_on("local", mlp, split_plan(mlp, {{1, 2}, {}}, {2, 1}), momentum_rules(), {{0, 4}}, 10);
}

// The largest difference of a weight, over what training has changed at most.
double difference(const ReferenceResult& a, const ReferenceResult& b) {
  double most = 0;
  for (const auto& [name, weight] : a.weights)
    most = std::max(most, (weight - b.weights.at(name)).abs().max().item<double>());
  return most;
}

TEST_CASE("split: the gradient is that of the whole minibatch, also where labels ask nothing") {
  at::set_num_threads(1);
  const Model model = skipping_model(8, false);
  TrainingRules rules = momentum_rules();
  auto minibatches = random_minibatches(model.graph, 10, 5);
  SECTION("all labels ask something") {}
  SECTION("some parts have few that do, or none") {
    for (size_t k = 0; k < minibatches.size(); ++k) {
      const at::Tensor& labels = minibatches[k].at("labels");
      labels.narrow(0, 0, static_cast<int64_t>(k % 6)).fill_(kNoLabel);
    }
  }
  const auto fields = [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; };
  const Plan whole = split_plan(model, {{}, {}, {}}, {1, 1, 1});
  const ReferenceResult expected = train_serially(model, whole, rules, {{0, 10}}, fields);
  for (const Splits& splits :
       {Splits{{3, 1}, {}, {}}, Splits{{}, {1, 1, 1}, {}}, Splits{{}, {1, 2}, {1, 2, 1}}}) {
    const Plan plan = split_plan(model, splits, {1, 1, 1});
    const PipelineRun run =
        run_pipeline(model, plan, rules, {{0, 10}}, minibatches, make_world("local", plan.world_size));
    const ReferenceResult serial = train_serially(model, plan, rules, {{0, 10}}, fields);
    check_run(plan, rules, {{0, 10}}, run, serial);
    CHECK(difference(serial, expected) < 1e-5);
    for (size_t k = 0; k < 10; ++k) CHECK(run.losses[k] == Approx(expected.losses[k]).epsilon(1e-5));
  }
}

TEST_CASE("split: what a model cannot do in parts is refused, with the reason") {
  const Model model = skipping_model(8, false);
  const Plan plan = split_plan(model, {{1, 1}, {}}, {1, 1});
  const auto refusal = [](const Model& of, const Plan& by) {
    return error_of<PlanError>([&] { check_split_model(of, by); });
  };
  CHECK_NOTHROW(check_split_model(model, plan));
  Model fixed = model;
  fixed.fixed_batch = true;
  CHECK(refusal(fixed, plan) ==
        "plan: stage 0 has `split`, and the model runs with 8 samples and no other number");
  CHECK_NOTHROW(check_split_model(fixed, split_plan(model, {{}, {}}, {1, 1})));

  const std::function<Model(int64_t)> with_mean = [&with_mean](int64_t samples) {
    ModelBuilder builder("mean", samples);
    const std::string x = builder.linear(builder.input("images", "float32", {6}), {.features = 6});
    const std::string mean = builder.call("mean", "", {{"self", TensorArgument{x}}}, {{"float32", {}}})[0];
    const auto layer = builder.layer("head");
    const std::string y = builder.linear(builder.relu(builder.relu(builder.add(x, mean))), {.features = 5});
    Model made = builder.finish_classification(y);
    made.graph_for = [&with_mean](int64_t other) { return with_mean(other).graph; };
    return made;
  };
  const Model mean = with_mean(8);
  CHECK(refusal(mean, split_plan(mean, {{1, 1}, {}}, {1, 1}))
            .find("computes with 'mean', which is a mean over samples, for every sample") !=
        std::string::npos);
  Plan behind = split_plan(mean, {{}, {1, 1}}, {1, 1});  // the mean crosses
  auto& first = behind.stages[0].nodes;
  auto& second = behind.stages[1].nodes;
  while (first.size() > 2) {
    second.insert(second.begin(), first.back());
    first.pop_back();
  }
  CHECK(refusal(mean, behind).find("no dimension of () counts the 8 samples of a minibatch") !=
        std::string::npos);
  // Labels that an earlier stage alone reads: of parts of other numbers of them the loss would count wrong.
  const Model gpt = build_model("gpt:layers=1,width=8,heads=2,tokens=4,vocabulary=16", 4);
  Plan early = split_plan(gpt, {{}, {1, 1}}, {1, 1});
  for (auto node = early.stages[1].nodes.begin(); node != early.stages[1].nodes.end(); ++node) {
    const auto of = std::find_if(gpt.graph.nodes.begin(), gpt.graph.nodes.end(),
                                 [&](const Node& each) { return each.name == *node; });
    const auto read = of->reads();
    if (std::find(read.begin(), read.end(), "labels") == read.end()) continue;
    early.stages[0].nodes.push_back(*node);
    early.stages[1].nodes.erase(node);
    break;
  }
  CHECK_NOTHROW(check_split_model(gpt, split_plan(gpt, {{}, {1, 1}}, {1, 1})));
  CHECK(error_of<PlanError>([&] {
          LossShares(gpt, early, "minibatches", 1);
        }).find("`labels`, by which the loss of a part counts, is read by an earlier stage only") !=
        std::string::npos);
  const Model norms = build_model("convnet:width=4,image=16", 4);
  CHECK(error_of<PlanError>([&] {
          check_plan_for_graph(split_plan(norms, {{1, 1}, {}}, {1, 1}), norms.graph);
        }).find("takes statistics of the whole minibatch") != std::string::npos);
}

TEST_CASE("split: a part that divides something by 0 ends the run, one that divides nothing counts nothing") {
  const at::Tensor nothing = at::scalar_tensor(std::nan(""), at::kFloat);
  CHECK_NOTHROW(check_counts_nothing(3, nothing, false));
  CHECK_THROWS_AS(check_counts_nothing(3, nothing, true), RunError);
  CHECK(error_of<RunError>([] {
          check_counts_nothing(3, at::scalar_tensor(1.0, at::kFloat) / at::scalar_tensor(0.0, at::kFloat),
                               false);
        }).find("minibatch 3: what the loss divides by is 0") == 0);
}

}  // namespace
}  // namespace pipewright::testing
