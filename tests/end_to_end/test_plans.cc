// Plans of every kind through the real launcher: the ranks that it starts end with the bits of the serial
// reference (`verify`). PIPEWRIGHT_LAUNCHED_PLANS sets how many random ones are tried.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "graph/error.h"
#include "graph/summary.h"
#include "graph/topology.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/schedule/turns.h"
#include "tests/end_to_end/commands.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

class RandomPlans {
 public:
  RandomPlans(const Graph& graph, uint32_t seed) : graph_(graph), random_(seed) {}

  /// Ranks in any order, replicas, several stages on a rank, uneven shares.
  Plan next(int64_t most_ranks) {
    const std::vector<std::pair<std::string, std::string>> kinds = {
        {"1f1b", "stash"},  {"1f1b", "2bw"},         {"1f1b", "vertical"}, {"model-parallel", "stash"},
        {"gpipe", "flush"}, {"1f1b-flush", "flush"}, {"zb-h1", "flush"},   {"interleaved", "flush"},
        {"1f1b", "paci"},   {"1f1b", "predict"}};
    const auto& [schedule, weights] = kinds[static_cast<size_t>(between(0, 9))];
    const bool several = schedule == "interleaved";
    std::vector<int64_t> replicas;
    for (int64_t left = most_ranks; left > 0 && replicas.size() < 3;) {
      const bool alike = !replicas.empty() && (several || weights == "vertical");
      replicas.push_back(alike ? replicas[0] : between(1, std::min<int64_t>(left, 2)));
      if (replicas.back() > left) replicas.pop_back();
      left -= replicas.empty() ? 0 : replicas.back();
      if (replicas.size() > 1 && between(0, 2) == 0) break;
    }
    Plan plan = even_plan(graph_, replicas);
    if (several) {
      const size_t groups = replicas.size();
      for (const int64_t r : std::vector<int64_t>(replicas)) replicas.push_back(r);
      const int64_t world_size = plan.world_size;
      plan = even_plan(graph_, replicas);
      for (size_t s = groups; s < plan.stages.size(); ++s)
        plan.stages[s].ranks = plan.stages[s - groups].ranks;
      plan.world_size = world_size;
    }
    plan.schedule = schedule;
    plan.weights = weights;
    plan.microbatches = weights == "flush" || weights == "2bw" ? between(1, 4) : 1;
    if (!several && between(0, 3) == 0) {
      for (Stage& stage : plan.stages)
        for (size_t q = 0; stage.ranks.size() > 1 && q < stage.ranks.size(); ++q)
          stage.split.push_back(between(1, 3));
    } else if (!several && weights != "vertical" && between(0, 2) == 0) {
      for (Stage& stage : plan.stages) {
        for (size_t q = 0; stage.ranks.size() > 1 && q < stage.ranks.size(); ++q)
          stage.shares.push_back(between(1, 3));
      }
    }
    for (Stage& stage : plan.stages) {
      stage.recompute = between(0, 3) == 0 && !weight_rule_facts(weights).in_place;
      if (stage.recompute && between(0, 1) == 0)
        stage.recompute_ratio = 0.1 * static_cast<double>(between(1, 9));
    }
    const PipelineShape shape = shape_of(plan);
    if (weights == "2bw")
      plan.microbatches =
          std::max(plan.microbatches, StageTurns(shape, 0).run_ahead(usable_in_flight(shape)[0]));
    const std::vector<int64_t> depths = schedule_named(schedule).depths(shape_of(plan));
    for (size_t s = 0; s < depths.size(); ++s)
      plan.stages[s].in_flight = std::max(plan.stages[s].in_flight, depths[s]);

    std::vector<int64_t> number(static_cast<size_t>(plan.world_size));
    std::iota(number.begin(), number.end(), 0);
    std::shuffle(number.begin(), number.end(), random_);
    for (Stage& stage : plan.stages)
      for (int64_t& rank : stage.ranks) rank = number[static_cast<size_t>(rank)];
    return plan;
  }

