// HetPipe: pipelines that add waves of updates to weights of all, against the serial reference and against
// what must follow from its meaning.
#include <mutex>
#include <thread>

#include "models/zoo/registry.h"
#include "runtime/schedule/side_by_side.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/runtime/sync/random_delays.h"
#include "tests/support/process.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

std::string hetpipe(int64_t distance, int64_t wave) {
  return "hetpipe:distance=" + std::to_string(distance) + ",wave=" + std::to_string(wave);
}

}  // namespace

TEST_CASE(
    "hetpipe: whatever plan, rules, distance and waves, weights and losses are the serial program's, bit for "
    "bit") {
  at::set_num_threads(1);
  const std::vector<std::string> transports = {"local", "local", "local", "shm", "gloo"};
  for (int64_t seed = 0; seed < side_by_side_cases(100); ++seed) {
    RandomJobs jobs(static_cast<uint64_t>(seed) + 17000);
    const std::string sync = seed % 4 == 0 ? "hetpipe" : hetpipe(jobs.between(0, 3), jobs.between(0, 4));
    RandomJob job = jobs.next_side_by_side(sync, 6);
    if (seed % 3 == 0) cast_weights_once(job);
    check_side_by_side(job.plan, job.rules.sync, job.rules.gradient_accumulation);
    job.rules.total_minibatches = job.spans.back().end();
    CAPTURE(seed, sync, job.plan.shape_text(), job.plan.schedule, job.plan.weights, job.rules.optimizer.name);
    const auto minibatches = random_minibatches(job.model.graph, job.spans.back().end(), 5);
    auto world =
        job.plan.world_size == 1
            ? std::vector<std::unique_ptr<Transport>>()
            : make_world(transports[static_cast<size_t>(seed) % transports.size()], job.plan.world_size);
    const PipelineRun run =
        run_pipeline(job.model, job.plan, job.rules, job.spans, minibatches, std::move(world),
                     random_delays(job.plan.world_size, static_cast<uint64_t>(seed)));
    const ReferenceResult expected =
        train_serially(job.model, job.plan, job.rules, job.spans,
                       [&](int64_t k) { return minibatches[static_cast<size_t>(k)]; });
    check_run(job.plan, job.rules, job.spans, run, expected);
  }
}

TEST_CASE("hetpipe in step, a wave an update, with plain SGD is one pipeline that all-reduces, to rounding") {
  at::set_num_threads(1);
  const Model model = build_model("convnet:width=4,image=16", 4);
  const Plan plan = plan_of(model, {3, 3}, {1, 1});
  TrainingRules rules;
  rules.seed = 5;
  rules.optimizer.learning_rate = 0.05;
  rules.total_minibatches = 12;
  const auto minibatches = random_minibatches(model.graph, 12, 10);
  const auto run = [&](const std::string& sync) {
    rules.sync = sync;
    return run_pipeline(model, plan, rules, {{0, 12}}, minibatches, make_world("local", 6));
  };
  const PipelineRun together = run("all-reduce"), waves = run(hetpipe(0, 1));
  for (size_t k = 0; k < 12; ++k) CHECK(waves.losses[k] == Approx(together.losses[k]).epsilon(1e-4));
  for (const auto& [name, copies] : waves.weights) {
    INFO(name);
    CHECK(at::allclose(copies[0], together.weights.at(name)[0], 1e-4, 1e-6));
  }
}

TEST_CASE(
    "hetpipe: nobody begins a wave more than the distance ahead of the slowest, and a fast pipeline goes "
    "that far") {
  at::set_num_threads(1);
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  const int64_t wave = 2, waves = 8;
  for (const int64_t distance : {0, 1, 3}) {
    const Plan plan = plan_of(model, {2, 2}, {2, 1});
    TrainingRules rules;
    rules.sync = hetpipe(distance, wave);
    rules.total_minibatches = 2 * wave * waves;
    const auto minibatches = random_minibatches(model.graph, rules.total_minibatches, 10);
    std::mutex mutex;
    std::map<int64_t, int64_t> updates;  // begun, by rank
    int64_t furthest = 0;
    // The slow pipeline does not begin before the other is as far as it may be.
    const auto is_there = [&] {
      const std::lock_guard lock(mutex);
      return updates[plan.stages[0].ranks[0]] > distance * wave;
    };
    const auto before = [&](int64_t rank, const Action& action) {
      const bool slow = rank == plan.stages[0].ranks[1];
      if (slow && action.kind == ActionKind::kForward && !eventually(std::chrono::seconds(60), is_there))
        throw std::runtime_error("the fast pipeline has not come as far as it may");
      if (slow && action.kind == ActionKind::kForward)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (action.kind != ActionKind::kUpdate) return;
      const std::lock_guard lock(mutex);
      const int64_t own = updates[rank]++;
      const auto& stage =
          plan.stages[plan.stages[0].ranks[0] == rank || plan.stages[0].ranks[1] == rank ? 0 : 1];
      for (const int64_t other : stage.ranks) {
        if (other == rank || own % wave != 0) continue;
        // It has begun the last update of the wave `distance` + 1 before, at least.
        const int64_t due = (own / wave - distance) * wave;
        CHECK(updates[other] >= due);
        furthest = std::max(furthest, own / wave - updates[other] / wave);
      }
    };
    run_pipeline(model, plan, rules, {{0, rules.total_minibatches}}, minibatches, make_world("local", 4),
                 before);
    CAPTURE(distance);
    CHECK(furthest >= distance);
  }
}

TEST_CASE("hetpipe: a wave is what is in flight, unless it is given") {
  const Model model = build_model("mlp:layers=3,width=8,image=4,channels=1", 4);
  Plan plan = plan_of(model, {1, 1}, {5, 1});
  CHECK(updates_in_flight(plan, 1) == 5);
  CHECK(updates_in_flight(plan, 2) == 3);
  plan = with_schedule(plan_of(model, {1, 1}, {4, 4}), "gpipe", "flush", 4);
  CHECK(updates_in_flight(plan, 1) == 1);
}
