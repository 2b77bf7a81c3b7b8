// A GPU's counters, from a stand-in for NVIDIA's library, from libraries that lack functions or fail, and
// from none.
#include "interference/gpu_counters.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>

#include "interference/core_features.h"
#include "test_paths.h"
#include "tests/interference/fake_nvml.h"

namespace pipewright::testing {
namespace {

constexpr const char* kIdentity = "000102030405060708090a0b0c0d0e0f";

unsigned long long microseconds_ago(int64_t microseconds) {
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return static_cast<unsigned long long>(now.count() - microseconds);
}

// Open for as long as the test changes what it answers.
class StandInNvml {
 public:
  explicit StandInNvml(const std::string& name = "fake_nvml")
      : path_(std::string(PIPEWRIGHT_BINARY_DIR) + "/lib" + name + ".so"),
        library_(::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE(library_);
    state_ = reinterpret_cast<FakeNvmlState*>(::dlsym(library_, kFakeNvmlState))();
    *state_ = FakeNvml{};
  }
  ~StandInNvml() { ::dlclose(library_); }
  StandInNvml(const StandInNvml&) = delete;
  StandInNvml& operator=(const StandInNvml&) = delete;

  FakeNvml* operator->() const { return state_; }
  const std::string& path() const { return path_; }
  void add_sample(unsigned int process, unsigned int percent, int64_t age_microseconds = 100'000) {
    state_->samples.push_back({process, microseconds_ago(age_microseconds), percent, 1, 0, 0});
  }
  GpuReading read() const { return GpuCounters(kIdentity, path_).read(); }

