// Messages between two processes of this host: shm against Gloo over the loopback interface, in one run.
//
//   build/release/bin/benchmark_transport [ROUNDS]
//
// Rounds of the two transports alternate, so that what else the machine does meets both. A round is a number
// of ping-pongs of one size; one way is half of one. Printed: the median over rounds of the round's median,
// and the lowest and highest of them.
#include <ATen/ops/full.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "graph/error.h"
#include "runtime/transport/connect.h"

extern char** environ;

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

struct Size {
  const char* name;
  int64_t bytes;
  int repetitions;
};
constexpr Size kSizes[] = {{"1 KiB", 1 << 10, 400}, {"64 KiB", 64 << 10, 200}, {"4 MiB", 4 << 20, 30}};
const std::vector<std::string> kTransports = {"gloo", "shm"};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double one_way_seconds(Transport& transport, const Size& size) {
  const int64_t peer = 1 - transport.rank();
  const at::Tensor out = at::full({size.bytes}, 1, at::kByte);
  const at::Tensor in = at::full({size.bytes}, 0, at::kByte);
  std::vector<double> times;
  for (int i = 0; i < size.repetitions; ++i) {
    const auto begin = Clock::now();
    auto receive = transport.receive(in, peer, 0);  // posted early, as an inbox does
    if (transport.rank() == 0) {
      auto send = transport.send(out, peer, 0);
      receive->wait();
      send->wait();
    } else {
      receive->wait();
      transport.send(out, peer, 0)->wait();
    }
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 2);
  }
  return median(times);
}

void pin(int64_t rank) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  }
  if (cores.size() < 2) return;
  CPU_ZERO(&set);
  CPU_SET(cores[static_cast<size_t>(rank)], &set);
  sched_setaffinity(0, sizeof set, &set);
}

void run_rank(int64_t rank, int64_t port, int rounds) {
  pin(rank);
  Store store = Store::join("127.0.0.1", port, std::chrono::seconds(30));
  std::vector<std::unique_ptr<Transport>> transports;
  for (const std::string& name : kTransports) {
    ConnectSettings settings;
    settings.transport = name;
    settings.gloo_address = "127.0.0.1";
    settings.cores = 2;
    transports.push_back(connect_ranks(store, name, rank, 2, settings));
  }
  std::map<std::pair<size_t, size_t>, std::vector<double>> seconds;  // by size and transport
  for (int round = -1; round < rounds; ++round) {                    // the first does not count
    for (size_t s = 0; s < std::size(kSizes); ++s) {
      for (size_t t = 0; t < transports.size(); ++t) {
        const double time = one_way_seconds(*transports[t], kSizes[s]);
        if (round >= 0) seconds[{s, t}].push_back(time);
      }
    }
  }
  if (rank != 0) return;
  std::printf("one way, median of %d rounds (lowest .. highest)\n", rounds);
  for (size_t s = 0; s < std::size(kSizes); ++s) {
    std::printf("%-7s", kSizes[s].name);
    for (size_t t = 0; t < transports.size(); ++t) {
      const auto& times = seconds[{s, t}];
      std::printf("  %s %8.1f us (%.1f .. %.1f)", kTransports[t].c_str(), 1e6 * median(times),
                  1e6 * *std::min_element(times.begin(), times.end()),
                  1e6 * *std::max_element(times.begin(), times.end()));
    }
    std::vector<double> ratios;
    for (int i = 0; i < rounds; ++i) {
      ratios.push_back(seconds[{s, 1}][static_cast<size_t>(i)] / seconds[{s, 0}][static_cast<size_t>(i)]);
    }
    std::printf("  shm / gloo %.2f (%.2f .. %.2f)\n", median(ratios),
                *std::min_element(ratios.begin(), ratios.end()),
                *std::max_element(ratios.begin(), ratios.end()));
  }
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  using namespace pipewright;
  try {
    if (argc == 4) {  // the second process: RANK PORT ROUNDS
      run_rank(std::atoll(argv[1]), std::atoll(argv[2]), std::atoi(argv[3]));
      return 0;
    }
    const int rounds = argc == 2 ? std::atoi(argv[1]) : 15;
    if (argc > 2 || rounds < 1) throw InputError("benchmark_transport [ROUNDS]: ROUNDS is at least 1");
    const Store store = Store::serve(0);
    std::vector<std::string> words = {argv[0], "1", std::to_string(store.port()), std::to_string(rounds)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0) {
      throw RunError("the second process cannot be started");
    }
    run_rank(0, store.port(), rounds);
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "benchmark_transport: error: %s\n", error.what());
    return 1;
  }
}
