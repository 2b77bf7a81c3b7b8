// The runtime against the serial reference, bit for bit: ranks are threads, gradients and activations really
// travel.
#include <cmath>
#include <random>
#include <set>

#include "graph/model_layers.h"
#include "models/definition/frozen.h"
#include "models/initialise.h"
#include "models/run/interpreter.h"
#include "models/zoo/registry.h"
#include "runtime/schedule/torch_csv.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

// A residual network with a dropout: a value that skips stages, several values at a cut, a random operator.
Model residual_model(int64_t batch) {
  ModelBuilder model("residual", batch);
  std::string x = model.input("images", "float32", {12});
  for (int i = 0; i < 6; ++i) {
    const auto layer = model.layer("block" + std::to_string(i));
    std::string y;
    {
      const auto fc = model.layer("fc");
      y = model.linear(x, {.features = 12});
    }
    y = model.dropout(model.relu(y), 0.25);
    x = i % 2 == 0 ? y : model.add(x, y);
  }
  const std::string early = x;
  {
    const auto layer = model.layer("middle");
    x = model.relu(model.linear(x, {.features = 12}));
  }
  {
    const auto layer = model.layer("late");
    x = model.add(model.gelu(model.linear(x, {.features = 12})), early);
  }
  const auto head = model.layer("head");
  return model.finish_classification(model.linear(x, {.features = 5}));
}

struct Case {
  std::vector<int64_t> replicas;
  std::vector<int64_t> depths;
};

const std::vector<Case> kCases = {
    {{1}, {1}},       {{1, 1}, {2, 1}}, {{1, 1, 1}, {3, 2, 1}},
    {{2, 1}, {2, 1}}, {{1, 2}, {3, 2}}, {{1, 3, 1}, {5, 2, 1}},
    {{2, 2}, {2, 1}}, {{3}, {1}},       {{2, 3, 1}, {3, 2, 2}},
};

void compare_world(const std::string& transport, const Model& model, const Plan& plan,
                   const TrainingRules& rules, int64_t minibatches, int64_t classes = 5) {
  compare(model, plan, rules, {{0, minibatches}},
          plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                               : make_world(transport, plan.world_size),
          classes);
}

}  // namespace

TEST_CASE("oracle: weights, losses of every plan equal the serial program's, bit for bit (local transport)") {
  at::set_num_threads(1);
  const Model model = residual_model(8);
  const auto& c = GENERATE(from_range(kCases));
  const Plan plan = plan_of(model, c.replicas, c.depths);
  for (const int64_t minibatches : {1, 2, 7, 12})
    compare_world("local", model, plan, momentum_rules(), minibatches);
}

TEST_CASE("oracle: the same over Gloo and shared memory") {
  at::set_num_threads(1);
  const Model model = residual_model(8);
  for (const Case& c : {kCases[1], kCases[5], kCases[6], kCases[7]}) {
    compare_world("gloo", model, plan_of(model, c.replicas, c.depths), momentum_rules(), 11);
    compare_world("shm", model, plan_of(model, c.replicas, c.depths), momentum_rules(), 11);
  }
}

TEST_CASE("oracle: convolutions and batch norm, running statistics are averaged over replicas at the drain") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  for (const Case& c : {kCases[2], kCases[3], kCases[7]})
    compare_world("local", model, plan_of(model, c.replicas, c.depths), momentum_rules(), 5, 10);
}

TEST_CASE("oracle: schedules with a flush, any replicas and intervals") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  const std::string schedule = GENERATE("gpipe", "1f1b-flush", "zb-h1");
  const auto replicas = GENERATE(std::vector<int64_t>{1}, std::vector<int64_t>{1, 1, 1},
                                 std::vector<int64_t>{2, 1}, std::vector<int64_t>{1, 3, 2});
  for (const int64_t microbatches : {1, 4, 7}) {
    const Plan plan = with_schedule(plan_of(model, replicas, std::vector<int64_t>(replicas.size(), 4)),
                                    schedule, "flush", microbatches);
    compare_world("local", model, plan, momentum_rules(), 15);
  }
}

