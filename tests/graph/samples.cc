#include "tests/graph/samples.h"

#include <cmath>
#include <limits>

#include "graph/document.h"

namespace pipewright::testing {
namespace {

int64_t below(std::mt19937_64& random, int64_t end) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
}

bool coin(std::mt19937_64& random) { return below(random, 2) == 1; }

// All magnitudes, with all digits: what must read back bit-equal.
double positive(std::mt19937_64& random, double largest) {
  if (below(random, 8) == 0) return 0;
  const double exponent = std::uniform_real_distribution<double>(-30, std::log10(largest))(random);
  return std::min(largest, std::pow(10.0, exponent));
}

double fraction(std::mt19937_64& random) { return std::uniform_real_distribution<double>(0, 1)(random); }

int64_t bytes(std::mt19937_64& random) { return below(random, int64_t{1} << (1 + below(random, 50))); }

// Names as they come: dots, blanks, quotes, letters beyond ASCII.
std::string odd_text(std::mt19937_64& random) {
  static const std::vector<std::string> pieces = {"conv", ".", "0",        " ",  "\"", "\\",    "weight",
                                                  "/",    ":", "\xc3\xa9", "\t", "{",  "gamma", "_"};
  std::string text = "n";
  for (int64_t i = below(random, 6); i > 0; --i)
    text += pieces[static_cast<size_t>(below(random, static_cast<int64_t>(pieces.size())))];
  return text;
}

template <typename T>
const T& pick(std::mt19937_64& random, const std::vector<T>& list) {
  return list[static_cast<size_t>(below(random, static_cast<int64_t>(list.size())))];
}

TensorType random_type(std::mt19937_64& random) {
  static const std::vector<std::string> dtypes = {"float32",   "float64", "bfloat16", "float16",
                                                  "complex64", "int64",   "int32",    "int16",
                                                  "int8",      "uint8",   "bool"};
  TensorType type;
  type.dtype = pick(random, dtypes);
  for (int64_t i = below(random, 5); i > 0; --i) type.shape.push_back(below(random, 300));
  return type;
}

Argument random_plain_argument(std::mt19937_64& random) {
  switch (below(random, 9)) {
    case 0:
      return NoneArgument{};
    case 1:
      return DtypeArgument{"int64"};
    case 2:
      return coin(random);
    case 3:
      return static_cast<int64_t>(random());
    case 4:
      return pick<double>(random, {0.1, -0.0, 1e-300, std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity(), positive(random, 1e9)});
    case 5:
      return odd_text(random);
    case 6:
      return std::vector<int64_t>{below(random, 9), std::numeric_limits<int64_t>::min()};
    case 7:
      return std::vector<double>{positive(random, 1), -1.5};
    default:
      return std::vector<bool>{coin(random), coin(random)};
  }
}

}  // namespace

Graph sample_graph() {
  Graph graph;
  graph.name = "mlp:layers=2";
  graph.inputs = {"images", "labels"};
  graph.outputs = {"loss", "scores"};
  graph.values = {{"images", {"float32", {4, 8}}},  {"labels", {"int64", {4}}},
                  {"hidden", {"float32", {4, 16}}}, {"active", {"float32", {4, 16}}},
                  {"scores", {"float32", {4, 3}}},  {"loss", {"float32", {}}}};
  graph.parameters = {{"fc1.weight", {"float32", {16, 8}}, true},
                      {"fc1.bias", {"float32", {16}}, true},
                      {"fc2.weight", {"float32", {3, 16}}, true}};
  graph.nodes = {
      {"linear",
       "aten::linear",
       "",
       {{"input", TensorArgument{"images"}},
        {"weight", TensorArgument{"fc1.weight"}},
        {"bias", TensorArgument{"fc1.bias"}}},
       {"hidden"},
       "fc1"},
      {"relu", "aten::relu", "", {{"self", TensorArgument{"hidden"}}}, {"active"}, "relu"},
      {"linear_1",
       "aten::linear",
       "",
       {{"input", TensorArgument{"active"}},
        {"weight", TensorArgument{"fc2.weight"}},
        {"bias", NoneArgument{}}},
       {"scores"},
       "fc2"},
      {"cross_entropy",
       "aten::cross_entropy_loss",
       "",
       {{"self", TensorArgument{"scores"}}, {"target", TensorArgument{"labels"}}},
       {"loss"},
       "loss"},
  };
  return graph;
}

