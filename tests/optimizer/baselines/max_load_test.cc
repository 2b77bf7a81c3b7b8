// Max-load placement: brute force, the published optima, and strict reading.
#include "optimizer/baselines/max_load.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <filesystem>

#include "graph/error.h"
#include "graph/json.h"
#include "optimizer/baselines/dnn_partitioning.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::pick;

MaxLoadProblem random_problem(std::mt19937& random, int nodes) {
  MaxLoadProblem problem;
  for (int v = 0; v < nodes; ++v) {
    MaxLoadNode node;
    node.name = "n" + std::to_string(v);
    node.accelerator_seconds = static_cast<double>(pick(random, 0, 6));
    node.cpu_seconds = static_cast<double>(pick(random, 0, 5)) * 4;
    node.bytes = static_cast<double>(pick(random, 0, 3));
    node.send_seconds = static_cast<double>(pick(random, 0, 4)) * 0.5;
    node.accelerator = pick(random, 0, 11) != 0;
    node.color = pick(random, 0, 3) == 0 && v > 0 ? pick(random, 0, v - 1) : v;
    problem.nodes.push_back(node);
    for (int u = 0; u < v; ++u) {
      if (pick(random, 0, 2) == 0) problem.edges.emplace_back(u, v);
    }
  }
  // Some with a backward node for each class, its edges the other way round.
  if (pick(random, 0, 1) == 0) {
    for (int v = 0; v < nodes; ++v) {
      MaxLoadNode node = problem.nodes[v];
      node.backward = true;
      problem.nodes.push_back(node);
    }
    const auto edges = problem.edges;
    for (const auto& [from, to] : edges) problem.edges.emplace_back(nodes + to, nodes + from);
    for (int v = 0; v < nodes; v += 2) problem.edges.emplace_back(v, nodes + v);
  }
  problem.accelerators = pick(random, 1, 3);
  problem.processors = pick(random, 0, 1);
  if (pick(random, 0, 2) == 0) problem.memory_bytes = static_cast<double>(pick(random, 3, 12));
  return problem;
}

/// Every way to give the forward nodes stage numbers that no edge descends, classes together; a stage of each
/// device at most.
double brute_force(const MaxLoadProblem& problem, int forward) {
  const auto devices = static_cast<int>(problem.accelerators + problem.processors);
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> stage(problem.nodes.size(), 0);
  int64_t ways = 1;
  for (int v = 0; v < forward; ++v) ways *= devices;
  for (int64_t way = 0; way < ways; ++way) {
    int64_t rest = way;
    for (int v = 0; v < forward; ++v) {
      stage[v] = static_cast<int>(rest % devices);
      rest /= devices;
    }
    for (size_t v = forward; v < problem.nodes.size(); ++v) stage[v] = stage[v - forward];
    bool allowed = true;
    for (int v = 0; v < forward; ++v) {
      for (int u = 0; u < v; ++u) {
        if (problem.nodes[u].color == problem.nodes[v].color && stage[u] != stage[v]) allowed = false;
      }
    }
    for (const auto& [from, to] : problem.edges) {
      if (to < forward && stage[from] > stage[to]) allowed = false;
    }
    if (!allowed) continue;
    for (int cpu = problem.processors > 0 ? 0 : -1; cpu < (problem.processors > 0 ? devices : 0); ++cpu) {
      double most = 0;
      for (int s = 0; s < devices; ++s) {
        MaxLoadStage mine;
        mine.processor = s == cpu;
        for (size_t v = 0; v < stage.size(); ++v) {
          if (stage[v] == s) mine.nodes.push_back(static_cast<int>(v));
        }
        most = std::max(most, stage_load_seconds(problem, mine));
      }
      best = std::min(best, most);
    }
  }
  return best;
}

TEST_CASE("Max load: equals brute force on random problems") {
  std::mt19937 random(1);
  int infeasible = 0;
  for (int c = 0; c < 400; ++c) {
    const int forward = static_cast<int>(pick(random, 1, 6));
    const MaxLoadProblem problem = random_problem(random, forward);
    const double expected = brute_force(problem, forward);
    const std::optional<MaxLoadPlan> plan = search_max_load(problem);
    INFO("case " << c << ", " << forward << " nodes, " << problem.accelerators << "+" << problem.processors
                 << " devices, memory " << problem.memory_bytes);
    REQUIRE(plan.has_value() == std::isfinite(expected));
    infeasible += !plan;
    if (!plan) continue;
    CHECK(plan->load_seconds == Approx(expected).epsilon(1e-9).margin(1e-12));
    CHECK(plan->lower_bound_seconds == Approx(expected).epsilon(1e-8).margin(1e-12));
    size_t nodes = 0;
    for (const MaxLoadStage& stage : plan->stages) {
      nodes += stage.nodes.size();
      CHECK(stage_load_seconds(problem, stage) == Approx(stage.load_seconds).epsilon(1e-12));
    }
    CHECK(nodes == problem.nodes.size());
  }
  CHECK(infeasible > 5);
}

