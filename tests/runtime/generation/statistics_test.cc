// Models that keep statistics of their own, by whatever writes buffers: an evaluation between two spans
// changes nothing that is trained, and every plan evaluates them alike.
#include <map>
#include <random>

#include "models/exported/storage_groups.h"
#include "models/run/storages.h"
#include "models/safetensors/safetensors.h"
#include "models/zoo/registry.h"
#include "runtime/generation/evaluation.h"
#include "tests/runtime/pipelines.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

constexpr int64_t kFeatures = 4;

TensorArgument value(const std::string& name) { return {name}; }

// features -> linear -> minus a statistic that random writes keep -> tanh -> linear -> cross entropy.
class Statistics {
 public:
  Statistics(uint32_t seed, int64_t batch) : random_(seed) {
    graph_.name = "statistics";
    graph_.inputs = {"features", "labels"};
    graph_.values = {{"features", {"float32", {batch, kFeatures}}}, {"labels", {"int64", {batch}}}};
    linear("first", "features", batch, kFeatures);
    graph_.buffers = {
        {"mean", {"float32", {kFeatures}}}, {"table", {"float32", {3, kFeatures}}}, {"steps", {"int64", {}}}};
    add("apart", "detach", "", {{"self", value("first")}}, {batch, kFeatures}, true);
    add("now", "mean", "dim", {{"self", value("apart")}, {"dim", std::vector<int64_t>{0}}}, {kFeatures});
    add("count", "add_", "Scalar", {{"self", value("steps")}, {"other", int64_t{1}}}, {}, false, "int64");
    add("row", "select", "int", {{"self", value("table")}, {"dim", int64_t{0}}, {"index", int64_t{2}}},
        {kFeatures});
    std::vector<std::string> rows = {"mean", "row"};
    for (int i = 0; i < 4; ++i)
      rows.push_back(write("write" + std::to_string(i), rows[random_() % rows.size()]));
    add("read", "add", "Tensor", {{"self", value(rows.back())}, {"other", value("mean")}}, {kFeatures});
    add("centred", "sub", "Tensor", {{"self", value("first")}, {"other", value("read")}}, {batch, kFeatures},
        true);
    add("squashed", "tanh", "", {{"self", value("centred")}}, {batch, kFeatures}, true);
    linear("second", "squashed", batch, 3);
    add("loss", "cross_entropy_loss", "", {{"self", value("second")}, {"target", value("labels")}}, {}, true);
    graph_.outputs = {"loss", "second"};
  }
  Graph graph() const { return with_storage_groups(graph_); }

 private:
  void add(const std::string& name, const std::string& op, const std::string& overload,
           std::vector<std::pair<std::string, Argument>> arguments, std::vector<int64_t> shape,
           bool gradient = false, const std::string& dtype = "float32") {
    Node node{name, "aten::" + op, overload, std::move(arguments), {name}, "layer"};
    node.gradient = gradient;
    graph_.nodes.push_back(std::move(node));
    graph_.values[name] = {dtype, std::move(shape)};
  }
  void linear(const std::string& name, const std::string& x, int64_t batch, int64_t features) {
    graph_.parameters.push_back({name + ".weight", {"float32", {features, kFeatures}}});
    graph_.parameters.push_back({name + ".bias", {"float32", {features}}});
    add(name, "linear", "",
        {{"input", value(x)}, {"weight", value(name + ".weight")}, {"bias", value(name + ".bias")}},
        {batch, features}, true);
  }
  // Returns what holds the statistic from now on.
  std::string write(const std::string& name, const std::string& into) {
    const std::vector<int64_t> shape = {kFeatures};
    switch (random_() % 6) {
      case 0:
        add(name + "_kept", "mul_", "Scalar", {{"self", value(into)}, {"other", 0.9}}, shape);
        add(name, "add_", "Tensor",
            {{"self", value(name + "_kept")}, {"other", value("now")}, {"alpha", 0.1}}, shape);
        return name;
      case 1:
        add(name, "lerp_", "Scalar", {{"self", value(into)}, {"end", value("now")}, {"weight", 0.25}}, shape);
        return name;
      case 2:
        add(name + "_next", "mul", "Tensor", {{"self", value(into)}, {"other", value("now")}}, shape);
        add(name, "copy_", "", {{"self", value(into)}, {"src", value(name + "_next")}}, shape);
        return name;
      case 3:
        add(name + "_half", "slice", "Tensor",
            {{"self", value(into)}, {"dim", int64_t{0}}, {"start", int64_t{0}}, {"end", int64_t{2}}}, {2});
        add(name + "_new", "slice", "Tensor",
            {{"self", value("now")}, {"dim", int64_t{0}}, {"start", int64_t{2}}, {"end", int64_t{4}}}, {2});
        add(name, "add_", "Tensor", {{"self", value(name + "_half")}, {"other", value(name + "_new")}}, {2});
        return into;
      case 4:
        add(name + "_places", "arange", "", {{"end", int64_t{4}}}, shape, false, "int64");
        add(name, "index_put_", "",
            {{"self", value(into)},
             {"indices", TensorsArgument{{name + "_places"}}},
             {"values", value("now")},
             {"accumulate", true}},
            shape);
        return name;
      default:
        add(name, "sub_", "Tensor", {{"self", value(into)}, {"other", value("now")}}, shape);
        return name;
    }
  }