Profile sample_profile() {
  const Graph graph = sample_graph();
  Profile profile;
  profile.model = graph.name;
  profile.graph_digest = document_digest(graph);
  profile.minibatch_samples = 4;
  profile.device = "cpu";
  profile.threads = 1;
  profile.provenance = {{"pipewright", "0.1.0"}, {"repeats", "20"}};
  profile.input_seconds = 2e-5;
  profile.nodes = {
      {"linear",
       "fc1",
       {"images"},
       {{"hidden", 256}},
       1.25e-5,
       0,
       1.5e-5,
       0.02,
       256,
       576,
       576,
       0,
       {"fc1.weight", "fc1.bias"}},
      {"relu", "relu", {"hidden"}, {{"active", 256}}, 3e-6, 2.5e-6, 0, 0.05, 256, 0, 0, 0, {}},
      {"linear_1",
       "fc2",
       {"active"},
       {{"scores", 48}},
       8e-6,
       7e-6,
       6.5e-6,
       0.01,
       0,
       192,
       192,
       0,
       {"fc2.weight"}},
      {"cross_entropy", "loss", {"scores", "labels"}, {{"loss", 4}}, 6e-6, 5e-6, 0, 0.04, 52, 0, 0, 0, {}},
  };
  profile.whole = {2.8e-5, 3.4e-5, 1e-6};
  return profile;
}

Topology sample_topology() {
  Topology topology;
  topology.levels = {{2, 12e9, 5e-6, false}, {2, 1.25e9, 5e-5, true}};
  topology.memory_bytes = int64_t{16} << 30;
  for (int i = 0; i < 4; ++i)
    topology.devices.push_back(
        {i < 2 ? "node-a" : "node-b", i == 3 ? 0.5 : 1.0, int64_t{16} << 30, i == 2 ? "slow" : ""});
  return topology;
}

Plan sample_plan() {
  Plan plan;
  plan.model = "mlp:layers=2";
  plan.graph_digest = document_digest(sample_graph());
  plan.profile_digest = document_digest(sample_profile());
  plan.topology_digest = document_digest(sample_topology());
  plan.strategy = "hybrid";
  plan.world_size = 3;
  plan.stages = {{{"fc1", "relu"}, {"linear", "relu"}, {0, 1}, 2, {}, {}, false},
                 {{"fc2", "loss"}, {"linear_1", "cross_entropy"}, {2}, 1, {}, {}, false}};
  Prediction prediction;
  prediction.minibatch_seconds = 3.25e-5;
  prediction.bottleneck = "stage 1: compute";
  prediction.lower_bound_seconds = 2.1e-5;
  prediction.samples_per_second = 123076.9230769231;
  StagePrediction first{3.3e-5, 2e-7, 2e-7, 4e-7, 1e-6, {576, 576, 576, 0, 1024, 512, 256}};
  StagePrediction second{3.25e-5, 2e-7, 2e-7, 0, 1e-6, {192, 0, 192, 0, 100, 512, 256}};
  prediction.stages = {first, second};
  plan.predicted = prediction;
  return plan;
}

Run sample_run() {
  Run run;
  run.model = "mlp:layers=2";
  run.plan = "plans/gpus=3.json";
  run.data = "synthetic-images:samples=4096";
  run.evaluation_data = "synthetic-images:samples=512,seed=1";
  run.batch_size = 4;
  run.optimizer.momentum = 0.9;
  run.optimizer.nesterov = true;
  run.optimizer.no_decay = "bias";
  run.optimizer.parameter_groups = {{"^layers[.]2[.]", 10, {}}, {"weight$", 0.5, 0.0001}};
  run.learning_rate_policy.name = "step";
  return run;
}

