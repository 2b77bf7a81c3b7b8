// Checkpoints in the middle of a span: taken while minibatches are in flight, and gone on from as if nothing
// had happened. PIPEWRIGHT_UNDRAINED_CASES sets how many plans are tried.
#include <random>

#include "graph/document.h"
#include "graph/error.h"
#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/checkpoint/checkpoint_tensors.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/coordinator/run_points.h"
#include "runtime/generation/emulated_plan.h"
#include "runtime/generation/state_source.h"
#include "tests/runtime/pipelines.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

// Batch norm: buffers that replicas change. Dropout: random streams. `tied`: a weight that is read at both
// ends.
Model small_model(bool tied) {
  constexpr int64_t kBatch = 4;
  ModelBuilder model("small", kBatch);
  std::string x = model.input("images", "float32", {8});
  const std::string both = tied ? model.parameter("both", {8, 8}, Initialiser::uniform(0.3)) : "";
  const auto mix = [&] {
    if (!tied) return;
    x = model.call("linear", "", {{"input", TensorArgument{x}}, {"weight", TensorArgument{both}}},
                   {{"float32", {kBatch, 8}}})[0];
  };
  mix();
  for (int i = 0; i < 4; ++i) {
    const auto layer = model.layer("block" + std::to_string(i));
    {
      const auto fc = model.layer("fc");
      x = model.linear(x, {.features = 8});
    }
    {
      const auto norm = model.layer("norm");
      x = model.batch_norm(x);
    }
    x = model.dropout(model.relu(x), 0.25);
  }
  mix();
  const auto head = model.layer("head");
  return model.finish_classification(model.linear(x, {.features = 5}));
}

struct RandomCase {
  bool tied = false;
  Model model;
  Plan plan;
  TrainingRules rules;
  int64_t minibatches = 0;
  std::vector<int64_t> checkpoints;
};

RandomCase random_case(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  RandomCase c;
  const std::string rule = std::vector<std::string>{"stash",       "vertical", "2bw",    "flush",
                                                    "interleaved", "paci",     "predict"}[seed % 7];
  c.tied = (rule == "2bw" || rule == "flush") && draw(0, 1) == 1;
  c.model = small_model(c.tied);
  c.rules = momentum_rules();
  c.rules.optimizer.name =
      std::vector<std::string>{"sgd", "adam", "lion", "muon", "adafactor"}[static_cast<size_t>(draw(0, 4))];
  if (rule == "predict") {
    c.rules.optimizer.name =
        std::vector<std::string>{"sgd", "adam", "adamw"}[static_cast<size_t>(draw(0, 2))];
  } else if (rule == "2bw") {
    c.rules.optimizer.delay_correction =
        std::vector<std::string>{"none", "error-feedback", "dc"}[static_cast<size_t>(draw(0, 2))];
  } else if (rule == "stash" || rule == "vertical") {
    c.rules.optimizer.delay_correction = draw(0, 1) == 1 ? "pipemare-t1" : "none";
  }
  // By stage, as 2bw clips, copies of a tied parameter would part.
  if (draw(0, 3) == 0 && !(c.tied && rule == "2bw")) c.rules.gradient_clipping_norm = 0.5;
  const auto stages = static_cast<size_t>(draw(1, 4));
  const int64_t common = draw(1, 2);
  std::vector<int64_t> replicas, depths;
  for (size_t s = 0; s < stages; ++s) {
    replicas.push_back(rule == "vertical" ? common : draw(1, stages < 4 ? 3 : 2));
    depths.push_back(draw(1, 4));
  }
  if (rule == "interleaved") {
    c.plan = interleaved_plan(c.model, 4, 2, common, draw(1, 5));
  } else {
    c.plan = plan_of(c.model, replicas, depths);
    c.plan.weights = rule;
  }
  if (rule == "stash" || rule == "vertical" || rule == "paci" || rule == "predict") {
    c.rules.gradient_accumulation = draw(1, 3);
    const bool uneven = rule != "vertical" && draw(0, 1) == 1;
    for (Stage& stage : c.plan.stages) {
      if (!uneven) break;
      for (size_t q = 0; q < stage.ranks.size(); ++q) stage.shares.push_back(draw(1, 2));
    }
  }
  if (rule == "2bw") {
    c.plan.microbatches = replicas[0] * (depths[0] - 1) + draw(1, 3);
  }
  if (rule == "flush") {
    const std::string schedule = std::vector<std::string>{"gpipe", "1f1b-flush", "zb-h1"}[random() % 3];
    c.plan = with_schedule(c.plan, schedule, "flush", draw(1, 6));
  }
  if (c.tied) tie(c.plan, c.model.graph);
  const int64_t period = round_period(shape_of(c.plan, c.rules.gradient_accumulation));
  // The last of them leaves less than the pipeline's depth behind it now and then.
  c.minibatches = period * draw(3, period > 20 ? 4 : 8) + draw(0, period - 1);
  const CheckpointSettings settings{draw(1, 2 * period), 0, 100, true, "exact"};
  c.checkpoints =
      checkpoints_within({0, c.minibatches}, settings, period, RunLength{c.minibatches, c.minibatches});
  c.rules.total_minibatches = c.minibatches;
  return c;
}

