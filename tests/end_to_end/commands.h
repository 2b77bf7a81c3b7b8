// Commands that run to their end, and what they said.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/end_to_end/jobs.h"

namespace pipewright::testing {

using Words = std::vector<std::string>;

struct Outcome {
  int code = 0;
  std::string output, error;
};

/// Files `out` and `err` of the folder hold what it printed, until the next command.
inline Outcome run_command(const TemporaryFolder& folder, const Words& words,
                           const std::map<std::string, std::string>& variables = {}) {
  Process process(words, folder / "out", folder / "err", variables);
  const int code = process.wait(std::chrono::seconds(300));
  return {code, process.output(), process.error()};
}

/// A program of ours, whose temporary files are the folder's.
inline Outcome run_program(const TemporaryFolder& folder, const std::string& name, const Words& words) {
  return run_command(folder, Words{program(name)} + words,
                     {{"TMPDIR", std::filesystem::path(folder / "").string()}});
}

inline Outcome runtime(const TemporaryFolder& folder, const Words& words) {
  return run_program(folder, "runtime", words);
}

}  // namespace pipewright::testing
