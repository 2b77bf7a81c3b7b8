// Max-load placement and pipelines against mixed-integer programs solved by GLPK, which share no idea with
// the searches.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "optimizer/baselines/max_load.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/search/search.h"
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
    node.cpu_seconds = static_cast<double>(pick(random, 5, 40));
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
    std::map<int, double> sums;  // GLPK takes a column once
    for (const auto& [number, factor] : terms) sums[number] += factor;
    std::vector<int> columns = {0};
    std::vector<double> factors = {0};
    for (const auto& [number, factor] : sums) {
      columns.push_back(number);
      factors.push_back(factor);
    }
    const int number = glp_add_rows(program_, 1);
    glp_set_row_bnds(program_, number, equal ? GLP_FX : GLP_LO, low, low);
    glp_set_mat_row(program_, number, static_cast<int>(sums.size()), columns.data(), factors.data());
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
      terms.emplace_back(x[v][s], s == processor ? -node.cpu_seconds : -node.accelerator_seconds);
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

/// Least period in milliseconds of a pipeline with these replicas and stages that recompute, by the formulas
/// of docs/cost-model.md; infinite if none fits. x[v][s]: node v is in stage s; z[u][s]: value u crosses the
/// cut after stage s.
class PipelineProgram {
 public:
  PipelineProgram(const Dataflow& flow, const CostInputs& inputs, int64_t memory_bytes,
                  const std::vector<int64_t>& replicas, uint32_t recomputing)
      : flow_(flow), inputs_(inputs), stages_(static_cast<int>(replicas.size())) {
    period_ = program_.column(GLP_CV, 1);
    place_nodes();
    int64_t later = 0;
    for (const int64_t m : replicas) later += m;
    for (int s = 0; s < stages_; ++s) {
      later -= replicas[s];
      const bool recompute = (recomputing >> s & 1) != 0;
      bound_period(s, replicas[s], recompute);
      if (memory_bytes > 0)
        bound_memory(s, replicas[s], 1 + (later + replicas[s] - 1) / replicas[s], recompute, memory_bytes);
    }
  }
  double least() { return program_.least(); }

 private:
  using Sum = std::vector<std::pair<int, double>>;

  void place_nodes() {
    const int nodes = flow_.size();
    x_.resize(nodes);
    for (int v = 0; v < nodes; ++v) {
      Sum once;
      for (int s = 0; s < stages_; ++s) once.emplace_back(x_[v].emplace_back(program_.column(GLP_BV, 0)), 1);
      program_.row(once, 1, true);
    }
    for (int s = 0; s < stages_; ++s) {
      Sum some;
      for (int v = 0; v < nodes; ++v) some.emplace_back(x_[v][s], 1);
      program_.row(some, 1);
      for (const NodeSet& group : flow_.tied) {
        const size_t first = group.find_first();
        for (size_t v = group.find_next(first); v != NodeSet::npos; v = group.find_next(v))
          program_.row({{x_[first][s], 1}, {x_[v][s], -1}}, 0, true);
      }
    }
    for (const DataflowValue& value : flow_.values) {
      std::vector<int>& z = z_.emplace_back();
      for (int s = 0; s + 1 < stages_; ++s) z.push_back(program_.column(GLP_CV, 0));
      for (const int reader : value.readers) {
        Sum order;
        for (int s = 0; s < stages_; ++s) {
          order.emplace_back(x_[reader][s], s);
          order.emplace_back(x_[value.producer][s], -s);
        }
        program_.row(order, 0);
        for (int s = 0; s + 1 < stages_; ++s) {
          Sum crosses = {{z[s], 1}};
          for (int t = 0; t <= s; ++t) {
            crosses.emplace_back(x_[value.producer][t], -1);
            crosses.emplace_back(x_[reader][t], 1);
          }
          program_.row(crosses, 0);
        }
      }
    }
  }

  /// sum += factor * what `of` says of each node of the stage.
  template <typename Of>
  void add_nodes(Sum& sum, int s, double factor, const Of& of) const {
    for (int v = 0; v < flow_.size(); ++v) sum.emplace_back(x_[v][s], factor * static_cast<double>(of(v)));
  }
  /// sum += factor * bytes that cross the cut after stage s.
  void add_cut(Sum& sum, int s, double factor, bool unsaved = false) const {
    if (s < 0 || s + 1 >= stages_) return;
    for (size_t u = 0; u < flow_.values.size(); ++u) {
      const DataflowValue& value = flow_.values[u];
      const int64_t saved = unsaved ? value.saved_bytes : 0;
      sum.emplace_back(z_[u][s], factor * static_cast<double>(value.bytes - saved));
    }
  }
  int64_t trainable(int v) const { return flow_.trainable_bytes[v]; }