  /// One of those that the plan can be trained under.
  std::string sync_for(const Plan& plan) {
    std::vector<std::string> possible;
    for (const char* sync :
         {"all-reduce", "none", "none:minibatches=shared", "partial-reduce:window=2",
          "partial-reduce:scope=pipeline", "adpsgd-lockstep", "adpsgd", "hetpipe:distance=1,wave=2"}) {
      try {
        check_side_by_side(plan, sync, 1);
        possible.emplace_back(sync);
      } catch (const PlanError&) {
        continue;
      }
    }
    return possible[static_cast<size_t>(between(0, static_cast<int64_t>(possible.size()) - 1))];
  }

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

 private:
  const Graph& graph_;
  std::mt19937 random_;
};

bool counts_stage_by_stage(const Plan& plan) {
  int64_t next = 0;
  for (const Stage& stage : plan.stages)
    for (const int64_t rank : stage.ranks)
      if (rank != next++) return false;
  return true;
}

// Through the launcher, on a plan that lies in `folder`.
void verify_plan(const TemporaryFolder& folder, const std::filesystem::path& plan,
                 const std::vector<std::string>& more = {}) {
  Process process(
      std::vector<std::string>{program("runtime"), "verify", "--json", "--plan", plan.string(), "--model",
                               kEndlessModel, "--data", "synthetic-images:image=8,samples=96", "--batch-size",
                               "8", "--minibatches", "7", "--momentum", "0.9"} +
          more,
      folder / "out", folder / "err", {{"TMPDIR", folder.path().string()}});
  const int code = process.wait(240s);
  INFO(Process::contents(plan));
  INFO(process.error());
  REQUIRE(code == 0);
  CHECK(parse_json(process.output(), "verify")["serial_reference"]["equal"] == true);
}

// No stage begins with a minibatch before the one in front has ended with it: ranks are on one clock.
void check_order_in_time(const Simulation& timeline) {
  constexpr double kClocks = 5e-4;
  std::map<std::pair<int64_t, int64_t>, std::pair<double, double>> forwards;  // by minibatch and stage
  for (const SimulatedAction& a : timeline.actions) {
    if (a.action.kind != ActionKind::kForward) continue;
    const int64_t stage = a.action.stage_or(timeline.ranks[static_cast<size_t>(a.rank)].placement.stage);
    const auto [known, fresh] = forwards.try_emplace({a.action.index, stage}, a.begin_seconds, a.end_seconds);
    if (fresh) continue;
    known->second.first = std::min(known->second.first, a.begin_seconds);
    known->second.second = std::min(known->second.second, a.end_seconds);
  }
  for (const auto& [place, times] : forwards) {
    const auto before = forwards.find({place.first, place.second - 1});
    if (before == forwards.end()) continue;
    INFO("minibatch " << place.first << ", stage " << place.second);
    CHECK(times.first > before->second.second - kClocks);
  }
}

}  // namespace

TEST_CASE("plans: whatever ranks a plan gives its stages, the launched ranks equal the serial reference") {
  const char* given = std::getenv("PIPEWRIGHT_LAUNCHED_PLANS");
  const int plans = given ? std::atoi(given) : 8;
  const TemporaryFolder folder;
  const Graph graph = graph_of(kEndlessModel, 8, folder);
  for (int i = 0; i < plans; ++i) {
    RandomPlans random(graph, static_cast<uint32_t>(i));
    const Plan plan = random.next(4);
    plan.validate("random plan");
    write_document(folder / "plan.json", plan);
    const std::string sync = random.sync_for(plan);
    INFO("plan " << i << ", sync " << sync);
    verify_plan(folder, folder / "plan.json", {"--transport", i % 2 == 0 ? "shm" : "gloo", "--sync", sync});
  }
}

