// What may cross a cut: values of any kind, over one stage or several, and parameters that several stages
// read. With every schedule and rule, against the serial reference, bit for bit.
#include "models/initialise.h"
#include "models/memory/memory_meter.h"
#include "models/run/autocast.h"
#include "models/run/device_passes.h"
#include "runtime/stage/partition.h"
#include "tests/models/hand_graph.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"

namespace pipewright::testing {
namespace {

TensorArgument value(const std::string& name) { return {name}; }

// Nodes that make and read values of many kinds, far from each other.
Model many_kinds(int64_t batch) {
  ModelBuilder model("many kinds", batch);
  const auto call = [&](const std::string& op, const std::string& overload,
                        std::vector<std::pair<std::string, Argument>> arguments, const std::string& dtype,
                        std::vector<int64_t> shape) {
    return model.call(op, overload, std::move(arguments), {{dtype, std::move(shape)}})[0];
  };
  const auto to = [&](const std::string& x, const std::string& dtype) {
    return call("to", "dtype", {{"self", value(x)}, {"dtype", DtypeArgument{dtype}}}, dtype, model.shape(x));
  };
  const auto linear = [&](const std::string& layer, const std::string& x, int64_t features) {
    const auto scope = model.layer(layer);
    return model.linear(x, {.features = features});
  };
  const auto scope = model.layer("all");
  const std::string images = model.input("images", "float32", {6});
  const std::string doubled =  // floating, but no gradient flows to it
      call("mul", "Scalar", {{"self", value(images)}, {"other", 2.0}}, "float32", {batch, 6});
  const std::string first = linear("first", images, 6);
  const std::string flags =
      call("gt", "Scalar", {{"self", value(first)}, {"other", 0.0}}, "bool", {batch, 6});
  const std::string places =
      call("argmax", "", {{"self", value(first)}, {"dim", int64_t{1}}}, "int64", {batch});
  const std::string small_places = to(places, "int32");
  const std::string bytes = to(flags, "uint8");
  const std::string precise = to(first, "float64");
  const std::string half = to(first, "bfloat16");
  const std::string mean = call("mean", "", {{"self", value(first)}}, "float32", {});  // of no dimensions
  const std::string cut_off = call("detach", "", {{"self", value(first)}}, "float32", {batch, 6});
  const auto largest =  // its places are read by nobody
      model.call("max", "dim", {{"self", value(first)}, {"dim", int64_t{1}}, {"keepdim", true}},
                 {{"float32", {batch, 1}}, {"int64", {batch, 1}}});
  model.relu(first);  // read by nobody at all
  std::string x = model.relu(linear("second", first, 6));
  x = model.add(x, doubled);
  x = call("mul", "Tensor", {{"self", value(x)}, {"other", value(flags)}}, "float32", {batch, 6});
  x = model.dropout(linear("third", x, 6), 0.25);
  x = model.add(x, largest[0]);
  x = model.add(x, mean);
  {
    const auto table = model.layer("table");
    x = model.add(x, model.embedding(places, {.rows = 6, .features = 6}));
  }
  x = model.add(linear("fourth", x, 6), to(precise, "float32"));
  x = model.add(x, cut_off);
  {
    const auto norm = model.layer("norm");
    x = model.batch_norm(x);
  }
  x = call("mul", "Tensor", {{"self", value(x)}, {"other", value(mean)}}, "float32", {batch, 6});
  x = model.add(x, to(bytes, "float32"));
  x = model.add(x, to(half, "float32"));
  {
    const auto table = model.layer("second_table");
    x = model.add(x, model.embedding(to(small_places, "int64"), {.rows = 6, .features = 6}));
  }
  x = model.add(model.gelu(linear("fifth", x, 6)), first);
  x = call("where", "self", {{"condition", value(flags)}, {"self", value(x)}, {"other", value(doubled)}},
           "float32", {batch, 6});
  return model.finish_classification(linear("head", x, 5));
}

// Seven layers of which four share a weight, and two a bias.
Model tied_layers(int64_t batch) {
  ModelBuilder model("tied", batch);
  std::string x = model.input("images", "float32", {6});
  const std::string weight = model.parameter("weight", {6, 6}, Initialiser::uniform(0.4));
  const std::string bias = model.parameter("bias", {6}, Initialiser::uniform(0.4));
  for (int i = 0; i < 7; ++i) {
    const auto layer = model.layer("layer" + std::to_string(i));
    if (i % 2 == 1) {
      x = model.gelu(model.linear(x, {.features = 6}));
      continue;
    }
    std::vector<std::pair<std::string, Argument>> arguments = {{"input", value(x)},
                                                               {"weight", value(weight)}};
    if (i == 0 || i == 4) arguments.push_back({"bias", value(bias)});
    x = model.add(x, model.dropout(model.call("linear", "", arguments, {model.type(x)})[0], 0.2));
  }
  const auto head = model.layer("head");
  return model.finish_classification(model.linear(x, {.features = 5}));
}

// Plans of four or six stages with every schedule and rule; those that allow tied parameters, or all.
std::vector<Plan> all_plans(const Model& model, bool only_common_updates) {
  std::vector<Plan> plans;
  const std::vector<int64_t> deep = {4, 3, 2, 1};
  const auto add = [&](Plan plan) {
    tie(plan, model.graph);
    plans.push_back(plan);
    for (size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].recompute = s % 2 == 0;
    plans.push_back(std::move(plan));
  };
  if (!only_common_updates) {
    add(plan_of(model, {1, 1, 1, 1}, deep));
    add(plan_of(model, {2, 1, 3, 1}, deep));
    add(with_schedule(plan_of(model, {1, 1, 1, 1}, deep), "model-parallel", "stash"));
    add(with_schedule(plan_of(model, {2, 2, 2}, {3, 2, 1}), "1f1b", "vertical"));
  }
  add(with_schedule(plan_of(model, {1, 1, 1, 1}, deep), "1f1b", "2bw", 4));
  add(with_schedule(plan_of(model, {2, 1, 1, 3}, {3, 3, 2, 1}), "1f1b", "2bw", 5));
  for (const char* schedule : {"gpipe", "1f1b-flush", "zb-h1"}) {
    add(with_schedule(plan_of(model, {1, 1, 1, 1}, {5, 5, 5, 5}), schedule, "flush", 5));
    add(with_schedule(plan_of(model, {1, 2, 1, 3}, {5, 5, 5, 5}), schedule, "flush", 4));
  }
  add(interleaved_plan(model, 6, 3, 1, 4));
  add(interleaved_plan(model, 4, 2, 2, 4));
  return plans;
}

void compare_all(const Model& model, bool only_common_updates, const TrainingRules& rules) {
  at::set_num_threads(1);
  for (const Plan& plan : all_plans(model, only_common_updates))
    compare(model, plan, rules, {{0, 11}}, make_local_world(plan.world_size));
}

TEST_CASE("the model of many kinds has them at its cuts") {
  const Model model = many_kinds(3);
  std::map<std::string, int> dtypes;
  size_t most = 0, none = 0;
  for (const StageInterface& stage :
       partition(model.graph, plan_of(model, {1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}))) {
    most = std::max(most, stage.sent.size());
    for (const std::string& name : stage.sent) {
      const TensorType& type = model.graph.values.at(name);
      ++dtypes[type.dtype];
      none += type.shape.empty();
    }
  }
  for (const char* dtype : {"float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool"}) {
    CAPTURE(dtype);
    CHECK(dtypes[dtype] > 0);
  }
  CHECK(most >= 10);
  CHECK(none > 1);
}

TEST_CASE("values of every dtype, unused or without gradient, cross any plan") {
  compare_all(many_kinds(3), false, momentum_rules());
}

TEST_CASE("tied parameters: copies of several stages make one update, with every plan that allows them") {
  compare_all(tied_layers(3), true, momentum_rules());
}

TEST_CASE(
    "copies of a tied parameter came apart with 2bw and clipping, each clipped by its own stage's norm") {
  TrainingRules rules = momentum_rules();
  rules.gradient_clipping_norm = 0.05;
  compare_all(tied_layers(3), true, rules);
}

// The reference has no copies of weights: there autocast casts them at every read.
TEST_CASE("bfloat16 under autocast, float32 weights: the reference's bits with any plan, cast once or not") {
  const std::string passes = GENERATE("none", "weights-cast-once");
  const auto in_bfloat16 = [&](Model model) {
    model.graph = with_device_passes(with_precision(model, "bfloat16"), passes, "bfloat16", at::kCPU);
    return model;
  };
  compare_all(in_bfloat16(many_kinds(4)), false, momentum_rules());
  compare_all(in_bfloat16(tied_layers(4)), true, momentum_rules());
}

TEST_CASE("weights cast once: whatever plan, rules and spans, the reference's bits") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomJob job = RandomJobs(seed + 31000).next(6);
    cast_weights_once(job);
    CAPTURE(seed, job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.rules.optimizer.name);
    compare(job.model, job.plan, job.rules, job.spans,
            job.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                     : make_local_world(job.plan.world_size));
  }
}

