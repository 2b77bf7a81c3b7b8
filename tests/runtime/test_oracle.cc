// The runtime against the serial oracle, bit for bit: ranks are threads, gradients and activations really
// travel.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <mutex>

#include "models/builder.h"
#include "models/registry.h"
#include "runtime/worker.h"
#include "tests/support/serial_oracle.h"
#include "tests/support/spawn.h"

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

// Cuts the nodes into parts of about equal numbers; `shape` is "2-1", depths as given.
Plan plan_of(const Model& model, const std::vector<int64_t>& replicas, const std::vector<int64_t>& depths) {
  Plan plan;
  plan.model = model.graph.name;
  plan.strategy = "manual";
  int64_t rank = 0;
  const size_t nodes = model.graph.nodes.size();
  for (size_t s = 0; s < replicas.size(); ++s) {
    Stage stage;
    for (size_t i = nodes * s / replicas.size(); i < nodes * (s + 1) / replicas.size(); ++i) {
      stage.nodes.push_back(model.graph.nodes[i].name);
    }
    for (int64_t q = 0; q < replicas[s]; ++q) stage.ranks.push_back(rank++);
    stage.in_flight = depths[s];
    plan.stages.push_back(std::move(stage));
  }
  plan.world_size = rank;
  plan.validate("test plan");
  check_plan_for_graph(plan, model.graph);
  return plan;
}

std::vector<Minibatch> random_minibatches(const Graph& graph, int64_t count, int64_t classes) {
  std::vector<Minibatch> minibatches;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(17);
  for (int64_t k = 0; k < count; ++k) {
    const auto& images = graph.values.at("images").shape;
    minibatches.push_back({{"images", at::randn(images, generator, at::TensorOptions())},
                           {"labels", at::randint(classes, graph.values.at("labels").shape, generator,
                                                  at::TensorOptions(at::kLong))}});
  }
  return minibatches;
}

struct Case {
  std::vector<int64_t> replicas;
  std::vector<int64_t> depths;
};

// Trains with real ranks and compares every weight, buffer and loss with the oracle's.
void compare(const std::string& transport, const Model& model, const Case& plan_case,
             const OptimizerSettings& sgd, int64_t minibatch_count, int64_t classes) {
  const uint64_t seed = 5;
  const Plan plan = plan_of(model, plan_case.replicas, plan_case.depths);
  const auto minibatches = random_minibatches(model.graph, minibatch_count, classes);
  const OracleResult expected = train_serially(model, plan, sgd, seed, minibatches);

  std::mutex mutex;
  std::vector<double> losses(static_cast<size_t>(minibatch_count));
  std::map<std::string, std::vector<at::Tensor>> weights;  // one entry a replica
  std::vector<std::map<std::string, at::Tensor>> buffers(static_cast<size_t>(plan.world_size));
  const auto train_rank = [&](int64_t rank, Transport* world) {
    at::set_num_threads(1);
    TrainingRules rules;
    rules.optimizer = sgd;
    rules.seed = seed;
    Worker worker(model, plan, rank, world, rules);
    WorkerHooks hooks;
    hooks.fields = [&](int64_t k) {
      std::vector<at::Tensor> fields;
      for (const auto& name : worker.stage().fields())
        fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
      return fields;
    };
    hooks.forward_done = [&](int64_t k, double loss, const at::Tensor&) {
      losses[static_cast<size_t>(k)] = loss;
    };
    worker.train({0, minibatch_count}, hooks);
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < worker.weights().size(); ++i) {
      weights[worker.stage().parameters()[i]].push_back(worker.weights()[i].detach());
    }
    for (size_t i = 0; i < worker.buffers().size(); ++i) {
      buffers[static_cast<size_t>(rank)][worker.stage().buffers()[i]] = worker.buffers()[i];
    }
  };
  if (plan.world_size == 1) {
    train_rank(0, nullptr);
  } else {
    spawn(make_world(transport, plan.world_size),
          [&](int64_t rank, Transport& world) { train_rank(rank, &world); });
  }

  CAPTURE(transport, plan_case.replicas, plan_case.depths, minibatch_count);
  CHECK(losses == expected.losses);
  CHECK(weights.size() == model.graph.parameters.size());
  for (const auto& [name, replicas] : weights) {
    for (const at::Tensor& weight : replicas) {
      INFO(name << " differs by " << (weight - expected.weights.at(name)).abs().max().item<double>());
      CHECK(weight.equal(expected.weights.at(name)));
    }
  }
  for (size_t rank = 0; rank < buffers.size(); ++rank) {
    for (const auto& [name, buffer] : buffers[rank]) {
      INFO(name << " on rank " << rank);
      CHECK(buffer.equal(expected.buffers[rank].at(name)));
    }
  }
}

