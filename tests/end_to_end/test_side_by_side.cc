// Pipelines side by side that train by themselves between two drains (`--sync none`), with real processes.
#include <random>

#include "graph/summary.h"
#include "tests/end_to_end/changing_runs.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kRules = {"--sync", "none", "--momentum", "0.9"};

// The same plan, its ranks in any order.
std::string shuffled(const TemporaryFolder& folder, const std::string& file, uint64_t seed) {
  Plan plan = read_document<Plan>(file);
  std::vector<int64_t> number(static_cast<size_t>(plan.world_size));
  for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<int64_t>(i);
  std::mt19937_64 random(seed);
  std::shuffle(number.begin(), number.end(), random);
  for (Stage& stage : plan.stages)
    for (int64_t& rank : stage.ranks) rank = number[static_cast<size_t>(rank)];
  const fs::path name = folder / ("shuffled-" + std::to_string(seed) + ".json");
  write_document(name, plan);
  return name.string();
}

void check_verified(const TemporaryFolder& folder, const fs::path& run) {
  const Outcome verified = runtime(folder, {"verify", "--run", run.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, Catch::Contains("equal bit for bit"));
}

void check_equal(const fs::path& run, const fs::path& expected) {
  CHECK(metrics(run) == metrics(expected));
  const std::string last = "minibatch-" + std::to_string(kMinibatches);
  CHECK(tensor_files(run / "checkpoints" / last) == tensor_files(expected / "checkpoints" / last));
}

}  // namespace

TEST_CASE(
    "sync none: any plan of pipelines side by side ends as the serial reference, and so from every "
    "checkpoint") {
  const TemporaryFolder folder;
  const auto [plan, transport] = GENERATE(
      table<std::string, std::string>({{"1f1b", "shm"}, {"1f1b", "gloo"}, {"gpipe", "shm"}, {"dp", "gloo"}}));
  const std::string file = plan == "dp"      ? write_plan(folder, "plan.json", {3})
                           : plan == "gpipe" ? write_flush_plan(folder, "plan.json", {2, 2}, "gpipe")
                                             : write_plan(folder, "plan.json", {2, 2});
  const std::vector<std::string> rules = kRules + std::vector<std::string>{"--plan",
                                                                           shuffled(folder, file, 3),
                                                                           "--transport",
                                                                           transport,
                                                                           "--checkpoint-every-minibatches",
                                                                           "25",
                                                                           "--checkpoint-keep",
                                                                           "9"};
  const fs::path whole = folder / "whole";
  finish(folder, whole, rules);
  const auto summary = read_document<Summary>(whole / "summary.json");
  CHECK(summary.status == "done");
  check_verified(folder, whole);
  size_t found = 0;
  for (const auto& entry : fs::directory_iterator(whole / "checkpoints")) {
    if (entry.path().filename() == "minibatch-" + std::to_string(kMinibatches)) continue;
    if (++found != 2 && !is_long()) continue;
    const fs::path again = folder / "again";
    fs::remove_all(again);
    finish(folder, again, rules + std::vector<std::string>{"--resume", entry.path().string()});
    check_equal(again, whole);
  }
  CHECK(found >= 3);
}

TEST_CASE(
    "sync none: the plan changes, also to one of other pipelines, and the run is the serial reference's") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {2, 2});
  const std::string b = write_plan(folder, "b.json", {1, 1, 1});
  const std::string c = write_plan(folder, "c.json", {4});
  const std::string changes = write_changes(folder, {{13, b}, {40, c}});
  const fs::path run = folder / "run";
  finish(
      folder, run,
      kRules + std::vector<std::string>{"--plan", a, "--adapt", changes, "--checkpoint-every-epochs", "1"});
  CHECK(read_document<Summary>(run / "summary.json").generations.size() == 3);
  check_verified(folder, run);

  const std::string uneven = write_plan(folder, "uneven.json", {2, 1});
  const std::string worse = write_changes(folder, {{13, uneven}});
  const Outcome refused = runtime(
      folder, std::vector<std::string>{"launch"} +
                  job(folder / "refused", kRules + std::vector<std::string>{"--plan", a, "--adapt", worse}));
  CHECK(refused.code == 3);
  CHECK_THAT(refused.error,
             Catch::Contains("uneven.json") && Catch::Contains("stage 0 has 2, stage 1 has 1"));
  CHECK_FALSE(fs::exists(folder / "refused"));
}