TEST_CASE(
    "plans: of random ones what was predicted is reported, and drawn above what the launched ranks did") {
  const TemporaryFolder folder;
  const Graph graph = graph_of(kEndlessModel, 8, folder);
  const std::string profile = (folder / "profile.json").string(), plan_file = (folder / "plan.json").string();
  REQUIRE(run_program(folder, "profiler",
                      {"--model", kEndlessModel, "--batch-size", "8", "--warmup", "1", "--repeats", "3",
                       "--output", profile})
              .code == 0);
  const std::filesystem::path page_file = folder / "run.html";
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  int drawn_plans = 0;
  for (uint32_t i = 0; i < 6; ++i) {
    const std::filesystem::path run = folder / "not there yet" / std::to_string(i);
    const Plan plan = RandomPlans(graph, i).next(i % 2 == 0 ? 2 : 4);
    write_document(plan_file, plan);
    INFO(Process::contents(plan_file));
    const Outcome priced = run_program(folder, "optimizer",
                                       {"evaluate", "--plan", plan_file, "--profile", profile, "--bandwidths",
                                        "1GB/s", "--output", plan_file});
    INFO(priced.error);
    if (priced.code == 3) {  // all stages on all ranks, which has no price
      CHECK_THAT(priced.error, Catch::Contains("merge them into one stage"));
      continue;
    }
    REQUIRE(priced.code == 0);
    ++drawn_plans;
    const int64_t accumulation = plan.weights == "stash" ? 1 + i % 3 : 1;
    const Outcome trained =
        runtime(folder, {"launch", "--plan", plan_file, "--model", kEndlessModel, "--data",
                         "synthetic-images:image=8,samples=96", "--batch-size", "8", "--minibatches", "24",
                         "--momentum", "0.9", "--gradient-accumulation", std::to_string(accumulation),
                         "--output", run.string()});
    INFO(trained.error);
    REQUIRE(trained.code == 0);
    const PipelineShape shape = shape_of(plan, accumulation);
    check_order_in_time(timeline_of_trace(parse_json(read_file(run / "trace.json"), "trace.json"), shape));
    const std::string report = runtime(folder, {"report", run.string()}).output;
    // The prediction is of one update after each round.
    const bool predicted = accumulation == 1;
    CHECK((read_document<Summary>(run / "summary.json").predicted_minibatch_seconds > 0) == predicted);
    for (int64_t rank = 0; predicted && rank < plan.world_size && plan.world_size <= cores; ++rank) {
      CHECK_THAT(report, Catch::Contains("Time of each rank for one of its minibatches") &&
                             Catch::Contains("| " + std::to_string(i) + " | " + std::to_string(rank) + " |"));
    }
    const Outcome drawn = runtime(folder, {"report", run.string(), "--profile", profile, "--bandwidths",
                                           "1GB/s", "--output", page_file.string()});
    INFO(drawn.error);
    REQUIRE(drawn.code == 0);
    const std::string page = read_file(page_file);
    CHECK(times_in(page, "What its plan predicts is of other runs") == (predicted ? 0 : 1));
    const int64_t rounds = 4 * plan.microbatches * accumulation;
    const Svg versions = draw_versions(plan.schedule, shape, {0, std::clamp<int64_t>(rounds, 24, 64)});
    CHECK_THAT(page, Catch::Contains(versions.element()));
    CHECK(times_in(page, "and data parallelism on the same ") ==
          (plan.stages.size() > 1 && accumulation == 1 ? 1 : 0));
    if (plan.stages.size() > 1 && accumulation == 1) {
      const std::string small = (folder / "small.json").string();
      write_file(small,
                 R"({"schema": "pipewright.topology/1", "levels": [{"count": )" +
                     std::to_string(plan.world_size) +
                     R"(, "bandwidth_bytes_per_second": 1e9, "latency_seconds": 1e-5, "shared": false}],
                            "memory_bytes": 1000, "devices": []})");
      REQUIRE(runtime(folder, {"report", run.string(), "--profile", profile, "--topology", small, "--output",
                               page_file.string()})
                  .code == 0);
      CHECK_THAT(read_file(page_file), Catch::Contains("data parallelism on the same ranks has no room: "));
    }
    for (int64_t rank = 0; rank < plan.world_size; ++rank) {
      CHECK(times_in(page, ">rank " + std::to_string(rank) + "  ") == 2);
      CHECK_THAT(page, Catch::Contains("rank " + std::to_string(rank) + ", compute: "));
      CHECK_THAT(page, Catch::Contains("Tensors of rank " + std::to_string(rank)));
    }
  }
  CHECK(drawn_plans >= 4);
  for (const auto& [words, said] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--output", "run.svg"}, "expected a name that ends in .html"},
           {{"--profile", profile}, "give --output run.html, too"},
           {{"--output", "x.html", "--topology", "t.json"}, "give --profile profile.json, too"}}) {
    const std::string any = (folder / "not there yet" / "0").string();
    const Outcome refused = runtime(folder, std::vector<std::string>{"report", any} + words);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.error, Catch::Contains(said));
  }
}