OptimizerSettings momentum_sgd() {
  OptimizerSettings sgd;
  sgd.learning_rate = 0.05;
  sgd.momentum = 0.9;
  sgd.weight_decay = 1e-3;
  return sgd;
}

const std::vector<Case> kCases = {
    {{1}, {1}},       {{1, 1}, {2, 1}}, {{1, 1, 1}, {3, 2, 1}},
    {{2, 1}, {2, 1}}, {{1, 2}, {3, 2}}, {{1, 3, 1}, {5, 2, 1}},
    {{2, 2}, {2, 1}}, {{3}, {1}},       {{2, 3, 1}, {3, 2, 2}},
};

}  // namespace

TEST_CASE("oracle: weights, losses of every plan equal the serial program's, bit for bit (local transport)") {
  at::set_num_threads(1);
  const Model model = residual_model(8);
  const auto& plan_case = GENERATE(from_range(kCases));
  for (const int64_t minibatches : {1, 2, 7, 12})
    compare("local", model, plan_case, momentum_sgd(), minibatches, 5);
}

TEST_CASE("oracle: the same over Gloo and shared memory") {
  at::set_num_threads(1);
  const Model model = residual_model(8);
  for (const Case& plan_case : {kCases[1], kCases[5], kCases[6], kCases[7]}) {
    compare("gloo", model, plan_case, momentum_sgd(), 11, 5);
    compare("shm", model, plan_case, momentum_sgd(), 11, 5);
  }
}

TEST_CASE("oracle: convolutions and batch norm; running statistics are averaged over replicas at the drain") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  for (const Case& plan_case : {kCases[2], kCases[3], kCases[7]}) {
    compare("local", model, plan_case, momentum_sgd(), 5, 10);
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
  hooks.fields = [&](int64_t k) {
    std::vector<at::Tensor> fields;
    for (const auto& name : worker.stage().fields())
      fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
    return fields;
  };
  worker.train({0, static_cast<int64_t>(minibatches.size())}, hooks);
  for (size_t i = 0; i < weights.size(); ++i) {
    INFO(worker.stage().parameters()[i]);
    CHECK(worker.weights()[i].equal(weights[i]));
  }
  CHECK(worker.versions().peak_live() == 1);
  CHECK(worker.versions().updates() == 9);
}

TEST_CASE("spans: training 0..k and then k..n is training with a drain at k; any replica counts") {
  at::set_num_threads(1);
  const Model model = residual_model(4);
  const Plan plan = plan_of(model, {2, 3}, {3, 2});
  const auto minibatches = random_minibatches(model.graph, 13, 5);
  std::map<std::string, std::vector<at::Tensor>> weights;
  std::mutex mutex;
  spawn(make_world("local", 5), [&](int64_t rank, Transport& world) {
    at::set_num_threads(1);
    TrainingRules rules;
    rules.optimizer = momentum_sgd();
    Worker worker(model, plan, rank, &world, rules);
    WorkerHooks hooks;
    hooks.fields = [&](int64_t k) {
      std::vector<at::Tensor> fields;
      for (const auto& name : worker.stage().fields())
        fields.push_back(minibatches[static_cast<size_t>(k)].at(name));
      return fields;
    };
    for (const Span span : {Span{0, 7}, Span{7, 1}, Span{8, 5}}) worker.train(span, hooks);
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < worker.weights().size(); ++i) {
      weights[worker.stage().parameters()[i]].push_back(worker.weights()[i].detach());
    }
  });
  for (const auto& [name, replicas] : weights) {
    INFO(name);
    for (const at::Tensor& weight : replicas) CHECK(weight.equal(replicas[0]));
    CHECK(replicas[0].isfinite().all().item<bool>());
  }
}