TEST_CASE("sync none: a signal leaves an average, from which any synchronisation goes on") {
  const TemporaryFolder folder;
  const std::string plan = write_plan(folder, "plan.json", {2, 2});
  const fs::path run = folder / "run";
  const std::vector<std::string> words = kRules + std::vector<std::string>{"--plan", plan};
  {
    // Pipelines that drift apart: replica 1 takes 3 ms more for every action.
    Launch launch(folder, run,
                  words + std::vector<std::string>{"--minibatches", "1000000", "--disturb",
                                                   "random:rank=1,probability=1,duration=3ms"});
    REQUIRE(eventually(60s, [&] { return fs::exists(run / "metrics.jsonl") && losses(run).size() > 20; }));
    launch.process.signal(SIGTERM);
    REQUIRE(launch.code() == 143);
  }
  const int64_t stopped = static_cast<int64_t>(losses(run).size());
  CHECK(fs::exists(run / "checkpoints" / ("minibatch-" + std::to_string(stopped))));
  fs::copy(run, folder / "kept", fs::copy_options::recursive);
  const std::string end = std::to_string(stopped + 50);
  for (const char* sync : {"none", "all-reduce"}) {
    fs::remove_all(run);
    fs::copy(folder / "kept", run, fs::copy_options::recursive);
    finish(folder, run,
           {"--momentum", "0.9", "--plan", plan, "--sync", sync, "--minibatches", end, "--resume", "latest",
            "--checkpoint-every-epochs", "1000"});
    CHECK(losses(run).size() == static_cast<size_t>(stopped + 50));
    CAPTURE(sync);
    check_verified(folder, run);
  }
}

TEST_CASE(
    "sync partial-reduce, adpsgd and shared minibatches: any plan ends as the serial reference that repeats "
    "what rank 0 decided or was told, and goes on from checkpoints") {
  const TemporaryFolder folder;
  const auto [plan, transport, sync, when] =
      GENERATE(table<std::string, std::string, std::string, std::string>(
          {{"1f1b", "shm", "partial-reduce:window=4", "always"},
           {"1f1b", "gloo", "partial-reduce:window=4,scope=pipeline,minibatches=turns", "long"},
           {"gpipe", "shm", "none:minibatches=shared", "always"},
           {"1f1b", "shm", "adpsgd", "long"},
           {"gpipe", "gloo", "adpsgd:minibatches=turns", "always"},
           {"dp", "shm", "adpsgd", "long"},
           {"dp", "gloo", "partial-reduce:window=1", "always"}}));
  if (when == "long" && !is_long()) return;
  const std::string file = plan == "dp"      ? write_plan(folder, "plan.json", {3})
                           : plan == "gpipe" ? write_flush_plan(folder, "plan.json", {2, 2}, "gpipe")
                                             : write_plan(folder, "plan.json", {2, 2});
  // One pipeline is slower than the others, now and then.
  const std::vector<std::string> rules = {"--momentum",
                                          "0.9",
                                          "--sync",
                                          sync,
                                          "--plan",
                                          shuffled(folder, file, 5),
                                          "--transport",
                                          transport,
                                          "--checkpoint-every-minibatches",
                                          "25",
                                          "--checkpoint-keep",
                                          "9",
                                          "--disturb",
                                          "random:rank=1,probability=0.3,duration=5ms"};
  const fs::path whole = folder / "whole";
  finish(folder, whole, rules);
  const auto summary = read_document<Summary>(whole / "summary.json");
  CHECK(summary.status == "done");
  CHECK(fs::file_size(whole / "groups.jsonl") > 0);
  REQUIRE(summary.sync);
  CHECK(summary.sync->rule == sync);
  CHECK(summary.sync->group_sizes.empty() == (sync.rfind("none", 0) == 0));
  check_verified(folder, whole);
  // The first one, so that others are behind it.
  fs::path first;
  for (int64_t k = 0; k < kMinibatches - 1 && first.empty(); ++k) {
    const fs::path checkpoint = whole / "checkpoints" / ("minibatch-" + std::to_string(k));
    if (fs::exists(checkpoint)) first = checkpoint;
  }
  REQUIRE_FALSE(first.empty());
  const fs::path again = folder / "again";
  finish(folder, again, rules + std::vector<std::string>{"--resume", first.string()});
  CHECK(losses(again).size() == static_cast<size_t>(kMinibatches));
  check_verified(folder, again);
  // Without the checkpoint it began with: its own first one is behind that, and what was decided between is
  // not written.
  fs::rename(first, folder / "elsewhere");
  const Outcome verified = runtime(folder, {"verify", "--run", again.string()});
  CHECK(verified.code == 2);
  CHECK_THAT(verified.error, Catch::Contains("verified from where it began"));
}

