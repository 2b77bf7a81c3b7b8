// Stages whose forwards and backwards are recordings, on the device that is none
// (tests/support/fake_recording.h).
#include "models/load.h"
#include "models/run/device_passes.h"
#include "runtime/schedule/torch_csv.h"
#include "runtime/stage/recorded_stage.h"
#include "test_paths.h"
#include "tests/runtime/stage/recorded_run.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_recording.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;
using Catch::Contains;

namespace {

RecordedRun train(const RandomJob& job, bool graphs) {
  return train_recorded(job, fake_device(), graphs ? make_fake_graphs : MakeDeviceGraphs());
}

RandomJob job_of(const std::string& spec, const std::vector<int64_t>& replicas, const std::string& schedule,
                 const std::string& weights, int64_t microbatches) {
  RandomJob job;
  job.model = load_model(spec, 2);
  const std::vector<int64_t> depths(replicas.size(), schedule == "1f1b" && weights == "stash" ? 1 : 3);
  job.plan = with_schedule(plan_of(job.model, replicas, depths), schedule, weights, microbatches);
  tie(job.plan, job.model.graph);
  job.rules = momentum_rules();
  job.spans = {{0, 7}, {7, 4}};
  return job;
}

}  // namespace

TEST_CASE("recordings: the bits of training without, for drawn plans of rules with fixed places") {
  at::set_num_threads(1);
  reset_fake_device(/*late=*/3);
  int64_t recorded = 0;
  for (uint64_t seed = 0, jobs = 0; jobs < (is_long() ? 500 : 16); ++seed) {
    RandomJob job = RandomJobs(seed).next(6);
    if (job.plan.weights != "flush" && job.plan.weights != "2bw") continue;
    ++jobs;
    CAPTURE(seed, job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.plan.microbatches);
    const bool cast_once = jobs % 2 == 0;
    if (cast_once) cast_weights_once(job, fake_device());
    const RecordedRun without = train(job, false), with = train(job, true);
    check_equal(without.run, with.run);
    CHECK(without.forwards == 0);
    if (cast_once) {
      job.model.graph.device_passes.clear();
      check_equal(train(job, true).run, with.run);
    }
    recorded += with.forwards;
    // One place, or two, and in each a position for every minibatch that is in flight with it.
    int64_t most = 0;
    for (const auto& stage : with.run.peak_in_flight)
      for (const int64_t peak : stage) most += (job.plan.weights == "2bw" ? 2 : 1) * peak;
    if (job.plan.schedule != "interleaved") CHECK(with.positions <= most);
  }
  CHECK(recorded > 100);
  reset_fake_device();
}