Summary sample_summary() {
  Summary summary;
  summary.status = "done";
  summary.world_size = 3;
  summary.strategy = "hybrid";
  summary.schedule = "1f1b";
  summary.weights = "stash";
  summary.minibatches = 1024;
  summary.samples = 4096;
  summary.cores = 2;
  summary.wall_seconds = 0.0521;
  summary.minibatch_seconds = 3.4e-5;
  summary.samples_per_second = 117647.0588235294;
  summary.predicted_minibatch_seconds = 3.25e-5;
  summary.minibatch_flops = 5120;
  summary.flops_per_second = 150588235.29411766;
  summary.train_loss = 0.6931471805599453;
  summary.evaluation = EvaluationSummary{0.7, 0.515625, 512};
  summary.evaluation->top5 = 0.96875;
  summary.sync = SyncSummary{"partial-reduce:window=4", 2, {3, 9}, 1, 3.5};
  summary.ranks = {{0, 0, 0, "node-a", 0.91, 1e-3, 2e-4, 4096, 3264, 262144, 2, 3, 512},
                   {1, 0, 1, "node-a", 0.90, 2e-3, 3e-4, 4096, 3264, 262144, 2, 3, 512},
                   {2, 1, 0, "node-b", 0.99, 1e-4, 0, 1200, 996, 262144, 1, 1, 1024}};
  for (RankSummary& rank : summary.ranks) {
    const bool first = rank.stage == 0;
    rank.memory = first ? MeasuredMemory{512, 1024, 640, 512, 1024, 256, 128}
                        : MeasuredMemory{96, 0, 200, 96, 640, 160, 8};
    rank.cuda_graphs = first ? "not used: the device is 'cpu', which has none" : "";
    rank.weights_digest = first ? "xxh128:000102030405060708090a0b0c0d0e0f" : "";
    rank.times = MeasuredTimes{first ? 512 : 1024, 0.05, 0.046, 1e-3, 0.044};
    rank.predicted_memory =
        first ? StageMemory{512, 1024, 512, 512, 512, 128, 64} : StageMemory{96, 0, 96, 96, 512, 132, 64};
  }
  return summary;
}

Graph random_graph(std::mt19937_64& random) {
  Graph graph;
  graph.name = odd_text(random);
  std::vector<std::string> tensors;
  const auto fresh = [&](const char* kind) {
    tensors.push_back(kind + std::to_string(tensors.size()) + odd_text(random));
    return tensors.back();
  };
  for (int64_t i = below(random, 3); i >= 0; --i) {
    graph.inputs.push_back(fresh("in"));
    graph.values.emplace(graph.inputs.back(), random_type(random));
  }
  for (int64_t i = below(random, 4); i > 0; --i)
    graph.parameters.push_back({fresh("p"), random_type(random), coin(random)});
  for (int64_t i = below(random, 3); i > 0; --i) graph.buffers.push_back({fresh("b"), random_type(random)});
  for (int64_t i = 0, count = 1 + below(random, 8); i < count; ++i) {
    Node node;
    node.name = "node" + std::to_string(i) + odd_text(random);
    node.op = "aten::" + odd_text(random);
    node.overload = coin(random) ? "Tensor" : "";
    node.layer = odd_text(random);
    for (int64_t a = 0, arguments = 1 + below(random, 5); a < arguments; ++a) {
      const std::string key = "a" + std::to_string(a);
      if (coin(random)) {
        node.arguments.emplace_back(key, TensorArgument{pick(random, tensors)});
      } else if (below(random, 4) == 0) {
        node.arguments.emplace_back(key, TensorsArgument{{pick(random, tensors), pick(random, tensors)}});
      } else {
        node.arguments.emplace_back(key, random_plain_argument(random));
      }
    }
    for (int64_t o = below(random, 2); o >= 0; --o) {
      const std::string name = fresh("v");
      node.outputs.push_back(name);
      graph.values.emplace(name, random_type(random));
    }
    graph.nodes.push_back(std::move(node));
  }
  graph.outputs = {graph.nodes.back().outputs.front()};
  for (Node& node : graph.nodes) {
    node.gradient = below(random, 4) > 0;
    static const std::vector<std::string> autocasts = {"", "", "off", "bfloat16", "float16"};
    node.autocast = pick(random, autocasts);
  }
  if (graph.nodes.size() > 3 && coin(random))
    graph.together = {{graph.nodes[0].name, graph.nodes[2].name}, {graph.nodes[1].name, graph.nodes[3].name}};
  return graph;
}

