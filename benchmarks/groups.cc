// What deciding groups costs rank 0: the scheduler alone at 64 pipelines of 16 stages, the server's CPU for a
// request, and how long a rank waits for an answer on this host. Figures: experiments/stragglers/RESULTS.md.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "runtime/groups/group_client.h"
#include "runtime/groups/group_server.h"
#include "runtime/side_by_side/group_scheduler.h"

namespace {

using namespace pipewright;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Every pipeline asks at every stage 100 times a second, at random times; waits are a millisecond.
void scheduler_alone(int64_t pipelines, int64_t stages, bool of_whole_pipelines) {
  GroupRules rules;
  rules.stages = stages;
  rules.pipelines = pipelines;
  rules.of_whole_pipelines = of_whole_pipelines;
  GroupScheduler scheduler(rules);
  std::mt19937_64 random(1);
  std::vector<std::pair<int64_t, int64_t>> ready;  // stage, pipeline
  for (int64_t s = 0; s < stages; ++s)
    for (int64_t p = 0; p < pipelines; ++p) ready.emplace_back(s, p);
  GroupScheduler::Time now{0};
  int64_t requests = 0;
  const auto hear = [&](const std::vector<GroupDecision>& decisions) {
    for (const GroupDecision& decision : decisions)
      for (const int64_t pipeline : decision.heard_by) ready.emplace_back(decision.stage, pipeline);
  };
  const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  while (requests < 400'000) {
    now += std::chrono::nanoseconds(10'000'000 / (stages * pipelines));
    if (const auto deadline = scheduler.deadline(); deadline && *deadline <= now) hear(scheduler.expire(now));
    if (ready.empty()) continue;
    const size_t which = random() % ready.size();
    std::swap(ready[which], ready.back());
    const auto [stage, pipeline] = ready.back();
    ready.pop_back();
    scheduler.announce(stage, pipeline, now, std::chrono::milliseconds(0));
    hear(scheduler.arrive(stage, pipeline, now,
                          {std::chrono::milliseconds(1), std::chrono::milliseconds(10)}));
    ++requests;
  }
  const double each = (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin) / static_cast<double>(requests);
  const double a_second = 100.0 * static_cast<double>(stages * pipelines);
  std::printf(
      "scheduler alone, %ld pipelines x %ld stages, scope %s: %.2f us a request; %.0f requests/s: %.1f %% of "
      "a core\n",
      pipelines, stages, of_whole_pipelines ? "pipeline" : "stage", 1e6 * each, a_second,
      100 * each * a_second);
}

// A rank that asks as often as it can, in a process of its own.
int ask(int64_t port, int requests) {
  GroupClientSettings settings;
  settings.host = "127.0.0.1";
  settings.server = {port, "benchmark"};
  settings.pipelines = 1;
  const auto groups = connect_groups(settings);
  std::vector<double> waits;
  for (int i = 0; i < requests; ++i) {
    const auto begin = Clock::now();
    groups->announce(0, 0, std::chrono::nanoseconds(0));
    groups->ask(0, 0, {});
    groups->await(0);
    waits.push_back(1e6 * seconds_since(begin));
  }
  std::sort(waits.begin(), waits.end());
  const auto at = [&](double part) {
    return waits[static_cast<size_t>(part * static_cast<double>(waits.size() - 1))];
  };
  std::printf("a request and its answer on this host: %.0f us (median), %.0f us (90 %%), %.0f us (99 %%)\n",
              at(0.5), at(0.9), at(0.99));
  return 0;
}

void server() {
  constexpr int kRequests = 20'000;
  GroupServer::Settings settings;
  settings.secret = "benchmark";
  GroupServer server(std::move(settings));
  std::fflush(stdout);
  const double begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const pid_t child = fork();
  if (child == 0) {
    const int code = ask(server.port(), kRequests);
    std::fflush(stdout);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const double each = (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - begin) / kRequests;
  std::printf(
      "the server, sockets and messages included: %.1f us of CPU a request; 1 %% of a core is %.0f "
      "requests/s\n",
      1e6 * each, 0.01 / each);
}

}  // namespace

int main() {
  scheduler_alone(64, 16, false);
  scheduler_alone(64, 16, true);
  scheduler_alone(8, 4, false);
  server();
}