// Ranks that write checkpoints on the way, each with its own writer, and go on from one.
class Trained {
 public:
  explicit Trained(const RandomCase& c, std::vector<int64_t> checkpoints, bool older_versions = true)
      : c_(c), checkpoints_(std::move(checkpoints)), keeper_(folder_.path(), 1000) {
    extras_.prepare = [this, older_versions](Worker& worker, WorkerHooks& hooks) {
      const auto writer = std::make_shared<CheckpointWriter>(
          CheckpointWriter::Settings{folder_.path(), older_versions,
                                     [this](CheckpointPart part) { keeper_.take(std::move(part)); }, [] {}});
      writer->set_stages(worker.stage_count());
      {
        const std::lock_guard lock(mutex_);
        writers_[&worker] = writer;
      }
      hooks.checkpoints = checkpoints_;
      hooks.checkpoint = [writer](int64_t n, StageReplica& stage) {
        writer->take(n, stage, stage.state_before(n), /*drained=*/false);
      };
      hooks.observers.push_back(std::make_shared<Watch>([writer](const Action&) { writer->poll(); }));
      if (from_) restore(worker);
    };
    extras_.finish = [this](Worker& worker) {
      std::shared_ptr<CheckpointWriter> writer;
      {
        const std::lock_guard lock(mutex_);
        writer = std::move(writers_.at(&worker));
      }
      writer->wait();
    };
  }

  void go_on_from(const Checkpoint& checkpoint) {
    from_ = &checkpoint;
    first_ = checkpoint.manifest.next_minibatch;
    began_ = pipeline_began(checkpoint.manifest, c_.plan, c_.rules.gradient_accumulation, c_.minibatches);
    extras_.began = began_;
  }
  void fill_pipeline_again() { extras_.began = began_ = first_; }
  int64_t began() const { return began_; }

  PipelineRun train(const std::vector<MinibatchFields>& minibatches) {
    const Span span{first_, c_.minibatches - first_};
    PipelineRun run = run_pipeline(c_.model, c_.plan, c_.rules, {span}, minibatches,
                                   c_.plan.world_size == 1 ? std::vector<std::unique_ptr<Transport>>()
                                                           : make_local_world(c_.plan.world_size),
                                   {}, extras_);
    for (const int64_t n : checkpoints_) {
      CheckpointManifest manifest;
      manifest.next_minibatch = n;
      manifest.pipeline_began = began_;
      manifest.minibatches_per_epoch = c_.minibatches;
      manifest.cause = "interval";
      manifest.run.model = "small";
      manifest.run.data = "none";
      manifest.run.optimizer = c_.rules.optimizer;
      manifest.run.gradient_accumulation = c_.rules.gradient_accumulation;
      manifest.plan = c_.plan;
      keeper_.begin(manifest);
    }
    for (size_t i = 0; i < checkpoints_.size(); ++i) REQUIRE(keeper_.wait([] {}));
    return run;
  }

  Checkpoint checkpoint(int64_t n) const {
    Checkpoint found = open_checkpoint(checkpoints_of(folder_.path()) / checkpoint_name(n));
    verify_checkpoint(found);
    return found;
  }

 private:
  void restore(Worker& worker) const {
    for (size_t i = 0; i < worker.stage_count(); ++i) {
      StageReplica& stage = worker.stage(i);
      StageState state = load_stage_state(*from_, stage.program(), c_.rules.optimizer);
      if (began_ < first_)
        add_in_flight_state(*from_, stage.stage(), stage.replica(), stage.program(), state);
      stage.restore(std::move(state));
    }
  }