TEST_CASE("a stage keeps what autograd saved, and of its inputs and outputs none that nobody needs") {
  at::set_num_threads(1);
  ModelBuilder builder("chain", 32);
  std::string x = builder.input("images", "float32", {64});
  for (int i = 0; i < 4; ++i) {
    const auto layer = builder.layer("layer" + std::to_string(i));
    x = builder.relu(builder.linear(x, {.features = 64, .bias = false}));
  }
  const Model model = builder.finish_classification(x);
  Plan plan = plan_of(model, {1, 1, 1}, {1, 1, 1});
  for (Stage& stage : plan.stages) stage.nodes.clear();
  // The middle stage: relu, linear, relu, linear. A relu saves its result, a linear its input: the two
  // results of relu, once each, are all it needs.
  for (size_t i = 0; i < model.graph.nodes.size(); ++i)
    plan.stages[i < 1 ? 0 : i < 5 ? 1 : 2].nodes.push_back(model.graph.nodes[i].name);
  constexpr int64_t kValueBytes = 32 * 64 * 4;
  constexpr int64_t kWeightBytes = 64 * 64 * 4;
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    StageProgramOptions options;
    options.recompute = recompute;
    const StageProgram program(model.graph, partition(model.graph, plan), 1, options);
    auto version = std::make_shared<WeightVersion>();
    for (const std::string& name : program.parameters())
      version->weights.push_back(initial_parameter(model, name, 1).requires_grad_(true));
    const MemoryMeter meter;
    const MemoryMeter::Attached attached(meter);
    std::vector<at::Tensor> received = {at::ones({32, 64})};
    Pass pass = program.forward(std::move(received), {}, version, {}, {});
    received.clear();
    CHECK(meter.live_bytes() == (recompute ? 2 : 3) * kValueBytes);  // and what is sent
    pass.sent.clear();
    CHECK(meter.live_bytes() == (recompute ? 1 : 2) * kValueBytes);
    StageGradients gradients = program.backward(std::move(pass), {at::ones({32, 64})});
    CHECK(meter.live_bytes() == kValueBytes + 2 * kWeightBytes);
    gradients = {};
    CHECK(meter.live_bytes() == 0);
  }
}

