// Max-load placement against a mixed-integer program solved by GLPK, which shares no idea with the search.
#include <catch2/catch.hpp>
#include <cmath>

#include "optimizer/max_load.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/skip.h"

#ifdef PIPEWRIGHT_GLPK
#include <glpk.h>
#endif

namespace pipewright {
namespace {

#ifdef PIPEWRIGHT_GLPK

using testing::pick;

MaxLoadProblem random_problem(std::mt19937& random) {
  MaxLoadProblem problem;
  const auto nodes = static_cast<int>(pick(random, 5, 9));
  for (int v = 0; v < nodes; ++v) {
    MaxLoadNode node;
    node.name = "n" + std::to_string(v);
    node.accelerator_seconds = static_cast<double>(pick(random, 1, 9));
    node.processor_seconds = static_cast<double>(pick(random, 5, 40));
    node.bytes = static_cast<double>(pick(random, 1, 5));
    node.send_seconds = static_cast<double>(pick(random, 0, 3)) * 0.5;
    node.color = v;
    problem.nodes.push_back(node);
    for (int u = 0; u < v; ++u) {
      if (pick(random, 0, 3) == 0) problem.edges.emplace_back(u, v);
    }
  }
  problem.accelerators = pick(random, 2, 3);
  problem.processors = pick(random, 0, 1);
  if (pick(random, 0, 1) == 0) problem.memory_bytes = static_cast<double>(pick(random, 9, 20));
  return problem;
}

/// Rows of a program, built one by one.
class Program {
 public:
  Program() : program_(glp_create_prob()) { glp_set_obj_dir(program_, GLP_MIN); }
  ~Program() { glp_delete_prob(program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int column(int kind, double cost) {
    const int number = glp_add_cols(program_, 1);
    glp_set_col_kind(program_, number, kind);
    if (kind == GLP_CV) glp_set_col_bnds(program_, number, GLP_LO, 0, 0);
    glp_set_obj_coef(program_, number, cost);
    return number;
  }
  /// low <= sum; `equal`: sum == low.
  void row(const std::vector<std::pair<int, double>>& terms, double low, bool equal = false) {
    std::vector<int> columns = {0};
    std::vector<double> factors = {0};
    for (const auto& [number, factor] : terms) {
      columns.push_back(number);
      factors.push_back(factor);
    }
    const int number = glp_add_rows(program_, 1);
    glp_set_row_bnds(program_, number, equal ? GLP_FX : GLP_LO, low, low);
    glp_set_mat_row(program_, number, static_cast<int>(terms.size()), columns.data(), factors.data());
  }
  double least() {
    glp_iocp options;
    glp_init_iocp(&options);
    options.presolve = GLP_ON;
    options.msg_lev = GLP_MSG_OFF;
    const bool solved = glp_intopt(program_, &options) == 0 && glp_mip_status(program_) == GLP_OPT;
    return solved ? glp_mip_obj_val(program_) : std::numeric_limits<double>::infinity();
  }

 private:
  glp_prob* program_;
};

/// Stage numbers ascend along edges; x[v][s]: node v is in stage s; z[u][s]: stage s makes u's value for
/// others or reads it from another.
double least_load(const MaxLoadProblem& problem, int processor) {
  const auto nodes = static_cast<int>(problem.nodes.size());
  const auto stages = static_cast<int>(problem.accelerators + problem.processors);
  Program program;
  const int load = program.column(GLP_CV, 1);
  std::vector<std::vector<int>> x(nodes);
  std::vector<std::vector<int>> z(nodes);
  for (int v = 0; v < nodes; ++v) {
    std::vector<std::pair<int, double>> once;
    for (int s = 0; s < stages; ++s) {
      x[v].push_back(program.column(GLP_BV, 0));
      z[v].push_back(program.column(GLP_CV, 0));
      once.emplace_back(x[v][s], 1);
    }
    program.row(once, 1, true);
  }
  for (const auto& [from, to] : problem.edges) {
    std::vector<std::pair<int, double>> order;
    for (int s = 0; s < stages; ++s) {
      order.emplace_back(x[to][s], s);
      order.emplace_back(x[from][s], -s);
      program.row({{z[from][s], 1}, {x[to][s], -1}, {x[from][s], 1}}, 0);
      program.row({{z[from][s], 1}, {x[from][s], -1}, {x[to][s], 1}}, 0);
    }
    program.row(order, 0);
  }
  for (int s = 0; s < stages; ++s) {
    std::vector<std::pair<int, double>> terms = {{load, 1}};
    std::vector<std::pair<int, double>> memory;
    for (int v = 0; v < nodes; ++v) {
      const MaxLoadNode& node = problem.nodes[v];
      terms.emplace_back(x[v][s], s == processor ? -node.processor_seconds : -node.accelerator_seconds);
      if (s != processor) terms.emplace_back(z[v][s], -node.send_seconds);
      memory.emplace_back(x[v][s], -node.bytes);
    }
    program.row(terms, 0);
    if (s != processor && std::isfinite(problem.memory_bytes)) program.row(memory, -problem.memory_bytes);
  }
  return program.least();
}

TEST_CASE("Max load: equals a mixed-integer program") {
  std::mt19937 random(11);
  int infeasible = 0;
  for (int c = 0; c < 40; ++c) {
    const MaxLoadProblem problem = random_problem(random);
    double expected = std::numeric_limits<double>::infinity();
    if (problem.processors == 0) expected = least_load(problem, -1);
    for (int s = 0; problem.processors > 0 && s <= problem.accelerators; ++s) {
      expected = std::min(expected, least_load(problem, s));
    }
    const std::optional<MaxLoadPlan> plan = search_max_load(problem);
    INFO("case " << c);
    REQUIRE(plan.has_value() == std::isfinite(expected));
    infeasible += !plan;
    if (plan) CHECK(plan->load_seconds == Approx(expected).epsilon(1e-6));
  }
  CHECK(infeasible < 20);
}

#else

TEST_CASE("Max load: equals a mixed-integer program") { testing::skip("built without libglpk-dev"); }

#endif

}  // namespace
}  // namespace pipewright
