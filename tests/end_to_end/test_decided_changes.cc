// Runs whose next plan is written while they train, with real processes. What was decided when is a matter of
// time; what comes of it is compared with a run that knows the same changes beforehand.
// PIPEWRIGHT_BOUNDARIES=1 tries every point of every rank.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "graph/summary.h"
#include "interference/predictor.h"
#include "tests/end_to_end/changing_runs.h"
#include "tests/end_to_end/held.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

namespace {

// A run whose plan is decided on the way: unless `adapt` is another policy, what is in `folder`/next.json.
struct Watching {
  const TemporaryFolder& folder;
  const fs::path run, next;
  std::vector<std::string> words;
  std::string adapt = "watch:file=" + next.string();
  std::optional<Process> process;

  Watching(const TemporaryFolder& in, const std::string& plan, const std::vector<std::string>& more)
      : folder(in), run(in / "run"), next(in / "next.json") {
    words = std::vector<std::string>{"--model",
                                     kEndlessModel,
                                     "--data",
                                     "synthetic-images:image=8,samples=256",
                                     "--evaluation-data",
                                     "synthetic-images:image=8,samples=50",
                                     "--batch-size",
                                     "8",
                                     "--momentum",
                                     "0.9",
                                     "--timeout",
                                     "20s",
                                     "--plan",
                                     plan} +
            more;
  }

  std::vector<std::string> watches(const std::vector<std::string>& more) const {
    return words + std::vector<std::string>{"--adapt", adapt, "--output", run.string()} + more;
  }
  void start(const std::string& command, const std::vector<std::string>& more,
             const std::map<std::string, std::string>& variables = {}) {
    process.emplace(std::vector<std::string>{program("runtime"), command} + watches(more), folder / "run.out",
                    folder / "run.err", variables);
  }
  // Another program puts the file in its place.
  void put(const std::string& file) const {
    fs::copy_file(file, folder / "next.part", fs::copy_options::overwrite_existing);
    fs::rename(folder / "next.part", next);
  }
  bool says(const std::string& text) {
    return eventually(60s,
                      [&] {
                        return process->error().find(text) != std::string::npos ||
                               process->wait(0ms) != Process::kRunning;
                      }) &&
           process->wait(0ms) == Process::kRunning;
  }
  // Lines of generations so far.
  std::vector<GenerationSummary> generations() const {
    std::vector<GenerationSummary> told;
    for (const std::string& text : complete_lines(run / "metrics.jsonl")) {
      const Json line = parse_json(text, "metrics.jsonl");
      if (!line.contains("generation")) continue;
      JsonReader reader(line["generation"], "metrics.jsonl");
      told.push_back(GenerationSummary::from_json(reader));
    }
    return told;
  }
  bool comes_to(size_t plans) {
    return eventually(
               60s,
               [&] { return generations().size() >= plans || process->wait(0ms) != Process::kRunning; }) &&
           process->wait(0ms) == Process::kRunning;
  }

  // The same changes at the same minibatches, known beforehand, from the first minibatch on.
  fs::path repeated(const std::string& command, const std::vector<std::string>& more) const {
    const fs::path again = folder / "again";
    fs::remove_all(again);
    const std::vector<std::string> changes =
        fs::exists(run / "changes.json")
            ? std::vector<std::string>{"--adapt", "manual:file=" + (run / "changes.json").string()}
            : std::vector<std::string>{};
    const Outcome outcome = runtime(folder, std::vector<std::string>{command} + words + changes + more +
                                                std::vector<std::string>{"--output", again.string()});
    INFO(outcome.error);
    REQUIRE(outcome.code == 0);
    return again;
  }
};

int64_t trained(const fs::path& run) { return static_cast<int64_t>(losses(run).size()); }

void check_equal(const fs::path& run, const fs::path& expected, int64_t minibatches) {
  CHECK(losses(run).size() == static_cast<size_t>(minibatches));
  CHECK(metrics(run) == metrics(expected));
  const std::string last = "minibatch-" + std::to_string(minibatches);
  CHECK(tensor_files(run / "checkpoints" / last) == tensor_files(expected / "checkpoints" / last));
}

}  // namespace