TEST_CASE("oracle: several stages on a rank") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  for (const int64_t replicas : {1, 2}) {
    for (const int64_t microbatches : {1, 3, 4, 6}) {
      compare_world("local", model, interleaved_plan(model, 4, 2, replicas, microbatches), momentum_rules(),
                    14);
      compare_world("local", model, interleaved_plan(model, 6, 3, replicas, microbatches), momentum_rules(),
                    14);
    }
  }
}

TEST_CASE("oracle: two stages on a rank, V-shaped, and an order that the plan lists") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  for (const char* schedule : {"zbv", "dualpipev"}) {
    for (const size_t groups : {2, 3}) {
      for (const int64_t microbatches : {1, 3, 6}) {
        const Plan plan = v_shaped_plan(model, schedule, groups, 1, microbatches);
        compare_world("local", model, plan, momentum_rules(), 14);
        compare_world("local", model, plan_of_torch_csv(torch_csv_text(plan), "schedule.csv", plan),
                      momentum_rules(), 14);
        compare_world("local", model, v_shaped_plan(model, schedule, groups, 2, microbatches),
                      momentum_rules(), 14);
      }
    }
  }
  // Whole backwards beside some in two parts.
  const Plan plan = with_schedule(plan_of(model, {1, 1}, {2, 2}), "1f1b-flush", "flush", 2);
  compare_world("local", model, plan_of_torch_csv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1B1\n", "s.csv", plan),
                momentum_rules(), 9);
}

TEST_CASE("oracle: stages whose layers are frozen, under every schedule and weight rule") {
  at::set_num_threads(1);
  std::mt19937_64 random(2110);
  const Model trained = residual_model(4);
  struct Kind {
    const char* schedule;
    const char* weights;
  };
  const Kind kinds[] = {{"1f1b", "stash"},           {"1f1b", "vertical"}, {"1f1b", "2bw"},
                        {"model-parallel", "stash"}, {"gpipe", "flush"},   {"1f1b-flush", "flush"},
                        {"zb-h1", "flush"},          {"1f1b", "paci"},     {"1f1b", "predict"}};
  for (int round = 0; round < 36; ++round) {
    const Kind& kind = kinds[round % 9];
    const auto stages = static_cast<size_t>(2 + random() % 3);
    std::vector<int64_t> replicas, depths;
    const bool equal = std::string(kind.weights) == "vertical";
    const auto all = static_cast<int64_t>(1 + random() % 2);
    for (size_t s = 0; s < stages; ++s) {
      replicas.push_back(equal ? all : static_cast<int64_t>(1 + random() % 3));
      depths.push_back(static_cast<int64_t>(1 + random() % 4));
    }
    if (std::string(kind.schedule) == "gpipe") depths.assign(stages, 20);
    const int64_t microbatches = std::string(kind.weights) == "2bw" ? 20 : 5;
    Plan plan = with_schedule(plan_of(trained, replicas, depths), kind.schedule, kind.weights,
                              weight_rule_facts(kind.weights).one_update_for_all ? microbatches : 1);
    // The layers that end in the first stages, and perhaps one that begins a stage that trains.
    const std::vector<ModelLayer> layers = model_layers(trained.graph);
    const auto frozen = static_cast<int64_t>(1 + random() % layers.size());
    const size_t end = end_of_layers(layers, frozen, "test");
    Model model = trained;
    model.graph = frozen_graph(trained.graph, frozen);
    plan.frozen_layers = frozen;
    size_t nodes = 0;
    for (size_t s = 0; s + 1 < stages; ++s) {
      nodes += plan.stages[s].nodes.size();
      plan.stages[s].frozen = nodes <= end;
    }
    CAPTURE(kind.schedule, kind.weights, plan.shape_text(), frozen, plan.frozen_stages());
    const auto minibatches = static_cast<int64_t>(1 + random() % 24);
    compare_world("local", model, plan, momentum_rules(), minibatches);
  }
}

TEST_CASE("oracle: vertical, all stages read the version of entry") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  for (const Case& c : {Case{{1, 1, 1}, {3, 2, 1}}, Case{{2, 2}, {3, 1}}, Case{{3}, {2}}}) {
    for (const int64_t accumulation : {1, 3}) {
      TrainingRules rules = momentum_rules();
      rules.gradient_accumulation = accumulation;
      compare_world("local", model, with_schedule(plan_of(model, c.replicas, c.depths), "1f1b", "vertical"),
                    rules, 17);
    }
  }
}

