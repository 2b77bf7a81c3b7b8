// Piper's problem: brute force, the published inputs, and strict reading.
#include "optimizer/baselines/piper.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <filesystem>
#include <functional>

#include "graph/error.h"
#include "graph/json.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::pick;

PiperProblem random_problem(std::mt19937& random, int nodes, bool recompute) {
  PiperProblem problem;
  for (int v = 0; v < nodes; ++v) {
    for (int u = 0; u < v; ++u) {
      if (pick(random, 0, 1) == 0) problem.edges.push_back({u, v, static_cast<double>(pick(random, 0, 4))});
    }
  }
  for (int v = 0; v < nodes; ++v) {
    PiperNode node;
    node.name = "n" + std::to_string(v);
    for (const int64_t degree : {1, 2}) {
      if (degree == 2 && pick(random, 0, 3) == 0) continue;
      PiperOption option;
      option.seconds = static_cast<double>(pick(random, 1, 9)) / static_cast<double>(degree);
      option.parameter_bytes = static_cast<double>(pick(random, 0, 5));
      option.memory_each_bytes = static_cast<double>(pick(random, 1, 6));
      option.memory_fixed_bytes = static_cast<double>(pick(random, 0, 4));
      for (const PiperEdge& edge : problem.edges) {
        if (edge.to == v) option.sync_from_bytes[edge.from] = static_cast<double>(pick(random, 0, 2));
        if (edge.from == v) option.sync_to_bytes[edge.to] = static_cast<double>(pick(random, 0, 2));
      }
      node.options[degree] = {option};
      if (!recompute) continue;
      option.seconds *= 1.4;
      option.memory_each_bytes = 0.5;
      node.options[degree].push_back(option);
    }
    problem.nodes.push_back(node);
  }
  problem.devices = pick(random, 1, 5);
  problem.samples_per_batch = 4 * pick(random, 1, 3);
  problem.memory_bytes = static_cast<double>(pick(random, 10, 60));
  problem.bandwidth_bytes_per_second = 5;
  return problem;
}

double brute_force(const PiperProblem& problem) {
  const auto nodes = static_cast<int>(problem.nodes.size());
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(PiperPlan*, int)> extend = [&](PiperPlan* plan, int stage) {
    if (stage == static_cast<int>(plan->stages.size())) {
      const auto ways = problem.nodes[0].options.begin()->second.size();
      for (unsigned way = 0; way < (ways == 1 ? 1U : 1U << nodes); ++way) {
        for (PiperStage& chosen : plan->stages) {
          for (size_t k = 0; k < chosen.nodes.size(); ++k) {
            chosen.options[k] = static_cast<int>(way >> chosen.nodes[k] & 1);
          }
        }
        best = std::min(best, piper_seconds(problem, *plan));
      }
      return;
    }
    for (const int64_t t : {1, 2}) {
      const auto& inside = plan->stages[stage].nodes;
      if (std::any_of(inside.begin(), inside.end(),
                      [&](int v) { return problem.nodes[v].options.count(t) == 0; }))
        continue;
      for (int64_t d = 1; d * t <= problem.devices; ++d) {
        plan->stages[stage].data_degree = d;
        plan->stages[stage].tensor_degree = t;
        extend(plan, stage + 1);
      }
    }
  };
  for (int stages = 1; stages <= nodes; ++stages) {
    int64_t ways = 1;
    for (int v = 0; v < nodes; ++v) ways *= stages;
    for (int64_t way = 0; way < ways; ++way) {
      PiperPlan plan;
      plan.stages.resize(stages);
      int64_t rest = way;
      std::vector<int> stage_of;
      for (int v = 0; v < nodes; ++v, rest /= stages) {
        stage_of.push_back(static_cast<int>(rest % stages));
        plan.stages[rest % stages].nodes.push_back(v);
        plan.stages[rest % stages].options.push_back(0);
      }
      bool allowed = true;
      for (const PiperStage& stage : plan.stages) allowed = allowed && !stage.nodes.empty();
      for (const PiperEdge& edge : problem.edges)
        allowed = allowed && stage_of[edge.from] <= stage_of[edge.to];
      if (allowed) extend(&plan, 0);
    }
  }
  return best;
}

TEST_CASE("Piper: equals brute force where there is no choice of recomputing") {
  std::mt19937 random(1);
  int infeasible = 0;
  for (int c = 0; c < 150; ++c) {
    const PiperProblem problem = random_problem(random, static_cast<int>(pick(random, 1, 4)), false);
    const double expected = brute_force(problem);
    const std::optional<PiperPlan> plan = search_piper(problem);
    INFO("case " << c);
    REQUIRE(plan.has_value() == std::isfinite(expected));
    infeasible += !plan;
    if (!plan) continue;
    CHECK(plan->seconds == Approx(expected).epsilon(1e-8));
    CHECK(plan->lower_bound_seconds == Approx(expected).epsilon(1e-8));
    CHECK(piper_seconds(problem, *plan) == Approx(plan->seconds).epsilon(1e-12));
  }
  CHECK(infeasible > 3);
}