// Trains two spans with an evaluation between them, the second one with new workers that start from the
// states of the first: the weights must be those of the reference.
void check_going_on(const Model& model, const Plan& plan) {
  CAPTURE(plan.shape_text(), plan.schedule, plan.weights);
  const std::vector<Span> spans = {{0, 7}, {7, 6}};
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 13;
  const auto minibatches = random_minibatches(model.graph, 13, 5);
  const auto expected = train_serially(model, plan, rules, spans,
                                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  const Graph evaluated = evaluation_graph(model.graph);
  std::map<std::pair<int64_t, int64_t>, StageState> states;  // by stage, replica
  std::mutex mutex;
  for (const Span& span : spans) {
    spawn(make_local_world(plan.world_size), [&](int64_t rank, Transport& transport) {
      at::set_num_threads(1);
      Worker worker(model, plan, rank, &transport, rules);
      std::map<int64_t, StageProgram> programs;
      for (size_t i = 0; i < worker.stage_count(); ++i) {
        const int64_t s = worker.stage(i).stage();
        programs.emplace(s, StageProgram(evaluated, partition(evaluated, plan), static_cast<size_t>(s)));
        const std::lock_guard lock(mutex);
        const auto state = states.find({s, worker.replica()});
        if (state != states.end()) worker.stage(i).restore(state->second);
      }
      WorkerHooks hooks;
      hooks.fields = [&](int64_t stage, int64_t k) {
        return pick(minibatches[static_cast<size_t>(k)], programs.at(stage).fields());
      };
      worker.train(span, hooks);
      worker.evaluate(
          {0, 5}, [&](int64_t s, int64_t) -> const StageProgram& { return programs.at(s); }, hooks);
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < worker.stage_count(); ++i)
        states[{worker.stage(i).stage(), worker.replica()}] = worker.stage(i).state_before(span.end());
    });
  }
  const auto interfaces = partition(model.graph, plan);
  for (const auto& [place, state] : states) {
    const StageProgram program(model.graph, interfaces, static_cast<size_t>(place.first));
    for (size_t i = 0; i < state.weights.size(); ++i) {
      INFO(program.parameters()[i] << " at stage " << place.first << " replica " << place.second);
      CHECK(state.weights[i].equal(expected.weights.at(program.parameters()[i])));
    }
  }
}

TEST_CASE("workers go on from the states of others after an evaluation, tied copies, several stages a rank") {
  at::set_num_threads(1);
  const Model tied = tied_layers(3);
  for (const Plan& plan : all_plans(tied, true)) check_going_on(tied, plan);
  const Model kinds = many_kinds(3);
  for (const Plan& plan : all_plans(kinds, false)) check_going_on(kinds, plan);
}

}  // namespace
}  // namespace pipewright::testing