Profile random_profile(std::mt19937_64& random) {
  Profile profile;
  profile.model = odd_text(random);
  profile.graph_digest = coin(random) ? "" : digest_of(odd_text(random));
  profile.minibatch_samples = below(random, 1000);
  profile.device = "cpu";
  profile.threads = 1 + below(random, 8);
  for (int64_t i = below(random, 3); i > 0; --i)
    profile.provenance.emplace_back(std::to_string(i), odd_text(random));
  profile.input_seconds = positive(random, 1e3);
  std::vector<std::string> values = {"input 0", "input 1"};
  for (int64_t i = 0, count = 1 + below(random, 10); i < count; ++i) {
    ProfiledNode node;
    node.name = std::to_string(i) + odd_text(random);
    node.layer = odd_text(random);
    for (int64_t k = below(random, 3); k > 0; --k) node.inputs.push_back(pick(random, values));
    for (int64_t k = below(random, 3); k > 0; --k) {
      node.outputs.push_back({"v" + std::to_string(values.size()) + odd_text(random), bytes(random)});
      values.push_back(node.outputs.back().name);
    }
    node.forward_seconds = positive(random, 1e3);
    node.backward_input_seconds = positive(random, 1e3);
    node.backward_weight_seconds = positive(random, 1e3);
    node.spread = positive(random, 2);
    node.saved_bytes = bytes(random);
    if (coin(random)) node.keeps = {odd_text(random)};
    node.parameter_bytes = bytes(random);
    node.trainable_parameter_bytes = below(random, node.parameter_bytes + 1);
    node.buffer_bytes = bytes(random);
    if (coin(random)) node.parameters = {odd_text(random)};
    if (coin(random)) {
      node.forward_launch_seconds = positive(random, 1e3);
      node.backward_launch_seconds = positive(random, 1e3);
    }
    if (coin(random)) {
      node.forward_gap_seconds = positive(random, 1e3);
      node.backward_gap_seconds = positive(random, 1e3);
    }
    profile.nodes.push_back(std::move(node));
  }
  profile.whole = {positive(random, 1e3), positive(random, 1e3), positive(random, 1e3)};
  if (coin(random)) {
    profile.whole.forward_launch_seconds = positive(random, 1e3);
    profile.whole.backward_launch_seconds = positive(random, 1e3);
  }
  if (coin(random)) profile.whole.allocated_bytes = bytes(random);
  if (coin(random)) profile.whole.library_bytes = bytes(random);
  if (coin(random)) profile.whole.input_bytes = bytes(random);
  if (coin(random)) profile.whole.uploaded_bytes = bytes(random);
  if (coin(random)) profile.whole.host_cores = 1 + below(random, 64);
  if (coin(random)) profile.whole.known_within = positive(random, 1);
  if (profile.nodes.size() > 2 && coin(random))
    profile.together = {{profile.nodes[0].name, profile.nodes[2].name}};
  return profile;
}

Topology random_topology(std::mt19937_64& random) {
  Topology topology;
  for (int64_t i = below(random, 3); i >= 0; --i) {
    topology.levels.push_back(
        {1 + below(random, 4), 1 + positive(random, 1e12), positive(random, 1), coin(random)});
    if (coin(random)) continue;
    TopologyLevel& level = topology.levels.back();
    level.exchange_bytes_per_second = positive(random, 1e12);
    level.buffered_bytes = bytes(random);
    level.core_seconds_per_message = positive(random, 1);
    level.core_seconds_per_byte = positive(random, 1e-9);
    level.both_ways_bytes_per_second = positive(random, 1e12);
    for (int64_t size = 1 + below(random, 8); size < 1000; size *= 3 + below(random, 9))
      level.messages.push_back({size, positive(random, 1), fraction(random)});
    level.exchanges = level.messages;
  }
  topology.memory_bytes = bytes(random);
  if (coin(random)) {
    for (int64_t i = topology.device_count(); i > 0; --i) {
      topology.devices.push_back({odd_text(random), 0.1 + fraction(random), bytes(random)});
    }
  }
  if (coin(random)) {
    const auto factor = [&] { return 1 + fraction(random); };
    topology.factors = {factor(), factor(), factor(), factor(), factor(), 1 + below(random, 90)};
  }
  if (coin(random)) topology.cores = {1 + below(random, 9), 1 + below(random, 9)};
  return topology;
}

