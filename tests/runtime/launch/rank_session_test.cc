// The steps of a rank's task, whatever fails on the way: in worlds of one rank and of several.
#include "runtime/launch/rank_session.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "graph/error.h"
#include "models/load.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {

const std::vector<std::string> kSteps = {"open", "prepare", "begin", "work", "last words", "close"};

// Fails at one of its steps, and counts what is asked of it.
class FailingTask : public RankTask {
 public:
  explicit FailingTask(std::string fails_at) : fails_at_(std::move(fails_at)) {}
  RankSession* session = nullptr;
  int opened = 0, last_words = 0, closed = 0;
  std::atomic<int> messages = 0, messages_after_close = 0;
  std::string status;

 private:
  void step(const std::string& name) const {
    if (name == fails_at_) throw RunError("fails at " + name);
  }
  void open() override {
    ++opened;
    step("open");
  }
  void take(int64_t, RankMessage) override { ++(closed > 0 ? messages_after_close : messages); }
  void prepare() override { step("prepare"); }
  void begin() override { step("begin"); }
  void work() override {
    session->control().post(TraceDocument{"worked"});
    step("work");
  }
  void post_last_words() override {
    ++last_words;
    step("last words");
    session->control().post(TraceDocument{"last words"});
  }
  void close(const std::string& ended) override {
    ++closed;
    status = ended;
    step("close");
  }

  const std::string fails_at_;
};

std::string error_of(RankSession& session, FailingTask& task) {
  try {
    task.session = &session;
    session.run(task);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "rank session: whatever step fails on whatever rank, each is closed once, behind the last message") {
  const int64_t world = GENERATE(1, 2, 3);
  for (int64_t victim = 0; victim < world; ++victim) {
    for (const std::string& step : kSteps) {
      if (step == "begin" && victim != 0) continue;  // rank 0's
      CAPTURE(world, victim, step);
      const TemporaryFolder folder;
      Job job;
      job.model = load_model("mlp:layers=1,width=4,image=2", 2);
      job.plan = single_stage_plan(job.model.graph, world);
      job.run.output = folder.path();
      const Store server = Store::serve(0, "pipewright/0");
      std::vector<std::unique_ptr<FailingTask>> tasks;
      std::vector<std::string> errors(static_cast<size_t>(world));
      std::vector<std::thread> threads;
      for (int64_t rank = 0; rank < world; ++rank)
        tasks.push_back(std::make_unique<FailingTask>(rank == victim ? step : ""));
      for (int64_t rank = 0; rank < world; ++rank) {
        threads.emplace_back([&, rank] {
          Place place;
          place.rank = place.local_rank = rank;
          place.world_size = world;
          place.master_port = server.port();
          place.store_is_served = true;
          RankSession session(job, place);
          errors[static_cast<size_t>(rank)] = error_of(session, *tasks[static_cast<size_t>(rank)]);
        });
      }
      for (auto& thread : threads) thread.join();
      for (int64_t rank = 0; rank < world; ++rank) {
        const FailingTask& task = *tasks[static_cast<size_t>(rank)];
        CAPTURE(rank, errors[static_cast<size_t>(rank)]);
        CHECK(task.opened == 1);
        CHECK(task.last_words <= 1);
        CHECK(task.closed == 1);
        CHECK(task.messages_after_close == 0);
        if (rank == victim) {
          CHECK(errors[static_cast<size_t>(rank)] == "fails at " + step);
        } else if (step != "close") {
          CHECK_THAT(errors[static_cast<size_t>(rank)], Catch::Contains("fails at " + step));
        }
        if (step != "close") CHECK(task.status == "failed");
      }
      if (step == "work" || step == "last words") CHECK(tasks[0]->messages >= world);
    }
  }
}