TEST_CASE("oracle: 2bw, two versions") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  for (const Case& c : {Case{{1, 1, 1}, {3, 2, 1}}, Case{{2, 1}, {2, 2}}, Case{{1, 3}, {4, 1}}}) {
    for (const int64_t microbatches : {3, 5}) {
      const Plan plan = with_schedule(plan_of(model, c.replicas, c.depths), "1f1b", "2bw", microbatches);
      compare_world("local", model, plan, momentum_rules(), 22);
    }
  }
}

/// Of a rule that updates in place: spans that drain in between, and one span.
void compare_in_place(const char* weights, TrainingRules rules) {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  const std::vector<Span> spans = {{0, 23}, {23, 4}, {27, 13}};
  for (const Case& c : {Case{{1, 1, 1}, {3, 2, 1}}, Case{{1, 1, 1, 1}, {6, 5, 2, 1}}, Case{{2, 1}, {4, 3}},
                        Case{{1, 3}, {4, 2}}}) {
    for (const int64_t accumulation : {1, 3}) {
      rules.gradient_accumulation = accumulation;
      const Plan plan = with_schedule(plan_of(model, c.replicas, c.depths), "1f1b", weights);
      compare(model, plan, rules, spans, make_local_world(plan.world_size));
      compare_world("local", model, plan, rules, 22);
    }
  }
}

TEST_CASE("oracle: paci, one version that changes under minibatches in flight") {
  TrainingRules rules = momentum_rules();
  rules.optimizer.name = GENERATE("sgd", "adamw", "muon", "adafactor");
  compare_in_place("paci", rules);
}

TEST_CASE("oracle: predict, forwards with what the optimizer expects of the weights") {
  TrainingRules rules = momentum_rules();
  rules.optimizer.name = GENERATE("sgd", "adam", "adamw");
  rules.learning_rate_policy.name = "cosine";
  rules.learning_rate_policy.warmup_minibatches = 5;
  compare_in_place("predict", rules);
}

TEST_CASE("oracle: corrections of delays, spans that drain in between") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  const std::vector<Span> spans = {{0, 13}, {13, 4}, {17, 9}};
  TrainingRules rules = momentum_rules();
  rules.optimizer.delay_correction = GENERATE("error-feedback", "dc", "pipemare-t1");
  rules.optimizer.name = GENERATE("sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor");
  const bool older = rules.optimizer.delay_correction == "pipemare-t1";
  for (const Case& c : {Case{{1, 1, 1}, {3, 2, 1}}, Case{{2, 1}, {2, 2}}}) {
    Plan plan = plan_of(model, c.replicas, c.depths);
    if (!older) plan = with_schedule(plan, "1f1b", "2bw", 3);
    compare(model, plan, rules, spans, make_local_world(plan.world_size));
  }
}

TEST_CASE("oracle: corrections of delays over every rule, random plans") {
  at::set_num_threads(1);
  const std::string correction = GENERATE("error-feedback", "dc", "pipemare-t1");
  const std::string name = GENERATE("sgd", "momentum", "adamw", "nadam", "lion", "muon", "adafactor");
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < (is_long() ? 60 : 30); ++seed) {
    RandomJobs jobs(seed);
    RandomJob job = jobs.next(6);
    if (job.plan.weights == "flush" || weight_rule_facts(job.plan.weights).in_place ||
        (job.plan.weights == "2bw") == (correction == "pipemare-t1"))
      continue;
    seen.insert(job.plan.weights);
    OptimizerSettings& optimizer = job.rules.optimizer;
    optimizer.delay_correction = correction;
    optimizer.name = name == "momentum" ? "sgd" : name;
    optimizer.momentum = name == "momentum" || name == "muon" ? 0.9 : 0;
    optimizer.nesterov = optimizer.nesterov && optimizer.momentum > 0;
    CAPTURE(correction, name, seed, job.plan.shape_text(), job.plan.weights);
    compare(job.model, job.plan, job.rules, job.spans,
            job.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                     : make_local_world(job.plan.world_size));
  }
  CHECK(seen.size() == (correction == "pipemare-t1" ? 2 : 1));
}

