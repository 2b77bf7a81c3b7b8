// What NVIDIA's tools are told of a rank: a plug-in that writes it down stands in.
#include <ATen/Parallel.h>

#include "models/load.h"
#include "runtime/schedule/draw.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/random_pipelines.h"
#include "tests/support/error_of.h"
#include "tests/support/stand_in_cuda.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

/// Of one thread.
class RangeWriter : public StandInCuda {
 public:
  void begin_range(const std::string& name) override {
    names.push_back(name);
    ++open;
    deepest = std::max(deepest, open);
  }
  void end_range() override { --open; }

  std::vector<std::string> names;
  int64_t open = 0;
  int64_t deepest = 0;
};

}  // namespace

TEST_CASE("every action is a range with its name in the trace, in order, one at a time") {
  at::set_num_threads(1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    RandomJob job = RandomJobs(seed).next(6);
    job.rules.total_minibatches = job.spans.back().end();
    const int64_t size = job.plan.world_size;
    std::vector<RangeWriter> writers(static_cast<size_t>(size));
    std::vector<std::vector<std::string>> traced(static_cast<size_t>(size));
    std::mutex mutex;
    int64_t next = 0;
    RankExtras extras;
    extras.prepare = [&](Worker&, WorkerHooks& hooks) {
      const std::lock_guard lock(mutex);
      const auto mine = static_cast<size_t>(next++);
      hooks.ranges = &writers[mine];
      hooks.observers.push_back(std::make_shared<Watch>(
          [&writers, mine](const Action&) {
            if (writers[mine].open != 0) throw RunError("a range is still open");
          },
          [&traced, mine](const Action& action) {
            traced[mine].push_back(trace_span(0, action, 0, 0).name);
          }));
    };
    run_pipeline(job.model, job.plan, job.rules, job.spans,
                 random_minibatches(job.model.graph, job.rules.total_minibatches, 5),
                 size == 1 ? std::vector<std::unique_ptr<Transport>>() : make_world("local", size), {},
                 extras);
    for (size_t rank = 0; rank < writers.size(); ++rank) {
      CHECK_FALSE(writers[rank].names.empty());
      CHECK(writers[rank].names == traced[rank]);
      CHECK(writers[rank].open == 0);
      CHECK(writers[rank].deepest == 1);
    }
  }
}

TEST_CASE("the range of an action that throws is closed") {
  at::set_num_threads(1);
  const Model model = load_model("mlp:layers=2,width=8,image=4,classes=5", 4);
  TrainingRules rules = momentum_rules();
  rules.total_minibatches = 4;
  RangeWriter writer;
  RankExtras extras;
  extras.prepare = [&](Worker&, WorkerHooks& hooks) {
    hooks.ranges = &writer;
    hooks.fields = [fields = hooks.fields](int64_t stage, int64_t k) {
      if (k == 2) throw RunError("no data");
      return fields(stage, k);
    };
  };
  CHECK(error_of<RunError>([&] {
          run_pipeline(model, plan_of(model, {1}, {1}), rules, {{0, 4}},
                       random_minibatches(model.graph, 4, 5), {}, {}, extras);
        }) == "no data");
  CHECK(writer.names.back() == "F2");
  CHECK(writer.open == 0);
}
