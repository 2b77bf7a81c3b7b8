// How fast ranks were over time: what a disturbed run, or a simulation, follows (docs/formats.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "graph/json.h"

namespace pipewright {

struct SpeedPoint {
  double at_seconds = 0;  ///< since training began
  double factor = 1;      ///< from then on computing takes so many times as long; 1 or more
};

struct SpeedTrace {
  static constexpr const char* kSchema = "pipewright.speeds/1";

  std::map<int64_t, std::vector<SpeedPoint>> ranks;  ///< by rising time; a rank without points is never slow

  /// 1 before the rank's first point.
  double factor(int64_t rank, double at_seconds) const;

  static SpeedTrace from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;
};

/// InputError.
SpeedTrace read_speed_trace(const std::filesystem::path& file);

}  // namespace pipewright
