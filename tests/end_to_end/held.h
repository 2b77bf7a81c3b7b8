// What a running job holds, to see whether it grows.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tests/support/process.h"

namespace pipewright::testing {

/// Its ranks' descriptors, threads and resident memory, and the keys of its store.
struct Held {
  std::vector<int64_t> descriptors, threads, resident;
  int64_t keys = 0;

  static Held by(const Process& launcher) {
    Held held;
    for (const pid_t rank : launcher.children()) {
      const std::filesystem::path process = "/proc/" + std::to_string(rank);
      held.descriptors.push_back(entries(process / "fd"));
      held.threads.push_back(entries(process / "task"));
      held.resident.push_back(resident_bytes(rank));
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(std::stoi(variable_of(launcher.children().at(0), "MASTER_PORT")));
    options.waitWorkers = false;
    held.keys = c10d::TCPStore("127.0.0.1", options).getNumKeys();
    return held;
  }

 private:
  static std::string variable_of(pid_t pid, const std::string& name) {
    const std::string all =
        std::string(1, '\0') + Process::contents("/proc/" + std::to_string(pid) + "/environ");
    const std::string found = std::string(1, '\0') + name + "=";
    const size_t at = all.find(found);
    if (at == std::string::npos) return "";
    const size_t begin = at + found.size();
    return all.substr(begin, all.find('\0', begin) - begin);
  }
  static int64_t entries(const std::filesystem::path& folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
  static int64_t resident_bytes(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/statm");
    int64_t all = 0, resident = 0;
    in >> all >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  }
};

/// It holds no more than it did early on. What is on its way while we look (lines to rank 0, loaders and
/// connections that come and go) is given time to arrive; what is left behind stays.
inline void check_growth(const Held& early, const Process& launcher) {
  Held late;
  const auto more = [](int64_t now, int64_t before, int64_t room) { return now > before + room; };
  const auto settles = [&] {
    late = Held::by(launcher);
    bool grown = more(late.keys, early.keys, 10);
    for (size_t rank = 0; rank < std::min(early.threads.size(), late.threads.size()); ++rank)
      grown = grown || more(late.descriptors[rank], early.descriptors[rank], 2) ||
              more(late.threads[rank], early.threads[rank], 2);
    return !grown;
  };
  CHECK(eventually(std::chrono::seconds(60), settles));
  REQUIRE(early.threads.size() == late.threads.size());
  for (size_t rank = 0; rank < early.threads.size(); ++rank) {
    INFO("rank " << rank << ": descriptors " << early.descriptors[rank] << ", then " << late.descriptors[rank]
                 << "; threads " << early.threads[rank] << ", then " << late.threads[rank] << "; resident "
                 << early.resident[rank] << " B, then " << late.resident[rank] << " B; keys of the store "
                 << early.keys << ", then " << late.keys);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
    CHECK(late.resident[rank] - early.resident[rank] < 8 << 20);
#endif
  }
}

}  // namespace pipewright::testing