  const RandomCase& c_;
  const std::vector<int64_t> checkpoints_;
  TemporaryFolder folder_;
  CheckpointKeeper keeper_;
  const Checkpoint* from_ = nullptr;
  int64_t first_ = 0;
  int64_t began_ = 0;
  std::mutex mutex_;
  std::map<Worker*, std::shared_ptr<CheckpointWriter>> writers_;
  RankExtras extras_;
};

// The same by one process.
class Emulated {
 public:
  Emulated(const RandomCase& c, const std::vector<MinibatchFields>& minibatches)
      : c_(c), fields_(minibatches) {
    losses.resize(static_cast<size_t>(c.minibatches));
  }

  // From the checkpoint, or from the beginning; up to minibatch `stop` at most. The pipeline was empty before
  // the first minibatch of all.
  void train(const std::optional<Checkpoint>& from, const std::vector<int64_t>& checkpoints, int64_t stop) {
    Run run;
    run.optimizer = c_.rules.optimizer;
    const auto source = start_of(run, c_.model, from, /*in_flight=*/true);
    EmulatedPlan plan(c_.model, c_.plan, c_.rules, *source);
    const int64_t first = from ? from->manifest.next_minibatch : 0;
    const auto names = plan_fields();
    WorkerHooks hooks;
    hooks.fields = [&](int64_t, int64_t k) {
      std::vector<at::Tensor> fields;
      for (const std::string& name : names) fields.push_back(fields_[static_cast<size_t>(k)].at(name));
      return fields;
    };
    hooks.forward_done = [&](int64_t k, double loss, const std::vector<at::Tensor>&) {
      losses[static_cast<size_t>(k)] = loss;
    };
    hooks.gradient_norm = [&](int64_t end, double norm) { norms[end] = norm; };
    hooks.stop_before = [=] { return stop; };
    hooks.checkpoints = checkpoints;
    const auto write = [&](int64_t n) { digests[n] = written(plan, n); };
    plan.train({first, c_.minibatches - first}, names, hooks, write, /*began=*/0);
    if (stop < c_.minibatches) return write(stop);
    for (int64_t s = 0; s < plan.stages(); ++s)
      for (const auto& [name, tensor] : plan.tensors_of(static_cast<size_t>(s))) tensors[name] = tensor;
  }

  std::vector<double> losses;
  std::map<int64_t, double> norms;
  std::map<std::string, at::Tensor> tensors;  // at the end
  std::map<int64_t, std::vector<std::string>> digests;

 private:
  std::vector<std::string> plan_fields() const { return c_.model.graph.inputs; }

  // What the files of the checkpoint of minibatch n hold, in the order of their names.
  static std::vector<std::string> written(const EmulatedPlan& plan, int64_t n) {
    const TemporaryFolder folder;
    std::optional<CheckpointPart> told;
    CheckpointWriter writer(
        {folder.path(), true, [&](CheckpointPart part) { told = std::move(part); }, [] {}});
    writer.set_stages(plan.places());
    plan.states_before(n, [&](const StatePlace& place, StageState state) {
      writer.take(n, place, std::move(state), /*drained=*/false);
    });
    writer.wait();
    std::vector<std::string> digests;
    for (const auto& [number, stage] : told.value().stages)
      for (const CheckpointFile& file : stage.files()) digests.push_back(file.file + " " + file.digest);
    return digests;
  }

  const RandomCase& c_;
  const std::vector<MinibatchFields>& fields_;
};

std::vector<std::string> digests_of(const Checkpoint& checkpoint) {
  std::vector<std::string> digests;
  for (const CheckpointFile& file : checkpoint.manifest.files())
    digests.push_back(file.file + " " + file.digest);
  return digests;
}

void check_equal(const PipelineRun& run, const ReferenceResult& expected, int64_t first) {
  const auto skip = static_cast<ptrdiff_t>(first);
  CHECK(std::vector<double>(run.losses.begin() + skip, run.losses.end()) ==
        std::vector<double>(expected.losses.begin() + skip, expected.losses.end()));
  check_state(run, expected);
}

std::vector<int64_t> after(const std::vector<int64_t>& checkpoints, int64_t n) {
  return {std::upper_bound(checkpoints.begin(), checkpoints.end(), n), checkpoints.end()};
}

}  // namespace