  void bound_period(int s, int64_t replicas, bool recompute) {
    const auto m = static_cast<double>(replicas);
    const double bandwidth = inputs_.bandwidth_bytes_per_second;
    const auto node = [&](int v) { return flow_.profile.nodes[v]; };
    Sum device = {{period_, m}};
    add_nodes(device, s, -1e3, [&](int v) {
      return (recompute ? 2 : 1) * node(v).forward_seconds + node(v).backward_input_seconds +
             node(v).backward_weight_seconds;
    });
    const double exchange = replicas > 1 ? 2 * (m - 1) / m / bandwidth : 0;
    add_nodes(device, s, -1e3 * (exchange + step_seconds(1, inputs_)), [&](int v) { return trainable(v); });
    const int trains = program_.column(GLP_CV, 0);
    for (int v = 0; v < flow_.size(); ++v) {
      if (trainable(v) > 0) program_.row({{trains, 1}, {x_[v][s], -1}}, 0);
    }
    if (replicas > 1) device.emplace_back(trains, -1e3 * 2 * inputs_.latency_seconds);
    program_.row(device, 0);
    Sum link = {{period_, m}};
    add_cut(link, s - 1, -1e3 / bandwidth);
    add_cut(link, s, -1e3 / bandwidth);
    const int neighbours = (s > 0) + (s + 1 < stages_);
    program_.row(link, neighbours * 1e3 * inputs_.latency_seconds);
  }

  void bound_memory(int s, int64_t replicas, int64_t depth, bool recompute, int64_t memory_bytes) {
    const auto v = static_cast<double>(depth);
    const auto slots = static_cast<double>(inputs_.optimizer_slots);
    const auto nodes = [&](Sum& sum, double factor, const auto& of) { add_nodes(sum, s, factor, of); };
    const auto parameters = [&](int n) { return flow_.parameter_bytes[n]; };
    const auto buffers = [&](int n) { return flow_.profile.nodes[n].buffer_bytes; };
    const auto saved = [&](int n) { return flow_.profile.nodes[static_cast<size_t>(n)].saved_bytes; };
    const auto weights = [&](int n) { return trainable(n); };
    Sum free;  // -sum >= -memory
    nodes(free, -1, parameters);
    nodes(free, -1, buffers);
    nodes(free, -(v - 1) - 1 - slots, weights);
    if (replicas > 1) nodes(free, -1, weights);  // gradients beside the place from which replicas sum
    // Activations, messages.
    const double times = recompute ? 1 : v;
    nodes(free, -times, saved);
    add_cut(free, s, -times, /*unsaved=*/true);
    add_cut(free, s - 1, -v - 2 - (v + 1));
    add_cut(free, s, -2.0 - 2 - (recompute ? v : 0));
    if (recompute) nodes(free, -v, buffers);
    // What is there while a node's backward runs: its values (but for those sent on, which are in the
    // messages), the gradients that it and later nodes have made, less what later ones have saved (but for
    // what they sent on).
    const auto gradients = [&](int n) { return recompute ? 0 : flow_.bytes.gradients[n]; };
    const int workspace = program_.column(GLP_CV, 0);
    free.emplace_back(workspace, -1);
    nodes(free, 1, gradients);
    for (int n = 0; n < flow_.size(); ++n) {
      Sum transient = {{workspace, 1}, {x_[n][s], -static_cast<double>(flow_.bytes.transient[n])}};
      for (int after = n + 1; after < flow_.size(); ++after)
        transient.emplace_back(x_[after][s],
                               static_cast<double>(flow_.bytes.freed[after] - gradients(after)));
      transient[1].second -= static_cast<double>(gradients(n));
      if (s + 1 < stages_) {
        for (size_t u = 0; u < flow_.values.size(); ++u) {
          const DataflowValue& value = flow_.values[u];
          if (value.readers.empty()) continue;
          if (value.producer <= n && n <= value.readers.back())
            transient.emplace_back(z_[u][s], static_cast<double>(value.bytes));
          if (value.freed_at > n)
            transient.emplace_back(both(value.freed_at, u, s), -static_cast<double>(value.saved_bytes));
        }
      }
      program_.row(transient, 0);
    }
    program_.row(free, -static_cast<double>(memory_bytes));
  }

