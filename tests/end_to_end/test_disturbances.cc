// --disturb: ranks that are made slow, in runs of real processes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "graph/summary.h"
#include "tests/end_to_end/jobs.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

struct DisturbedRun {
  int code = 0;
  std::string output, error;
  std::optional<Summary> summary;
  std::filesystem::path folder;
};

class Jobs {
 public:
  Jobs() {
    Plan plan = even_plan(graph_of(kEndlessModel, 8, folder_), {1, 1});
    std::swap(plan.stages[0].ranks, plan.stages[1].ranks);  // stage 0 is rank 1's
    write_document(folder_ / "plan.json", plan);
  }

  DisturbedRun launch(const std::string& name, const std::vector<std::string>& words,
                      int64_t minibatches = 60) {
    DisturbedRun run;
    run.folder = folder_ / name;
    std::vector<std::string> all = {program("runtime"), "launch"};
    all = all + endless_job(folder_);
    all.back() = run.folder.string();
    all = all +
          std::vector<std::string>{"--plan", (folder_ / "plan.json").string(), "--minibatches",
                                   std::to_string(minibatches)} +
          words;
    Process process(all, folder_ / "out", folder_ / "err");
    run.code = process.wait(120s);
    run.output = process.output();
    run.error = process.error();
    if (run.code == 0) run.summary = read_document<Summary>(run.folder / "summary.json");
    return run;
  }

 private:
  TemporaryFolder folder_;
};

double injected(const DisturbedRun& run, int64_t rank) {
  return run.summary->ranks.at(static_cast<size_t>(rank)).times->injected_seconds;
}

}  // namespace

TEST_CASE("a disturbed run computes the same bits, later, and says how long its ranks waited") {
  Jobs jobs;
  const DisturbedRun quiet = jobs.launch("quiet", {});
  // Two waits of 10 ms for each of 30 minibatches on rank 1; random ones on rank 0, of forwards and
  // backwards.
  const DisturbedRun slow =
      jobs.launch("slow", {"--disturb", "random:rank=1,probability=1,duration=10ms,from=10,to=40",
                           "--disturb", "random:rank=0,probability=0.25,duration=1ms,seed=7", "--disturb",
                           "link:sender=1,receiver=0,delay=3ms,from=5,to=50"});
  INFO(quiet.error << slow.error);
  REQUIRE(quiet.code == 0);
  REQUIRE(slow.code == 0);
  CHECK(tensor_files(quiet.folder) == tensor_files(slow.folder));
  CHECK(metrics(quiet.folder) == metrics(slow.folder));
  CHECK(injected(quiet, 0) == 0);
  CHECK(injected(quiet, 1) == 0);
  CHECK(injected(slow, 1) == Approx(0.6));
  CHECK(injected(slow, 0) > 0.010);
  CHECK(injected(slow, 0) < 0.060);
  CHECK(slow.summary->ranks[1].times->busy_seconds > 0.6);
  // Waiting is no lack of a core: none of it counts as its time.
  CHECK(slow.summary->ranks[1].times->cpu_seconds < slow.summary->ranks[1].times->busy_seconds - 0.5);
}

TEST_CASE("a disturbance that the plan has no rank for is refused before anything starts") {
  Jobs jobs;
  const DisturbedRun run = jobs.launch("refused", {"--disturb", "fixed:rank=2,factor=3"});
  CHECK(run.code == 3);
  CHECK(run.error.find("--disturb fixed: rank 2, but the plan has ranks 0..1") != std::string::npos);
  const DisturbedRun link = jobs.launch("link", {"--disturb", "link:sender=0,receiver=5,delay=3ms"});
  CHECK(link.code == 3);
  CHECK(link.error.find("--disturb link: rank 5, but the plan has ranks 0..1") != std::string::npos);
  const DisturbedRun unknown = jobs.launch("unknown", {"--disturb", "fix:rank=1,factor=3"});
  CHECK(unknown.code == 2);
  CHECK(unknown.error.find("did you mean 'fixed'?") != std::string::npos);
}

