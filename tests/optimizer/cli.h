// pipewright-optimizer as a process, for tests.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "graph/document.h"
#include "graph/profile.h"
#include "test_paths.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {

struct Outcome {
  int code = -1;
  std::string out;
  std::string error;
};

class Cli {
 public:
  Cli() {
    std::mt19937 random(21);
    Profile profile;
    for (int seed = 0; profile.nodes.size() < 6; ++seed) profile = random_profile(random, 6, true, 40);
    for (ProfiledNode& node : profile.nodes) {
      node.forward_seconds += 2e-3;
      node.outputs[0].bytes += 500;
      node.saved_bytes = 1000;
      node.parameter_bytes = node.trainable_parameter_bytes = 2000;
      node.parameters = {node.name + ".weight"};
    }
    write_document(folder_ / "profile.json", profile);
  }

  /// Runs the optimizer in the folder, on a terminal of so many columns (0: on none); words are split by the
  /// shell.
  Outcome run(const std::string& words, int64_t columns = 0) const {
    const std::string command = "cd '" + folder_.path().string() + "' && env -u COLUMNS " +
                                (columns > 0 ? "COLUMNS=" + std::to_string(columns) : "") + " '" +
                                PIPEWRIGHT_BINARY_DIR + "/pipewright-optimizer' " + words + " > out 2> error";
    const int status = std::system(command.c_str());
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome.out = read_file(folder_ / "out");
    outcome.error = read_file(folder_ / "error");
    return outcome;
  }

  bool has(const std::string& file) const { return std::filesystem::exists(folder_ / file); }
  std::filesystem::path path(const std::string& file) const { return folder_ / file; }

 private:
  TemporaryFolder folder_;
};

inline const std::string kProblem = "--profile profile.json --gpus 4 --bandwidths 1MB/s --latency 10us ";

}  // namespace pipewright::testing