  /// Whether stage s has the node and a later one reads the value: the product of both.
  int both(int node, size_t u, int s) {
    const int product = program_.column(GLP_CV, 0);
    program_.row({{product, 1},
                  {x_[static_cast<size_t>(node)][static_cast<size_t>(s)], -1},
                  {z_[u][static_cast<size_t>(s)], -1}},
                 -1);
    return product;
  }

  const Dataflow& flow_;
  const CostInputs& inputs_;
  int stages_;
  Program program_;
  int period_ = 0;
  std::vector<std::vector<int>> x_;
  std::vector<std::vector<int>> z_;
};

/// Over all numbers of replicas.
double least_period(const Dataflow& flow, const CostInputs& inputs, int64_t devices, int64_t memory_bytes,
                    Recompute recompute, std::vector<int64_t>* replicas) {
  double least = std::numeric_limits<double>::infinity();
  const int64_t stages = static_cast<int64_t>(replicas->size());
  if (stages > 0) {
    const uint32_t ways = recompute == Recompute::kNever ? 1 : uint32_t{1} << stages;
    for (uint32_t recomputing = 0; recomputing < ways; ++recomputing)
      least = std::min(least, PipelineProgram(flow, inputs, memory_bytes, *replicas, recomputing).least());
  }
  if (stages == flow.size()) return least;
  for (int64_t m = 1; m <= devices; ++m) {
    replicas->push_back(m);
    least = std::min(least, least_period(flow, inputs, devices - m, memory_bytes, recompute, replicas));
    replicas->pop_back();
  }
  return least;
}

TEST_CASE("Pipelines: the search equals mixed-integer programs, with memory limits and recompute") {
  std::mt19937 random(12);
  int infeasible = 0;
  int recomputing = 0;
  for (int c = 0; c < 60; ++c) {
    Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 2, 5)), c % 2 == 0, 50);
    for (ProfiledNode& node : profile.nodes) {
      node.forward_seconds += 1e-3;  // none is without cost
      if (c % 3 == 2) node.saved_bytes += 5000;
    }
    Problem q;
    q.inputs.bandwidth_bytes_per_second = pick(random, 0, 1) == 0 ? 1e6 : 1e7;
    q.inputs.latency_seconds = static_cast<double>(pick(random, 0, 1)) * 3e-4;
    q.inputs.update.parts.step_in_place_seconds = profile.whole.step_seconds / 1e4;
    q.devices = pick(random, 2, 4);
    q.recompute = c % 3 == 2 ? Recompute::kWhereNeeded : Recompute::kNever;
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, c % 3 > 0);
    q.states = &states;
    if (c % 3 == 1) q.memory_bytes = pick(random, 20000, 70000);
    if (c % 3 == 2) {  // near the least with which there is a plan
      q.memory_bytes =
          fullest_stage(q, *search_least_memory(q)).memory.total_bytes() + pick(random, -300, 3000);
    }
    std::vector<int64_t> replicas;
    const double expected = least_period(flow, q.inputs, q.devices, q.memory_bytes, q.recompute, &replicas);
    const std::optional<Solution> found = search(q);
    INFO("case " << c << ", " << profile.nodes.size() << " nodes, " << q.devices << " devices, memory "
                 << q.memory_bytes);
    REQUIRE(found.has_value() == std::isfinite(expected));
    infeasible += !found;
    if (!found) continue;
    CHECK(1e3 * found->period_seconds == Approx(expected).epsilon(1e-6));
    for (const FoundStage& stage : found->stages) recomputing += stage.recompute;
  }
  CHECK(infeasible > 0);
  CHECK(infeasible < 30);
  CHECK(recomputing > 0);
}

#else

TEST_CASE("Pipelines: the search equals mixed-integer programs, with memory limits and recompute") {
  testing::skip("built without libglpk-dev");
}

TEST_CASE("Max load: equals a mixed-integer program") { testing::skip("built without libglpk-dev"); }

#endif

}  // namespace
}  // namespace pipewright
