// More of anything is not worse: devices, bandwidth, memory.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "graph/pipedream.h"
#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/tiny_problem.h"
#include "tests/support/long.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::pick;

constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr double kNever = std::numeric_limits<double>::infinity();

double best_seconds(const Profile& profile, const Topology& topology, const PlanRequest& request = {}) {
  try {
    return make_plan(profile, topology, request).predicted->minibatch_seconds;
  } catch (const InfeasibleError&) {
    return kNever;
  }
}

struct Worse {
  int64_t cases = 0, worse = 0;  // by more than a percent
  double worst = 1;
  void note(double seconds, double with_less) {
    if (std::isinf(with_less)) return;
    ++cases;
    const double ratio = with_less > 0 ? seconds / with_less : 1;
    worst = std::max(worst, ratio);
    worse += ratio > 1.01 ? 1 : 0;
  }
};

void print(const std::map<std::string, Worse>& rows) {
  for (const auto& [what, row] : rows) {
    std::printf("more %s: %lld cases, worse by > 1 %%: %lld, worst %.4f\n", what.c_str(),
                static_cast<long long>(row.cases), static_cast<long long>(row.worse), row.worst);
  }
}

/// A topology with more of something, named.
std::pair<const char*, Topology> with_more(std::mt19937& random, const Topology& less) {
  Topology more = less;
  TopologyLevel& level =
      more.levels[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(more.levels.size()) - 1))];
  switch (pick(random, 0, less.memory_bytes > 0 ? 2 : 1)) {
    case 0:
      level.count += pick(random, 1, 2);
      return {"devices", more};
    case 1:
      level.bandwidth_bytes_per_second *= 1 + static_cast<double>(pick(random, 1, 90)) / 10;
      return {"bandwidth", more};
    default:
      more.memory_bytes = pick(random, 0, 2) == 0 ? 0 : more.memory_bytes * pick(random, 101, 200) / 100;
      return {"memory", more};
  }
}

TEST_CASE("More devices, bandwidth or memory is not worse, for tiny models") {
  const char* set = std::getenv("PIPEWRIGHT_MONOTONE_CASES");
  const bool many = testing::is_long();
  const int64_t cases = set != nullptr ? std::atoll(set) : many ? 5000 : 200;
  const char* seed = std::getenv("PIPEWRIGHT_PLANNER_SEED");
  std::mt19937 random(seed != nullptr ? std::atoi(seed) : 83);
  std::map<std::string, Worse> rows;
  for (int64_t c = 0; c < cases; ++c) {
    const Profile profile = testing::tiny_profile(random);
    const testing::TinyProblem problem = testing::tiny_problem(random, profile);
    PlanRequest request;
    if (pick(random, 0, 2) == 0) {
      request.schedule = pick(random, 0, 1) == 0 ? "1f1b-flush" : "zb-h1";
      request.microbatches = 8;  // of as many samples an update, however many devices there are
    }
    const double less = best_seconds(profile, problem.topology, request);
    const auto [what, more] = with_more(random, problem.topology);
    const double seconds = best_seconds(profile, more, request);
    rows[what].note(seconds, less);
    if (seconds <= 1.01 * less) continue;
    std::printf("case %lld, %s, more %s: %.4g, with less %.4g\n", static_cast<long long>(c), problem.kind,
                what, seconds, less);
  }
  print(rows);
  for (const auto& [what, row] : rows) {
    CHECK(row.worst <= 1.05);
    CHECK(static_cast<double>(row.worse) <= 0.01 * static_cast<double>(row.cases));
  }
}

// --- models of PipeDream ---

Topology topology_of(const std::vector<int64_t>& counts, double bandwidth, bool shared,
                     int64_t memory_bytes) {
  Topology topology = flat_topology(counts[0], bandwidth, 0, memory_bytes);
  topology.levels[0].shared = shared;
  for (size_t l = 1; l < counts.size(); ++l) {
    bandwidth /= 8;
    topology.levels.push_back({counts[l], bandwidth, 0, false});
  }
  return topology;
}

