// Planning again while a plan is in force: CPU milliseconds of one thread. benchmarks/RESULTS.md has the
// figures.
#include "optimizer/plan/replan.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "benchmarks/planning/chain.h"

namespace pipewright {
namespace {

constexpr int kRepeats = 5;
constexpr double kLongSeconds = 2;  // of a plan in force: as good as it becomes

double thread_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

Plan data_parallel(const Profile& profile, int64_t ranks) {
  Plan plan;
  plan.model = profile.model;
  plan.strategy = "manual";
  plan.world_size = ranks;
  Stage& stage = plan.stages.emplace_back();
  for (const ProfiledNode& node : profile.nodes) stage.nodes.push_back(node.name);
  for (int64_t rank = 0; rank < ranks; ++rank) stage.ranks.push_back(rank);
  return plan;
}

struct Event {
  const char* name;
  std::vector<double> slowdowns;
  SlowLinks links;
};

/// None; a rank that computes 2.5 times as long; a link that takes 20 times as long; both; none any more.
std::vector<Event> events_of(const Plan& plan) {
  const auto ranks = static_cast<size_t>(plan.world_size);
  const std::vector<double> quiet(ranks, 1);
  std::vector<double> slow = quiet;
  slow[ranks / 3] = 2.5;
  const int64_t from = plan.stages[0].ranks[0];
  const int64_t to = plan.stages.size() > 1 ? plan.stages[1].ranks[0] : plan.stages[0].ranks[1];
  const SlowLinks link = {{from, to, 20}};
  return {{"quiet", quiet, {}},
          {"rank", slow, {}},
          {"link", quiet, link},
          {"both", slow, link},
          {"back", quiet, {}}};
}

void rows(int64_t ranks, int nodes, bool limited, double budget_seconds) {
  const Profile profile = chain_of(nodes);
  Topology topology = flat_topology(ranks, 1.25e9, 50e-6, 0);
  const std::vector<double> quiet(static_cast<size_t>(ranks), 1);
  const auto quiet_plan = [&](const Plan& from) {
    return plan_again(profile, topology, from, quiet, {}, {}, kLongSeconds).plan;
  };
  Plan in_force = quiet_plan(data_parallel(profile, ranks));
  if (limited) {
    // A tenth more than its fullest rank needs.
    for (const StagePrediction& stage : in_force.predicted->stages)
      topology.memory_bytes = std::max(topology.memory_bytes, stage.memory.total_bytes() * 11 / 10);
    in_force = quiet_plan(in_force);
  }
  const Plan quiet_one = in_force;
  for (const Event& event : events_of(in_force)) {
    // Back: from the plan for the slow rank.
    in_force = event.name == std::string("back")
                   ? plan_again(profile, topology, quiet_one, events_of(quiet_one)[1].slowdowns).plan
                   : quiet_one;
    std::vector<double> times;
    Replanned again;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const double before = thread_milliseconds();
      again =
          plan_again(profile, topology, in_force, event.slowdowns, event.links, {quiet_one}, budget_seconds);
      times.push_back(thread_milliseconds() - before);
    }
    std::sort(times.begin(), times.end());
    std::printf("| %ld | %d | %s | %s | %.1f | %.1f | %.4g | %.4g | %.2f |\n", ranks, nodes,
                limited ? "yes" : "no", event.name, times[times.size() / 2], times.back(),
                1e3 * again.now_seconds, 1e3 * again.next_seconds, again.now_seconds / again.next_seconds);
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  if (argc > 4) {
    std::fprintf(stderr, "usage: %s [BUDGET_SECONDS [RANKS NODES]]\n", argv[0]);
    return 2;
  }
  const double budget = argc > 1 ? std::strtod(argv[1], nullptr) : kReplanSeconds;
  std::printf(
      "| ranks | nodes | memory limit | slow | CPU ms, median | most | ms a minibatch now | next | gain |\n"
      "| --: | --: | --- | --- | --: | --: | --: | --: | --: |\n");
  for (const int64_t ranks : {4, 16, 64}) {
    for (const int nodes : {50, 200, 500}) {
      if (argc == 4 && (ranks != std::atoi(argv[2]) || nodes != std::atoi(argv[3]))) continue;
      for (const bool limited : {false, true}) rows(ranks, nodes, limited, budget);
    }
  }
  return 0;
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  try {
    return pipewright::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