TEST_CASE("a plan that is written while the run trains takes over, as if it had been known beforehand") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {1, 2});
  const std::string b = write_flush_plan(folder, "b.json", {1, 1}, "gpipe");  // two ranks wait
  const std::string c = write_plan(folder, "c.json", {2, 2});
  Watching run(folder, a, {"--transport", GENERATE("shm", "gloo")});
  run.start("launch", {"--ranks", "4", "--minibatches", "1000000", "--checkpoint-every-epochs", "10"});
  const auto fails = [&] { return run.process->error(); };
  INFO(fails());
  REQUIRE(run.comes_to(1));

  // What is no plan, or none for this run, changes nothing.
  write_file(run.next, "{\"schema\": ");
  REQUIRE(run.says("training goes on under the plan in force"));
  run.put(write_plan(folder, "five.json", {2, 3}));
  REQUIRE(run.says("the plan is for 5 ranks, the run has 4"));
  CHECK(run.generations().size() == 1);

  size_t plans = 1;
  for (const std::string& next : {b, c, a, b, a}) {
    run.put(next);
    REQUIRE(run.comes_to(++plans));
  }
  run.put(a);  // in force
  run.process->signal(SIGTERM);
  REQUIRE(run.process->wait(60s) == 143);
  const auto told = run.generations();
  REQUIRE(told.size() == 6);
  const auto changes = read_plan_changes(run.run / "changes.json");
  REQUIRE(changes.size() == 5);
  for (size_t k = 0; k < told.size(); ++k) {
    CHECK(told[k].number == static_cast<int64_t>(k));
    CHECK(told[k].reason == (k == 0 ? "start" : "watch"));
    CHECK(told[k].plan == "generation-" + std::to_string(k) + ".plan.json");
    if (k > 0) CHECK(changes[k - 1].minibatch == told[k].first_minibatch);
  }

  // The same command goes on under the plan in force, whatever it had begun with. `verify` begins where the
  // pipeline was empty, which a slow machine had not come to before: an epoch ends within what is left.
  const int64_t end = trained(run.run) + 40;
  const std::vector<std::string> rest = {
      "--ranks", "4", "--minibatches", std::to_string(end), "--checkpoint-every-epochs", "1"};
  run.start("launch", rest + std::vector<std::string>{"--resume", "latest"});
  REQUIRE(run.process->wait(120s) == 0);
  const auto summary = read_document<Summary>(run.run / "summary.json");
  REQUIRE(summary.generations.size() == 7);
  CHECK(summary.generations.back().reason == "resume");
  CHECK(summary.generations.back().plan == "generation-5.plan.json");
  CHECK(summary.ranks.size() == 4);
  const fs::path again =
      run.repeated("launch", {"--minibatches", std::to_string(end), "--checkpoint-every-epochs", "10"});
  check_equal(run.run, again, end);
  const Outcome verified = runtime(folder, {"verify", "--run", run.run.string()});
  INFO(verified.error << verified.output);
  CHECK(verified.code == 0);

  // Under another first plan it would not be where it was.
  std::replace(run.words.begin(), run.words.end(), a, c);
  const Outcome other = runtime(folder, std::vector<std::string>{"launch"} + run.watches(rest) +
                                            std::vector<std::string>{"--resume", "latest"});
  CHECK(other.code == 3);
  CHECK_THAT(other.error, Catch::Contains("began under another plan"));
}

TEST_CASE(
    "many changes that are decided on the way leave no memory, descriptors, threads or store keys behind") {
  const char* count = std::getenv("PIPEWRIGHT_MANY_CHANGES");
  const size_t many = count ? static_cast<size_t>(std::atoll(count)) : 40;
  const TemporaryFolder folder;
  const std::vector<std::string> plans = {write_plan(folder, "a.json", {2, 1}),
                                          write_flush_plan(folder, "b.json", {1, 1}, "1f1b-flush"),
                                          write_plan(folder, "c.json", {1, 2})};
  Watching run(folder, plans[0], {"--optimizer", "adam"});
  run.start("launch", {"--minibatches", "1000000", "--checkpoint-every-epochs", "1000000"});
  std::optional<Held> early;
  for (size_t change = 1; change <= many; ++change) {
    run.put(plans[change % 3]);
    INFO(run.process->error());
    REQUIRE(run.comes_to(change + 1));
    if (change == many / 4) early = Held::by(*run.process);
  }
  check_growth(*early, *run.process);
  CHECK(early->threads.size() == 3);
  run.process->signal(SIGTERM);
  CHECK(run.process->wait(60s) == 143);
}