TEST_CASE(
    "random plans: checkpoints without a drain change no bit, and a run goes on from any of them as if it "
    "had "
    "never stopped") {
  at::set_num_threads(1);
  const char* count = std::getenv("PIPEWRIGHT_UNDRAINED_CASES");
  const uint64_t cases = count ? std::strtoull(count, nullptr, 10) : 60;
  int64_t with_older_versions = 0;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    const RandomCase c = random_case(seed);
    const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
    CAPTURE(seed, c.plan.shape_text(), c.plan.schedule, c.plan.weights, c.plan.microbatches,
            c.rules.gradient_accumulation, c.minibatches, c.checkpoints);
    const ReferenceResult expected =
        train_serially(c.model, c.plan, c.rules, {{0, c.minibatches}},
                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    Trained whole(c, c.checkpoints);
    check_equal(whole.train(minibatches), expected, 0);

    std::mt19937_64 random(seed);
    if (c.checkpoints.empty()) continue;
    const int64_t n = c.checkpoints[random() % c.checkpoints.size()];
    const Checkpoint first = whole.checkpoint(n);
    for (const CheckpointStage& stage : first.manifest.stages) with_older_versions += !stage.versions.empty();
    Trained resumed(c, after(c.checkpoints, n));
    resumed.go_on_from(first);
    CAPTURE(n);
    REQUIRE(resumed.began() == 0);
    check_equal(resumed.train(minibatches), expected, n);

    // Interrupted a second time: what is written on the way after the first is as good.
    const auto later = after(c.checkpoints, n);
    if (later.empty()) continue;
    const int64_t m = later[random() % later.size()];
    CAPTURE(m);
    const Checkpoint second = resumed.checkpoint(m);
    const Checkpoint straight = whole.checkpoint(m);
    REQUIRE(second.manifest.files().size() == straight.manifest.files().size());
    for (size_t i = 0; i < second.manifest.files().size(); ++i)
      CHECK(second.manifest.files()[i].digest == straight.manifest.files()[i].digest);
    Trained again(c, {});
    again.go_on_from(second);
    check_equal(again.train(minibatches), expected, m);
  }
  if (cases >= 60) CHECK(with_older_versions > 20);
}

TEST_CASE(
    "random plans: one process that emulates the ranks writes their checkpoints, byte for byte, and goes on "
    "from them") {
  at::set_num_threads(1);
  const char* count = std::getenv("PIPEWRIGHT_UNDRAINED_CASES");
  const uint64_t cases = count ? std::strtoull(count, nullptr, 10) : 60;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    const RandomCase c = random_case(seed);
    const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
    CAPTURE(seed, c.plan.shape_text(), c.plan.schedule, c.plan.weights, c.plan.microbatches,
            c.rules.gradient_accumulation, c.minibatches, c.checkpoints);
    Trained ranks(c, c.checkpoints);
    const PipelineRun real = ranks.train(minibatches);
    const auto check = [&](const Emulated& emulated, int64_t first) {
      const auto behind = [&](const std::vector<double>& losses) {
        return std::vector<double>(losses.begin() + static_cast<ptrdiff_t>(first), losses.end());
      };
      CHECK(behind(emulated.losses) == behind(real.losses));
      for (const auto& [end, norm] : emulated.norms) CHECK(norm == real.gradient_norms.at(end));
      for (const auto& [name, copies] : real.weights)
        CHECK((emulated.tensors.count(name) > 0 && emulated.tensors.at(name).equal(copies[0])));
      for (const auto& stage : real.buffers)
        for (const auto& [name, buffer] : stage[0]) CHECK(emulated.tensors.at(name).equal(buffer));
      for (const auto& [n, digests] : emulated.digests) CHECK(digests == digests_of(ranks.checkpoint(n)));
    };
    Emulated whole(c, minibatches);
    whole.train({}, c.checkpoints, c.minibatches);
    CHECK(whole.digests.size() == c.checkpoints.size());
    check(whole, 0);
    if (c.checkpoints.empty()) continue;
    // Stopped there, and gone on from what the ranks wrote there.
    const int64_t n = c.checkpoints[seed % c.checkpoints.size()];
    CAPTURE(n);
    Emulated parts(c, minibatches);
    parts.train({}, {}, n);
    parts.train(ranks.checkpoint(n), after(c.checkpoints, n), c.minibatches);
    check(parts, 0);
  }
}

