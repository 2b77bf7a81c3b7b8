// Programs drawn at random, under plans drawn at random, evaluated between their updates: what is not refused
// computes what one device does on the whole batch, up to the order of sums. PIPEWRIGHT_PROGRAM_CASES says
// how many, PIPEWRIGHT_PROGRAM_SEED where they begin.
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>

#include "graph/error.h"
#include "models/initialise.h"
#include "models/run/batch_analysis.h"
#include "models/run/device_passes.h"
#include "models/safetensors/safetensors.h"
#include "models/zoo/registry.h"
#include "runtime/generation/evaluation.h"
#include "runtime/stage/loss_shares.h"
#include "tests/runtime/batch_values.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_programs.h"
#include "tests/support/long.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

constexpr double kRate = 0.1;

int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// One device that knows no plan: the graph from its first node to its last, and plain SGD.
class OneDevice {
 public:
  explicit OneDevice(const Model& model, uint64_t seed) : model_(model) {
    for (const Parameter& parameter : model.graph.parameters)
      weights_[parameter.name] = initial_parameter(model, parameter.name, seed).requires_grad_(true);
    for (const Buffer& buffer : model.graph.buffers)
      buffers_[buffer.name] = initial_buffer(model, buffer.name);
  }

  // Returns the mean of the losses of `minibatches`, of which one update is made.
  double train(const std::vector<MinibatchFields>& minibatches) {
    at::Tensor sum;
    for (const MinibatchFields& fields : minibatches) {
      const at::Tensor loss = forward(fields);
      sum = sum.defined() ? sum + loss : loss;
    }
    sum = sum / static_cast<double>(minibatches.size());
    std::vector<at::Tensor> leaves;
    for (const auto& [name, weight] : weights_) leaves.push_back(weight);
    const auto gradients = torch::autograd::grad({sum}, leaves, {}, {}, false, /*allow_unused=*/true);
    const at::NoGradGuard no_grad;
    size_t i = 0;
    for (auto& [name, weight] : weights_) {
      const at::Tensor& gradient = gradients[i++];
      if (gradient.defined()) weight = (weight - kRate * gradient).detach().requires_grad_(true);
    }
    return sum.item<double>();
  }

  double evaluate(const MinibatchFields& fields) {
    const at::NoGradGuard no_grad;
    return forward(fields, /*training=*/false).item<double>();
  }

  const std::map<std::string, at::Tensor>& weights() const { return weights_; }

 private:
  at::Tensor forward(const MinibatchFields& fields, bool training = true) {
    const int64_t samples = fields.begin()->second.size(0);
    Graph graph = model_.graph_for(samples);
    if (!training) graph = evaluation_graph(graph);
    const Segment segment(graph, every_node(graph), graph.outputs, at::kCPU,
                          training ? 0 : graph.nodes.size());
    std::vector<at::Tensor> inputs, parameters, buffers;
    for (const auto& name : segment.inputs()) inputs.push_back(fields.at(name));
    for (const auto& name : segment.parameters()) parameters.push_back(weights_.at(name));
    for (const auto& name : segment.buffers()) buffers.push_back(buffers_.at(name));
    return segment.forward(inputs, parameters, buffers, {})[0];
  }

  Model model_;
  std::map<std::string, at::Tensor> weights_, buffers_;
};

struct Case {
  int64_t samples = 0, rounds = 2;
  int64_t minibatches_of_update = 1;
  bool one_batch = false;  // all minibatches of an update are one batch of one device
  Plan plan;
  TrainingRules rules;
};

// Stages of about equal numbers of nodes that keep together what has to be.
Plan cut(const Model& model, RandomProgram& random, int64_t stages) {
  const Graph& graph = model.graph;
  std::map<std::string, size_t> position;
  for (size_t i = 0; i < graph.nodes.size(); ++i) position[graph.nodes[i].name] = i;
  std::vector<bool> may_begin(graph.nodes.size(), true);
  for (const auto& set : graph.together) {
    size_t first = graph.nodes.size(), last = 0;
    for (const std::string& name : set) {
      first = std::min(first, position.at(name));
      last = std::max(last, position.at(name));
    }
    for (size_t i = first + 1; i <= last; ++i) may_begin[i] = false;
  }
  std::vector<size_t> begins;
  for (size_t i = 1; i < may_begin.size(); ++i)
    if (may_begin[i]) begins.push_back(i);
  std::set<size_t> cuts;
  for (int64_t s = 1; s < stages && !begins.empty(); ++s)
    cuts.insert(begins[static_cast<size_t>(random.between(0, static_cast<int64_t>(begins.size()) - 1))]);
  Plan plan;
  plan.model = graph.name;
  plan.strategy = "manual";
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (i == 0 || cuts.count(i) > 0) plan.stages.emplace_back();
    plan.stages.back().nodes.push_back(graph.nodes[i].name);
  }
  return plan;
}