// Ranks that wait far longer than they compute, so that other programs move no rank's level by as much: a
// minibatch takes 18 ms, three are a sample; and of the slow rank 126 ms, which is a sample.
namespace {

const std::string kQuiet = "random:probability=1,duration=9ms";
std::string slow_rank(const std::string& window) {
  return "random:rank=1,probability=1,duration=54ms," + window;
}

}  // namespace

// When exactly, slow_rank_plan_test and rank_monitor_test say of ranks that no other program disturbs.
TEST_CASE("a plan that is kept ready is in force while a rank is slow, and no longer") {
  const TemporaryFolder folder;
  const std::string quiet = write_plan(folder, "quiet.json", {1, 1});
  Plan less = read_document<Plan>(quiet);  // of rank 1
  less.stages[0].nodes.push_back(less.stages[1].nodes.front());
  less.stages[1].nodes.erase(less.stages[1].nodes.begin());
  const std::string slow = (folder / "slow.json").string();
  write_document(slow, less);
  Watching run(folder, quiet, {});
  run.adapt = "slow:rank=1,factor=2.5,plan=" + slow;
  const std::vector<std::string> rest = {"--minibatches", "260", "--checkpoint-every-epochs", "20"};
  run.start("launch",
            rest + std::vector<std::string>{"--disturb", kQuiet, "--disturb", slow_rank("from=80,to=145")});
  const int code = run.process->wait(120s);
  INFO(run.process->error());
  REQUIRE(code == 0);
  const auto told = run.generations();
  const auto plan = [&](const std::string& file) { return document_text(read_document<Plan>(file)); };
  bool was_slow = false;
  for (size_t k = 1; k < told.size(); ++k) {
    const bool is_slow = told[k].reason.rfind("slow: rank 1 computes ", 0) == 0;
    CAPTURE(k, told[k].reason, told[k].first_minibatch);
    CHECK(is_slow == (told[k - 1].reason.rfind("slow: rank 1 computes ", 0) != 0));
    if (!is_slow) CHECK(told[k].reason == "slow: no rank is any more");
    CHECK(plan(run.run / told[k].plan) == (is_slow ? plan(slow) : plan(run.run / told[0].plan)));
    was_slow = was_slow || (is_slow && told[k].first_minibatch > 80);
  }
  CHECK(was_slow);
  CHECK(told.back().reason == "slow: no rank is any more");
  CHECK(told.back().first_minibatch > 145);
  check_equal(run.run, run.repeated("launch", rest), 260);
}

TEST_CASE(
    "with decide=predict ranks tell of their cores, outside the forest's range measured speeds count, and "
    "what "
    "is decided can be repeated") {
  const TemporaryFolder folder;
  const std::string profile = folder / "profile.json", predictor = folder / "predictor.json";
  Process profiler({program("profiler"), "--model", kEndlessModel, "--batch-size", "8", "--repeats", "2",
                    "--output", profile},
                   folder / "profiler.out", folder / "profiler.err");
  REQUIRE(profiler.wait(60s) == 0);
  // Whatever this machine does, no rank waits a hundred seconds for each that it runs.
  InterferenceData data;
  data.features = {"waiting"};
  for (int i = 0; i < 20; ++i) data.rows.push_back({"matrix", 1, "w", {100.0 + i}, 2 + 0.1 * i});
  write_document(predictor, Predictor::train(data, {}));
  Watching run(folder, write_plan(folder, "a.json", {1, 1}), {});
  run.adapt = "interference:decide=predict,profile=" + profile + ",model=" + predictor;
  const std::vector<std::string> rest = {"--minibatches", "140", "--checkpoint-every-epochs", "20"};
  // Eight seconds, thirty samples of each core.
  run.start("launch",
            rest + std::vector<std::string>{"--disturb", kQuiet, "--disturb", slow_rank("from=80")});
  const int code = run.process->wait(120s);
  const std::string said = run.process->error();
  INFO(said);
  REQUIRE(code == 0);
  for (const std::string rank : {"0", "1"}) {
    CHECK_THAT(said, Catch::Contains("adapt: rank " + rank + " is ") &&
                         Catch::Contains("what it measures counts instead"));
  }
  // What other programs did to rank 0 may be told before it.
  const std::vector<std::string> lines = complete_lines(folder / "run.err");
  CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    const size_t adapt = line.find("adapt: ");
    return adapt != std::string::npos && line.find("rank 1 computes ", adapt) != std::string::npos;
  }));
  check_equal(run.run, run.repeated("launch", rest), 140);
}