  std::mt19937 random_;
  Graph graph_;
};

Model model_of(uint32_t seed, int64_t batch) {
  Model model;
  model.graph = Statistics(seed, batch).graph();
  for (size_t i = 0; i < model.graph.parameters.size(); ++i)
    model.parameter_initialisers.push_back(Initialiser::uniform(0.5));
  for (size_t i = 0; i < model.graph.buffers.size(); ++i)
    model.buffer_initialisers.push_back(Initialiser::constant(0));
  model.graph_for = [seed](int64_t samples) { return Statistics(seed, samples).graph(); };
  return model;
}

struct Trained {
  std::map<std::string, at::Tensor> tensors;              // weights and buffers
  std::vector<std::map<int64_t, std::string>> evaluated;  // by evaluation and minibatch
};

// Eight minibatches in spans of two, evaluated before each and at the end, or not.
Trained trained(const Run& run, const Model& model, const Plan& plan, const Dataset& data,
                const std::vector<MinibatchFields>& minibatches, bool evaluates) {
  Trained result;
  std::mutex mutex;
  const auto train = [&](int64_t rank, Transport* links) {
    at::set_num_threads(1);
    TrainingRules rules;
    rules.optimizer.learning_rate = 0.05;
    Worker worker(model, plan, rank, links, rules, nullptr, {});
    Evaluation evaluation(run, model, plan, data, worker);
    WorkerHooks hooks;
    hooks.fields = fields_from(minibatches, worker);
    const auto evaluate = [&](size_t number) {
      if (!evaluates) return;
      evaluation.run({}, {}, [&](const EvaluatedMinibatch& done, const at::Tensor&) {
        const std::lock_guard lock(mutex);
        result.evaluated.resize(std::max(result.evaluated.size(), number + 1));
        result.evaluated[number][done.minibatch] = done.to_json().dump();
      });
    };
    for (int64_t k = 0; k < 8; k += 2) {
      evaluate(static_cast<size_t>(k / 2));
      worker.train({k, 2}, hooks);
    }
    evaluate(4);
    const std::lock_guard lock(mutex);
    for (size_t n = 0; n < worker.stage_count(); ++n) {
      const StageReplica& stage = worker.stage(n);
      for (size_t i = 0; i < stage.weights().size(); ++i)
        result.tensors[stage.program().parameters()[i]] = stage.weights()[i].detach().clone();
      for (size_t i = 0; i < stage.buffers().size(); ++i)
        result.tensors[stage.program().buffers()[i]] = stage.buffers()[i].clone();
    }
  };
  if (plan.world_size == 1) {
    train(0, nullptr);
  } else {
    spawn(make_world("local", plan.world_size), [&](int64_t rank, Transport& links) { train(rank, &links); });
  }
  return result;
}

}  // namespace

TEST_CASE(
    "evaluation: buffers that training writes and reads are told from counters and running statistics") {
  int64_t read = 0;
  for (uint32_t seed = 0; seed < 25; ++seed) {
    CAPTURE(seed);
    const auto buffers = buffers_read_back(model_of(seed, 4).graph);
    CHECK(std::count(buffers.begin(), buffers.end(), "steps") == 0);
    read += std::count(buffers.begin(), buffers.end(), "mean");
  }
  CHECK(read > 10);
  CHECK(buffers_read_back(build_model("convnet:width=4,image=16", 4).graph).empty());
}

TEST_CASE(
    "evaluation: whatever writes a model's buffers, evaluations between spans change no bit of the "
    "training") {
  const TemporaryFolder folder;
  Run run;
  run.batch_size = 4;
  write_safetensors(folder / "data.safetensors",
                    {{"features", at::randn({10, kFeatures}, at::TensorOptions())},
                     {"labels", at::arange(10, at::TensorOptions(at::kLong)).remainder(3)}},
                    {});
  const auto data = open_dataset("tensors:file=" + (folder / "data.safetensors").string(), "evaluation");
  int64_t written = 0;
  for (uint32_t seed = 0; seed < 25; ++seed) {
    CAPTURE(seed);
    const Model model = model_of(seed, run.batch_size);
    const auto minibatches = random_minibatches(model.graph, 8, 3);
    const Plan one = plan_of(model, {1}, {1});
    const Trained without = trained(run, model, one, *data, minibatches, false);
    const Trained with = trained(run, model, one, *data, minibatches, true);
    for (const auto& [name, tensor] : without.tensors) {
      CAPTURE(name);
      CHECK(with.tensors.at(name).equal(tensor));
    }
    CHECK(without.tensors.at("steps").item<int64_t>() == 8);
    written += without.tensors.at("mean").count_nonzero().item<int64_t>() > 0;

    // The first evaluation, of the weights that all plans start with, is the same on two replicas.
    const Trained two = trained(run, model, plan_of(model, {2}, {1}), *data, minibatches, true);
    CHECK(two.evaluated.at(0) == with.evaluated.at(0));
    CHECK(with.evaluated.at(0).size() == 3);
    CHECK(with.evaluated.at(4) != with.evaluated.at(0));
  }
  CHECK(written > 10);
}

}  // namespace pipewright::testing