/// A plan beside another: a node to the next stage, a device to another stage or none, two devices exchanged,
/// depths, recomputing. It may be none that runs.
Plan moved(std::mt19937& random, Plan plan, const Topology& topology) {
  const auto stage = [&]() -> Stage& {
    return plan.stages[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(plan.stages.size()) - 1))];
  };
  const auto rank = [&](Stage& of) -> int64_t& {
    return of.ranks[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(of.ranks.size()) - 1))];
  };
  for (int64_t moves = pick(random, 1, 3); moves > 0; --moves) {
    Stage& a = stage();
    Stage& b = stage();
    switch (pick(random, 0, 5)) {
      case 0: {  // nodes come in an order in which values flow
        const auto at = static_cast<size_t>(&a - plan.stages.data());
        if (at + 1 == plan.stages.size()) break;
        Stage& next = plan.stages[at + 1];
        const bool forward = pick(random, 0, 1) == 0;
        Stage& from = forward ? a : next;
        for (int64_t nodes = pick(random, 1, 4); nodes > 0 && from.nodes.size() > 1; --nodes) {
          if (forward) {
            next.nodes.insert(next.nodes.begin(), a.nodes.back());
            a.nodes.pop_back();
          } else {
            a.nodes.push_back(next.nodes.front());
            next.nodes.erase(next.nodes.begin());
          }
        }
        break;
      }
      case 1:
        if (&a == &b || a.ranks.size() < 2) break;
        std::swap(rank(a), a.ranks.back());
        b.ranks.push_back(a.ranks.back());
        a.ranks.pop_back();
        break;
      case 2: {  // one that is idle
        std::set<int64_t> idle;
        for (int64_t d = 0; d < topology.device_count(); ++d) idle.insert(d);
        for (const Stage& each : plan.stages)
          for (const int64_t used : each.ranks) idle.erase(used);
        if (idle.empty()) break;
        const auto chosen = std::next(idle.begin(), pick(random, 0, static_cast<int64_t>(idle.size()) - 1));
        if (pick(random, 0, 1) == 0)
          a.ranks.push_back(*chosen);
        else
          rank(a) = *chosen;
        break;
      }
      case 3:
        if (&a != &b) std::swap(rank(a), rank(b));
        break;
      case 4:
        a.in_flight = std::max<int64_t>(1, a.in_flight + pick(random, -2, 2));
        if (pick(random, 0, 1) == 0)
          for (Stage& each : plan.stages) ++each.in_flight;
        break;
      default:
        if (topology.memory_bytes > 0) a.recompute = !a.recompute;
    }
  }
  plan.world_size = 0;
  for (Stage& each : plan.stages) {
    std::sort(each.ranks.begin(), each.ranks.end());
    plan.world_size += static_cast<int64_t>(each.ranks.size());
  }
  return plan;
}

/// The fastest that so many random moves from a plan come to, each from the plan itself, that fits.
double seconds_beside(std::mt19937& random, const Plan& plan, int64_t moves, const Profile& profile,
                      const Topology& topology) {
  double least = kNever;
  for (; moves > 0; --moves) {
    try {
      const Prediction other = evaluate_plan(moved(random, plan, topology), profile, topology, {});
      const bool fits = topology.memory_bytes == 0 ||
                        std::all_of(other.stages.begin(), other.stages.end(), [&](const auto& each) {
                          return each.memory.total_bytes() <= topology.memory_bytes;
                        });
      if (fits) least = std::min(least, other.minibatch_seconds);
    } catch (const PlanError&) {  // values flow backwards, or depths do not go together
    }
  }
  return least;
}

/// Topologies with less of one thing, named.
std::vector<std::pair<const char*, Topology>> with_less(const Topology& more) {
  std::vector<std::pair<const char*, Topology>> all;
  Topology less = more;
  for (TopologyLevel& level : less.levels) level.bandwidth_bytes_per_second /= 3;
  all.emplace_back("bandwidth", less);
  less = more;
  less.memory_bytes = more.memory_bytes == 0 ? 8 * kGibibyte : more.memory_bytes / 2;
  all.emplace_back("memory", less);
  // As many levels as before: a device's own link carries exchange and messages beside each other, a network
  // shares itself out among them, so that a plan takes longer on it.
  less = more;
  const auto most = std::max_element(less.levels.begin(), less.levels.end(),
                                     [](const auto& a, const auto& b) { return a.count < b.count; });
  if (most->count > 2) {
    most->count -= most->count / 3;
    all.emplace_back("devices", less);
  }
  return all;
}

