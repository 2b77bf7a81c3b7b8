// What the host says of the core that a rank computes on: the numbers from which the forest predicts how many
// times as long it takes there. Linux.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "interference/core_texts.h"

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
};

/// Reads them for one core. Takes some 0.2 ms.
class CoreReader {
 public:
  /// `root`: where proc/ and sys/ are, "/" but in tests.
  explicit CoreReader(int64_t core, std::filesystem::path root = "/") : core_(core), root_(std::move(root)) {}
  int64_t core() const { return core_; }
  /// Files that are not there make no error.
  CoreReading read() const;
  std::string text_of(const std::string& file) const;  ///< "" where it cannot be read

 private:
  const int64_t core_;
  const std::filesystem::path root_;
};

/// A feature, as the data set and the forest name it.
struct CoreFeature {
  const char* name;
  const char* summary;
  /// Not only of what others do: the threads of the rank itself and other ranks move it too, differently in a
  /// run and where the data set is made. In the data set, but no forest reads it.
  bool of_ranks_too = false;
};
/// In the order of core_features(). The last describes the work, not the core.
const std::vector<CoreFeature>& core_feature_rows();
std::vector<std::string> core_feature_names();
/// Those of `names` that a forest does not read.
std::vector<std::string> features_of_ranks_too(const std::vector<std::string>& names);

/// What was between two readings of `core`, but for the last feature; NaN where the host does not say.
/// `second` is later.
std::vector<double> core_features(const CoreReading& first, const CoreReading& second, int64_t core);

/// All of them: those, and bytes of memory that the work goes through in a second when quiet.
std::vector<double> with_work(std::vector<double> core, double bytes_per_second);

/// The cores that this process may run on.
std::vector<int64_t> cores_of_process();
/// The only one, if it is bound to one.
std::optional<int64_t> core_of_process();

}  // namespace pipewright