TEST_CASE("one process goes on under a plan that is written while it trains") {
  const TemporaryFolder folder;
  const std::string a = write_plan(folder, "a.json", {1});
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1});
  plan.schedule = "gpipe";
  plan.weights = "flush";
  plan.microbatches = 4;
  plan.stages[0].in_flight = 4;
  write_document(folder / "b.json", plan);
  Watching run(folder, a, {});
  run.start("train", {"--minibatches", "1000000", "--checkpoint-every-epochs", "10"});
  REQUIRE(run.comes_to(1));
  run.put((folder / "b.json").string());
  INFO(run.process->error());
  REQUIRE(run.comes_to(2));
  run.process->signal(SIGINT);
  REQUIRE(run.process->wait(60s) == 130);
  const int64_t end = trained(run.run) + 40;
  const std::vector<std::string> rest = {"--minibatches", std::to_string(end), "--checkpoint-every-epochs",
                                         "10"};
  run.start("train", rest + std::vector<std::string>{"--resume", "latest"});
  REQUIRE(run.process->wait(60s) == 0);
  check_equal(run.run, run.repeated("train", rest), end);
}

TEST_CASE(
    "whatever happens to a rank around a change that is decided on the way, the run goes on, bit for bit as "
    "one that knew it beforehand") {
  const TemporaryFolder folder;
  // "1": every action of every rank; "2:throw": of that rank, with that fault.
  const char* const asked = std::getenv("PIPEWRIGHT_BOUNDARIES");
  const std::string boundaries = asked ? asked : "";
  const bool all = !boundaries.empty();
  std::mt19937_64 random(19);
  constexpr int64_t kEnd = 20;
  // Under the first plan rank 2 waits.
  Watching run(folder, write_plan(folder, "a.json", {1, 1}), {"--checkpoint-every-minibatches", "3"});
  run.put(write_plan(folder, "b.json", {1, 2}));
  const std::vector<std::string> rest = {"--ranks", "3", "--minibatches", std::to_string(kEnd)};
  int64_t happened = 0, changed = 0;
  const auto try_one = [&](int64_t rank, int64_t point, const std::string& fault) {
    fs::remove_all(run.run);
    run.start("launch", rest,
              {{"PIPEWRIGHT_TEST_FAULT", std::to_string(rank) + ":" + std::to_string(point) + ":" + fault}});
    const int code = run.process->wait(60s);
    CAPTURE(rank, point, fault, run.process->error());
    CHECK((code == 0 || code == (fault == "throw" ? 1 : fault == "9" ? 5 : 143)));
    const bool did = code != 0;
    run.start("launch", rest + std::vector<std::string>{"--resume", "latest"});
    REQUIRE(run.process->wait(60s) == 0);
    CAPTURE(run.process->error());
    changed += fs::exists(run.run / "changes.json");
    check_equal(run.run, run.repeated("launch", {"--minibatches", std::to_string(kEnd)}), kEnd);
    happened += did;
    return did;
  };
  const std::vector<std::string> faults = {"15", "9", "throw"};
  for (int64_t rank = 0; rank < 3; ++rank) {
    for (const std::string& fault : faults) {
      if (all) {
        if (boundaries != "1" && boundaries != std::to_string(rank) + ":" + fault) continue;
        for (int64_t point = 0, late = 0; late < 3; ++point)
          late = try_one(rank, point, fault) ? 0 : late + 1;
      } else if (fault == faults[static_cast<size_t>(rank)]) {
        try_one(rank, static_cast<int64_t>(random() % (rank == 1 ? 40 : 15)), fault);
      }
    }
  }
  CHECK(happened > 0);
  CHECK(changed > 0);
}