TEST_CASE("More devices, bandwidth or memory is not worse, nor is any strategy better than the best") {
  if (testing::shared_data().empty()) return testing::skip("the profiles of PipeDream are not here");
  const char* set = std::getenv("PIPEWRIGHT_SWEEP_CASES");
  const bool many = testing::is_long();
  const int64_t cases = set != nullptr ? std::atoll(set) : many ? 150 : 7;
  const char* seed = std::getenv("PIPEWRIGHT_PLANNER_SEED");
  std::vector<std::string> names = {"alexnet", "vgg16", "squeezenet1_0"};
  if (many || set != nullptr) {
    for (const char* name : {"gnmt", "resnet50", "resnext50", "resnet101"}) names.emplace_back(name);
  }
  const std::vector<std::vector<int64_t>> shapes = {{2}, {4}, {8}, {16}, {4, 4}, {8, 2}, {2, 8}, {2, 4, 2}};
  const double bandwidths[] = {1.25e7, 1.25e8, 3e8, 1.25e9, 3e9, 1.25e10, 3.2e10, 1e11, 2e11, 3e11};
  const auto one_of = [](std::mt19937& random, const auto& all) {
    return all[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(std::size(all)) - 1))];
  };
  std::mt19937 random(seed != nullptr ? std::atoi(seed) : 5);
  const char* asked = std::getenv("PIPEWRIGHT_SWEEP_MOVES");
  const int64_t moves = asked != nullptr ? std::atoll(asked) : many ? 2000 : 0;
  std::vector<double> gaps;
  int64_t beaten = 0;  // by more than 2 %
  std::map<std::string, Profile> profiles;
  std::map<std::string, Worse> rows;
  for (int64_t c = 0; c < cases; ++c) {
    const std::string name = one_of(random, names);
    const auto file = testing::shared_data() / "pipedream_profiles" / (name + ".txt");
    if (profiles.count(name) == 0) profiles[name] = parse_pipedream_profile(read_file(file), file.string());
    const Profile& profile = profiles[name];
    const int64_t memories[] = {0, 0, 4 * kGibibyte, 8 * kGibibyte, 16 * kGibibyte};
    const Topology topology = topology_of(one_of(random, shapes), one_of(random, bandwidths),
                                          pick(random, 0, 3) == 0, one_of(random, memories));
    std::optional<Plan> plan;
    try {
      plan = make_plan(profile, topology, {});
    } catch (const InfeasibleError&) {
    }
    const double seconds = plan ? plan->predicted->minibatch_seconds : kNever;
    if (plan && plan->predicted->lower_bound_seconds > 0)
      gaps.push_back(seconds / plan->predicted->lower_bound_seconds);
    const auto note = [&](const std::string& what, double other) {
      rows[what].note(seconds, other);
      if (seconds <= 1.01 * other) return;
      std::printf("%s on %s: %.4g, %s %.4g\n", name.c_str(), topology.to_json().dump().c_str(), seconds,
                  what.c_str(), other);
    };
    for (const auto& [what, less] : with_less(topology))
      note("than with less " + std::string(what), best_seconds(profile, less));
    for (const char* strategy : {"dp", "straight", "hybrid", "model-parallel"}) {
      PlanRequest request;
      request.strategy = strategy;
      note("than " + std::string(strategy), best_seconds(profile, topology, request));
    }
    Topology alone = topology;
    for (TopologyLevel& level : alone.levels) level.count = 1;
    note("than one device", best_seconds(profile, alone));
    if (plan && moves > 0) {
      const double other = seconds_beside(random, *plan, moves, profile, topology);
      note("than random moves", other);
      if (other < kNever) beaten += seconds > 1.02 * other ? 1 : 0;
    }
    if (set != nullptr) std::fflush(stdout);
  }
  for (const auto& [what, row] : rows) {
    std::printf("%s: %lld cases, slower by > 1 %%: %lld, worst %.4f\n", what.c_str(),
                static_cast<long long>(row.cases), static_cast<long long>(row.worse), row.worst);
    CHECK(row.worst <= 1.02);
  }
  std::sort(gaps.begin(), gaps.end());
  if (gaps.empty()) return;
  std::printf(
      "%zu plans above their bound: median %.4f, 90 %% %.3f; beaten by random moves by > 2 %%: %lld\n",
      gaps.size(), gaps[gaps.size() / 2], gaps[gaps.size() * 9 / 10], static_cast<long long>(beaten));
}

}  // namespace
}  // namespace pipewright
