// What a predictor of slowdowns learns from: features of a core, and how many times as long work took there.
// docs/formats.md has the file's format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace pipewright {

/// Group of the rows that were measured without hogs.
inline constexpr const char* kQuietGroup = "quiet";

struct InterferenceRow {
  std::string group;  ///< rows that are like each other: the kind of hog
  int64_t processes = 0;
  std::string work;              ///< what was measured, for people
  std::vector<double> features;  ///< NaN: not measured
  double slowdown = 1;           ///< above 0; seconds over quiet seconds
};

struct InterferenceData {
  static constexpr const char* kSchema = "pipewright.interference-data/1";

  std::vector<std::string> features;  ///< names
  std::vector<std::pair<std::string, std::string>> provenance;
  std::vector<InterferenceRow> rows;

  /// The same without these features.
  InterferenceData without(const std::vector<std::string>& names) const;
  /// JSON lines: one that says what it is, then one a row.
  std::string text() const;
};

/// Reads our own format or DynPipe's (lines of {"profile": {counter: value}, "output": {"time": slowdown,
/// what the network is like}}, told by its first line). Of DynPipe's the rows of a time of exactly 1, its
/// baselines, are left out, as it does; it does not say what ran beside, so its groups are stretches of rows.
/// InputError with file and line: no rows, a row whose features are others than those of the first, ...
InterferenceData read_interference_data(const std::filesystem::path& file);
InterferenceData parse_interference_data(const std::string& text, const std::string& where);

}  // namespace pipewright
