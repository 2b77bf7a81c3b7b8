#include "runtime/train/run_checkpoints.h"

#include <algorithm>

#include "graph/error.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/generation/state_source.h"
#include "runtime/generation/training_data.h"
#include "tests/runtime/pipelines.h"
#include "tests/runtime/train/small_job.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

// Rank 0 of a job of one rank, which has trained six minibatches.
class Trained {
 public:
  explicit Trained(Run run)
      : job(prepare_job(std::move(run), 1)),
        data(job),
        source(start_of(job.run, job.model, job.resume, /*in_flight=*/false)),
        worker(job.model_of(0), job.plan, 0, nullptr, data.rules_of(0), source.get(), PipelineServices{}),
        checkpoints({job, only_rank(), 0, [this](CheckpointPart part) { posted.push_back(std::move(part)); },
                     [this] { deliver(); }, [this](int64_t n) { newest.push_back(n); }}) {
    std::filesystem::create_directories(job.run.output);
    checkpoints.set_stages(worker.stage_count());
    checkpoints.keep();
    if (checkpoints.keeps_state()) checkpoints.make_room({});
    const auto minibatches = random_minibatches(job.model.graph, 6, 10);
    WorkerHooks hooks;
    hooks.fields = fields_from(minibatches, worker);
    hooks.loss_fields = loss_fields_from(minibatches, worker);
    worker.train({0, 6}, hooks);
  }
  ~Trained() { checkpoints.remove_kept(); }

  CheckpointManifest manifest(int64_t next_minibatch) const {
    CheckpointManifest manifest;
    manifest.next_minibatch = manifest.pipeline_began = next_minibatch;
    manifest.minibatches_per_epoch = 12;
    manifest.cause = "interval";
    manifest.run = job.run;
    manifest.plan = job.plan;
    manifest.graph_digest = document_digest(job.model.graph);
    return manifest;
  }
  void write(const std::vector<CheckpointKind>& kinds) {
    checkpoints.begin(kinds, [this] { return manifest(6); });
    checkpoints.write(kinds, 6, worker.stage(), worker.stage().state_before(6), /*drained=*/true);
    checkpoints.complete();
  }
  // As rank 0 hears what ranks post.
  void deliver() {
    for (const CheckpointPart& part : std::exchange(posted, {})) checkpoints.take(part);
  }

  Job job;
  TrainingData data;
  std::unique_ptr<StateSource> source;
  Worker worker;
  std::vector<CheckpointPart> posted;
  std::vector<int64_t> newest;
  RunCheckpoints checkpoints;
};

Run recovering(const TemporaryFolder& folder) {
  Run run = small_run(folder);
  run.recovery.on_loss = "restart";
  run.recovery.copy_every_minibatches = 7;
  return run;
}

}  // namespace

TEST_CASE("checkpoints of a run: state for lost ranks is kept where the run recovers from losses") {
  const TemporaryFolder folder;
  Run run = small_run(folder);
  run.checkpoint.every_minibatches = 4;
  const Job plain = prepare_job(run, 1), recovers = prepare_job(recovering(folder), 1);
  const auto nothing = [](const auto&...) {};
  const RunCheckpoints without({plain, only_rank(), 0, nothing, [] {}, nothing});
  CHECK_FALSE(without.keeps_state());
  REQUIRE(without.points().size() == 1);
  CHECK(without.points().at(CheckpointKind::kRun).every_minibatches == 4);
  const RunCheckpoints with({recovers, only_rank(), 0, nothing, [] {}, nothing});
  CHECK(with.keeps_state());
  CHECK(with.points().at(CheckpointKind::kKept).every_minibatches == 7);
  CHECK(with.points().at(CheckpointKind::kKept).keep == 1);
}

TEST_CASE(
    "checkpoints of a run: each kind in its own place, with the same bytes, and only what was asked for") {
  const TemporaryFolder folder;
  Trained trained(recovering(folder));
  const std::filesystem::path run = trained.job.run.output;
  CHECK(trained.checkpoints.last().empty());
  trained.write({CheckpointKind::kKept});
  CHECK(trained.checkpoints.last().empty());
  CHECK(list_checkpoints(run).empty());
  const auto kept = list_checkpoints(kept_by_attempt(kept_state_of(run), 0));
  REQUIRE(kept.size() == 1);
  CHECK(minibatch_of(kept[0]) == 6);

  trained.write({CheckpointKind::kRun});
  CHECK(minibatch_of(trained.checkpoints.last()) == 6);
  const Checkpoint written = open_checkpoint(trained.checkpoints.last()), memory = open_checkpoint(kept[0]);
  REQUIRE(written.manifest.stages.size() == 1);
  CHECK(written.manifest.stages[0].state.digest == memory.manifest.stages[0].state.digest);
  CHECK(written.manifest.stages[0].updates == 6);
  CHECK(trained.newest.empty());  // a launcher of one host looks by itself

  trained.checkpoints.remove_kept();
  CHECK_FALSE(std::filesystem::exists(kept[0]));
  CHECK(std::filesystem::exists(trained.checkpoints.last()));
}

TEST_CASE("checkpoints of a run: state whose folder is removed is left out, and the next is kept again") {
  const TemporaryFolder folder;
  Trained trained(recovering(folder));
  note_start(trained.job.run.output, {0, 0}, /*first=*/true);
  const std::filesystem::path place = kept_state_of(trained.job.run.output);
  trained.write({CheckpointKind::kKept});
  std::filesystem::remove_all(target_of_kept_place(place));
  trained.write({CheckpointKind::kKept});  // and makes the folder
  CHECK(list_checkpoints(kept_by_attempt(place, 0)).empty());
  trained.write({CheckpointKind::kKept});
  CHECK(list_checkpoints(kept_by_attempt(place, 0)).size() == 1);
}

TEST_CASE("checkpoints of a run: one that cannot be written ends the run with its reason") {
  const TemporaryFolder folder;
  Trained trained(small_run(folder));
  write_file(std::filesystem::path(trained.job.run.output) / "checkpoints", "a file where a folder is to be");
  CHECK_THROWS_AS(trained.write({CheckpointKind::kRun}), Error);
  trained.checkpoints.settle_writers();
  trained.checkpoints.settle();
  CHECK(trained.checkpoints.last().empty());
}
