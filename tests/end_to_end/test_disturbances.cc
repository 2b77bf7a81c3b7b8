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
  // Waiting is no lack of a core.
  CHECK(slow.summary->ranks[1].times->cpu_seconds < 0.6);
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

TEST_CASE("a rank that becomes slow while it trains is named, and so is the end of it") {
  Jobs jobs;
  // All computing takes 10 ms a minibatch, of rank 1 60 ms from minibatch 150 to 190.
  const DisturbedRun run = jobs.launch("slow",
                                       {"--disturb", "random:probability=1,duration=5ms", "--disturb",
                                        "random:rank=1,probability=1,duration=25ms,from=150,to=190"},
                                       330);
  INFO(run.error);
  REQUIRE(run.code == 0);
  std::vector<Json> speeds;
  for (const std::string& line : complete_lines(run.folder / "metrics.jsonl")) {
    const Json json = parse_json(line, "metrics.jsonl");
    if (json.contains("speed") && json["speed"]["rank"] == 1) speeds.push_back(json["speed"]);
  }
  REQUIRE(speeds.size() == 2);
  CHECK(speeds[0]["minibatch"] >= 135);
  CHECK(speeds[0]["minibatch"] <= 165);
  CHECK(speeds[0]["found"] < 190);
  CHECK(speeds[0]["slowdown"].get<double>() > 3);
  CHECK(speeds[1]["minibatch"] >= 180);
  CHECK(speeds[1]["slowdown"].get<double>() < 1.3);
  CHECK(run.error.find("rank 1 computes ") != std::string::npos);
  CHECK(run.error.find(" times as long as when the run was quiet since minibatch ") != std::string::npos);
}

TEST_CASE("a link that becomes slow while it trains is named, no rank is, and so is the end of it") {
  Jobs jobs;
  // All computing takes 10 ms a minibatch; messages from rank 1 to rank 0 60 ms from minibatch 400 to 500.
  const DisturbedRun run = jobs.launch("slow",
                                       {"--disturb", "random:probability=1,duration=5ms", "--disturb",
                                        "link:sender=1,receiver=0,delay=60ms,from=400,to=500"},
                                       800);
  INFO(run.error);
  REQUIRE(run.code == 0);
  std::vector<Json> links;
  for (const std::string& line : complete_lines(run.folder / "metrics.jsonl")) {
    const Json json = parse_json(line, "metrics.jsonl");
    // What else this machine does may show, but not as much as that.
    if (json.contains("speed")) CHECK(json["speed"]["slowdown"] < 3);
    if (json.contains("link") && json["link"]["from"] == 1 && json["link"]["found"] >= 400)
      links.push_back(json["link"]);
  }
  REQUIRE(links.size() >= 2);
  CHECK(links.front()["to"] == 0);
  CHECK(links.front()["minibatch"] >= 380);
  CHECK(links.front()["minibatch"] <= 420);
  CHECK(links.front()["found"] < 500);
  CHECK(links.front()["slowdown"].get<double>() > 2);
  CHECK(links.front()["after_seconds"].get<double>() > 0.02);
  CHECK(links.back()["slowdown"].get<double>() < 2);
  CHECK(run.error.find("link from rank 1 to rank 0 takes ") != std::string::npos);
  CHECK(run.error.find(" times as long as when the run was quiet since minibatch ") != std::string::npos);
}

namespace {

// A run that is disturbed from minibatch kDisturbedFrom on. Ranks wait far longer than they compute, so that
// what else this machine does moves no rank's level: a minibatch takes 10 ms, and of rank 1 then 60 ms.
constexpr int64_t kDisturbedFrom = 150;
constexpr int64_t kEpoch = 64;

class Followed {
 public:
  explicit Followed(const std::string& policy,
                    const std::string& disturbance = "random:rank=1,probability=1,duration=25ms,from=150") {
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
                           "600",
                           "--plan",
                           (folder_ / "plan.json").string(),
                           "--adapt",
                           "interference:profile=" + profile + policy,
                           "--checkpoint-every-minibatches",
                           "600",
                           "--disturb",
                           "random:probability=1,duration=5ms",
                           "--disturb",
                           disturbance,
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
  /// The plan that came into force because rank 1 was slow.
  GenerationSummary changed() const {
    const auto at = std::find_if(summary.generations.begin(), summary.generations.end(),
                                 [](const GenerationSummary& generation) {
                                   return generation.reason.find("rank 1 computes") != std::string::npos &&
                                          generation.first_minibatch > kDisturbedFrom;
                                 });
    REQUIRE(at != summary.generations.end());
    return *at;
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

}  // namespace

TEST_CASE(
    "a run whose rank becomes slow goes on under another plan, and ends with the bits of the plans that it "
    "had") {
  Followed run("");
  INFO(run.said);
  const GenerationSummary changed = run.changed();
  CHECK(changed.reason.find("interference, measured: ") == 0);
  // The slow rank has less to do than before: fewer nodes, or a smaller share of the minibatches.
  CHECK(work(read_document<Plan>(run.in_run(changed.plan)), 1) < work(run.before, 1));
  CHECK(run.said.find("a minibatch under the plan in force") != std::string::npos);
  run.run("runtime", {"verify", "--run", run.in_run("").string()});
}

TEST_CASE("decide=naive,when=epoch: at the end of an epoch a run goes on under the naive plan") {
  Followed run(",decide=naive,when=epoch");
  INFO(run.said);
  const GenerationSummary changed = run.changed();
  CHECK(changed.reason.find("interference, naive: rank 1 computes") == 0);
  // The first epoch that begins while the rank is slow; how soon the ranks then agree is up to the machine.
  CHECK(changed.first_minibatch >= (kDisturbedFrom / kEpoch + 1) * kEpoch);
  CHECK(work(read_document<Plan>(run.in_run(changed.plan)), 1) < work(run.before, 1));
  run.run("runtime", {"verify", "--run", run.in_run("").string()});
}

TEST_CASE(
    "a run whose link becomes slow plans again with it, and ends with the bits of the plans that it had") {
  Followed run("", "link:sender=0,receiver=1,delay=40ms,from=150");
  INFO(run.said);
  CHECK(run.said.find("the link from rank 0 to rank 1 takes ") != std::string::npos);
  CHECK(run.said.find("a minibatch under the plan in force") != std::string::npos);
  run.run("runtime", {"verify", "--run", run.in_run("").string()});
}