 private:
  const std::string path_;
  void* const library_;
  FakeNvml* state_ = nullptr;
};

void check_nothing_known(const GpuReading& reading) {
  for (const double value :
       {reading.others, reading.busy, reading.memory_busy, reading.gigahertz, reading.throttled})
    CHECK(std::isnan(value));
}

unsigned int own_number() { return static_cast<unsigned int>(::getpid()); }

}  // namespace

TEST_CASE("gpu counters: NVML's name of a device is CUDA's identity with strokes") {
  CHECK(nvml_name(kIdentity) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
  CHECK(nvml_name("").empty());
  CHECK(nvml_name("the only one").empty());
}

TEST_CASE("gpu counters: shares, frequency and what holds the clock down") {
  StandInNvml nvml;
  nvml.add_sample(own_number(), 50);
  nvml.add_sample(own_number() + 1, 25);
  nvml.add_sample(own_number() + 2, 15);
  {
    const GpuCounters counters(kIdentity, nvml.path());
    CHECK(nvml->begun == 1);
    const GpuReading reading = counters.read();
    CHECK(reading.others == Approx(0.4));
    CHECK(reading.busy == Approx(0.8));
    CHECK(reading.memory_busy == Approx(0.3));
    CHECK(reading.gigahertz == Approx(1.41));
    CHECK(reading.throttled == 0);
    // Idle, or by settings: nobody else is the reason.
    nvml->reasons = 0x1 | 0x2 | 0x10 | 0x100;
    CHECK(counters.read().throttled == 0);
    for (const unsigned long long reason : {0x4, 0x8, 0x20, 0x40, 0x80}) {
      nvml->reasons = reason | 0x2;
      CHECK(counters.read().throttled == 1);
    }
  }
  CHECK(nvml->begun == 0);
}

TEST_CASE("gpu counters: what other processes had is their samples of the last second or so") {
  StandInNvml nvml;
  CHECK(nvml.read().others == 0);
  CHECK(nvml->asked_since < microseconds_ago(1'000'000));
  CHECK(nvml->asked_since > microseconds_ago(60'000'000));
  nvml.add_sample(own_number(), 100);
  CHECK(nvml.read().others == 0);
  nvml.add_sample(own_number() + 1, 30, 200'000);
  nvml.add_sample(own_number() + 1, 50, 100'000);
  CHECK(nvml.read().others == Approx(0.4));  // two samples of one process: their mean
  nvml.add_sample(own_number() + 2, 90);
  CHECK(nvml.read().others == 1);  // no more than all of it
  nvml->samples.clear();
  nvml.add_sample(own_number() + 1, 3'000'000);  // nonsense
  nvml.add_sample(own_number() + 2, 60, 30'000'000);
  nvml.add_sample(own_number() + 3, 20);
  CHECK(nvml.read().others == Approx(0.2));
  nvml->shows_old_samples = true;
  CHECK(nvml.read().others == Approx(0.2));
}

TEST_CASE("gpu counters: a call that fails leaves its own numbers out, and no others") {
  StandInNvml nvml;
  nvml.add_sample(own_number() + 1, 25);
  const auto known = [&](const std::string& failing) {
    nvml->failing = {failing};
    const GpuReading reading = nvml.read();
    CHECK(nvml->begun == 0);
    return std::vector<bool>{!std::isnan(reading.others), !std::isnan(reading.busy),
                             !std::isnan(reading.memory_busy), !std::isnan(reading.gigahertz),
                             !std::isnan(reading.throttled)};
  };
  using Known = std::vector<bool>;
  CHECK(known("") == Known{true, true, true, true, true});
  CHECK(known("Init_v2") == Known(5));
  CHECK(known("DeviceGetHandleByUUID") == Known(5));
  CHECK(known("DeviceGetProcessUtilization") == Known{false, true, true, true, true});
  CHECK(known("DeviceGetProcessUtilization twice") == Known{false, true, true, true, true});
  CHECK(known("DeviceGetUtilizationRates") == Known{true, false, false, true, true});
  CHECK(known("DeviceGetClockInfo") == Known{true, true, true, false, true});
  CHECK(known("DeviceGetCurrentClocksReasons") == Known{true, true, true, true, false});
}

TEST_CASE("gpu counters: an old library has what it has, by its old names") {
  StandInNvml nvml("fake_old_nvml");
  nvml->reasons = 0x20;
  const GpuReading reading = nvml.read();
  CHECK(std::isnan(reading.others));
  CHECK(reading.busy == Approx(0.8));
  CHECK(reading.gigahertz == Approx(1.41));
  CHECK(reading.throttled == 1);
}

TEST_CASE(
    "gpu counters: no library, one of another kind, an unknown device: nothing is known, and no error") {
  const StandInNvml nvml;
  check_nothing_known(GpuCounters(kIdentity, "/no/such/library.so").read());
  check_nothing_known(GpuCounters(kIdentity, "libm.so.6").read());
  check_nothing_known(GpuCounters("ff0102030405060708090a0b0c0d0e0f", nvml.path()).read());
  check_nothing_known(GpuCounters("the only one", nvml.path()).read());
  CHECK(nvml->begun == 0);
  CHECK_NOTHROW(GpuCounters(kIdentity).read());  // this machine's own, if it has one
}

TEST_CASE("a rank on a GPU that is bound to no core is read, and one that is bound has both") {
  StandInNvml nvml;
  nvml.add_sample(own_number() + 1, 25);
  const auto features_of = [&](std::optional<int64_t> core) {
    const CoreReader reader(core, std::make_unique<const GpuCounters>(kIdentity, nvml.path()));
    const CoreReading first = reader.read();
    CoreReading second = reader.read();
    while (second.at_seconds == first.at_seconds) second = reader.read();
    return core_features(first, second, reader.core());
  };
  const std::vector<std::string> names = core_feature_names();
  const auto at = [&](const char* name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const std::vector<double> unbound = features_of(std::nullopt), bound = features_of(cores_of_process()[0]);
  CHECK(unbound.at(at("gpu_others")) == Approx(0.25));
  CHECK(bound.at(at("gpu_others")) == Approx(0.25));
  CHECK(std::isnan(unbound.at(at("runnable"))));
  CHECK_FALSE(std::isnan(bound.at(at("runnable"))));
}

}  // namespace pipewright::testing