TEST_CASE("plans: two stages whose ranks are swapped are launched as any other") {
  const TemporaryFolder folder;
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), {1, 1});
  std::swap(plan.stages[0].ranks, plan.stages[1].ranks);
  write_document(folder / "plan.json", plan);
  verify_plan(folder, folder / "plan.json");
}

TEST_CASE("plans: every kind that the optimizer writes is run") {
  const TemporaryFolder folder;
  const auto call = [&](const std::vector<std::string>& words) {
    Process process(words, folder / "out", folder / "err");
    const int code = process.wait(120s);
    INFO(process.error());
    REQUIRE(code == 0);
  };
  const std::string profile = (folder / "profile.json").string();
  call({program("profiler"), "--model", kEndlessModel, "--batch-size", "8", "--warmup", "1", "--repeats", "3",
        "--output", profile});
  Topology uneven;  // the second of two servers has one fast device, and the first one slow one
  uneven.levels = {{2, 1e9, 1e-6, false}, {2, 1e8, 1e-5, false}};
  for (const double speed : {0.3, 1.0, 1.0, 0.6}) uneven.devices.push_back({"host", speed, 0});
  write_document(folder / "uneven.json", uneven);
  const std::vector<std::string> links = {"--bandwidths", "10GB/s", "--latency", "1us"};
  const std::vector<std::string> on_uneven = {"--topology", (folder / "uneven.json").string()};
  struct Case {
    std::vector<std::string> devices, options;
  };
  const std::vector<std::string> two = std::vector<std::string>{"--gpus", "2"} + links;
  const std::vector<std::string> three = std::vector<std::string>{"--gpus", "3"} + links;
  const std::vector<Case> cases = {
      {three, {"--strategy", "dp"}},
      {three, {"--strategy", "straight"}},
      {three, {"--strategy", "hybrid"}},
      {three, {"--strategy", "model-parallel"}},
      {two, {"--strategy", "straight", "--weights", "vertical"}},
      {two, {"--strategy", "straight", "--weights", "2bw", "--microbatches", "3"}},
      {two, {"--strategy", "straight", "--weights", "paci"}},
      {two, {"--strategy", "straight", "--weights", "predict"}},
      {two, {"--strategy", "straight", "--schedule", "gpipe", "--microbatches", "3"}},
      {two,
       {"--strategy", "straight", "--schedule", "1f1b-flush", "--microbatches", "3", "--recompute",
        "always"}},
      {two, {"--strategy", "straight", "--schedule", "zb-h1", "--microbatches", "3"}},
      {two, {"--schedule", "interleaved", "--microbatches", "4"}},
      {on_uneven, {"--strategy", "best"}},
      {on_uneven, {"--strategy", "straight"}},
      {on_uneven, {"--strategy", "hybrid"}},
      {on_uneven, {"--strategy", "dp"}},
      {{"--levels", "2,2", "--bandwidths", "10GB/s,100MB/s", "--latency", "1us,20us"},
       {"--strategy", "hybrid"}}};
  bool in_another_order = false;
  bool with_shares = false;
  for (const Case& c : cases) {
    const auto file = folder / "optimized.json";
    INFO(join(c.devices, " ") << " " << join(c.options, " "));
    call(std::vector<std::string>{program("optimizer"), "plan", "--profile", profile, "--output",
                                  file.string()} +
         c.devices + c.options);
    const auto plan = read_document<Plan>(file);
    in_another_order = in_another_order || !counts_stage_by_stage(plan);
    for (const Stage& stage : plan.stages) with_shares = with_shares || !stage.shares.empty();
    if (plan.world_size > 1) verify_plan(folder, file);
  }
  // Else this test has not tried what it is here for.
  CHECK(in_another_order);
  CHECK(with_shares);
}