TEST_CASE(
    "recordings: two stages on a rank, V-shaped, and a listed order with backwards in one piece and in two") {
  at::set_num_threads(1);
  const Model model = load_model("mlp:layers=6,width=8,image=4,classes=5", 2);
  std::vector<Plan> plans;
  for (const char* schedule : {"zbv", "dualpipev"}) {
    plans.push_back(v_shaped_plan(model, schedule, 2, 1, 3));
    plans.push_back(plan_of_torch_csv(torch_csv_text(plans.back()), "schedule.csv", plans.back()));
  }
  const Plan pair = with_schedule(plan_of(model, {1, 1}, {2, 2}), "1f1b-flush", "flush", 2);
  plans.push_back(plan_of_torch_csv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1B1\n", "schedule.csv", pair));
  for (const Plan& plan : plans) {
    CAPTURE(plan.schedule, plan.shape_text(), plan.order);
    RandomJob job;
    job.model = model;
    job.plan = plan;
    job.rules = momentum_rules();
    job.spans = {{0, 7}, {7, 6}};
    const RecordedRun without = train(job, false), with = train(job, true);
    check_equal(without.run, with.run);
    CHECK(with.texts == std::vector<std::string>(2, "used"));
    CHECK(with.forwards > 12);
  }
}

TEST_CASE("recordings: models of the zoo, with and without dropout, over one to three ranks") {
  at::set_num_threads(1);
  const std::string spec =
      GENERATE(as<std::string>(), "mlp:layers=4,width=8,image=4,classes=5", "convnet:classes=5",
               "gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=20",
               "gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=20,dropout=0.2",
               "bert:layers=2,width=16,heads=2,tokens=8,positions=8,vocabulary=20",
               "vit_b_16:classes=5,image=32,layers=2,width=16,heads=2",
               std::string(PIPEWRIGHT_SOURCE_DIR) + "/tests/models/pt2/permuted.pt2");
  struct Kind {
    std::string schedule, weights;
    int64_t microbatches;
  };
  const Kind kind =
      GENERATE(Kind{"1f1b-flush", "flush", 1}, Kind{"1f1b-flush", "flush", 3}, Kind{"gpipe", "flush", 2},
               Kind{"zb-h1", "flush", 3}, Kind{"1f1b", "2bw", 4}, Kind{"1f1b", "stash", 1});
  for (const std::vector<int64_t>& replicas : {std::vector<int64_t>{1}, {1, 1}, {2, 1}}) {
    RandomJob job = job_of(spec, replicas, kind.schedule, kind.weights, kind.microbatches);
    if (kind.weights == "stash" && !job.plan.tied_parameters.empty()) continue;
    if (kind.schedule == "gpipe")
      for (Stage& stage : job.plan.stages) stage.in_flight = 2;
    CAPTURE(spec, replicas, kind.schedule, kind.weights, kind.microbatches);
    const RecordedRun without = train(job, false), with = train(job, true);
    check_equal(without.run, with.run);
    for (const std::string& text : with.texts) CHECK(text == "used");
    CHECK(with.forwards >= 11 - 3);
  }
}

TEST_CASE("recordings: recomputed activations and clipped gradients are those of training without") {
  at::set_num_threads(1);
  const std::string schedule = GENERATE("1f1b-flush", "zb-h1");
  RandomJob job = job_of("convnet:classes=5", {1, 1}, schedule, "flush", 2);
  for (Stage& stage : job.plan.stages) stage.recompute = true;
  job.rules.gradient_clipping_norm = 0.1;
  check_equal(train(job, false).run, train(job, true).run);
}

TEST_CASE("recordings: scores and norms by device passes, in one stage with their loss or sent to it") {
  at::set_num_threads(1);
  const std::string spec = "gpt:layers=1,width=64,heads=2,tokens=8,vocabulary=16387";
  const std::string precision = GENERATE("float32", "bfloat16");
  const auto& [stages, schedule, recompute] =
      GENERATE(table<size_t, std::string, bool>({{1, "1f1b-flush", false},
                                                 {1, "1f1b-flush", true},
                                                 {2, "1f1b-flush", false},
                                                 {1, "zb-h1", false},
                                                 {2, "zb-h1", false}}));
  CAPTURE(precision, stages, schedule, recompute);
  RandomJob job = job_of(spec, std::vector<int64_t>(stages, 1), schedule, "flush", 2);
  if (stages == 2) {  // the cut lies between the scores and what makes rows of them
    std::vector<std::string>& first = job.plan.stages[0].nodes;
    std::vector<std::string>& second = job.plan.stages[1].nodes;
    const std::vector<Node>& nodes = job.model.graph.nodes;
    first.clear();
    second.clear();
    const auto last = std::find_if(nodes.rbegin(), nodes.rend(),
                                   [](const Node& node) { return node.op == "aten::linear"; });
    const auto scores = nodes.size() - 1 - static_cast<size_t>(last - nodes.rbegin());
    for (size_t i = 0; i < nodes.size(); ++i) (i <= scores ? first : second).push_back(nodes[i].name);
    tie(job.plan, job.model.graph);
  }
  for (Stage& stage : job.plan.stages) stage.recompute = recompute;
  job.model.graph = with_precision(job.model, precision, fake_device());
  const RecordedRun plain = train(job, false);
  job.model.graph = with_device_passes(
      job.model.graph, "aligned-products,fused-cross-entropy,two-stage-layer-norm", precision, fake_device());
  const RecordedRun without = train(job, false), with = train(job, true);
  check_equal(without.run, with.run);
  for (const std::string& text : with.texts) CHECK(text == "used");
  for (size_t k = 0; k < plain.run.losses.size(); ++k)
    CHECK(with.run.losses[k] == Approx(plain.run.losses[k]).epsilon(precision == "float32" ? 1e-5 : 1e-2));
}

TEST_CASE("recordings: nothing is read or written but fixed memory") {
  at::set_num_threads(1);
  const std::string spec = GENERATE("mlp:layers=4,width=8,image=4,classes=5",
                                    "gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=20,dropout=0.2");
  Model model = load_model(spec, 2);
  const std::string precision = GENERATE("float32", "bfloat16");
  model.graph = with_device_passes(with_precision(model, precision, fake_device()), "weights-cast-once",
                                   precision, fake_device());
  const Plan plan = with_schedule(plan_of(model, {1}, {1}), "1f1b-flush", "flush", 2);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 8;
  rules.device = fake_device();
  rules.cuda_graphs = "on";
  rules.make_graphs = make_fake_graphs;
  reset_fake_recordings();
  const auto minibatches = random_minibatches(model.graph, 8, 5);
  RankExtras extras;
  extras.finish = [&](Worker& worker) {
    const StageReplica& stage = worker.stage();
    std::vector<at::Tensor> known = stage.recordings()->fixed_memory();
    const WeightVersion& version = *stage.versions().latest();
    for (const auto* tensors :
         {&version.weights, &version.copies, &stage.buffers(), &stage.program().segment().constants()})
      for (const at::Tensor& tensor : *tensors)
        if (tensor.defined()) known.push_back(tensor);
    const auto reached = memory_from_outside();
    CHECK(reached.size() >= stage.weights().size());
    for (const auto& [begin, bytes] : reached) {
      const bool inside =
          std::any_of(known.begin(), known.end(), [&, at = begin, size = bytes](const at::Tensor& one) {
            const auto* const first = static_cast<const char*>(one.storage().data());
            return at >= first && at + size <= first + one.storage().nbytes();
          });
      CHECK(inside);
    }
  };
  run_pipeline(model, plan, rules, {{0, 8}}, minibatches, {}, {}, extras);
  CHECK(fake_recording_counts().recorded ==
        3);  // a forward, a backward that begins a round and one that adds
  CHECK(fake_recording_counts().replayed == 2 * 7);
}

TEST_CASE("recordings: what the device refuses is left to the program, whenever it happens") {
  at::set_num_threads(1);
  RandomJob job = job_of("mlp:layers=4,width=8,image=4,classes=5", {1, 1}, "gpipe", "flush", 2);
  for (Stage& stage : job.plan.stages) stage.in_flight = 2;
  const RecordedRun without = train(job, false);
  for (int64_t most = 0; most < 13; ++most) {
    CAPTURE(most);
    reset_fake_recordings(most);
    const RecordedRun with = train(job, true);
    check_equal(without.run, with.run);
    // Two ranks, two positions each, three recordings a position.
    if (most < 12) {
      CHECK_THAT(with.texts[0] + with.texts[1], Contains("the fake device records no more"));
    } else {
      CHECK(with.texts == std::vector<std::string>{"used", "used"});
    }
  }
  reset_fake_recordings();
}

TEST_CASE("recordings: a node that waits for the device, several versions, another device: each says so") {
  at::set_num_threads(1);
  RandomJob job = job_of("mlp:layers=4,width=8,image=4,classes=5", {1, 1}, "1f1b", "stash", 1);
  SECTION("several versions") {
    job.plan.stages[0].in_flight = 2;
    const RecordedRun with = train(job, true);
    check_equal(train(job, false).run, with.run);
    CHECK(with.texts[0] ==
          "not used: stage 0 has several versions in flight (weights 'stash'), which lie wherever there is "
          "room");
    CHECK(with.texts[1] == "used");
  }
  SECTION("updates in place") {
    const std::string weights = GENERATE("paci", "predict");
    RandomJob in_place = job_of("mlp:layers=4,width=8,image=4,classes=5", {1, 1}, "1f1b", weights, 1);
    in_place.plan.stages[0].in_flight = 2;
    in_place.plan.stages[1].in_flight = 1;
    in_place.rules.optimizer.momentum = 0.9;
    const RecordedRun with = train(in_place, true);
    check_equal(train(in_place, false).run, with.run);
    CHECK(with.texts[0] ==
          "not used: updates change the weights of stage 0 under minibatches in flight (weights '" + weights +
              "')");
    CHECK(with.texts[1] == "used");
  }
  SECTION("the processor") {
    job.rules.cuda_graphs = "on";
    const StageReplica stage(job.model, job.plan, 0, 0, job.rules);
    CHECK(stage.recordings() == nullptr);
    CHECK(stage.recording_obstacle() == "the device is 'cpu', which has none");
  }
  SECTION("masks") {
    ModelBuilder model("masked", 2);
    const std::string x = model.input("images", "float32", {4});
    const std::string y = model.linear(x, {.features = 5});
    const std::string mask =
        model.call("gt", "Scalar", {{"self", TensorArgument{y}}, {"other", 0.0}}, {{"bool", {2, 5}}})[0];
    static_cast<void>(model.call("masked_select", "",
                                 {{"self", TensorArgument{y}}, {"mask", TensorArgument{mask}}},
                                 {{"float32", {3}}}));
    const Model masked = model.finish_classification(y);
    std::vector<size_t> nodes;
    for (size_t i = 0; i < masked.graph.nodes.size(); ++i) nodes.push_back(i);
    CHECK_THAT(recording_obstacle(masked.graph, nodes),
               Contains("aten::masked_select") && Contains("makes the host wait"));
  }
}

TEST_CASE(
    "recordings: left to themselves they are made where the device waits for the host, and only there") {
  at::set_num_threads(1);
  RandomJob job = job_of("mlp:layers=4,width=8,image=4,classes=5", {1, 1}, "1f1b-flush", "flush", 2);
  job.spans = {{0, 20}};
  const RecordedRun without = train(job, false);
  reset_fake_device(/*late=*/0);
  const RecordedRun with = train_recorded(job, fake_device(), make_fake_graphs, "auto");
  check_equal(without.run, with.run);
  CHECK(with.texts == std::vector<std::string>{"used", "used"});
  CHECK(with.forwards == 2 * (20 - 2 * RecordedStage::kStreak));
  reset_fake_device(/*late=*/1000);  // no event is over when it is looked at
  const RecordedRun busy = train_recorded(job, fake_device(), make_fake_graphs, "auto");
  check_equal(without.run, busy.run);
  CHECK(busy.forwards == 0);
  CHECK(busy.texts == std::vector<std::string>(2, "not used: the device does not wait for the host"));
  reset_fake_device();
}

TEST_CASE("recordings: weights that have moved are not read where they were") {
  at::set_num_threads(1);
  const Model model = load_model("mlp:layers=4,width=8,image=4,classes=5", 2);
  const Plan plan = with_schedule(plan_of(model, {1}, {1}), "1f1b-flush", "flush", 1);
  TrainingRules rules = momentum_rules();
  rules.device = fake_device();
  rules.total_minibatches = 9;
  rules.make_graphs = make_fake_graphs;
  const auto minibatches = random_minibatches(model.graph, 9, 5);
  const auto losses = [&](bool graphs) {
    rules.cuda_graphs = graphs ? "on" : "off";
    const c10::DeviceGuard on_device(rules.device);
    const at::AutoGradMode with_gradients(true);
    StageReplica stage(model, plan, 0, 0, rules);
    std::vector<double> losses;
    for (int64_t k = 0; k < 9; ++k) {
      if (k % 3 == 0) {
        // Somebody restores the stage: its weights are other tensors then.
        if (k > 0) stage.restore(stage.state_before(k));
        stage.begin(std::make_shared<TurnSpan>(Span{k, 3}, PipelineTurn{}), k);
      }
      std::vector<at::Tensor> fields;
      for (const auto& name : stage.program().fields())
        fields.push_back(minibatches[static_cast<size_t>(k)].at(name).to(rules.device));
      losses.push_back(stage.forward(k, {}, fields).loss.item<double>());
      stage.backward(k, {});
      stage.average(k);
      stage.update(k);
    }
    stage.deferred().flush();
    if (graphs) {
      CHECK(stage.recordings()->recorded_forwards() == 2);
      CHECK(stage.recording_obstacle() == "the weights have moved to another place than the 1 they had");
    }
    return losses;
  };
  CHECK(losses(true) == losses(false));
}

TEST_CASE("recordings: the host starts few operators and waits for none") {
  at::set_num_threads(1);
  const Model model = load_model("gpt:layers=2,width=16,heads=2,tokens=8,vocabulary=20", 2);
  const Plan plan = with_schedule(plan_of(model, {1}, {1}), "1f1b-flush", "flush", 1);
  TrainingRules rules = momentum_rules();
  rules.device = fake_device();
  rules.make_graphs = make_fake_graphs;
  const auto counts = [&](int64_t minibatches, bool graphs) {
    rules.cuda_graphs = graphs ? "on" : "off";
    rules.total_minibatches = minibatches;
    reset_fake_device(/*late=*/2);
    run_pipeline(model, plan, rules, {{0, minibatches}}, random_minibatches(model.graph, minibatches, 5), {});
    return fake_device_counts();
  };
  const auto a_minibatch = [&](bool graphs) {
    const FakeDeviceCounts few = counts(6, graphs), many = counts(16, graphs);
    CHECK(many.waits + many.blocking_uploads == few.waits + few.blocking_uploads);
    return (many.operators - few.operators) / 10;
  };
  const int64_t without = a_minibatch(false), with = a_minibatch(true);
  CAPTURE(without, with);
  CHECK(with * 2 < without);  // what is left is the update, for the most part
  reset_fake_device();
}
