// Runs that lose ranks, on top of those of changing_runs.h.
#pragma once

#include <algorithm>
#include <string>

#include "graph/summary.h"
#include "tests/end_to_end/changing_runs.h"

namespace pipewright::testing {

inline std::string weights(const std::filesystem::path& output) {
  return Process::contents(output / "model.safetensors");
}

inline Summary summary_of(const std::filesystem::path& output) {
  return read_document<Summary>(output / "summary.json");
}

inline bool nothing_is_kept(const std::filesystem::path& output) {
  const std::filesystem::directory_iterator files(output);
  return std::none_of(begin(files), end(files), [](const auto& entry) {
    return entry.path().filename().string().rfind(".kept", 0) == 0;
  });
}

/// The profile of the job's model, with which its ranks plan again.
inline std::string profile_of(const TemporaryFolder& folder) {
  const std::string file = (folder / "profile.json").string();
  const Outcome done = run_program(
      folder, "profiler", {"profile", "--model", kEndlessModel, "--batch-size", "8", "--output", file});
  INFO(done.error);
  REQUIRE(done.code == 0);
  return file;
}

}  // namespace pipewright::testing
