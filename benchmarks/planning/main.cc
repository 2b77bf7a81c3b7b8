// Planning time: CPU seconds of one thread, median of several runs. benchmarks/RESULTS.md has figures.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/planning/chain.h"
#include "graph/error.h"
#include "graph/json.h"
#include "graph/pipedream.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"

namespace pipewright {
namespace {

constexpr const char* kProfiles[] = {"alexnet",  "vgg16",     "squeezenet1_0", "gnmt",
                                     "resnet50", "resnext50", "resnet101"};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Median of at least three runs, of more where they are short.
double median_seconds(const std::function<void()>& work) {
  std::vector<double> times;
  double total = 0;
  while (times.size() < 3 || (total < 0.05 && times.size() < 101)) {
    const double before = cpu_seconds();
    work();
    times.push_back(cpu_seconds() - before);
    total += times.back();
    if (total > 20) break;
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// The search of one profile on one level of equal devices.
void row(const std::string& name, const Profile& profile, const Topology& topology) {
  const Dataflow flow(profile);
  const States states = enumerate_states(flow, false);
  double period = 0;
  const double states_seconds = median_seconds([&] { enumerate_states(flow, false); });
  Problem problem;
  problem.states = &states;
  problem.inputs = cost_inputs(profile, topology, PlanRequest().optimizer_slots);
  problem.devices = topology.device_count();
  int64_t devices = 0;
  const double search_seconds = median_seconds([&] {
    const std::optional<Solution> solution = search(problem);
    period = solution->period_seconds;
    devices = solution->devices;
  });
  std::printf("| %-13s | %6d | %8lld | %10.6g | %7lld | %9.3f | %9.3f |\n", name.c_str(), states.size(),
              static_cast<long long>(problem.devices), 1e3 * period, static_cast<long long>(devices),
              1e3 * search_seconds, 1e3 * states_seconds);
  std::fflush(stdout);
}

/// A model with too many cuts to try all: the whole of make_plan, with its bound.
void wide_row(const Profile& profile, int64_t devices) {
  const Topology topology = flat_topology(devices, 1.25e9, 50e-6, 0);
  Plan plan;
  const double seconds = median_seconds([&] { plan = make_plan(profile, topology, PlanRequest()); });
  const double period = plan.predicted->minibatch_seconds;
  std::printf("| %s | %lld | %s | %.6g | %.2f %% | %.2f |\n", profile.model.c_str(),
              static_cast<long long>(devices), plan.shape_text().c_str(), 1e3 * period,
              100 * (period / plan.predicted->lower_bound_seconds - 1), seconds);
  std::fflush(stdout);
}

Profile profile_in(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path file = folder / (name + ".txt");
  return parse_pipedream_profile(read_file(file), file.string());
}

/// The whole of make_plan: one run.
void plan_row(const std::string& name, const Profile& profile, const Topology& topology) {
  Plan plan;
  PlanNotes notes;
  const double before = cpu_seconds();
  std::string found = "nothing fits";
  double above = 0, minibatch = 0;
  try {
    plan = make_plan(profile, topology, PlanRequest(), &notes);
    found = plan.shape_text();
    minibatch = plan.predicted->minibatch_seconds;
    above = minibatch / plan.predicted->lower_bound_seconds - 1;
  } catch (const InfeasibleError&) {
  }
  std::string shape;
  for (const TopologyLevel& level : topology.levels)
    shape += (shape.empty() ? "" : "x") + std::to_string(level.count) + (level.shared ? "s" : "");
  std::printf("| %s | %s | %.3g | %lld | %s | %.6g | %.2f %% | %.0f%s |\n", name.c_str(), shape.c_str(),
              topology.levels[0].bandwidth_bytes_per_second,
              static_cast<long long>(topology.memory_bytes >> 30), found.c_str(), 1e3 * minibatch,
              100 * above, 1e3 * (cpu_seconds() - before), notes.capped ? ", capped" : "");
  std::fflush(stdout);
}

/// make_plan with all that it prices, on one level and on two, with and without memory and shared links.
void plans(const std::filesystem::path& folder) {
  std::printf("| profile | devices | B/s | GiB | plan | ms | above the bound | CPU ms |\n");
  std::printf("| --- | --- | --: | --: | --- | --: | --: | --: |\n");
  for (const char* name : kProfiles) {
    const Profile profile = profile_in(folder, name);
    for (const double bandwidth : {1.25e8, 1.25e9, 1.25e10}) {
      for (const int64_t memory : {int64_t{0}, int64_t{8} << 30}) {
        plan_row(name, profile, flat_topology(16, bandwidth, 0, memory));
        for (const bool shared : {false, true}) {
          Topology servers = flat_topology(4, 8 * bandwidth, 0, memory);
          servers.levels.push_back({4, bandwidth, 0, false});
          servers.levels[0].shared = shared;
          plan_row(name, profile, servers);
          servers.levels[0].count = 8;
          servers.levels[1].count = 2;
          plan_row(name, profile, servers);
        }
      }
    }
  }
}

int run(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[2] : "searches";
  if (argc < 2 || argc > 3 || (what != "searches" && what != "plans")) {
    std::fprintf(stderr,
                 "usage: %s FOLDER_OF_PROFILES [searches|plans]   (PipeDream's graph.txt files, *.txt)\n",
                 argv[0]);
    return 2;
  }
  if (what == "plans") {
    plans(argv[1]);
    return 0;
  }
  std::printf("| profile       | states | devices  | period, ms | used    | search ms | states ms |\n");
  std::printf("| --- | --: | --: | --: | --: | --: | --: |\n");
  for (const char* name : kProfiles) {
    const Profile profile = profile_in(argv[1], name);
    for (const int64_t devices : {16, 64, 1024}) row(name, profile, flat_topology(devices, 1.25e9, 0, 0));
  }
  row("chain", chain_of(2'000), flat_topology(1024, 1.25e9, 1e-5, 0));
  row("chain", chain_of(10'000), flat_topology(4096, 1.25e9, 1e-5, 0));
  row("chain", chain_of(10'000), flat_topology(4096, 100e9, 1e-5, 0));
  std::printf(
      "\n| profile | devices | plan | ms | above the bound | CPU s |\n| --- | --: | --- | --: | --: | --: "
      "|\n");
  const Profile inception = profile_in(argv[1], "inception_v3");
  for (const int64_t devices : {4, 8, 16}) wide_row(inception, devices);
  std::printf("\npeak memory %.0f MiB\n", peak_mebibytes());
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