// What a run says of what is slow. When a step is found, and that nothing else is, is a matter of times:
// level_detector_test, rank_monitor_test and link_judge_test claim it of series that no other program
// disturbs. Here ranks wait for far longer than other programs hold them up, and nothing is claimed of them.
namespace {

const std::string kQuiet = "random:probability=1,duration=13ms";  // a minibatch 26 ms: two are a sample

std::vector<Json> told(const DisturbedRun& run, const std::string& what) {
  std::vector<Json> all;
  for (const std::string& line : complete_lines(run.folder / "metrics.jsonl")) {
    const Json json = parse_json(line, "metrics.jsonl");
    if (json.contains(what)) all.push_back(json[what]);
  }
  return all;
}

/// The first that says it is so many times as slow, found from this minibatch on; absent: nothing does.
std::optional<Json> slow_since(const std::vector<Json>& all, double slowdown, int64_t from) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const Json& one) {
    return one["slowdown"].get<double>() > slowdown && one["found"] >= from;
  });
  if (at == all.end()) return std::nullopt;
  return *at;
}

}  // namespace

TEST_CASE("a rank that becomes slow while it trains is named, and so is the end of it") {
  Jobs jobs;
  // Rank 1 takes seven times as long from minibatch 60 to 84.
  const DisturbedRun run = jobs.launch(
      "slow", {"--disturb", kQuiet, "--disturb", "random:rank=1,probability=1,duration=78ms,from=60,to=84"},
      160);
  INFO(run.error);
  REQUIRE(run.code == 0);
  std::vector<Json> speeds;
  for (const Json& speed : told(run, "speed"))
    if (speed["rank"] == 1) speeds.push_back(speed);
  const auto slow = slow_since(speeds, 2, 60);
  REQUIRE(slow);
  CHECK(speeds.back()["found"] > 84);
  CHECK(speeds.back()["slowdown"].get<double>() < (*slow)["slowdown"].get<double>() / 2);
  CHECK(run.error.find("rank 1 computes ") != std::string::npos);
  CHECK(run.error.find(" times as long as when the run was quiet since minibatch ") != std::string::npos);
}

TEST_CASE("a link that becomes slow while it trains is named, no rank is, and so is the end of it") {
  Jobs jobs;
  // Messages from rank 1 to rank 0 take 120 ms from minibatch 70 to 110.
  const DisturbedRun run = jobs.launch(
      "slow", {"--disturb", kQuiet, "--disturb", "link:sender=1,receiver=0,delay=120ms,from=70,to=110"}, 230);
  INFO(run.error);
  REQUIRE(run.code == 0);
  std::vector<Json> links;
  for (const Json& link : told(run, "link"))
    if (link["from"] == 1 && link["to"] == 0) links.push_back(link);
  const auto slow = slow_since(links, 2, 70);
  REQUIRE(slow);
  CHECK((*slow)["after_seconds"].get<double>() > 0.05);
  CHECK(links.back()["found"] > 110);
  CHECK(links.back()["slowdown"].get<double>() < (*slow)["slowdown"].get<double>() / 2);
  // No rank waits as long for what it computes as for those messages.
  for (const Json& speed : told(run, "speed")) CHECK(speed["after_seconds"].get<double>() < 0.1);
  CHECK(run.error.find("link from rank 1 to rank 0 takes ") != std::string::npos);
  CHECK(run.error.find(" times as long as when the run was quiet since minibatch ") != std::string::npos);
}

namespace {

// A run that is disturbed from minibatch kDisturbedFrom on, shortly after an epoch has begun, to its end. A
// minibatch takes about 20 ms, where other programs have the cores several times as long; of rank 1 then 200
// ms more.
constexpr int64_t kEpoch = 32;
constexpr int64_t kDisturbedFrom = 3 * kEpoch + 2;
constexpr int64_t kEnd = kDisturbedFrom + 80;

class Followed {
 public:
  explicit Followed(const std::string& policy,
                    const std::string& disturbance = "random:rank=1,probability=1,duration=100ms") {
    const std::string model = "mlp:layers=8,width=512,image=16,channels=1";
    const std::string profile = (folder_ / "profile.json").string();
    run("profiler", {"--model", model, "--batch-size", "32", "--output", profile});
    run("optimizer", {"plan", "--profile", profile, "--gpus", "2", "--bandwidths", "4GB/s", "--strategy",
                      "straight", "--output", (folder_ / "plan.json").string()});
    const std::string data = "synthetic-images:image=16,samples=" + std::to_string(32 * kEpoch);
    said = run("runtime", {"launch",
                           "--model",
                           model,
                           "--data",
                           data,
                           "--batch-size",
                           "32",
                           "--minibatches",
                           std::to_string(kEnd),
                           "--plan",
                           (folder_ / "plan.json").string(),
                           "--adapt",
                           "interference:profile=" + profile + policy,
                           "--checkpoint-every-minibatches",
                           std::to_string(kEnd),
                           "--disturb",
                           "random:probability=1,duration=6500us",
                           "--disturb",
                           disturbance + ",from=" + std::to_string(kDisturbedFrom),
                           "--output",
                           in_run("").string()});
    summary = read_document<Summary>(in_run("summary.json"));
    before = read_document<Plan>(folder_ / "plan.json");
  }