TEST_CASE("checkpoint.versions latest: smaller files, the same plan goes on with an empty pipeline") {
  at::set_num_threads(1);
  RandomCase c;
  c.model = small_model(false);
  c.rules = momentum_rules();
  c.plan = plan_of(c.model, {1, 2, 1}, {4, 2, 1});
  c.minibatches = 24;
  c.rules.total_minibatches = c.minibatches;
  const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
  const auto fields = [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; };

  Trained exact(c, {8});
  exact.train(minibatches);
  const Checkpoint with = exact.checkpoint(8);
  Trained latest(c, {8}, /*older_versions=*/false);
  check_equal(latest.train(minibatches),
              train_serially(c.model, c.plan, c.rules, {{0, c.minibatches}}, fields), 0);
  const Checkpoint without = latest.checkpoint(8);
  CHECK(with.manifest.files().size() == 3 + 3 + 1 + 1);  // stages, versions of stage 0 and 1, buffers
  CHECK(without.manifest.files().size() == 3 + 1);
  for (size_t s = 0; s < 3; ++s)
    CHECK(with.manifest.stages[s].state.digest == without.manifest.stages[s].state.digest);

  Trained resumed(c, {});
  resumed.go_on_from(without);
  CHECK(resumed.began() == 8);
  const PipelineRun run = resumed.train(minibatches);
  for (const auto& [name, copies] : run.weights)
    for (const at::Tensor& weight : copies) CHECK(weight.equal(copies[0]));
}

TEST_CASE("another plan takes the latest weights and the average of the replicas' buffers") {
  at::set_num_threads(1);
  RandomCase c;
  c.model = small_model(false);
  c.rules = momentum_rules();
  c.plan = with_schedule(plan_of(c.model, {3}, {1}), "1f1b-flush", "flush", 4);
  c.minibatches = 16;
  c.rules.total_minibatches = c.minibatches;
  const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
  Trained undrained(c, {8});
  undrained.train(minibatches);
  const Checkpoint checkpoint = undrained.checkpoint(8);
  // With flush a drain at 8 is all that is missing.
  const ReferenceResult drained = train_serially(
      c.model, c.plan, c.rules, {{0, 8}}, [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
  CheckpointTensors tensors(checkpoint);
  for (const auto& [name, weight] : drained.weights) CHECK(tensors.take(name).equal(weight));
  REQUIRE(drained.buffers[0][0].size() == 8);
  for (const auto& [name, buffer] : drained.buffers[0][0]) {
    INFO(name);
    CHECK(tensors.take(name).equal(buffer));
    CHECK_FALSE(tensors.buffer_of(0, 1, name).equal(buffer));
  }

  const auto began = [&](const Plan& plan, int64_t accumulation, int64_t end) {
    return pipeline_began(checkpoint.manifest, plan, accumulation, end);
  };
  CHECK(began(c.plan, 1, 16) == 0);
  CHECK(began(c.plan, 1, 8) == 8);
  CHECK(began(c.plan, 2, 16) == 8);
  CHECK(began(plan_of(c.model, {3}, {1}), 1, 16) == 8);
  CHECK(began(with_schedule(plan_of(c.model, {2}, {1}), "1f1b-flush", "flush", 4), 1, 16) == 8);
}

TEST_CASE("a run that is longer than the one that was stopped: versions that it lacks are not made up") {
  at::set_num_threads(1);
  RandomCase c;
  c.model = small_model(false);
  c.rules = momentum_rules();
  c.plan = plan_of(c.model, {1, 1}, {4, 1});
  c.minibatches = 10;
  c.rules.total_minibatches = c.minibatches;
  const auto minibatches = random_minibatches(c.model.graph, c.minibatches, 5);
  Trained run(c, {4, 8});
  run.train(minibatches);
  // Of minibatches 8 to 10 the forwards read three older versions; only two of them were kept for 8 and 9.
  const auto began = [&](int64_t n, int64_t end) {
    return pipeline_began(run.checkpoint(n).manifest, c.plan, 1, end);
  };
  CHECK(began(8, 10) == 0);
  CHECK(began(8, 11) == 8);
  CHECK(began(4, 11) == 0);
}
