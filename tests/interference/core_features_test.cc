// Features of a core, from texts as Linux writes them, and from hosts that leave some of them out.
#include "interference/core_features.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

constexpr const char* kStat =
    "cpu  300 0 300 1000 0 0 0 0 0 0\n"
    "cpu0 100 10 50 500 20 5 5 7 0 0\n"
    "cpu1 200 0 250 500 0 0 0 0 0 0\n"
    "intr 166914 0 0\n"
    "ctxt 268319\n"
    "btime 1763000000\n"
    "procs_running 3\n"
    "procs_blocked 0\n";

size_t index_of(const std::string& name) {
  const std::vector<std::string> names = core_feature_names();
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

double feature(const std::vector<double>& features, const std::string& name) {
  return features.at(index_of(name));
}

// A host of two cores; a second in which core 1 was busy 0.9 s, of which the process had 0.3 s, its first
// thread all of it, while it waited 0.6 s.
struct Second {
  CoreReading first, second;
  Second() {
    first.at_seconds = 100;
    first.host = host_activity_of(kStat, 100);
    first.own = {5, 1};
    first.own_seconds = 6;
    first.taken = 10;
    first.cpu_pressure_seconds = 4;
    first.memory_pressure_seconds = 1;
    first.megahertz = second.megahertz = 2596.14;
    second = first;
    second.at_seconds = 101;
    second.host.cores[0].busy_seconds += 0.25;
    second.host.cores[1].busy_seconds += 0.9;
    second.host.cores[1].stolen_seconds += 0.05;
    second.host.switches += 400;
    second.host.runnable = 5;
    second.own = {5.3, 1.6};
    second.own_seconds = 6.3;
    second.taken = 40;
    second.cpu_pressure_seconds += 0.8;
    first.cache_misses = 1e6;
    second.cache_misses = 4e6;
    first.gpu = {0, 0, 0, 0, 0};
    second.gpu = {0.5, 0.75, 0.25, 1.41, 1};
  }
};

class DrawnHost {
 public:
  DrawnHost() {
    write("proc/stat", kStat);
    write("proc/pressure/cpu",
          "some avg10=0.00 avg60=0.22 avg300=0.34 total=3520532\nfull avg10=0 total=0\n");
    write("proc/self/schedstat", "2000000000 500000000 17\n");
    write("proc/self/task/11/schedstat", "2000000000 500000000 17\n");
    write("proc/self/task/12/schedstat", "1000000000 0 3\n");
    write("proc/self/status", "Name:\tx\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t42\n");
    write("proc/cpuinfo",
          "processor\t: 0\ncpu MHz\t\t: 1000.5\n\nprocessor\t: 1\nmodel name\t: x\ncpu MHz\t\t: 2596.140\n");
    write("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n");
  }
  void write(const std::string& file, const std::string& text) {
    const auto path = folder_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void remove(const std::string& file) { std::filesystem::remove_all(folder_ / file); }
  CoreReading read() const { return CoreReader(1, nullptr, folder_ / "").read(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("core texts: what /proc/stat says of each core, waiting for a disk and stolen time apart") {
  const HostActivity activity = host_activity_of(kStat, 100);
  REQUIRE(activity.cores.size() == 2);
  CHECK(activity.cores.at(0).busy_seconds == Approx(1.7));
  CHECK(activity.cores.at(0).stolen_seconds == Approx(0.07));
  CHECK(activity.cores.at(1).busy_seconds == Approx(4.5));
  CHECK(activity.switches == 268319);
  CHECK(activity.runnable == 3);
  // An old kernel has fewer columns.
  CHECK(host_activity_of("cpu3 1 2 3 4\n", 1).cores.at(3).busy_seconds == 6);
}

TEST_CASE("core texts: pressure, run queue, switches, frequency, siblings") {
  CHECK(pressure_seconds_of("some avg10=0.00 avg60=0.22 avg300=0.34 total=3520532\nfull total=7\n") ==
        Approx(3.520532));
  CHECK(thread_seconds_of("2000000000 500000000 17\n").waited_seconds == Approx(0.5));
  CHECK(involuntary_switches_of("voluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t42\n") == 42);
  CHECK(megahertz_of("processor : 0\ncpu MHz : 1000\nprocessor : 1\ncpu MHz : 2000\n", 1) == 2000);
  CHECK(cores_of_list("0-2,8\n") == std::vector<int64_t>{0, 1, 2, 8});
  CHECK(cores_of_list("5") == std::vector<int64_t>{5});
}

TEST_CASE("core texts: what is missing, cut short or nonsense is not known, and no error") {
  for (const std::string text : {"", "\n", "cpu", "cpux 1 2", "some total=", "some", "processor : 1\ncpu MHz",
                                 "nonvoluntary_ctxt_switches:", "\xff\xfe", "1-"}) {
    CAPTURE(text);
    CHECK(host_activity_of(text, 100).cores.empty());
    CHECK(std::isnan(host_activity_of(text, 100).switches));
    CHECK(std::isnan(pressure_seconds_of(text)));
    CHECK(std::isnan(thread_seconds_of(text).waited_seconds));
    CHECK(std::isnan(involuntary_switches_of(text)));
    CHECK(std::isnan(megahertz_of(text, 1)));
  }
  CHECK(cores_of_list("a").empty());
  CHECK(cores_of_list("3-1").empty());
  CHECK(cores_of_list("0-99999999999").empty());
}

TEST_CASE("features of a core between two readings") {
  const Second second;
  const std::vector<double> features = core_features(second.first, second.second, 1);
  CHECK(features.size() + 1 == core_feature_names().size());
  CHECK(feature(features, "others") == Approx(0.6));
  CHECK(feature(features, "stolen") == Approx(0.05));
  CHECK(feature(features, "neighbours") == Approx(0.25));
  CHECK(std::isnan(feature(features, "siblings")));
  CHECK(feature(features, "waiting") == Approx(2));
  CHECK(feature(features, "runnable") == Approx(2));
  CHECK(feature(features, "taken") == Approx(100));
  CHECK(feature(features, "switches") == Approx(200));
  CHECK(feature(features, "cpu_pressure") == Approx(0.8));
  CHECK(feature(features, "memory_pressure") == Approx(0).margin(1e-9));
  CHECK(feature(features, "gigahertz") == Approx(2.59614));
  CHECK(feature(features, "cache_misses") == Approx(1e7));
  CHECK(feature(features, "gpu_others") == 0.5);
  CHECK(feature(features, "gpu_busy") == 0.75);
  CHECK(feature(features, "gpu_memory_busy") == 0.25);
  CHECK(feature(features, "gpu_gigahertz") == 1.41);
  CHECK(feature(features, "gpu_throttled") == 1);
  CHECK(with_work(features, 7).back() == 7);
  CHECK(core_feature_names().back() == "work_bytes_per_second");
}

TEST_CASE("of a rank that is bound to no core only the GPU's features are known") {
  const Second second;
  const std::vector<double> features = core_features(second.first, second.second, std::nullopt);
  REQUIRE(features.size() + 1 == core_feature_names().size());
  for (size_t f = 0; f < features.size(); ++f) {
    CAPTURE(core_feature_names()[f]);
    CHECK(std::isnan(features[f]) == (core_feature_names()[f].rfind("gpu_", 0) != 0));
  }
  CHECK(feature(features, "gpu_others") == 0.5);
}

TEST_CASE("of a rank that hardly ran nothing is said for each second that it ran") {
  Second second;
  second.second.own = second.first.own;
  const std::vector<double> features = core_features(second.first, second.second, 1);
  CHECK(std::isnan(feature(features, "waiting")));
  CHECK(std::isnan(feature(features, "taken")));
  CHECK(std::isnan(feature(features, "cache_misses")));
  CHECK(feature(features, "others") == Approx(0.6));
}

TEST_CASE("a reading of a drawn host, and of one that leaves files out") {
  DrawnHost host;
  const CoreReading whole = host.read();
  CHECK(whole.host.cores.size() == 2);
  CHECK(whole.siblings == std::vector<int64_t>{0});
  CHECK(whole.own.ran_seconds == Approx(2));
  CHECK(whole.own_seconds == Approx(3));  // of all threads
  CHECK(whole.taken == 42);
  CHECK(whole.cpu_pressure_seconds == Approx(3.520532));
  CHECK(std::isnan(whole.memory_pressure_seconds));
  CHECK(whole.megahertz == Approx(2596.14));

  host.remove("proc");
  host.remove("sys");
  CoreReading first = host.read(), second = host.read();
  second.at_seconds = first.at_seconds + 1;
  for (const double value : core_features(first, second, 1)) CHECK(std::isnan(value));
}

TEST_CASE("this host is read") {
  const std::vector<int64_t> cores = cores_of_process();
  REQUIRE_FALSE(cores.empty());
  const CoreReader reader(cores[0]);
  // The kernel counts by its ticks: a process that has just begun may have run for none.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  CoreReading reading = reader.read();
  while (reading.own_seconds == 0 && std::chrono::steady_clock::now() < end) reading = reader.read();
  CHECK(reading.host.cores.count(cores[0]) == 1);
  CHECK(reading.own_seconds > 0);
  for (const double value : {reading.gpu.others, reading.gpu.busy, reading.gpu.memory_busy,
                             reading.gpu.gigahertz, reading.gpu.throttled})
    CHECK(std::isnan(value));
}

}  // namespace pipewright::testing