TEST_CASE("plans: a tied language model is cut, from profile to plan to a launched run that holds") {
  const TemporaryFolder folder;
  const auto call = [&](const std::vector<std::string>& words) {
    Process process(words, folder / "out", folder / "err", {{"TMPDIR", folder.path().string()}});
    const int code = process.wait(240s);
    INFO(join(words, " "));
    INFO(process.error());
    REQUIRE(code == 0);
    return process.output();
  };
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "Line " + std::to_string(i) + " of a text of which a part is masked.\n";
  write_file(folder / "text.txt", text);
  const std::string model = "bert:layers=3,width=32,heads=2,tokens=16,vocabulary=257";
  const std::string data = "masked-text:file=" + (folder / "text.txt").string() + ",tokens=16";
  const std::string profile = (folder / "profile.json").string();
  call({program("profiler"), "--model", model, "--batch-size", "4", "--warmup", "1", "--repeats", "3",
        "--output", profile});
  struct Case {
    std::vector<std::string> question, run;
  };
  const std::vector<Case> cases = {
      {{"--gpus", "2", "--schedule", "1f1b-flush", "--strategy", "straight"}, {}},
      {{"--gpus", "3", "--weights", "2bw", "--strategy", "hybrid"}, {"--gradient-clipping-norm", "0.5"}},
      {{"--levels", "2,2", "--bandwidths", "10GB/s,1GB/s", "--schedule", "zb-h1", "--strategy", "straight"},
       {"--gradient-clipping-norm", "0.5"}},
      {{"--gpus", "2", "--schedule", "interleaved"}, {}}};
  for (const Case& c : cases) {
    const auto file = folder / "tied.json";
    INFO(join(c.question, " "));
    call(std::vector<std::string>{program("optimizer"), "plan", "--profile", profile, "--latency", "1us",
                                  "--microbatches", "6", "--output", file.string()} +
         c.question);
    const auto plan = read_document<Plan>(file);
    REQUIRE(plan.tied_parameters.size() == 1);
    CHECK(plan.tied_parameters[0].name == "bert.embeddings.word_embeddings.weight");
    CHECK(call({program("optimizer"), "check", "--plan", file.string(), "--profile", profile})
              .find("has copies in stages 0") != std::string::npos);
    const auto run = folder / "run";
    std::filesystem::remove_all(run);
    call(std::vector<std::string>{program("runtime"), "launch", "--plan", file.string(), "--model", model,
                                  "--data", data, "--batch-size", "4", "--minibatches", "13", "--momentum",
                                  "0.9", "--checkpoint-every-minibatches", "6", "--output", run.string()} +
         c.run);
    const std::string verified = call({program("runtime"), "verify", "--run", run.string()});
    CHECK(verified.find("equal bit for bit") != std::string::npos);
  }
}