Case draw_case(RandomProgram& random, const Model& model, int64_t samples) {
  Case drawn;
  drawn.samples = samples;
  drawn.rules.optimizer.learning_rate = kRate;
  drawn.rules.nan_guard = false;
  const int64_t kind = random.between(0, 3);
  Plan& plan = drawn.plan = cut(model, random, random.between(1, 3));
  // Replicas that split minibatches; a mean of minibatches; a mean of labels; both.
  const bool splits = kind == 0 || kind == 3, several = kind != 0, labels = kind >= 2;
  if (several) {
    drawn.minibatches_of_update = random.between(2, 3);
    plan.schedule = random.chance(50) ? "gpipe" : "1f1b-flush";
    plan.weights = "flush";
    plan.microbatches = drawn.minibatches_of_update;
  } else {
    plan.schedule = "model-parallel";
  }
  if (labels) drawn.rules.loss_average = "labels";
  drawn.one_batch = labels;
  for (Stage& stage : plan.stages) {
    const bool shared = splits && random.chance(70);
    const int64_t replicas = shared ? random.between(2, 3) : several ? random.between(1, 2) : 1;
    for (int64_t q = 0; q < replicas; ++q) stage.ranks.push_back(plan.world_size++);
    if (shared)
      for (int64_t q = 0; q < replicas; ++q) stage.split.push_back(random.between(1, 2));
    stage.in_flight = plan.schedule == std::string("gpipe") ? plan.microbatches : several ? 2 : 1;
    stage.recompute = random.chance(30);
  }
  return drawn;
}

std::vector<MinibatchFields> draw_minibatches(RandomProgram& random, const Graph& graph, int64_t count) {
  std::vector<MinibatchFields> minibatches(static_cast<size_t>(count));
  for (MinibatchFields& fields : minibatches) {
    for (const std::string& name : graph.inputs) {
      const TensorType& type = graph.values.at(name);
      if (type.dtype != "int64") {
        fields[name] = at::randn(type.shape, at::kDouble);
        continue;
      }
      // Unequal numbers of each class, so that those that are ignored are.
      at::Tensor labels = at::randint(RandomProgram::kClasses, type.shape, at::kLong);
      const at::Tensor some = at::rand(type.shape).lt(0.2 * static_cast<double>(random.between(0, 4)));
      fields[name] = labels.masked_fill(some, random.between(0, 2));
    }
  }
  return minibatches;
}

MinibatchFields joined(const std::vector<MinibatchFields>& minibatches) {
  MinibatchFields all;
  for (const auto& [name, first] : minibatches[0]) {
    std::vector<at::Tensor> pieces;
    for (const MinibatchFields& each : minibatches) pieces.push_back(each.at(name));
    all[name] = at::cat(pieces);
  }
  return all;
}

// Whether samples meet nowhere, so that minibatches are one batch.
bool keeps_samples_apart(const Model& model, int64_t samples) {
  const auto found = analyse_batch(model.graph, model.graph_for(samples - 1), every_node(model.graph));
  return found.values.at(model.graph.outputs[0]).is_linear();
}

// Without the names of nodes.
std::string reason_of(const std::string& text) {
  std::string reason;
  bool quoted = false;
  for (const char c : text) {
    if (c == '\'') quoted = !quoted;
    if (!quoted && (std::isdigit(static_cast<unsigned char>(c)) == 0)) reason += c;
  }
  return reason;
}