TEST_CASE("sync partial-reduce and adpsgd: the plan changes, a signal stops it, and what cannot be is said") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {2, 2});
  const std::string b = write_plan(folder, "b.json", {4});
  const std::string changes = write_changes(folder, {{13, b}, {40, a}});
  const std::string sync = GENERATE("partial-reduce:window=3", "adpsgd");
  CAPTURE(sync);
  const std::vector<std::string> rules = {"--momentum", "0.9", "--sync", sync, "--plan", a};
  const fs::path run = folder / "run";
  finish(folder, run, rules + std::vector<std::string>{"--adapt", changes, "--checkpoint-every-epochs", "1"});
  CHECK(read_document<Summary>(run / "summary.json").generations.size() == 3);
  check_verified(folder, run);

  const fs::path stopped = folder / "stopped";
  {
    Launch launch(folder, stopped, rules + std::vector<std::string>{"--minibatches", "1000000"});
    REQUIRE(eventually(60s,
                       [&] { return fs::exists(stopped / "metrics.jsonl") && losses(stopped).size() > 20; }));
    launch.process.signal(SIGTERM);
    REQUIRE(launch.code() == 143);
  }
  check_verified(folder, stopped);

  for (const auto& [wrong, message] : std::vector<std::pair<std::string, std::string>>{
           {"partial-reduce:windows=3", "window"},
           {"partial-reduce:window=0", "window"},
           {"partial", "partial-reduce"},
           {"partial-reduce:wait=0.4,most-wait=0.1", "most-wait"},
           {"none:window=1", "window"},
           {"adpsgd-lockstep:minibatches=shared", "minibatches"},
           {"adpsgd:minibatches=all", "turns"},
           {"adpsgd:window=3", "window"},
           {"hetpipe:distance=-1", "distance"},
           {"hetpip", "hetpipe"}}) {
    const Outcome refused = runtime(
        folder, std::vector<std::string>{"launch"} + job(folder / "refused", {"--plan", a, "--sync", wrong}));
    INFO(wrong << ": " << refused.error);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.error, Catch::Contains(message));
    CHECK_FALSE(fs::exists(folder / "refused"));
  }
}

TEST_CASE("shared minibatches: a slow pipeline trains fewer, and a signal or a change of plan loses none") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {2, 2});
  const std::string b = write_plan(folder, "b.json", {4});
  const std::vector<std::string> rules = {"--momentum",
                                          "0.9",
                                          "--sync",
                                          "none:minibatches=shared",
                                          "--plan",
                                          a,
                                          "--disturb",
                                          "random:rank=1,probability=1,duration=5ms",
                                          "--checkpoint-every-epochs",
                                          "1"};
  const fs::path run = folder / "run";
  finish(folder, run, rules + std::vector<std::string>{"--adapt", write_changes(folder, {{17, b}, {40, a}})});
  check_verified(folder, run);

  const fs::path stopped = folder / "stopped";
  {
    Launch launch(folder, stopped, rules + std::vector<std::string>{"--minibatches", "1000000"});
    REQUIRE(eventually(60s,
                       [&] { return fs::exists(stopped / "metrics.jsonl") && losses(stopped).size() > 40; }));
    launch.process.signal(SIGTERM);
    REQUIRE(launch.code() == 143);
  }
  check_verified(folder, stopped);
  const auto summary = read_document<Summary>(stopped / "summary.json");
  int64_t of_slow = 0, of_fast = 0;
  for (const RankSummary& rank : summary.ranks) {
    REQUIRE(rank.times);
    (rank.replica == 1 ? of_slow : of_fast) += rank.times->minibatches;
  }
  CHECK(of_slow < of_fast);
}