TEST_CASE("Piper: with recomputing, brute force lies between bound and plan") {
  std::mt19937 random(2);
  int optimal = 0;
  int plans = 0;
  for (int c = 0; c < 60; ++c) {
    const PiperProblem problem = random_problem(random, static_cast<int>(pick(random, 1, 4)), true);
    const double expected = brute_force(problem);
    const std::optional<PiperPlan> plan = search_piper(problem);
    INFO("case " << c);
    if (!plan) {
      CHECK_FALSE(std::isfinite(expected));
      continue;
    }
    ++plans;
    CHECK(plan->seconds >= expected * (1 - 1e-8));
    CHECK(plan->lower_bound_seconds <= expected * (1 + 1e-8));
    CHECK(piper_seconds(problem, *plan) == Approx(plan->seconds).epsilon(1e-9));
    optimal += plan->seconds <= expected * (1 + 1e-8);
  }
  CHECK(optimal >= plans * 9 / 10);
}

TEST_CASE("Piper: the published inputs, as good as Piper or better") {
  struct Row {
    const char* file;
    int64_t devices;
    double memory_gib;
    double seconds;
  };
  const Row rows[] = {{"bert32a100", 8, 8, 0.165856},
                      {"bert32a100", 16, 8, 0.0829622},
                      {"bert32a100", 32, 8, 0.0415155},
                      {"bert32a100", 64, 8, 0.0202006},
                      {"bert32a100", 512, 8, 0.00256113},
                      {"bert32a100", 1024, 8, 0.00130318},
                      {"bert32a100", 2048, 8, 0.000703591},
                      {"bert32a100", 64, 2, 0.0320301},
                      {"bert32a100", 128, 2, 0.0151464},
                      {"bert32a100", 8, 80, 0.122007},
                      {"bert32a100", 64, 80, 0.0156502},
                      {"resnet", 8, 4, 73.493},
                      {"resnet", 16, 2, 76.521},
                      {"resnet", 32, 2, 24.626},
                      {"resnet", 64, 1.5, 16.992}};
  const std::filesystem::path folder = testing::shared_data() / "planner_inputs" / "piper";
  if (!std::filesystem::exists(folder)) return testing::skip("no " + folder.string());
  for (const Row& row : rows) {
    const std::filesystem::path file = folder / (std::string(row.file) + ".json");
    PiperProblem problem = parse_piper(read_file(file), file.string());
    problem.devices = row.devices;
    problem.memory_bytes = row.memory_gib * (1 << 30);
    problem.bandwidth_bytes_per_second = 25.0 * (1 << 30);
    const clock_t begin = clock();
    const std::optional<PiperPlan> plan = search_piper(problem);
    const double spent = static_cast<double>(clock() - begin) / CLOCKS_PER_SEC;
    REQUIRE(plan.has_value());
    WARN(row.file << " on " << row.devices << ", " << row.memory_gib << " GiB: " << plan->seconds
                  << " s, Piper " << row.seconds << ", bound " << plan->lower_bound_seconds << ", " << spent
                  << " CPU s");
    CHECK(plan->seconds <= row.seconds * (1 + 1e-5));  // as many digits as are published
    CHECK(piper_seconds(problem, *plan) == Approx(plan->seconds).epsilon(1e-9));
    CHECK(plan->lower_bound_seconds <= plan->seconds);
    CHECK(spent < 150);  // of a release build it takes 3; sanitizers take ten times as long
  }
}

TEST_CASE("Inputs of Piper: what is wrong is said with its place") {
  const auto option = [](const std::string& from, const std::string& to) {
    return R"([{"id": "vanilla", "timePerSample": 1, "parameterSize": 2, "memoryUsageA": 3, "memoryUsageB": 4,
               "syncTimeFw": {)" +
           from + R"(}, "syncTimeBw": {)" + to + "}}]";
  };
  const auto text = [](const std::string& first, const std::string& second, const std::string& edges) {
    return R"({"maxDevices": 4, "maxMemoryPerDevice": 100, "bandwidth": 10, "mbsInBatch": 8, "nodes": [
              {"id": 5, "TMPCs": {"1": )" +
           first + R"(}}, {"id": 7, "TMPCs": {"1": )" + second + R"(}}], "edges": [)" + edges + "]}";
  };
  const auto message = [](const std::string& file) -> std::string {
    try {
      parse_piper(file, "in.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string edge = R"({"sourceId": 5, "destId": 7, "communicationCost": 6})";
  const std::string first = option("", R"("7": 1)");
  const std::string second = option(R"("5": 2)", "");
  using Catch::Contains;
  const PiperProblem good = parse_piper(text(first, second, edge), "in.json");
  CHECK(good.nodes[1].options.at(1)[0].sync_from_bytes.at(0) == 2);
  CHECK(piper_profile(text(first, second, edge), "in.json").nodes[1].inputs.size() == 1);
  CHECK_THAT(message("[]"), Contains("in.json"));
  CHECK_THAT(message(text(first, second, edge + "," + edge)),
             Contains("edges[1].destId: this edge is there twice"));
  CHECK_THAT(message(text(first, second, "")), Contains("nodes[0].TMPCs"));
  CHECK_THAT(message(text(option("", ""), second, edge)),
             Contains("syncTimeBw: the edge with node 7 is missing"));
  CHECK_THAT(message(text(first, "[]", edge)), Contains("got 0 ways"));
  CHECK_THAT(message(text(first, second, R"({"sourceId": 5, "destId": 9, "communicationCost": 6})")),
             Contains("edges[0].destId: no node has this id"));
}

}  // namespace
}  // namespace pipewright