// Evaluations before every span and behind the last one.
class Evaluations {
 public:
  Evaluations(RandomProgram& random, const Model& model, const Plan& plan, int64_t batch)
      : model_(model), plan_(plan) {
    run_.batch_size = batch;
    // A short minibatch at the end, as a rule.
    const int64_t samples = batch * random.between(1, 2) + random.between(0, batch - 1);
    Graph graph = model.graph_for(samples);
    samples_ = draw_minibatches(random, graph, 1)[0];
    NamedTensors tensors(samples_.begin(), samples_.end());
    write_safetensors(folder_ / "samples.safetensors", std::move(tensors), {});
    data_ = open_dataset("tensors:file=" + (folder_ / "samples.safetensors").string(), "evaluation");
  }

  RankExtras extras(size_t spans) {
    RankExtras extras;
    extras.before_span = [this](Worker& worker, size_t number) { evaluate(worker, number); };
    extras.finish = [this, spans](Worker& worker) { evaluate(worker, spans); };
    return extras;
  }

  // `device` was trained as far as before evaluation `number`.
  void check(size_t number, OneDevice& device) const {
    const auto& minibatches = evaluated_.at(number);
    const int64_t all = samples_.begin()->second.size(0);
    CHECK(static_cast<int64_t>(minibatches.size()) == (all + run_.batch_size - 1) / run_.batch_size);
    for (const auto& [k, minibatch] : minibatches) {
      const double expected = device.evaluate(part(k * run_.batch_size, minibatch.samples));
      INFO("minibatch " << k << ": " << minibatch.loss << ", one device " << expected);
      CHECK(same(minibatch.loss, expected));
    }
    if (!is_one_mean()) return;
    const double expected = device.evaluate(samples_);
    const double loss = summary_of(minibatches).loss;
    const bool lost = std::any_of(minibatches.begin(), minibatches.end(), [](const auto& of) {
      return std::any_of(of.second.terms.begin(), of.second.terms.end(),
                         [](const auto& term) { return std::isnan(term.divisor); });
    });
    if (lost) {
      CHECK(std::isnan(loss));
      return;
    }
    INFO("all samples: " << loss << ", one device " << expected);
    CHECK(same(loss, expected));
  }

 private:
  void evaluate(Worker& worker, size_t number) {
    Evaluation evaluation(run_, model_, plan_, *data_, worker);
    evaluation.run({}, {}, [&](const EvaluatedMinibatch& done, const at::Tensor&) {
      const std::lock_guard lock(mutex_);
      evaluated_[number][done.minibatch] =
          EvaluatedMinibatch::from_json(parse_json(done.to_json().dump(), "line"));
    });
  }
  MinibatchFields part(int64_t first, int64_t count) const {
    MinibatchFields fields;
    for (const auto& [name, tensor] : samples_) fields[name] = tensor.narrow(0, first, count);
    return fields;
  }
  // The loss of all samples as one minibatch follows from those of several.
  bool is_one_mean() const {
    const Graph whole = evaluation_graph(model_.graph),
                part = evaluation_graph(model_.graph_for(2 * run_.batch_size));
    const BatchAnalysis found = analyse_batch(whole, part, every_node(whole));
    const auto follows = [&](const std::string& value) {
      const BatchRelation& relation = found.values.at(value);
      return relation.is_linear() || relation.is(BatchRelation::Kind::kWhole);
    };
    const std::string& loss = whole.outputs[0];
    if (follows(loss)) return true;
    for (const Node& node : whole.nodes) {
      const auto read = node.reads();
      if (node.outputs[0] == loss && node.op == "aten::add")
        return std::all_of(read.begin(), read.end(), [&](const auto& name) { return follows(name); });
    }
    return false;
  }
  static bool same(double a, double b) {
    return (std::isnan(a) && !std::isfinite(b)) || a == b ||
           std::abs(a - b) <= 1e-7 * std::max(1.0, std::abs(b));
  }

  const Model& model_;
  const Plan& plan_;
  Run run_;
  TemporaryFolder folder_;
  MinibatchFields samples_;
  std::unique_ptr<Dataset> data_;
  std::mutex mutex_;
  std::map<size_t, std::map<int64_t, EvaluatedMinibatch>> evaluated_;  // by evaluation and minibatch
};