TEST_CASE("sync partial-reduce and adpsgd: a rank that dies ends the run, whoever waits for it") {
  const TemporaryFolder folder;
  const std::string plan = write_plan(folder, "plan.json", {2, 2});
  const fs::path run = folder / "run";
  const std::string sync = GENERATE("partial-reduce:window=1", "adpsgd");
  CAPTURE(sync);
  Launch launch(folder, run,
                {"--momentum", "0.9", "--sync", sync, "--plan", plan, "--minibatches", "1000000", "--disturb",
                 "random:rank=2,probability=1,duration=50ms"});
  REQUIRE(eventually(60s, [&] { return fs::exists(run / "metrics.jsonl") && losses(run).size() > 4; }));
  REQUIRE(launch.process.children().size() == 4);
  ::kill(launch.process.children().back(), SIGKILL);
  CHECK(launch.code() != 0);
  CHECK(read_document<Summary>(run / "summary.json").status == "failed");
}

TEST_CASE(
    "sync adpsgd-lockstep and hetpipe: any plan ends as the serial reference, and so from every checkpoint") {
  const TemporaryFolder folder;
  const auto [plan, transport, sync] =
      GENERATE(table<std::string, std::string, std::string>({{"1f1b", "shm", "adpsgd-lockstep"},
                                                             {"dp", "gloo", "adpsgd-lockstep"},
                                                             {"1f1b", "gloo", "hetpipe:distance=2"},
                                                             {"gpipe", "shm", "hetpipe:wave=3,distance=1"},
                                                             {"dp", "shm", "hetpipe"}}));
  if (transport == "gloo" && !is_long()) return;
  const std::string file = plan == "dp"      ? write_plan(folder, "plan.json", {3})
                           : plan == "gpipe" ? write_flush_plan(folder, "plan.json", {2, 2}, "gpipe")
                                             : write_plan(folder, "plan.json", {2, 2});
  const std::vector<std::string> rules = {"--momentum",
                                          "0.9",
                                          "--sync",
                                          sync,
                                          "--plan",
                                          shuffled(folder, file, 5),
                                          "--transport",
                                          transport,
                                          "--checkpoint-every-minibatches",
                                          "25",
                                          "--checkpoint-keep",
                                          "9",
                                          "--disturb",
                                          "random:rank=1,probability=0.3,duration=5ms"};
  CAPTURE(plan, transport, sync);
  const fs::path whole = folder / "whole";
  finish(folder, whole, rules);
  const auto summary = read_document<Summary>(whole / "summary.json");
  CHECK(summary.status == "done");
  REQUIRE(summary.sync);
  CHECK(summary.sync->rule == sync);
  CHECK_FALSE(fs::exists(whole / "groups.jsonl"));
  check_verified(folder, whole);
  size_t resumed = 0;
  for (const auto& entry : fs::directory_iterator(whole / "checkpoints")) {
    if (entry.path().filename() == "minibatch-" + std::to_string(kMinibatches)) continue;
    const fs::path again = folder / "again";
    fs::remove_all(again);
    finish(folder, again, rules + std::vector<std::string>{"--resume", entry.path().string()});
    check_equal(again, whole);
    ++resumed;
  }
  CHECK(resumed >= 3);
}

TEST_CASE("sync adpsgd-lockstep and hetpipe: the plan changes, a signal stops them, a dead rank ends them") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {2, 2});
  const std::string b = write_plan(folder, "b.json", {4});
  const std::string sync = GENERATE("adpsgd-lockstep", "hetpipe:distance=1");
  CAPTURE(sync);
  const std::vector<std::string> rules = {"--momentum", "0.9", "--sync", sync, "--plan", a};
  const fs::path run = folder / "run";
  finish(folder, run,
         rules + std::vector<std::string>{"--adapt", write_changes(folder, {{13, b}, {40, a}}),
                                          "--checkpoint-every-epochs", "1"});
  CHECK(read_document<Summary>(run / "summary.json").generations.size() == 3);
  check_verified(folder, run);

  const fs::path stopped = folder / "stopped";
  for (const int signal : {SIGTERM, SIGKILL}) {
    Launch launch(folder, stopped, rules + std::vector<std::string>{"--minibatches", "1000000"});
    REQUIRE(eventually(60s,
                       [&] { return fs::exists(stopped / "metrics.jsonl") && losses(stopped).size() > 20; }));
    REQUIRE(launch.process.children().size() == 4);
    if (signal == SIGTERM) {
      launch.process.signal(SIGTERM);
      REQUIRE(launch.code() == 143);
      check_verified(folder, stopped);
      fs::remove_all(stopped);
    } else {
      ::kill(launch.process.children().back(), SIGKILL);
      CHECK(launch.code() != 0);
      CHECK(read_document<Summary>(stopped / "summary.json").status == "failed");
    }
  }
}