namespace {

// docs/semantics.md once more, with every version at hand: S is plain SGD, a round reads the version of `lag`
// rounds before.
std::vector<std::vector<at::Tensor>> corrected_by_hand(const Model& model, const std::string& correction,
                                                       const std::vector<Span>& spans, int64_t round_length,
                                                       int64_t lag, double rate, uint64_t seed,
                                                       const std::vector<MinibatchFields>& minibatches) {
  std::vector<size_t> all(model.graph.nodes.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const Segment whole(model.graph, all, model.graph.outputs);
  std::vector<std::vector<at::Tensor>> versions(1);
  for (const auto& name : whole.parameters())
    versions[0].push_back(initial_parameter(model, name, seed).requires_grad_(true));
  std::vector<at::Tensor> before(versions[0].size());  // what S made of the weights in the update before
  for (const Span& span : spans) {
    const auto first = static_cast<int64_t>(versions.size()) - 1;
    const int64_t first_round = span.first / round_length;
    for (int64_t round = 0; (first_round + round) * round_length < span.end(); ++round) {
      const int64_t read = std::max<int64_t>(0, round - lag);
      std::vector<at::Tensor> leaves = versions[static_cast<size_t>(first + read)];
      for (at::Tensor& leaf : leaves) leaf = leaf.detach().clone().requires_grad_(true);
      const int64_t begin = std::max(span.first, (first_round + round) * round_length);
      const int64_t end = std::min(span.end(), (first_round + round + 1) * round_length);
      for (int64_t k = begin; k < end; ++k) {
        std::vector<at::Tensor> inputs;
        for (const auto& name : whole.inputs())
          inputs.push_back(minibatches[static_cast<size_t>(k)].at(name));
        whole.forward(inputs, leaves, {}, {seed, k})[0].backward();
      }
      const at::NoGradGuard no_grad;
      const std::vector<at::Tensor> latest = versions.back();
      const int64_t delay = round - read;
      double own_rate = rate;
      if (correction == "pipemare-t1" && delay > 1) {
        const double annealed = static_cast<double>(begin) / static_cast<double>(spans.back().end() / 4);
        own_rate *= std::pow(static_cast<double>(delay), -(1 - std::min(1.0, annealed)));
      }
      versions.emplace_back();
      for (size_t i = 0; i < latest.size(); ++i) {
        at::Tensor gradient = leaves[i].grad();
        if (end - begin > 1) gradient = gradient / static_cast<double>(end - begin);
        if (correction == "dc") gradient = (latest[i] - leaves[i]) * gradient * gradient * 0.04 + gradient;
        const at::Tensor stepped = latest[i].detach().clone().sub_(gradient, own_rate);
        const at::Tensor change = stepped - latest[i];
        const bool feeds_back = correction == "error-feedback" && delay == 1;
        versions.back().push_back(feeds_back ? stepped + (change - before[i]) : stepped);
        before[i] = change;
      }
    }
  }
  return versions;
}

}  // namespace

TEST_CASE("corrections of delays, written out with every version at hand, bit for bit") {
  at::set_num_threads(1);
  const Model model = residual_model(8);
  const std::string correction = GENERATE("error-feedback", "dc", "pipemare-t1");
  CAPTURE(correction);
  const std::vector<Span> spans = {{0, 13}, {13, 4}, {17, 9}};
  const auto minibatches = random_minibatches(model.graph, spans.back().end(), 5);
  TrainingRules rules;
  rules.optimizer.learning_rate = 0.1;
  rules.optimizer.delay_correction = correction;
  rules.seed = 3;
  rules.total_minibatches = spans.back().end();
  const bool older = correction == "pipemare-t1";
  Plan plan = plan_of(model, {1}, {4});
  if (!older) plan = with_schedule(plan, "1f1b", "2bw", 3);
  const int64_t round_length = older ? 1 : 3, lag = older ? 3 : 1;
  const auto by_hand = [&](const std::string& name) {
    return corrected_by_hand(model, name, spans, round_length, lag, rules.optimizer.learning_rate, rules.seed,
                             minibatches);
  };
  const auto versions = by_hand(correction), plain = by_hand("none");
  Worker worker(model, plan, 0, nullptr, rules);
  WorkerHooks hooks;
  hooks.fields = fields_from(minibatches, worker);
  for (const Span& span : spans) worker.train(span, hooks);
  bool differs = false;
  for (size_t i = 0; i < versions.back().size(); ++i) {
    INFO(worker.stage().program().parameters()[i]);
    CHECK(worker.stage().weights()[i].equal(versions.back()[i]));
    differs = differs || !versions.back()[i].equal(plain.back()[i]);
  }
  CHECK(differs);
}

TEST_CASE("oracle: gradients accumulated over rounds, uneven shares, model parallel") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  for (const int64_t accumulation : {1, 2, 3}) {
    TrainingRules rules = momentum_rules();
    rules.gradient_accumulation = accumulation;
    rules.learning_rate_scaling = "pipedream";
    Plan plan = plan_of(model, {2, 1, 3}, {4, 5, 2});
    compare_world("local", model, plan, rules, 19);
    plan.stages[0].shares = {3, 1};
    plan.stages[2].shares = {1, 2, 2};
    compare_world("local", model, plan, rules, 23);
    plan.schedule = "model-parallel";
    compare_world("local", model, plan, rules, 9);
  }
}