// Operators run in another way, in all ways that a GPU has for this program; one device runs them as they
// are.
Model with_passes(Model model) {
  const auto passed = [](const Graph& graph) {
    return with_device_passes(graph, "auto", "bfloat16", at::Device(at::kCUDA, 0));
  };
  model.graph = passed(model.graph);
  model.graph_for = [passed, graph_for = model.graph_for](int64_t samples) {
    return passed(graph_for(samples));
  };
  return model;
}

struct Counts {
  int64_t compared = 0, split = 0, averaged = 0, evaluated = 0;
  std::map<std::string, int64_t> refused, losses;
};

void try_program(uint64_t seed, Counts& counts) {
  RandomProgram random(seed);
  const int64_t samples = random.between(3, 7);
  const Model program = random.model(samples);
  Case drawn = draw_case(random, program, samples);
  const bool passes = random.chance(50);
  const Model model = passes ? with_passes(program) : program;
  tie(drawn.plan, model.graph);
  if (!drawn.plan.tied_parameters.empty() && drawn.plan.weights != "flush")
    drawn.plan = with_schedule(drawn.plan, "1f1b-flush", "flush");
  CAPTURE(seed, random.loss_kind(), drawn.plan.shape_text(), drawn.plan.schedule, drawn.rules.loss_average,
          passes);
  try {
    drawn.plan.validate("drawn");
    check_plan_for_graph(drawn.plan, model.graph);
    check_split_model(model, drawn.plan);
    const LossShares shares(model, drawn.plan, drawn.rules.loss_average, 1);
  } catch (const PlanError& error) {
    ++counts.refused[reason_of(error.what())];
    return;
  }
  const int64_t count = drawn.rounds * drawn.minibatches_of_update;
  std::vector<Span> spans;
  for (int64_t round = 0; round < drawn.rounds; ++round)
    spans.push_back({round * drawn.minibatches_of_update, drawn.minibatches_of_update});
  drawn.rules.total_minibatches = count;
  const auto minibatches = draw_minibatches(random, model.graph, count);
  std::optional<Evaluations> evaluations;
  if (random.chance(50)) evaluations.emplace(random, model, drawn.plan, samples);
  PipelineRun run;
  try {
    run = run_pipeline(model, drawn.plan, drawn.rules, spans, minibatches,
                       make_world("local", drawn.plan.world_size), {},
                       evaluations ? evaluations->extras(spans.size()) : RankExtras());
  } catch (const RunError& error) {
    ++counts.refused[reason_of(error.what())];
    CHECK_THAT(error.what(), Catch::Contains("what the loss divides by is 0 in"));
    return;
  }
  const ReferenceResult serial = train_serially(
      model, drawn.plan, drawn.rules, spans, [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 0, 0, true); };
  for (const auto& [name, replicas] : run.weights)
    for (const at::Tensor& weight : replicas) CHECK(same(weight, serial.weights.at(name)));

  // A counter counts minibatches: of one batch it is another.
  if (drawn.one_batch && (!model.graph.buffers.empty() || !keeps_samples_apart(model, samples))) return;
  // Replicas have buffers of their own, which programs that keep statistics read.
  const bool in_turns =
      std::any_of(drawn.plan.stages.begin(), drawn.plan.stages.end(),
                  [](const Stage& stage) { return stage.ranks.size() > 1 && !stage.splits(); });
  if (in_turns && !model.graph.buffers.empty()) return;
  OneDevice device(program, 0);
  for (int64_t round = 0; round < drawn.rounds; ++round) {
    std::vector<MinibatchFields> of_update(minibatches.begin() + round * drawn.minibatches_of_update,
                                           minibatches.begin() + (round + 1) * drawn.minibatches_of_update);
    if (drawn.one_batch) of_update = {joined(of_update)};
    if (evaluations) evaluations->check(static_cast<size_t>(round), device);
    device.train(of_update);
  }
  if (evaluations) evaluations->check(static_cast<size_t>(drawn.rounds), device);
  for (const auto& [name, weight] : device.weights()) {
    // Of 1 / 0 the parts of a minibatch may make 0 / 0.
    const auto finite_or_nan = [](const at::Tensor& of) { return of.masked_fill(of.isinf(), std::nan("")); };
    const at::Tensor trained = finite_or_nan(run.weights.at(name)[0]), expected = finite_or_nan(weight);
    INFO(name << " is off by " << (expected - trained).abs().max().item<double>());
    CHECK(at::allclose(expected, trained, 1e-8, 1e-9, /*equal_nan=*/true));
  }
  ++counts.compared;
  if (evaluations) ++counts.evaluated;
  ++counts.losses[random.loss_kind()];
  if (drawn.rules.loss_average == "labels") ++counts.averaged;
  counts.split += std::any_of(drawn.plan.stages.begin(), drawn.plan.stages.end(),
                              [](const Stage& stage) { return stage.splits(); });
}