Plan random_plan(std::mt19937_64& random) {
  Plan plan;
  plan.model = odd_text(random);
  if (coin(random)) plan.graph_digest = digest_of("g");
  if (coin(random)) plan.profile_digest = digest_of("p");
  if (coin(random)) plan.topology_digest = digest_of("t");
  if (coin(random)) plan.device_passes = "none";
  plan.strategy = pick<std::string>(
      random, {"best", "dp", "straight", "hybrid", "model-parallel", "inference", "manual"});
  plan.weights = pick<std::string>(random, {"stash", "vertical", "2bw", "flush"});
  plan.microbatches = 1 + below(random, 8);
  int64_t node = 0;
  for (int64_t s = 0, count = 1 + below(random, 5); s < count; ++s) {
    Stage stage;
    for (int64_t i = below(random, 4); i >= 0; --i)
      stage.nodes.push_back(std::to_string(node++) + odd_text(random));
    if (coin(random)) stage.layers = {odd_text(random)};
    for (int64_t i = below(random, 4); i >= 0; --i) stage.ranks.push_back(plan.world_size++);
    stage.in_flight = 1 + below(random, 10);
    if (stage.ranks.size() > 1 && coin(random))
      for (size_t q = 0; q < stage.ranks.size(); ++q) stage.split.push_back(1 + below(random, 5));
    stage.recompute = coin(random);
    if (stage.recompute && coin(random))
      stage.recompute_ratio = static_cast<double>(1 + below(random, 9)) / 10;
    plan.stages.push_back(std::move(stage));
  }
  if (coin(random)) {
    plan.frozen_layers = 1 + below(random, 30);
    const auto stages = static_cast<int64_t>(plan.stages.size());
    for (int64_t s = 0, count = below(random, stages); s < count; ++s)
      plan.stages[static_cast<size_t>(s)].frozen = true;
  }
  std::swap(plan.stages.front().ranks.front(), plan.stages.back().ranks.back());
  if (coin(random)) {
    plan.predicted.emplace();
    plan.predicted->minibatch_seconds = positive(random, 1e3);
    plan.predicted->bottleneck = odd_text(random);
    plan.predicted->samples_per_second = positive(random, 1e6);
    if (coin(random)) plan.predicted->shared_cores = 1 + below(random, 9);
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      plan.predicted->stages.push_back({positive(random, 1e3),
                                        positive(random, 1),
                                        positive(random, 1),
                                        positive(random, 1),
                                        positive(random, 1),
                                        {bytes(random), bytes(random), bytes(random), bytes(random),
                                         bytes(random), bytes(random), bytes(random)}});
    }
  }
  return plan;
}

Run random_run(std::mt19937_64& random) {
  Run run = sample_run();
  run.model = odd_text(random);
  run.data = odd_text(random);
  run.batch_size = 1 + below(random, 1000);
  run.minibatches = below(random, 1000);
  run.optimizer.name =
      pick<std::string>(random, {"sgd", "adam", "adamw", "nadam", "lion", "muon", "adafactor"});
  run.optimizer.learning_rate = positive(random, 1);
  run.optimizer.delay_correction = pick<std::string>(random, {"none", "error-feedback", "dc", "pipemare-t1"});
  run.optimizer.weight_decay = positive(random, 1);
  run.optimizer.beta1 = fraction(random);
  run.learning_rate_policy.name =
      pick<std::string>(random, {"constant", "step", "polynomial", "exponential", "cosine"});
  run.learning_rate_policy.warmup_minibatches = below(random, 100);
  if (run.learning_rate_policy.name == "cosine") {
    run.learning_rate_policy.constant_minibatches = below(random, 100);
    run.learning_rate_policy.decay_minibatches = below(random, 100);
    run.learning_rate_policy.lowest_learning_rate = run.optimizer.learning_rate / 2;
  }
  run.learning_rate_policy.gamma = fraction(random);
  run.seed = below(random, std::numeric_limits<int64_t>::max());
  return run;
}

Summary random_summary(std::mt19937_64& random) {
  Summary summary = sample_summary();
  summary.status = pick<std::string>(random, {"done", "interrupted", "failed"});
  summary.cores = static_cast<int64_t>(positive(random, 64));
  if (coin(random)) summary.first_minibatch = below(random, summary.minibatches + 1);
  summary.wall_seconds = positive(random, 1e6);
  summary.train_loss = coin(random) ? positive(random, 100) : std::numeric_limits<double>::quiet_NaN();
  if (coin(random)) {
    summary.evaluation->top1 = std::numeric_limits<double>::quiet_NaN();
    summary.evaluation->top5 = std::numeric_limits<double>::quiet_NaN();
  } else if (coin(random)) {
    summary.evaluation.reset();
  }
  if (coin(random)) summary.sync.reset();
  for (RankSummary& rank : summary.ranks) {
    rank.busy_fraction = fraction(random);
    rank.peak_memory_bytes = bytes(random);
    rank.sent_bytes = bytes(random);
    if (coin(random)) rank.peak_resident_bytes = bytes(random);
    if (coin(random)) rank.cached_bytes = bytes(random);
    if (coin(random)) rank.times->cpu_seconds = positive(random, 1e6);
    if (coin(random)) rank.times.reset();
  }
  return summary;
}

}  // namespace pipewright::testing
