// What the host says of the core that a rank computes on, and of its GPU: the numbers from which the forest
// predicts how many times as long it takes there. Linux.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interference/cache_counter.h"
#include "interference/core_texts.h"
#include "interference/gpu_counters.h"

namespace pipewright {

/// One moment. NaN: the host does not say.
struct CoreReading {
  double at_seconds = 0;  ///< of a clock that never goes back
  HostActivity host;
  std::vector<int64_t> siblings;  ///< cores that share the core's units; not the core itself
  double own_seconds = 0;         ///< that this process' threads have had, of any core
  ThreadSeconds own;              ///< of its first thread, which computes
  double taken = 0;               ///< involuntary_switches_of() it
  double cpu_pressure_seconds = 0, memory_pressure_seconds = 0;
  double megahertz = 0;
  double cache_misses = std::numeric_limits<double>::quiet_NaN();  ///< of its first thread, since some moment
  GpuReading gpu;
};

/// Reads them for one core, for a GPU, or for both. Takes some 0.2 ms for a core.
class CoreReader {
 public:
  /// `core`: nothing where the process is bound to none; what is of a core is then not read. `gpu`: null
  /// where it computes on none. `root`: where proc/ and sys/ are, "/" but in tests.
  explicit CoreReader(std::optional<int64_t> core, std::unique_ptr<const GpuCounters> gpu = nullptr,
                      std::filesystem::path root = "/")
      : core_(core), gpu_(std::move(gpu)), root_(std::move(root)) {}
  const std::optional<int64_t>& core() const { return core_; }
  /// Files and counters that are not there make no error.
  CoreReading read() const;

 private:
  std::string text_of(const std::string& file) const;  // "" where it cannot be read
  void read_core(int64_t core, CoreReading* reading) const;

  const std::optional<int64_t> core_;
  const std::unique_ptr<const GpuCounters> gpu_;
  const std::filesystem::path root_;
  const CacheCounter cache_;
};

/// A feature, as the data set and the forest name it.
struct CoreFeature {
  const char* name;
  const char* summary;
  /// Not only of what others do: the threads of the rank itself and other ranks move it too, differently in a
  /// run and where the data set is made. In the data set, but no forest reads it.
  bool of_ranks_too = false;
};
/// In the order of core_features(): those of the core, then those of the GPU. The last describes the work.
const std::vector<CoreFeature>& core_feature_rows();
std::vector<std::string> core_feature_names();
/// Those of `names` that a forest does not read.
std::vector<std::string> features_of_ranks_too(const std::vector<std::string>& names);

/// What was between two readings of `core`, but for the last feature; NaN where the host does not say.
/// `second` is later. Without a core those of the GPU only.
std::vector<double> core_features(const CoreReading& first, const CoreReading& second,
                                  std::optional<int64_t> core);

/// All of them: those, and bytes of memory that the work goes through in a second when quiet.
std::vector<double> with_work(std::vector<double> core, double bytes_per_second);

/// The cores that this process may run on.
std::vector<int64_t> cores_of_process();
/// The only one, if it is bound to one.
std::optional<int64_t> core_of_process();

}  // namespace pipewright