TEST_CASE("programs: every value is to the samples what the analysis says") {
  at::set_num_threads(1);
  std::map<BatchRelation::Kind, int64_t> counts;
  for (uint64_t seed = 0; seed < (is_long() ? 2000 : 150); ++seed) {
    RandomProgram random(100000 + seed);
    const int64_t samples = random.between(3, 7);
    const Model model = random.model(samples);
    CAPTURE(seed, random.loss_kind());
    const auto fields = draw_minibatches(random, model.graph, 1)[0];
    for (const auto& [kind, count] :
         check_batch_values(model, model.graph_for, fields, samples, random.between(1, samples - 1), 1e-9))
      counts[kind] += count;
  }
  for (const auto kind : {BatchRelation::Kind::kWhole, BatchRelation::Kind::kRows, BatchRelation::Kind::kSum,
                          BatchRelation::Kind::kAverage, BatchRelation::Kind::kMixed})
    CHECK(counts[kind] > 0);
}

// In evaluation they draw nothing and norms have their statistics.
TEST_CASE("programs: the models of the zoo keep samples apart, value by value") {
  at::set_num_threads(1);
  for (const char* spec : {"gpt:layers=1,width=16,heads=2,tokens=6,vocabulary=32", "convnet:width=4,image=16",
                           "mlp:layers=2,width=8,image=8,channels=1",
                           "vit:image=28,patch=14,width=16,layers=1,heads=2,classes=5",
                           "bert:layers=1,width=16,heads=2,tokens=6,vocabulary=32",
                           "gnmt:layers=4,width=8,source=5,target=5,vocabulary=32",
                           "resnet18:image=32,classes=5", "mobilenet_v2:image=32,classes=5",
                           "squeezenet1_0:image=64,classes=5", "densenet121:image=32,classes=5"}) {
    const Model model = build_model(spec, 4);
    CAPTURE(spec);
    const auto fields = random_minibatches(model.graph, 1, 5)[0];
    const auto graphs = [&](int64_t samples) { return evaluation_graph(with_batch_size(model, samples)); };
    const auto counts = check_batch_values(model, graphs, fields, 4, 1, 1e-3);
    CHECK(counts.count(BatchRelation::Kind::kMixed) == 0);
  }
}

TEST_CASE("programs: what is not refused is what one device computes on the whole batch") {
  at::set_num_threads(1);
  const int64_t cases = number_of("PIPEWRIGHT_PROGRAM_CASES", is_long() ? 3000 : 200);
  const auto first = static_cast<uint64_t>(number_of("PIPEWRIGHT_PROGRAM_SEED", 1));
  Counts counts;
  for (int64_t i = 0; i < cases; ++i) try_program(first + static_cast<uint64_t>(i), counts);
  int64_t refused = 0;
  for (const auto& [reason, times] : counts.refused) refused += times;
  INFO(counts.compared << " compared, " << refused << " refused");
  CHECK(counts.compared > cases / 4);
  CHECK(counts.split > cases / 16);
  CHECK(counts.averaged > cases / 32);
  if (std::getenv("PIPEWRIGHT_PROGRAM_CASES") == nullptr) return;
  std::cout << cases << " programs: " << counts.compared << " compared, of these " << counts.split
            << " with split, " << counts.averaged << " by labels and " << counts.evaluated
            << " with evaluations; " << refused << " refused\n";
  for (const auto& [loss, times] : counts.losses) std::cout << "  compared " << times << ": " << loss << "\n";
  for (const auto& [reason, times] : counts.refused)
    std::cout << "  refused " << times << ": " << reason << "\n";
}

}  // namespace
}  // namespace pipewright::testing
