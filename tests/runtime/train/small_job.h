// A job of a small model on made-up images, in a folder that goes with the test.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "graph/document.h"
#include "runtime/job/job.h"
#include "runtime/launch/place.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {

/// Twelve minibatches an epoch, two epochs.
inline Run small_run(const TemporaryFolder& folder) {
  Run run;
  run.model = "mlp:layers=3,width=8,image=4,channels=1";
  run.data = "synthetic-images:image=4,channels=1,samples=48";
  run.batch_size = 4;
  run.minibatches = 24;
  run.trace_minibatches = 0;
  run.output = (folder / "run").string();
  return run;
}

inline Place only_rank() {
  Place place;
  place.local_ranks = 1;
  return place;
}

inline std::vector<Json> metrics_of(const Run& run) {
  std::vector<Json> lines;
  const std::string text = read_file(std::filesystem::path(run.output) / "metrics.jsonl");
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(parse_json(text.substr(begin, end - begin), "metrics.jsonl"));
  return lines;
}

}  // namespace pipewright::testing