TEST_CASE("one device without a plan is plain SGD, bit for bit") {
  at::set_num_threads(1);
  const Model model = residual_model(8);
  const Graph& graph = model.graph;
  const uint64_t seed = 3;
  const auto minibatches = random_minibatches(graph, 9, 5);
  std::vector<size_t> all(graph.nodes.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const Segment whole(graph, all, graph.outputs);
  std::vector<at::Tensor> weights;
  for (const auto& name : whole.parameters())
    weights.push_back(initial_parameter(model, name, seed).requires_grad_(true));
  for (size_t k = 0; k < minibatches.size(); ++k) {
    std::vector<at::Tensor> inputs;
    for (const auto& name : whole.inputs()) inputs.push_back(minibatches[k].at(name));
    whole.forward(inputs, weights, {}, {seed, static_cast<int64_t>(k)})[0].backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : weights) {
      weight.sub_(weight.grad(), 0.1);  // in place, as torch.optim.SGD does
      weight.mutable_grad().reset();
    }
  }

  OptimizerSettings sgd;
  sgd.learning_rate = 0.1;
  TrainingRules rules;
  rules.optimizer = sgd;
  rules.seed = seed;
  Worker worker(model, single_stage_plan(graph, 1), 0, nullptr, rules);
  WorkerHooks hooks;
  hooks.fields = [&](int64_t, int64_t k) {
    std::vector<at::Tensor> fields;
    for (const auto& name : worker.stage().program().fields())
      fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
    return fields;
  };
  worker.train({0, static_cast<int64_t>(minibatches.size())}, hooks);
  for (size_t i = 0; i < weights.size(); ++i) {
    INFO(worker.stage().program().parameters()[i]);
    CHECK(worker.stage().weights()[i].equal(weights[i]));
  }
  CHECK(worker.stage().versions().peak_live() == 1);
  CHECK(worker.stage().versions().updates() == 9);
}

TEST_CASE("spans: begin anywhere, are short, drain in between, any rule") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  const std::vector<Span> spans = {{0, 7}, {7, 1}, {8, 5}};
  const Plan plan = plan_of(model, {2, 3}, {3, 2});
  compare(model, plan, momentum_rules(), spans, make_local_world(5));
  compare(model, with_schedule(plan, "1f1b-flush", "flush", 4), momentum_rules(), spans, make_local_world(5));
  compare(model, with_schedule(plan, "1f1b", "2bw", 4), momentum_rules(), spans, make_local_world(5));
  const Plan even = with_schedule(plan_of(model, {2, 2}, {3, 2}), "1f1b", "vertical");
  compare(model, even, momentum_rules(), spans, make_local_world(4));
}
