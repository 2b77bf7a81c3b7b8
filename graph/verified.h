// What came of verifying a run, as its folder remembers it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "graph/json.h"

namespace pipewright {

struct Verified {
  static constexpr const char* kSchema = "pipewright.verified/1";

  int64_t first_minibatch = 0;
  int64_t minibatches = 0;
  int64_t tensors = 0;
  std::string program;  ///< "Pipewright 0.1.0, LibTorch 2.11.0"
  std::string command;  ///< that does it again
  /// Optional key: what was not equal, and where it differs first; "": all was.
  std::string difference{};

  static Verified from_json(JsonReader& reader);
  Json to_json() const;
  void validate(const std::string& where) const;
};

inline constexpr const char* kVerifiedName = "verified.json";

/// Nothing where the run has not been verified since it ended. InputError for a damaged file.
std::optional<Verified> read_verified(const std::filesystem::path& folder);

}  // namespace pipewright