TEST_CASE("Max load: the published inputs, to their optima with proof") {
  struct Row {
    const char* file;
    double optimum_ms;
    double cpu_seconds;
  };
  const Row rows[] = {{"LayerGraphs/bert24_inference", 17.78990625, 1},
                      {"LayerGraphs/bert24_training", 41.7458125, 1},
                      {"LayerGraphs/gnmt_training", 107.0044140625, 1},
                      {"LayerGraphs/inceptionv3_inference", 51.5518635864, 10},
                      {"LayerGraphs/resnet50_inference", 33.7746660156, 1},
                      {"OperatorGraphs/bert_l-3_inference", 27.9185676799, 1},
                      {"OperatorGraphs/bert_l-3_training", 65.3031491221, 1},
                      {"OperatorGraphs/resnet50_inference", 124.348849774, 1}};
  const std::filesystem::path folder = testing::shared_data() / "planner_inputs" / "dnn-partitioning";
  if (!std::filesystem::exists(folder)) return testing::skip("no " + folder.string());
  for (const Row& row : rows) {
    const std::filesystem::path file = folder / (std::string(row.file) + ".json");
    const clock_t begin = clock();
    const MaxLoadProblem problem = parse_dnn_partitioning(read_file(file), file.string());
    const std::optional<MaxLoadPlan> plan = search_max_load(problem);
    const double spent = static_cast<double>(clock() - begin) / CLOCKS_PER_SEC;
    REQUIRE(plan.has_value());
    WARN(row.file << ": " << 1e3 * plan->load_seconds << " ms, " << plan->down_sets << " down-sets, " << spent
                  << " CPU s");
    CHECK(1e3 * plan->load_seconds == Approx(row.optimum_ms).epsilon(1e-9));
    CHECK(plan->lower_bound_seconds >= plan->load_seconds * (1 - 1e-9));
    CHECK(spent < 3 * row.cpu_seconds);
    double most = 0;
    for (const MaxLoadStage& stage : plan->stages) most = std::max(most, stage_load_seconds(problem, stage));
    CHECK(most == Approx(plan->load_seconds).epsilon(1e-12));
    dnn_partitioning_profile(read_file(file), file.string()).validate(file.string());
  }
}

std::string problem_text(const std::string& nodes, const std::string& edges) {
  return R"({"maxSizePerFPGA": 100, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [)" + nodes + R"(], "edges": [)" +
         edges + "]}";
}
std::string node_text(int id, const std::string& more = "") {
  return R"({"id": )" + std::to_string(id) +
         R"(, "supportedOnFpga": 1, "cpuLatency": 2, "fpgaLatency": 1.5, "isBackwardNode": false)" + more +
         "}";
}

TEST_CASE("Inputs of dnn-partitioning: what is wrong is said with its place") {
  const std::string two = node_text(1) + "," + node_text(2);
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_dnn_partitioning(text, "in.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  using Catch::Contains;
  const MaxLoadProblem good = parse_dnn_partitioning(
      problem_text(two, R"({"sourceId": 1, "destId": 2, "cost": 3, "size": 7})"), "in.json");
  CHECK(good.nodes[0].accelerator_seconds == 1.5e-3);
  CHECK(good.nodes[0].send_seconds == 3e-3);
  CHECK(good.nodes[0].color != good.nodes[1].color);
  CHECK_THAT(message("{"), Contains("in.json"));
  CHECK_THAT(message(problem_text("", "")), Contains("in.json: nodes: there are none"));
  CHECK_THAT(message(problem_text(node_text(1) + "," + node_text(1), "")),
             Contains("nodes[1].id: another node"));
  CHECK_THAT(message(problem_text(node_text(1, R"(, "colour": 3)"), "")), Contains("colour"));
  CHECK_THAT(message(problem_text(two, R"({"sourceId": 1, "destId": 3, "cost": 0})")),
             Contains("edges[0].destId: no node has this id"));
  CHECK_THAT(message(problem_text(two, R"({"sourceId": 1, "destId": 1, "cost": 0})")), Contains("itself"));
  CHECK_THAT(message(problem_text(two, R"({"sourceId": 1, "destId": 2, "cost": -1})")),
             Contains("edges[0].cost"));
  CHECK_THAT(message(problem_text(two, R"({"sourceId": 1, "destId": 2, "cost": 0},
                                          {"sourceId": 2, "destId": 1, "cost": 0})")),
             Contains("cycle"));
  CHECK_THAT(message(problem_text(node_text(1) + "," + node_text(2) + "," + node_text(3),
                                  R"({"sourceId": 1, "destId": 2, "cost": 0},
                                     {"sourceId": 1, "destId": 3, "cost": 1})")),
             Contains("edges[1].cost: another edge"));
}

}  // namespace
}  // namespace pipewright
