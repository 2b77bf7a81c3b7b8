// What only a GPU can show of interference: NVML's counters, hogs of a GPU, a data set of one. Each needs the
// GPU alone.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "interference/core_features.h"
#include "interference/data_set.h"
#include "interference/gpu_counters.h"
#include "models/device/cuda_plugin.h"
#include "profiler/gpu_hogs.h"
#include "tests/support/gpu.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

using namespace std::chrono_literals;

// Beside this program, wherever both were carried.
const std::string kProfiler =
    std::filesystem::read_symlink("/proc/self/exe").replace_filename("pipewright-profiler").string();

GpuCounters counters_of_gpu(at::Device device) {
  return GpuCounters(cuda_plugin("test").device_identity(device.index()));
}

TEST_CASE("cuda: NVML tells that the GPU works, and how fast its clock is", "[cuda][alone]") {
  const auto device = gpu();
  if (!device) return;
  const GpuCounters counters = counters_of_gpu(*device);
  const auto round = gpu_hog_round("matrix", *device);
  const auto until = std::chrono::steady_clock::now() + 10s;
  GpuReading reading;
  do {
    round();
    reading = counters.read();
  } while (!(reading.busy > 0.5) && std::chrono::steady_clock::now() < until);
  CHECK(reading.busy > 0.5);
  CHECK(reading.memory_busy >= 0);
  CHECK(reading.gigahertz > 0.1);
  CHECK((reading.throttled == 0 || reading.throttled == 1));
  CHECK((reading.others >= 0 && reading.others <= 1));
  // A container may count this process too.
  std::printf(
      "figure: NVML beside products of one process, busy: %.2f\n"
      "figure: NVML beside products of one process, busy with others: %.2f\n"
      "figure: NVML beside products of one process, clock: %.2f GHz\n",
      reading.busy, reading.others, reading.gigahertz);
}

TEST_CASE("cuda: hogs of each kind take the GPU, NVML sees them, and they are gone afterwards",
          "[cuda][alone]") {
  const auto device = gpu();
  if (!device) return;
  const GpuCounters counters = counters_of_gpu(*device);
  for (const std::string& kind : gpu_hog_kinds()) {
    CAPTURE(kind);
    const TemporaryFolder folder;
    Process hog({kProfiler, "hog", "--kind", kind, "--device", device->str(), "--processes", "2"},
                folder / "out", folder / "error");
    REQUIRE(eventually(60s, [&] { return hog.output() == "running\n"; }));
    CHECK(eventually(20s, [&] { return counters.read().others > 0.2; }));
    hog.signal(SIGTERM);
    CHECK(hog.wait(20s) == 0);
    CHECK_THAT(hog.output(), Catch::Contains("\"device\":\"" + device->str() + "\""));
  }
}

TEST_CASE("cuda: a data set of a GPU beside hogs knows the GPU's features, and that hogs slow it",
          "[cuda][alone]") {
  const auto device = gpu();
  if (!device) return;
  const TemporaryFolder folder;
  const std::string file = folder / "data.jsonl";
  Process made({kProfiler, "interference", "--device", device->str(), "--model",
                "gpt:layers=2,width=512,heads=8,tokens=256,vocabulary=512", "--batch-size", "8", "--most",
                "2", "--repeats", "2", "--segments", "1", "--output", file},
               folder / "out", folder / "error");
  REQUIRE(made.wait(200s) == 0);
  const InterferenceData data = read_interference_data(file);
  const auto others = static_cast<size_t>(
      std::find(data.features.begin(), data.features.end(), "gpu_others") - data.features.begin());
  double most = 0, most_of_quiet = 0, others_beside = 0;
  for (const InterferenceRow& row : data.rows) {
    CHECK_FALSE(std::isnan(row.features[others]));
    if (row.group == kQuietGroup) {
      most_of_quiet = std::max(most_of_quiet, row.slowdown);
    } else if (row.processes == 2) {
      most = std::max(most, row.slowdown);
      others_beside = std::max(others_beside, row.features[others]);
    }
  }
  CHECK(most > 1.5);
  CHECK(others_beside > 0.2);
  std::printf(
      "figure: a GPU beside two hogs, times as slow: %.2f (aim >= 1.5)\n"
      "figure: a quiet GPU, times as slow: %.2f\n"
      "figure: a GPU beside two hogs, busy with others: %.2f (aim >= 0.2)\n",
      most, most_of_quiet, others_beside);
}

}  // namespace
}  // namespace pipewright::testing
