#include "runtime/doctor/machine.h"

#include <ATen/Version.h>
#include <netdb.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "graph/error.h"
#include "models/device/cuda_plugin.h"
#include "models/device/device.h"
#include "models/memory/free_memory.h"
#include "runtime/control/board.h"
#include "runtime/launch/cores.h"
#include "runtime/transport/connect.h"
#include "runtime/transport/store.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{10};
constexpr const char* kSharedMemory = "/dev/shm";

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string first_line_of(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

Trial tried(const std::function<double()>& what) {
  Trial trial;
  try {
    trial.seconds = what();
  } catch (const std::exception& error) {
    trial.failure = error.what();
  }
  return trial;
}

// --- the processor ---

// Of the group this process is in, or of all of its container.
double cores_of_quota() {
  std::istringstream second(first_line_of("/sys/fs/cgroup/cpu.max"));  // version 2
  double quota = 0, period = 0;
  if (second >> quota >> period && period > 0) return quota / period;
  std::istringstream first(first_line_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")),
      of(first_line_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (first >> quota && of >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

bool binds_to(const std::vector<int>& cores) {
  if (cores.empty()) return false;
  bool done = false;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores.front(), &one);
    done = sched_setaffinity(0, sizeof one, &one) == 0;
  }).join();
  return done;
}

double load() {
  double of_a_minute = 0;
  return getloadavg(&of_a_minute, 1) == 1 ? of_a_minute : 0;
}

// Most of them are alike; the fastest of many is what a reading takes that nobody interrupts.
double clock_read_seconds() {
  constexpr int kReadings = 200;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 50; ++i) {
    const auto begin = Clock::now();
    for (int k = 0; k < kReadings; ++k) static_cast<void>(Clock::now());
    least = std::min(least, since(begin) / (kReadings + 1));
  }
  return least;
}

// --- memory and files ---

void find_memory(Machine* machine) {
  machine->memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  machine->free_memory_bytes = std::min(memory_there().bytes, machine->memory_bytes);
  int64_t most = 0, used = 0;  // of a container
  if (std::istringstream(first_line_of("/sys/fs/cgroup/memory.max")) >> most &&
      most < machine->memory_bytes) {
    machine->memory_bytes = most;
    if (std::istringstream(first_line_of("/sys/fs/cgroup/memory.current")) >> used)
      machine->free_memory_bytes = std::min(machine->free_memory_bytes, std::max<int64_t>(0, most - used));
  }
}

double write_mebibyte(const std::string& folder) {
  std::string name = folder + "/pipewright-doctor-XXXXXX";
  const auto begin = Clock::now();
  const int file = mkstemp(name.data());
  if (file < 0) throw RunError(folder + ": no file can be made: " + std::strerror(errno));
  const std::string content(1 << 20, 'x');
  const ssize_t written = write(file, content.data(), content.size());
  const int why = errno;
  close(file);
  unlink(name.c_str());
  if (written != static_cast<ssize_t>(content.size()))
    throw RunError(folder +
                   ": a file of 1 MiB cannot be written: " + (written < 0 ? std::strerror(why) : "no room"));
  return since(begin);
}

void find_shared_memory(Machine* machine) {
  struct statvfs found {};
  if (statvfs(kSharedMemory, &found) == 0) {
    const auto block = static_cast<int64_t>(found.f_frsize);
    machine->shared_memory_bytes = static_cast<int64_t>(found.f_blocks) * block;
    machine->free_shared_memory_bytes = static_cast<int64_t>(found.f_bavail) * block;
  }
  machine->shared_memory = tried([] { return write_mebibyte(kSharedMemory); });
}

int64_t open_files() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  constexpr auto kMost = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMost));
}

// --- the network ---

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::vector<std::string> addresses_of(const std::string& name) {
  struct addrinfo wanted {};
  wanted.ai_socktype = SOCK_STREAM;
  struct addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &wanted, &found) != 0) return {};
  const std::unique_ptr<struct addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  std::vector<std::string> addresses;
  std::set<std::string> known;
  for (const struct addrinfo* each = found; each; each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
            0 &&
        known.insert(text.data()).second)
      addresses.emplace_back(text.data());
  }
  return addresses;
}

double meet_at_store() {
  const auto begin = Clock::now();
  Store server = Store::serve(0, "doctor");
  Store other = Store::join("127.0.0.1", server.port(), kPatience, "doctor");
  if (!Board(other).claim(1) || Board(server).claim(1))
    throw RunError("what one rank writes into the store the other does not find");
  return since(begin);
}

// Two ranks, a thread each, as those of a job connect.
double message_over(const std::string& transport) {
  Store server = Store::serve(0, transport);
  std::array<double, 2> seconds{};
  std::array<std::exception_ptr, 2> failures;
  const auto rank = [&](int64_t number) {
    const auto i = static_cast<size_t>(number);
    try {
      Store store = Store::join("127.0.0.1", server.port(), kPatience, transport);
      ConnectSettings settings;
      settings.transport = transport;
      settings.gloo_address = "127.0.0.1";
      settings.timeout = kPatience;
      const auto connected = connect_ranks(store, "doctor", number, 2, settings);
      warm_links(*connected);
      const auto begin = Clock::now();
      warm_links(*connected);
      seconds[i] = since(begin);
      // Neither goes while the other still sends.
      const Board board(store);
      board.come_to(transport, number, 2);
      for (const auto until = Clock::now() + kPatience; !board.is_open(transport) && Clock::now() < until;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::thread first(rank, 0), second(rank, 1);
  first.join();
  second.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return std::max(seconds[0], seconds[1]);
}

void find_gpu(Machine* machine) {
  try {
    const at::Device first = open_device("cuda", "GPU");
    machine->gpu = {device_text(first)};
    for (const std::string& line : cuda_versions()) machine->gpu.push_back(line);
  } catch (const Error& error) {
    machine->gpu = {error.what()};
  }
}

}  // namespace

Machine look_at_machine(const std::string& program) {
  Machine machine;
  machine.name = host_name();
  machine.program = program;
  machine.load = load();  // before we compute ourselves
  machine.clock_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::vector<int> cores = usable_cores();
  machine.cores = static_cast<int64_t>(cores.size());
  machine.cores_of_all = sysconf(_SC_NPROCESSORS_ONLN);
  machine.cores_of_quota = cores_of_quota();
  machine.binds = binds_to(cores);
  find_memory(&machine);
  find_shared_memory(&machine);
  machine.temporary_folder = std::filesystem::temp_directory_path().string();
  machine.temporary_file = tried([&] { return write_mebibyte(machine.temporary_folder); });
  machine.open_files = open_files();
  machine.clock_read_seconds = clock_read_seconds();
  machine.clock_source = first_line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  machine.addresses = addresses_of(machine.name);
  machine.arithmetic = at::get_cpu_capability();
  find_gpu(&machine);
  machine.store = tried(meet_at_store);
  machine.gloo = tried([] { return message_over("gloo"); });
  machine.shm = tried([] { return message_over("shm"); });
  return machine;
}

}  // namespace pipewright