  std::string run(const std::string& command, const std::vector<std::string>& words) {
    Process process(std::vector<std::string>{program(command)} + words, folder_ / "out", folder_ / "err");
    const int code = process.wait(180s);
    INFO(process.error());
    REQUIRE(code == 0);
    return process.error();
  }
  std::filesystem::path in_run(const std::string& file) const { return folder_ / "run" / file; }
  /// What came into force because rank 1 was slow, and its plan.
  std::vector<std::pair<GenerationSummary, Plan>> changes() const {
    std::vector<std::pair<GenerationSummary, Plan>> found;
    for (const GenerationSummary& generation : summary.generations)
      if (generation.reason.find("rank 1 computes") != std::string::npos &&
          generation.first_minibatch > kDisturbedFrom)
        found.emplace_back(generation, read_document<Plan>(in_run(generation.plan)));
    return found;
  }

  std::string said;
  Summary summary;
  Plan before;

 private:
  TemporaryFolder folder_;
};

// Nodes that a rank has, times its share of the minibatches.
double work(const Plan& plan, int64_t rank) {
  double nodes = 0;
  for (const Stage& stage : plan.stages) {
    const auto at = std::find(stage.ranks.begin(), stage.ranks.end(), rank);
    if (at == stage.ranks.end()) continue;
    const auto all = std::accumulate(stage.shares.begin(), stage.shares.end(), int64_t{0});
    const double share =
        all == 0 ? 1.0 / static_cast<double>(stage.ranks.size())
                 : static_cast<double>(stage.shares[static_cast<size_t>(at - stage.ranks.begin())]) /
                       static_cast<double>(all);
    nodes += share * static_cast<double>(stage.nodes.size());
  }
  return nodes;
}

// The slow rank has less to do than before: fewer nodes, or a smaller share of the minibatches. Noise may
// have led to other changes, too.
void check_changes(const Followed& run, const std::string& reason) {
  const auto changes = run.changes();
  CHECK(std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
    return change.first.reason.find(reason) == 0 && work(change.second, 1) < work(run.before, 1);
  }));
}

}  // namespace

TEST_CASE(
    "a run whose rank becomes slow goes on under another plan, and ends with the bits of the plans that it "
    "had") {
  Followed run("");
  INFO(run.said);
  check_changes(run, "interference, measured: ");
  CHECK(run.said.find("a minibatch under the plan in force") != std::string::npos);
  run.run("runtime", {"verify", "--run", run.in_run("").string()});
}

TEST_CASE("decide=naive,when=epoch: at the end of an epoch a run goes on under the naive plan") {
  Followed run(",decide=naive,when=epoch");
  INFO(run.said);
  check_changes(run, "interference, naive: ");
  // The first epoch that begins while the rank is slow; how soon the ranks then agree is up to the machine.
  for (const auto& [change, plan] : run.changes())
    CHECK(change.first_minibatch >= (kDisturbedFrom / kEpoch + 1) * kEpoch);
  run.run("runtime", {"verify", "--run", run.in_run("").string()});
}

TEST_CASE(
    "a run whose link becomes slow plans again with it, and ends with the bits of the plans that it had") {
  Followed run("", "link:sender=0,receiver=1,delay=120ms");
  INFO(run.said);
  CHECK(run.said.find("the link from rank 0 to rank 1 takes ") != std::string::npos);
  CHECK(run.said.find("a minibatch under the plan in force") != std::string::npos);
  run.run("runtime", {"verify", "--run", run.in_run("").string()});
}
